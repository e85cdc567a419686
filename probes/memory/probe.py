"""memprobe: memory bandwidth over cores and NUMA nodes, and how much one core's writing slows another's.

Each core writes at cache-line stride through an area of at least 4 times the last-level cache, in a process
of its own (``probes.memory.writer``). Konishi, Nomura, Matsuba, Ishikawa (2008) compare programs alone and
beside such a probe; here the probe is measured beside itself, the reference for all later pairs.

Samples, one row per core and window of time:

- ``kind``: ``bandwidth`` or ``pair``
- ``repetition``: counts within the round; the rows of one window share it
- ``cores``: how many write and are measured; ``cpus``: those involved, ``"0,1"``; ``core``: this row's
- ``numa`` (bandwidth): ``local``, or ``"0->1"`` for cores of node 0 writing to memory of node 1
- ``pair_kind`` (pair): what the two CPUs share, see ``probes.memory.plan.pair_kind``
- ``condition`` (pair): ``alone``, or ``beside`` the writing CPU ``other_core``
- ``wall_s``, ``thread_cpu_s``, ``bytes``: time, CPU time, and bytes of lines written in the window. The
  memory bus carries up to twice ``bytes``, since a line is read before it is written back
- ``overlap``: share of the window in which all involved really wrote
- ``placed``: share of the area's pages on the wanted NUMA node; none where there is one node
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from probes.memory.plan import Point, choose_area, plan
from probes.memory.pool import WriterLost, WriterPool
from probes.memory.writer import Written
from probes.run import Run
from probes.topology import free_memory_mb, read_topology
from profiles.fits.memory import OVERLAP, PLACED
from profiles.stats import narrow_enough

REPETITIONS = 10
MOST_REPETITIONS = 60
WINDOW_S = (0.015, 0.060)
OVERHEAD_S = 0.020  # of one window: orders, warm-up, answers


@dataclass
class PointState:
    """Observations of one point so far: GB/s, or the ratio of times beside/alone."""

    point: Point
    values: list[float] = field(default_factory=list)
    tries: int = 0
    apart: int = 0  # windows in which the writers did not overlap
    misplaced: int = 0

    def done(self, tolerance: float) -> bool:
        if self.tries >= MOST_REPETITIONS:
            return True
        return len(self.values) >= REPETITIONS and narrow_enough(self.values, tolerance)


def measure(run: Run) -> None:
    """Measure every point, then again in another order, until all are narrow or the time is up."""
    settings = run.settings
    topology = read_topology(settings.sysfs, os.sched_getaffinity(0))
    if not topology.cpus:
        listed = f"{settings.sysfs}/devices/system/cpu/online"
        run.absent("memory bandwidth and interference", f"{listed} lists none of the CPUs that we may use")
        return
    free_mb = free_memory_mb(settings.sysfs, settings.procfs) / 2
    area_mb, amiss = choose_area(topology, free_mb)
    points, missing = plan(topology, int(free_mb / area_mb)) if area_mb else ([], [])
    for absent in (*amiss, *missing):
        run.absent(*absent)
    if not points:
        return
    with WriterPool(area_mb, topology.line_bytes) as pool:
        run.progress(f"starting writers, {area_mb:.0f} MB each")
        repeat(run, pool, [PointState(point) for point in points])


def repeat(run: Run, pool: WriterPool, states: list[PointState]) -> None:
    """Visit all points in turn, in a new random order each time, so that drift falls on all alike."""
    tolerance = 0.05 if run.settings.quick else 0.02
    share_s = 0.7 * run.settings.budget_s / REPETITIONS / sum(len(s.point.windows) for s in states)
    window_s = min(max(share_s - OVERHEAD_S, WINDOW_S[0]), WINDOW_S[1])
    waiting = list(states)
    while waiting:
        tries = sum(state.tries for state in states)
        for i in run.rng.permutation(len(waiting)):
            state = waiting[i]
            # Everything once, even when late, because a profile without a number is worth less.
            if state.tries and run.left_s() < len(state.point.windows) * (window_s + OVERHEAD_S):
                continue
            run.progress(state.point.title)
            try:
                observe(run, pool, state, window_s)
            except WriterLost as lost:
                run.absent(
                    state.point.title, str(lost), "see whether memory or processes are limited: ulimit -a"
                )
                states.remove(state)
        if sum(state.tries for state in states) <= tries:
            break  # the time is up
        waiting = [s for s in states if not s.done(tolerance)]
    for state in states:
        explain_nothing(run, state)


def observe(run: Run, pool: WriterPool, state: PointState, window_s: float) -> None:
    """Repeat one point: all its windows, one after the other (a pair: alone, then beside)."""
    state.tries += 1
    speeds: list[float] = []
    for window in state.point.windows:
        rows, overlap = pool.write(window.spots, window_s, beside=window.beside)
        for spot, row in zip(window.spots, rows, strict=True):
            run.sample(
                **state.point.labels,
                **window.labels,
                repetition=state.tries,
                core=spot.core,
                wall_s=row.wall_s,
                thread_cpu_s=row.thread_cpu_s,
                bytes=row.bytes,
                overlap=round(overlap, 4),
                placed=row.placed,
            )
        if overlap < OVERLAP or not all(row.bytes for row in rows):
            state.apart += 1
        elif any(row.placed is not None and row.placed < PLACED for row in rows):
            state.misplaced += 1
        else:
            speeds.append(speed_gbs(rows))
    if len(speeds) == len(state.point.windows):
        state.values.append(speeds[0] / speeds[1] if len(speeds) == 2 else speeds[0])


def speed_gbs(rows: Sequence[Written]) -> float:
    """Divide the bytes that all wrote together by the longest of their times, in GB/s (1e9)."""
    return sum(row.bytes for row in rows) / max(row.wall_s for row in rows) / 1e9


def explain_nothing(run: Run, state: PointState) -> None:
    """Say why a point has no usable observation."""
    if state.values:
        return
    if state.misplaced:
        reason = (
            "less than 95 % of the pages were on the wanted NUMA node: it is full, or the kernel moved them"
        )
        remedy = "free memory on that node; set kernel.numa_balancing=0 with sysctl"
    else:
        reason = f"in none of {state.tries} tries did the writers write at the same time: the CPUs are taken"
        remedy = "profile while nothing else runs"
    run.absent(state.point.title, reason, remedy)
