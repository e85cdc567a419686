"""Tools for the administrator of a cluster.

``doctor`` says how far tenbin can steer this Slurm. ``survey`` measures nodes and the network between them.
``slurm_conf`` and ``job_submit`` write files for Slurm.
"""
