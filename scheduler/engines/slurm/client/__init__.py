"""Slurm's commands and their output, the thread that calls them, and heartbeats of attempts."""
