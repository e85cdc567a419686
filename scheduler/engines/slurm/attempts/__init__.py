"""Attempts of jobs as Slurm jobs: the batch script, the state of each attempt, signals, orphaned jobs."""
