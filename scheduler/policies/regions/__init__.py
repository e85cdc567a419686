"""Policies that divide a pool into regions by the size of jobs.

``regions`` decides when to divide anew, ``region_sizing`` computes bounds and sizes.
"""
