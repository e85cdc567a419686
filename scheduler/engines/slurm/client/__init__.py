"""Slurm's own commands: how they are called, what their output means, and who asks them regularly."""
