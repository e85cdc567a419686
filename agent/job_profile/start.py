"""The start of a job's command: as it is on its cores, or as ranks, here or over hosts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from probes.mpi.launchers import MpiInstall


@dataclass(frozen=True)
class Start:
    """A command on ``cpus``; mpiexec places ranks among them."""

    command: tuple[str, ...]
    cpus: tuple[int, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def plain(command: Sequence[str], cpus: Sequence[int]) -> Start:
    """Start the command itself."""
    return Start(tuple(command), tuple(cpus))


def as_ranks(
    mpi: MpiInstall,
    command: Sequence[str],
    cores: Sequence[int],
    *,
    limit_s: float,
    hosts: Sequence[str] = (),
) -> Start:
    """Start the command as ranks, one on each of ``cores``, in their order over the hosts (empty: here)."""
    started = mpi.job_command(len(cores), command, [[core] for core in cores], hosts)
    # Hosts that are namespaces of this machine have their ranks below mpiexec, wherever they are bound to.
    allowed = sorted(os.sched_getaffinity(0)) if hosts else cores
    return Start(tuple(started), tuple(allowed), mpi.environment(limit_s))
