"""Messages between two ranks: latency and bandwidth as the OSU benchmarks define them.

The first core of this node sends to the nearest core of each kind (``probes.topology.pair_kind``), the
first of the hosts to each other one. Ranks are bound, started and checked as in ``probes.network``.

Samples, one row an iteration:

- ``scope``, ``ranks`` (2), ``hosts``, ``library``, ``message_bytes``, ``repetition``, ``iteration``: as there
- ``pair_kind``, ``cpus``: of this node; "" between hosts
- ``pattern``: ``latency`` (osu_latency) or ``bandwidth`` (osu_bw)
- ``batch``: round trips, or windows, between two readings of the clock
- ``message_s``: half a round trip; or the time of a window of 64 messages and its answer, divided by 64
"""

from __future__ import annotations

import os

from probes.mpi.runner import find_mpi
from probes.network import attempt
from probes.network_rank import Pattern
from probes.run import Run
from probes.topology import core_pairs, read_topology
from profiles.errors import Unavailable

MOST_HOSTS = 4  # to which the first one sends
SIZES = (8, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)  # bytes; the largest is OSU's
PATTERNS: tuple[Pattern, ...] = ("latency", "bandwidth")


def measure(run: Run) -> None:
    """Sample messages between cores of this node, then between hosts."""
    run.progress("looking for MPI")
    try:
        mpi = find_mpi()
    except Unavailable as error:
        run.absent("messages between two ranks", error.what, error.remedy)
        return
    pairs = list(core_pairs(read_topology(run.settings.sysfs, os.sched_getaffinity(0))))
    if not pairs:
        run.absent("messages between cores", "only one core may be used", "allow two (taskset, cgroup)")
    first, *others = run.settings.hosts or ("",)
    parts = len(pairs) + len(others[:MOST_HOSTS])
    for i, (kind, *pair) in enumerate(pairs):
        cpus = pair[0].index, pair[1].index
        attempt(
            run,
            mpi,
            f"messages from CPU {cpus[0]} to CPU {cpus[1]} ({kind})",
            2,
            parts_left=parts - i,
            cores=cpus,
            sizes=SIZES,
            patterns=PATTERNS,
            labels={"pair_kind": kind, "cpus": f"{cpus[0]},{cpus[1]}"},
        )
    for i, host in enumerate(others[:MOST_HOSTS]):
        attempt(
            run,
            mpi,
            f"messages from {first} to {host}",
            2,
            parts_left=len(others[:MOST_HOSTS]) - i,
            hosts=(first, host),
            sizes=SIZES,
            patterns=PATTERNS,
            labels={"pair_kind": "", "cpus": ""},
        )
