"""What a policy decides about: jobs, clusters, placements, events, actions and the cluster state.

Everything else in ``scheduler`` rests on it.
"""
