"""Probes of a node: each returns a tidy table of raw samples, one row an observation.

``registry`` lists the probes, ``run`` is the interface between a probe and the profiler. Probes fit nothing.
"""
