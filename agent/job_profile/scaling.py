"""The speed-up of a program over cores: it runs alone, again and again, on more and fewer of them.

Counts alternate in random order, so that a slow minute of the machine falls on all of them. The program finds
the count in place of ``{n}`` in its command, in ``TENBIN_TASKS`` and in ``OMP_NUM_THREADS``. It may run on
that many cores only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from agent.job_profile.session import cores_of
from agent.job_profile.trial import RunOutcome, Start, Trial, as_ranks, check, plain
from agent.measured_node import node_lock
from probes.mpi.runner import MpiInstall, find_mpi
from probes.visits import Point, Visits
from profiles.errors import BadInput
from profiles.models import downey
from profiles.quantities import counted
from profiles.records import Model

LEAST, QUICK, MOST = 2, 3, 8  # repetitions of each count
TOLERANCE = 0.03


class Hosts(NamedTuple):
    """The hosts of ranks.

    Attributes:
        cores: a logical CPU of each core, host by host.
        boots: boot ids; hosts with the same boot id share one machine's cores.
    """

    names: tuple[str, ...]
    cores: tuple[tuple[int, ...], ...]
    boots: tuple[str, ...]

    @property
    def most(self) -> int:
        """The largest number of ranks, with as many on each host and one a core."""
        return len(self.names) * min(len(cores) for cores in self.cores)

    @property
    def emulated(self) -> bool:
        """Tell if some hosts are namespaces of one machine."""
        return len(set(self.boots)) < len(self.boots)

    def ranks(self, n: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Place ``n`` ranks, as many on each host but the last; return hosts, and the core of each rank.

        Hosts that share cores take them in turns, so that ranks share no core before they must.
        """
        per_host = -(-n // len(self.names))
        used, taken, chosen = -(-n // per_host), Counter[str](), list[int]()
        for boot, cores, begin in zip(self.boots, self.cores, range(0, n, per_host), strict=False):
            there = min(per_host, n - begin)
            chosen += [cores[(taken[boot] + i) % len(cores)] for i in range(there)]
            taken[boot] += there
        return self.names[:used], tuple(chosen)


class ScalingOrder(NamedTuple):
    """The command to run, and on how many cores.

    Attributes:
        counts: counts of cores, ascending from 1. cpus: a logical CPU of each core of this node.
        limit_s: longest time of a run.
        budget_s: time in which repetitions beyond the second must end.
        mpi: start the command as so many ranks. hosts: their hosts; None: this node.
    """

    command: tuple[str, ...]
    folder: str
    counts: tuple[int, ...]
    cpus: tuple[int, ...]
    limit_s: float = 600.0
    budget_s: float = 1200.0
    quick: bool = False
    seed: int = 1
    mpi: bool = False
    hosts: Hosts | None = None


def ask(names: Sequence[str]) -> Hosts:
    """Ask each host for its cores.

    Raises:
        BadInput, Unavailable: a host lacks something, or there is no MPI.
    """
    cores, boots = cores_of(names, find_mpi())
    return Hosts(tuple(names), tuple(cores), tuple(boots))


def check_counts(counts: Sequence[int], cores: int, where: str = "this process may use") -> tuple[int, ...]:
    """Sort and check the counts.

    Raises:
        BadInput: 1 is not among them, or there are not so many cores.
    """
    ascending = tuple(sorted(set(counts)))
    if len(ascending) < 2 or ascending[0] != 1:
        raise BadInput(f"--scale {','.join(map(str, counts))}: needs 1 and larger counts", "such as 1,2,4")
    if ascending[-1] > cores:
        raise BadInput(f"--scale {ascending[-1]}: {where} {counted(cores, 'core')}", f"go up to {cores}")
    return ascending


def on_cores(command: Sequence[str], n: int) -> tuple[str, ...]:
    """Fill the count of cores into the command."""
    return tuple(word.replace("{n}", str(n)) for word in command)


def measure(what: ScalingOrder, tell: Callable[[str], None] = lambda doing: None) -> tuple[pd.DataFrame, str]:
    """Run the command on each count of cores, and return a table and what stayed uncertain ("").

    The table: rows ``cores``, ``repetition``, ``wall_s``, ``cpu_s``.

    Each count has ``LEAST`` repetitions, then more until the medians are known to 3 %, or the time is up.

    Raises:
        CommandFailed: a run fails, or takes too long.
        Busy: a profile is being measured on this node.
        Unavailable: ranks without an MPI.
    """
    rng, rows = np.random.default_rng(what.seed), list[dict[str, float]]()
    mpi = find_mpi() if what.mpi else None
    until_s = time.monotonic() + what.budget_s
    visits = Visits(
        [Point(n, least=LEAST, most=QUICK if what.quick else MOST) for n in what.counts],
        rng,
        lambda: until_s - time.monotonic(),
        target=None if what.quick else TOLERANCE,
        whole=True,
    )
    with node_lock():
        for visit in visits:
            n = visit.key
            tell(f"scaling, repetition {visit.count}: alone on {n} core{'s' * (n > 1)}")
            ended = _run(what, n, mpi)
            visit.values.append(ended.wall_s)
            times = {"wall_s": ended.wall_s, "cpu_s": ended.cpu_s}
            rows.append({"cores": n, "repetition": visit.count, **times})
    wide = visits.describe_wide(lambda n: f"{n} core{'s' * (n > 1)}")
    return pd.DataFrame(rows), f"run times over cores not known to {TOLERANCE:.0%}: {wide}" if wide else ""


def fit(samples: pd.DataFrame, hosts: Hosts | None = None) -> Model:
    """Downey's T1, A and sigma of the run times over cores; ``hosts``: of these."""
    times = samples["cores"].tolist(), samples["wall_s"].tolist()
    labels = {"hosts": ",".join(hosts.names)} if hosts else {}
    emulated = hosts is not None and hosts.emulated
    return downey.fit(*times, probe="job", quantity="run_s", labels=labels, emulated=emulated)


def _run(what: ScalingOrder, n: int, mpi: MpiInstall | None) -> RunOutcome:
    counts = {"TENBIN_TASKS": str(n), "OMP_NUM_THREADS": str(n)}
    start = _start(what, n, mpi)
    variables = {**start.variables, **counts}
    own = what.hosts is None
    with Trial(
        start.command, what.folder, start.cpus, limit_s=what.limit_s, variables=variables, own_folder=own
    ) as trial:
        while (ended := trial.ended(1.0)) is None:
            pass
    where, remedy = f" on {n} core{'s' * (n > 1)}", "try it by itself; {n} in it is the count of cores"
    check(ended, what.limit_s, where, remedy)
    return ended


def _start(what: ScalingOrder, n: int, mpi: MpiInstall | None) -> Start:
    command = on_cores(what.command, n)
    if mpi and what.hosts:
        names, cores = what.hosts.ranks(n)
        return as_ranks(mpi, command, cores, limit_s=what.limit_s, hosts=names)
    start = plain(command, what.cpus[:n])
    return as_ranks(mpi, start.command, start.cpus, limit_s=what.limit_s) if mpi else start
