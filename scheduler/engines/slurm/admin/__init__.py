"""Tools for the administrator of a cluster.

``doctor`` says how far tenbin can steer this Slurm. ``survey`` measures nodes and the network between them.
``slurm_conf`` writes files for Slurm.
"""
