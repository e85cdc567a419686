"""Policies that let jobs share nodes, by their predicted slow-downs.

``sharing`` is their base, ``pairing`` has the rules that group jobs, ``pairs`` suggests groups of profiles.
"""
