"""Attempts of jobs as Slurm jobs.

``step`` and ``settled`` are pure functions that say what becomes of an attempt. ``driver`` reads the
evidence, calls them, and carries out the effects.
"""
