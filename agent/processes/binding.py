"""The CPUs of a job that shares its node, if Slurm has not bound its supervisor to them."""

from __future__ import annotations

import os
from pathlib import Path


def cpus_of(places: tuple[int, ...]) -> tuple[int, ...]:
    """One CPU of each of these whole cores: counted from 0, neighbours in cache and memory together.

    Returns: none where this process may not use all of the node: then what it may use is for the job alone,
    as Slurm's task plugins have it; nor where the node has no such cores.
    """
    from probes.topology import read_topology

    allowed = os.sched_getaffinity(0)
    cores = read_topology(Path("/sys"), allowed).cores
    if len(allowed) < (os.cpu_count() or 1) or max(places, default=0) >= len(cores):
        return ()
    return tuple(cores[place].index for place in places)
