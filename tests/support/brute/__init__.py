"""Policies written down a second time, second by second."""
