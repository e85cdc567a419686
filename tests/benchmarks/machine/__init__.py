"""Probes beside their peers."""
