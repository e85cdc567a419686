"""Batch scripts: ``#TENBIN`` lines, which are options of ``tenbin submit``, and ``#SBATCH`` lines of Slurm.

``script`` reads a file, ``sbatch_options`` reads Slurm's options, ``needs`` makes fields of a JobSpec of
their values, ``command`` joins the lines with the command line.
"""
