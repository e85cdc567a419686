"""The Slurm engine: Slurm starts jobs and carries them to their nodes; tenbin chooses what, where and when.

Each attempt of a job is a Slurm job of its own, pinned to the nodes that tenbin chose. Its batch script is
``tenbin agent exec``, so that an attempt is the same folder of files as on one machine, on a shared disk.

``attempt_step`` has the pure functions that say what becomes of an attempt. ``attempt_driver`` reads the
evidence, calls them, and carries out the effects, by the thread of ``poller``, which runs ``slurm_commands``.
``engine`` is the whole, ``discovery`` finds what is there; ``admin`` measures, checks and configures a
cluster.
"""
