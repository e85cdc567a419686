"""The slices of a check, interleaved: a second in which the machine is slow falls on all quantities alike.

A full check has ``FULL_ROUNDS`` rounds, a quick one has one. In a round all slices take turns, in a new
random order each time, until the round's time is up.

Samples, one row a reading:

- ``quantity``, ``labels`` (JSON), ``unit``, ``value``: as in the models of a profile
- ``part``: round of the check, from 0
- ``cpu_ratio``: share of its time in which the slice had its processors, of several cores the least; null: it
  sleeps while it waits
- ``cpu_value``: the value by the time in which the slice had its processors
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

from probes.compute import WorkerPool
from probes.compute_worker import ADD_TAKES_A_CYCLE, build
from probes.memory_plan import CHUNK, ELEMENT, LINE, CoreGroup, choose_arrays, plan_streams
from probes.mpi.runner import MpiInstall, find_mpi
from probes.network import START_S, attempt
from probes.order_process import ProcessLost
from probes.run import Event, Run
from probes.storage import BLOCK, Limits, Place, pinned, prepared
from probes.streams import Arrays, Cycle, Library, PinnedThreads
from probes.topology import LogicalCpu, core_pairs, data_caches_kib, free_memory_mb, read_topology
from probes.visits import Point, Visits
from profiles.errors import Unavailable, UserError
from profiles.fits.network import size_name
from profiles.records import MB, Absent

# -- slices: some milliseconds each, which give one value of a quantity ------------------------------------


class Reading(NamedTuple):
    """A value that a slice gave.

    Attributes:
        labels: the subject, as in the models of a profile.
        value: by the time that passed.
        cpu_ratio: share of its time in which the slice had its processors; None: it sleeps while it waits.
        cpu_value: by the time in which it had its processors; None: as ``value``.
    """

    quantity: str
    labels: Mapping[str, str]
    value: float
    unit: str
    cpu_ratio: float | None = None
    cpu_value: float | None = None


@dataclass
class Slice:
    """A piece of work to repeat.

    Attributes:
        take: does the work once; raises OSError or UserError if it cannot be done any more.
        each_round: repetitions in a round at most; None: as many as fit.
    """

    title: str
    take: Callable[[], Iterator[Reading]]
    each_round: int | None = None


FILL_S = 2.0
STREAM_S = 0.010
CHASE_WARM_S, CHASE_S = 0.0006, 0.0024
SMALL_SHARE = 0.5  # of the largest cache of a core's own
LARGE_MB = (64, 512)  # working set beyond the caches: four times their size between these limits


@contextmanager
def memory_slices(run: Run) -> Iterator[list[Slice]]:
    """Yield the slices of this machine; the memory is free again afterwards."""
    settings = run.settings
    topology = read_topology(settings.sysfs, os.sched_getaffinity(0))
    caches_kib = data_caches_kib(settings.sysfs, topology.cores[0].index)
    free_mb = free_memory_mb(settings.sysfs, settings.procfs) / 2
    elements, amiss = choose_arrays(topology, free_mb, caches_kib)
    for absent in amiss:
        run.absent(*absent)
    if not elements:
        yield []
        return
    library = Library()
    with PinnedThreads(library, topology.cores) as threads:
        threads.prepare(elements, within_s=FILL_S)
        points = plan_streams(topology)
        every = len(topology.cores)
        ends = [point for point in points if point.numa == "local" and len(point.cpus) in (1, every)]
        loops = [(kernel, point) for point in ends for kernel in ("read", "triad")]
        loops += [("read", point) for point in points if point.numa != "local"]
        streams = [
            Slice(f"{kernel} {point.title}", partial(_stream, threads, kernel, point))
            for kernel, point in loops
        ]
        yield [*streams, *_chases(run, threads, topology.cores[0], free_mb=free_mb)]


def _stream(threads: PinnedThreads, kernel: str, point: CoreGroup) -> Iterator[Reading]:
    rows, _ = threads.stream(kernel, point.cpus, STREAM_S)
    value = sum(row.bytes / row.wall_s for row in rows) / 1e9
    labels = {"kernel": kernel, "cores": str(len(point.cpus)), "numa": point.numa}
    share = min(row.thread_cpu_s / row.wall_s for row in rows)
    by_cpu = sum(row.bytes / row.thread_cpu_s for row in rows) / 1e9
    yield Reading("stream_bandwidth_gbs", labels, value, "GB/s", share, by_cpu)


def _chases(run: Run, threads: PinnedThreads, first: LogicalCpu, *, free_mb: float) -> list[Slice]:
    """Prepare a small and a large working set, each in memory of its own, which no stream overwrites."""
    caches_kib = data_caches_kib(run.settings.sysfs, first.index)
    slices = []
    for level, size_bytes in _working_sets(caches_kib):
        if size_bytes / 2**20 > free_mb / 2:
            run.absent(f"latency in {level}", f"{size_bytes / 2**20:.0f} MiB are not free")
            continue
        lines = size_bytes // LINE
        arrays = Arrays(-(-size_bytes // ELEMENT // CHUNK) * CHUNK)
        cycle = Cycle(threads.library, arrays.lines, int(run.rng.integers(1, 2**63)))
        list(threads.chase(first.index, lines, cycle, [CHASE_WARM_S]))
        warm_lines = 1 if level == "memory" else lines
        take = partial(_chase, threads, first.index, (level, cycle, arrays, warm_lines))
        slices.append(Slice(f"latency in {level}", take))
    return slices


def _working_sets(caches_kib: dict[int, float]) -> Sequence[tuple[str, int]]:
    """Choose the working sets in bytes: half of a core's own largest cache, and four times all caches."""
    last_mb = max(caches_kib.values(), default=LARGE_MB[0] * 256) / 1024
    large_mb = min(max(4 * last_mb, LARGE_MB[0]), LARGE_MB[1])
    own = [(level, kib) for level, kib in caches_kib.items() if level < max(caches_kib)]
    small = [(f"L{own[-1][0]}", int(own[-1][1] * 1024 * SMALL_SHARE))] if own else []
    return [*small, ("memory", int(large_mb * 2**20))]


def _chase(threads: PinnedThreads, core: int, chased: tuple[str, Cycle, Arrays, int]) -> Iterator[Reading]:
    level, cycle, _, warm_lines = chased
    done = 0
    while done < warm_lines:  # other slices have put a working set of a cache out of it
        done += threads.follow(core, cycle, CHASE_WARM_S).done
    window = threads.follow(core, cycle, CHASE_S)
    value, by_cpu = (seconds / window.done * 1e9 for seconds in (window.wall_s, window.cpu_s))
    yield Reading("access_latency_ns", {"level": level}, value, "ns", window.cpu_s / window.wall_s, by_cpu)


COMPUTE_S = 0.015


@contextmanager
def core_slices(run: Run) -> Iterator[list[Slice]]:
    """Yield one slice, in which all cores compute at once, so that it takes no longer with many cores."""
    topology = read_topology(run.settings.sysfs, os.sched_getaffinity(0))
    cores = [cpu.index for cpu in topology.cores]
    with tempfile.TemporaryDirectory(prefix="tenbin-check-", ignore_cleanup_errors=True) as folder:
        library = build(Path(folder))
        with WorkerPool(library, clock=platform.machine() in ADD_TAKES_A_CYCLE) as pool:

            def take() -> Iterator[Reading]:
                rows, _ = pool.compute(cores, "vector", "double", seconds=COMPUTE_S, halfway=lambda: None)
                for core, row in zip(cores, rows, strict=True):
                    labels, share = {"core": str(core)}, row.thread_cpu_s / row.wall_s
                    if row.flops and row.busy_s:
                        speed = row.flops / row.busy_s / 1e9
                        by_cpu = row.flops / row.thread_cpu_s / 1e9
                        yield Reading("compute_gflops", labels, speed, "GFLOP/s", share, by_cpu)
                    if row.adds and row.adds_s:
                        yield Reading("compute_clock_ghz", labels, row.adds / row.adds_s / 1e9, "GHz", share)

            list(take())  # starts the workers
            yield [Slice("vector arithmetic on every core", take)]


QUICK_BYTES, FULL_BYTES = 96 << 20, 160 << 20  # written at most
FILE_S = 1.5
FEW = Limits(0.004, 12, 0.25)
QUANTITIES = {
    "read": ("storage_read_mbs", "MB/s"),
    "write": ("storage_write_mbs", "MB/s"),
    "random_read": ("storage_random_read_p50_s", "s"),
    "fsync": ("storage_fsync_p50_s", "s"),
}
EACH_ROUND = {"write": 2}


@contextmanager
def disk_slices(run: Run, folder: Path) -> Iterator[list[Slice]]:
    """Yield the slices of a folder, in which a file lies meanwhile.

    Raises:
        Unavailable: the folder cannot be measured. OSError: it is broken.
    """
    most = QUICK_BYTES if run.settings.quick else FULL_BYTES
    with prepared(folder, most, FILE_S, run.rng) as place:
        for kind in QUANTITIES:
            place.batch(kind, Limits(0.0, 4, 0.1))
        yield [
            Slice(f"{kind} in {folder}", partial(_batch, place, kind), EACH_ROUND.get(kind))
            for kind in QUANTITIES
        ]


def _batch(place: Place, kind: str) -> Iterator[Reading]:
    if not place.can(kind):
        return
    with pinned():
        batch = place.batch(kind, FEW)
    quantity, unit = QUANTITIES[kind]
    count = len(batch.each_s)
    value = batch.percentile_s(50) if unit == "s" else count * BLOCK / MB / batch.seconds
    yield Reading(quantity, {"storage": place.folder}, value, unit)


SIZES = (8, 4 << 10, 64 << 10)  # each tells whether there is time for the next
REPORTED = (8, 64 << 10)
MESSAGES_S = 0.4


def message_slices(run: Run) -> list[Slice]:
    """Give the slice of the nearest two cores, and that of two hosts where such are named.

    Raises:
        Unavailable: there is no MPI, or one core only.
    """
    mpi = find_mpi()
    slices = []
    if run.settings.hosts:
        first, other = run.settings.hosts
        about = {"scope": "hosts", "hosts": f"{first},{other}"}
        take = partial(_send, run, mpi, labels=about, hosts=(first, other))
        slices.append(Slice(f"messages from {first} to {other}", take, each_round=1))
    pairs = list(core_pairs(read_topology(run.settings.sysfs, os.sched_getaffinity(0))))
    if not pairs and not slices:
        raise Unavailable("only one core may be used", "allow two (taskset, cgroup)")
    for _, near, beside in pairs[:1]:
        take = partial(_send, run, mpi, labels={"scope": "node"}, cores=(near.index, beside.index))
        slices.append(Slice("messages between two cores", take, each_round=1))
    return slices


def _send(
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
    readings = list(_latencies([event["row"] for event in events if event["event"] == "sample"], labels))
    yield from readings
    for event in events if not readings else ():
        if event["event"] == "absent":
            absent = Absent(**event["absent"])
            raise Unavailable(absent.reason, absent.remedy)


def _latencies(rows: list[dict[str, object]], labels: dict[str, str]) -> Iterator[Reading]:
    """Give the median of each repetition: half a round trip of a small and of a large message."""
    times: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        key = int(str(row["message_bytes"])), int(str(row["repetition"]))
        times.setdefault(key, []).append(float(str(row["message_s"])))
    for (size, _), several in times.items():
        if size in REPORTED:
            yield Reading("message_latency_s", {**labels, "size": size_name(size)}, median(several), "s")


# -- the probe: rounds in which all slices take turns ------------------------------------------------------


FULL_ROUNDS = 4
LATE_S = 3.0  # after the end of a round, until which a slice that was not taken yet is begun
FAILURES = (UserError, OSError, ProcessLost)


def measure(run: Run) -> None:
    """Repeat all slices until the budget is used up, and for half of it however long preparing takes."""
    with ExitStack() as stack:
        slices = _prepare(run, stack)
        rounds = 1 if run.settings.quick else FULL_ROUNDS
        all_end_s = time.monotonic() + max(run.left_s(), run.settings.budget_s / 2)
        for part in range(rounds):
            now_s = time.monotonic()
            _round(run, slices, part, now_s + (all_end_s - now_s) / (rounds - part))


def _prepare(run: Run, stack: ExitStack) -> list[Slice]:
    """Prepare every part; one that cannot be had here costs its own slices only."""
    parts: dict[str, Callable[[], list[Slice]]] = {
        "memory": lambda: stack.enter_context(memory_slices(run)),
        "arithmetic": lambda: stack.enter_context(core_slices(run)),
        "messages": lambda: message_slices(run),
    }
    for folder in run.settings.storage[:1]:
        parts[f"storage {folder}"] = lambda: stack.enter_context(disk_slices(run, folder))  # noqa: B023
    slices: list[Slice] = []
    for what, make in parts.items():
        run.progress(f"preparing {what}")
        try:
            slices += make()
        except FAILURES as error:
            _tell(run, what, error)
    return slices


def _tell(run: Run, what: str, error: Exception) -> None:
    remedy = error.remedy if isinstance(error, UserError) else ""
    run.absent(what, error.what if isinstance(error, UserError) else str(error), remedy)


def _round(run: Run, slices: list[Slice], part: int, end_s: float) -> None:
    """Take slices in turns until ``end_s``; each at least once, if it is not too late for that.

    A slice that fails is not taken again, in later rounds neither.
    """
    points = [
        Point(piece, least=0, most=inf if piece.each_round is None else piece.each_round) for piece in slices
    ]
    for visit in Visits(points, run.rng, lambda: end_s - time.monotonic(), late_s=LATE_S):
        run.progress(visit.key.title)
        try:
            _take(run, visit.key, part)
        except FAILURES as error:
            _tell(run, visit.key.title, error)
            slices.remove(visit.key)
            points.remove(visit)


def _take(run: Run, piece: Slice, part: int) -> None:
    """Record the readings of one slice."""
    for reading in piece.take():
        run.sample(
            part=part,
            quantity=reading.quantity,
            labels=json.dumps(dict(reading.labels)),
            value=reading.value,
            unit=reading.unit,
            cpu_ratio=None if reading.cpu_ratio is None else round(reading.cpu_ratio, 4),
            cpu_value=reading.value if reading.cpu_value is None else reading.cpu_value,
        )
