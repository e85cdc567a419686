"""Policies for several classes of resource: met, mct and its kin with backfilling and migration."""
