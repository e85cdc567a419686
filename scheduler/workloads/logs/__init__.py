"""Readers of job logs and traces. Each is one file here and one line in ``scheduler.workloads``.

While arrivals are read, a reader raises BadInput if a file cannot be read or ends within its compressed data,
and with ``strict`` at a line that cannot be used.
"""
