"""MPI programs: which MPI is here, how its ranks are started and guarded, and how a rank failed."""
