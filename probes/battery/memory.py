"""Slices of memory: bandwidth of one core and of all, latency in the caches and beyond them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from probes.battery.slices import Reading, Slice
from probes.run import Run
from probes.streams.library import CHUNK, ELEMENT, LINE, Arrays, Cycle, Library
from probes.streams.plan import CoreGroup, choose_arrays, plan
from probes.streams.threads import PinnedThreads
from probes.topology import LogicalCpu, data_caches_kib, free_memory_mb, read_topology

FILL_S = 2.0
WINDOW_S = 0.010
CHASE_WARM_S, CHASE_S = 0.0006, 0.0024
SMALL_SHARE = 0.5  # of the largest cache of a core's own
LARGE_MB = (64, 512)  # working set beyond the caches: four times their size between these limits


@contextmanager
def slices(run: Run) -> Iterator[list[Slice]]:
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
        points = plan(topology)
        every = len(topology.cores)
        ends = [point for point in points if point.numa == "local" and len(point.cpus) in (1, every)]
        loops = [(kernel, point) for point in ends for kernel in ("read", "triad")]
        loops += [("read", point) for point in points if point.numa != "local"]
        found = [
            Slice(f"{kernel} {point.title}", partial(_stream, threads, kernel, point))
            for kernel, point in loops
        ]
        yield [*found, *_chases(run, threads, topology.cores[0], free_mb=free_mb)]


def _stream(threads: PinnedThreads, kernel: str, point: CoreGroup) -> Iterator[Reading]:
    rows, _ = threads.stream(kernel, point.cpus, WINDOW_S)
    value = sum(row.bytes / row.wall_s for row in rows) / 1e9
    labels = {"kernel": kernel, "cores": str(len(point.cpus)), "numa": point.numa}
    share = min(row.thread_cpu_s / row.wall_s for row in rows)
    by_cpu = sum(row.bytes / row.thread_cpu_s for row in rows) / 1e9
    yield Reading("stream_bandwidth_gbs", labels, value, "GB/s", share, by_cpu)


def _chases(run: Run, threads: PinnedThreads, first: LogicalCpu, *, free_mb: float) -> list[Slice]:
    """Prepare a small and a large working set, each in memory of its own, which no stream overwrites."""
    caches_kib = data_caches_kib(run.settings.sysfs, first.index)
    found = []
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
        found.append(Slice(f"latency in {level}", take))
    return found


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
