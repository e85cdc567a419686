"""Engines carry decisions out and report what happened: on this machine, or on a cluster.

``protocol`` is the contract of all of them, ``registry`` lists them.
"""
