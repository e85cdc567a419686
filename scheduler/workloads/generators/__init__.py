"""Generators of jobs. Each is one file here and one line in ``scheduler.workloads``."""
