"""Node profiles: each probe runs in a process of its own, and its samples are fitted and stored."""
