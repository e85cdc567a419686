"""Jobs on a Slurm cluster beside Slurm alone."""
