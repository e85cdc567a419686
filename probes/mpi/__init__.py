"""MPI programs: ``detection`` of the MPI, command lines of its ``launchers``, and the ``runner`` of ranks.

A ``rank_guard`` reports how its rank ended, from which ``rank_failure`` finds the first to fail. ``mpi_time``
counts the time inside MPI.
"""
