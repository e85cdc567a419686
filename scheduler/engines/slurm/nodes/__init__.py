"""The nodes of a Slurm cluster: inventory, states, devices, and partitions for regions."""
