"""Short slices of the probes' own measurements, interleaved, for a check of at most 30 s.

``slices`` are of memory, cores, a disk, and messages. ``probe`` interleaves them.
"""
