"""Slices of messages between two cores: ranks are started anew for each, because waiting ranks would spin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from statistics import median

from probes.battery.slices import Reading, Slice
from probes.mpi.detection import find_mpi
from probes.mpi.launchers import MpiInstall
from probes.network.messages import core_pairs
from probes.network.probe import START_S, attempt
from probes.run import Event, Run
from probes.topology import read_topology
from profiles.errors import Unavailable
from profiles.fits.network import size_name
from profiles.records import Absent

SIZES = (8, 4 << 10, 64 << 10)  # each tells whether there is time for the next
TOLD = (8, 64 << 10)
MESSAGES_S = 0.4


def slices(run: Run) -> list[Slice]:
    """Give the slice of the nearest two cores, and that of two hosts where such are named.

    Raises:
        Unavailable: there is no MPI, or one core only.
    """
    mpi = find_mpi()
    found = []
    if run.settings.hosts:
        first, other = run.settings.hosts
        about = {"scope": "hosts", "hosts": f"{first},{other}"}
        take = partial(_take, run, mpi, labels=about, hosts=(first, other))
        found.append(Slice(f"messages from {first} to {other}", take, each_round=1))
    pairs = list(core_pairs(read_topology(run.settings.sysfs, os.sched_getaffinity(0))))
    if not pairs and not found:
        raise Unavailable("only one core may be used", "allow two (taskset, cgroup)")
    for _, one, other_cpu in pairs[:1]:
        take = partial(_take, run, mpi, labels={"scope": "node"}, cores=(one, other_cpu))
        found.append(Slice("messages between two cores", take, each_round=1))
    return found


def _take(
    run: Run,
    mpi: MpiInstall,
    *,
    labels: dict[str, str],
    cores: tuple[int, ...] | None = None,
    hosts: tuple[str, ...] = (),
) -> Iterator[Reading]:
    """Send messages for ``MESSAGES_S``: a reading for each repetition."""
    events: list[Event] = []
    settings = run.settings.model_copy(update={"budget_s": START_S + MESSAGES_S})
    attempt(
        Run("messages", settings, events.append),
        mpi,
        "messages",
        2,
        parts_left=1,
        cores=cores,
        hosts=hosts,
        sizes=SIZES,
        patterns=("latency",),
        labels={"pair_kind": "", "cpus": ""},
    )
    readings = list(_readings([event["row"] for event in events if event["event"] == "sample"], labels))
    yield from readings
    for event in events if not readings else ():
        if event["event"] == "absent":
            absent = Absent(**event["absent"])
            raise Unavailable(absent.reason, absent.remedy)


def _readings(rows: list[dict[str, object]], labels: dict[str, str]) -> Iterator[Reading]:
    """Give the median of each repetition: half a round trip of a small and of a large message."""
    times: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        key = int(str(row["message_bytes"])), int(str(row["repetition"]))
        times.setdefault(key, []).append(float(str(row["message_s"])))
    for (size, _), several in times.items():
        if size in TOLD:
            yield Reading("message_latency_s", {**labels, "size": size_name(size)}, median(several), "s")
