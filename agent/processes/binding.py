"""The CPUs of a job that shares its node, if Slurm has not bound its supervisor to them."""

from __future__ import annotations

import os
from pathlib import Path


def cpus_of(places: tuple[int, ...]) -> tuple[int, ...]:
    """Return one CPU of each of these whole cores, counted from 0 with neighbours in cache side by side.

    Returns: none if this process may use only a part of the node, because Slurm's task plugins then gave that
        part to the job; and none if the node has no such cores.
    """
    from probes.topology import read_topology

    allowed = os.sched_getaffinity(0)
    cores = read_topology(Path("/sys"), allowed).cores
    if len(allowed) < (os.cpu_count() or 1) or max(places, default=0) >= len(cores):
        return ()
    return tuple(cores[place].index for place in places)
