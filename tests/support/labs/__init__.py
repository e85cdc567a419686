"""Machines, networks and clusters in the small."""
