"""The Slurm engine: Slurm starts jobs and carries them to their nodes; tenbin chooses what, where and when.

Each attempt of a job is a Slurm job of its own, pinned to the nodes that tenbin chose. Its batch script is
``tenbin agent exec``, so that an attempt is the same folder of files as on one machine, on a shared disk.
The rooms, from the lowest: ``client``, ``nodes``, ``external``, ``attempts``, ``engine``, ``discovery``;
``admin`` measures, checks and configures a cluster.
"""
