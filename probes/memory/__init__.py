"""Memory bandwidth, and the slow-down of writers beside each other (memprobe).

A ``writer`` is a process on one core, a ``pool`` has them write at the same time. ``probe`` measures the
windows of a ``plan``; ``stream`` is memprobe as a neighbour of jobs.
"""
