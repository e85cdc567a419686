"""Job profiles: a program runs alone and beside probes, and what it needs and suffers is sampled."""
