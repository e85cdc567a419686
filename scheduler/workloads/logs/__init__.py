"""Readers of job logs and traces. Each is one file here and one line in ``scheduler.workloads``."""
