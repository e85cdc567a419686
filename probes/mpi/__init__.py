"""MPI programs: ``runner`` finds the MPI, builds its command lines, and runs ranks.

A ``rank_guard`` reports how its rank ended, from which ``rank_failure`` finds the first to fail.
The guard's path stands in orders that may wait in a queue across an upgrade.
"""
