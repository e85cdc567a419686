"""Short slices of the probes' own measurements, interleaved, for a check of at most 30 s.

``memory``, ``cores``, ``disk`` and ``messages`` are the parts, each with its slices. ``probe`` interleaves
them.
"""
