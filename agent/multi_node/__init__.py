"""Jobs on several nodes: their ranks, a keeper on each remote node, and leases.

A lease ends what runs on a node that nobody reaches, so that the job can run elsewhere.
"""
