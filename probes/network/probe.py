"""comprobe: all-to-all between the cores of this node, and between nodes (Settings.hosts).

After "comprobe" of paper D: one process a node, all-to-all over and over. Measured is one ``MPI_Alltoall`` of
8 B to 8 MiB from each rank to each other, timed as ``probes.network.rank`` says. On this node the ranks are
bound to cores of their own; over hosts one rank is on each, left to the host's scheduler. Before that every
host must answer with the same tenbin and MPI (``probes.network.hosts``), the ranks must be on different
hosts, and their messages must leave the hosts.

Samples, one row an iteration:

- ``scope``: ``node`` or ``hosts``; ``ranks``; ``hosts``: their names with commas, empty on this node
- ``library``: the MPI
- ``message_bytes``: from each rank to each other
- ``repetition``: a visit of one size, of some tens of ``iteration`` each; sizes come in random order
- ``batch``: all-to-alls between two readings of the clock
- ``alltoall_s``: time of one all-to-all on the slowest rank
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from probes.mpi.detection import find_mpi
from probes.mpi.launchers import MpiInstall
from probes.mpi.runner import RanksFailed, run_ranks
from probes.network.hosts import greet
from probes.network.patterns import Pattern
from probes.network.rank import NARROW, MessagePlan
from probes.run import Run
from probes.topology import read_topology
from profiles.errors import Unavailable, UserError

SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20)  # bytes from each rank to each other
MOST_RANKS = 4
START_S = 0.5  # mpiexec and Python, before the first message; not part of what is measured
GRACE_S = 30.0  # over its budget before a run is given up


def measure(run: Run) -> None:
    """Sample all-to-alls: on this node with two ranks and with up to four, then over the hosts."""
    run.progress("looking for MPI")
    try:
        mpi = find_mpi()
    except Unavailable as error:
        run.absent("all-to-all communication", error.what, error.remedy)
        return
    cores = separate_cores(run.settings.sysfs)
    counts = sorted({2, min(len(cores), MOST_RANKS)}) if len(cores) > 1 else []
    if not counts:
        run.absent("all-to-all on this node", "only one core may be used", "allow two (taskset, cgroup)")
    parts = len(counts) + bool(run.settings.hosts)
    for i, ranks in enumerate(counts):
        attempt(run, mpi, f"all-to-all of {ranks} ranks", ranks, parts_left=parts - i, cores=cores[:ranks])
    if hosts := run.settings.hosts:
        attempt(run, mpi, f"all-to-all over {', '.join(hosts)}", len(hosts), parts_left=1, hosts=hosts)


def attempt(
    run: Run,
    mpi: MpiInstall,
    what: str,
    ranks: int,
    *,
    parts_left: int,
    cores: Sequence[int] | None = None,
    hosts: Sequence[str] = (),
    sizes: tuple[int, ...] = SIZES,
    patterns: tuple[Pattern, ...] = ("alltoall",),
    labels: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Measure one part; a failure is reported and does not cost the other parts."""
    run.progress(what)
    try:
        if hosts:
            greet(hosts, mpi.library)
        budget_s = max(run.left_s() / parts_left - START_S, 0.5)
        listener = Listener(run, what, ranks=ranks, hosts=hosts, library=mpi.library)
        listener.labels |= labels
        plan = MessagePlan(
            ranks=ranks,
            sizes=sizes,
            budget_s=budget_s,
            limit_s=round(budget_s + GRACE_S),
            seed=int(run.rng.integers(2**31)),
            hosts=bool(hosts),
            patterns=patterns,
        )
        program = [sys.executable, "-P", "-m", "mpi4py", "-m", "probes.network.rank", plan.to_json()]
        run_ranks(
            mpi, program, ranks, timeout_s=budget_s + GRACE_S, on_line=listener.line, hosts=hosts, cores=cores
        )
        listener.ended()
    except UserError as error:
        run.absent(what, error.what, error.remedy, failed=bool(hosts))


class Listener:
    """Reader of rank 0's lines: makes samples of them, and stops the run if something is wrong."""

    def __init__(self, run: Run, what: str, *, ranks: int, hosts: Sequence[str], library: str) -> None:
        self.run, self.what, self.done = run, what, False
        self.labels = {
            "scope": "hosts" if hosts else "node",
            "ranks": ranks,
            "hosts": ",".join(hosts),
            "library": library,
        }

    def line(self, text: str) -> None:
        """Take a line of output; lines that are not the ranks' own (an MPI's warnings) are passed over."""
        if not text.startswith('{"event": '):
            return
        event = json.loads(text)
        match event.pop("event"):
            case "visit":
                self._visit(**event)
            case "preflight":
                check_path(self.run, event["ranks"], event["expected"])
                self.run.progress(f"{self.what}: hosts and path checked")
            case "skipped":
                self._skipped(**event)
            case "wide":  # other rounds, and the interval of the fit, tell more
                self.run.progress(f"{self.what}: medians beyond {NARROW:.0%}: {event['medians']}")
            case "world":
                raise Unavailable(
                    f"{self.labels['ranks']} ranks were started, but each sees a world of {event['size']}: "
                    "the launcher does not belong to the MPI library that mpi4py loads there",
                    "use one MPI on all hosts, with its own mpiexec first in PATH",
                )
            case "done":
                self.done = True

    def _visit(self, pattern: Pattern, times: list[float], *, size: int, **visit: int) -> None:
        self.run.progress(f"{self.what}: {size} B")
        for iteration, seconds in enumerate(times):
            row = {"message_bytes": size, **visit, "iteration": iteration}
            if pattern == "alltoall":
                self.run.sample(**self.labels, **row, alltoall_s=seconds)
            else:
                self.run.sample(**self.labels, pattern=pattern, **row, message_s=seconds)

    def _skipped(self, sizes: list[int], last: int, last_s: float) -> None:
        self.run.absent(
            f"{self.what} with {', '.join(map(str, sizes))} B",
            f"it would take longer than there is time: {last} B took {last_s:.3g} s",
            "give the probe more time: leave out --quick",
        )

    def ended(self) -> None:
        """Raise unless the ranks finished: a rank that leaves early with exit code 0 ends all silently."""
        if not self.done:
            raise RanksFailed("the ranks ended before they had finished, with exit code 0")


def check_path(run: Run, ranks: list[dict[str, Any]], expected: int) -> None:
    """Report the ``path_doubts`` as absent."""
    for reason in path_doubts(ranks, expected):
        run.absent("path of the messages between hosts", reason, "see which network MPI uses there")


def path_doubts(ranks: list[dict[str, Any]], expected: int) -> list[str]:
    """Check that every rank is on a host of its own and that its messages went over a network.

    Returns:
        a sentence for each rank whose messages no interface counted, between hosts of different kernels.

    Raises:
        Unavailable: two ranks are on one host; or no interface counted the messages between hosts that share
            one kernel (containers, namespaces), where MPI takes shared memory for the network.
    """
    places = [(r["boot"], r["namespace"]) for r in ranks]
    for i, place in enumerate(places):
        if (first := places.index(place)) != i:
            names = sorted({ranks[first]["hostname"], ranks[i]["hostname"]})
            raise Unavailable(
                f"ranks {first} and {i} are on one host, {' = '.join(names)}",
                "name every host once in --hosts",
            )
    doubts = []
    for rank, report in enumerate(ranks):
        sent = sum(report["sent"].values())
        if sent >= expected:
            continue
        reason = (
            f"rank {rank} on {report['hostname']} sent {expected} bytes to the other hosts, but its network "
            f"interfaces counted {sent}"
        )
        if len({r["boot"] for r in ranks}) < len(ranks):
            raise Unavailable(
                f"{reason}: the messages went through shared memory",
                "keep MPI to the network: UCX_TLS=tcp,self for MPICH, OMPI_MCA_btl=tcp,self for Open MPI",
            )
        doubts.append(reason)
    return doubts


def separate_cores(sysfs: Path = Path("/sys")) -> list[int]:
    """List a CPU of each core that this process may use; hyperthreads where there is only one core."""
    topology = read_topology(sysfs, os.sched_getaffinity(0))
    return [cpu.index for cpu in (topology.cores if len(topology.cores) > 1 else topology.cpus)]
