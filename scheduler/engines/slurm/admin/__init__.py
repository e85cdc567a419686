"""What an administrator needs: whether a cluster is fit for tenbin, what its nodes are like, lines for
slurm.conf.
"""
