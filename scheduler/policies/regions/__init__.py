"""Policies that divide a pool into regions by the size of jobs."""
