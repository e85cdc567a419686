"""Checks of a node: short slices of the probes, and what of the machine differs from its profile."""
