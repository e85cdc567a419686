"""Emulated machines: files of power zones and counters that behave as real ones do.

What is measured on them is marked as emulated.
"""
