"""The nodes of a Slurm cluster: heartbeats, failures, devices, partitions, power."""
