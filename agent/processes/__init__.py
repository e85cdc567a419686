"""Processes of a job and how they are handled: their tree, memory limit, CPUs, umask and use over time.

Nothing here knows of attempts.
"""
