"""Policies for several classes of resource: met, mct and its kin with backfilling and migration.

``plan`` plans one job, and has what the policies keep of each job.
"""
