"""memprobe: memory bandwidth over cores and NUMA nodes, and how much one core's writing slows another's.

Each core writes at cache-line stride through an area of at least 4 times the last-level cache, in a process
of its own (``probes.memory.writer``). Konishi, Nomura, Matsuba, Ishikawa (2008) compare programs alone and
beside such a probe; here the probe is measured beside itself, the reference for all later pairs.

Samples, one row per core and window of time:

- ``kind``: ``bandwidth`` or ``pair``
- ``repetition``: counts within the round; the rows of one window share it
- ``cores``: how many write and are measured; ``cpus``: those involved, ``"0,1"``; ``core``: this row's
- ``numa`` (bandwidth): ``local``, or ``"0->1"`` for cores of node 0 writing to memory of node 1
- ``pair_kind`` (pair): what the two CPUs share, see ``probes.topology.pair_kind``
- ``condition`` (pair): ``alone``, or ``beside`` the writing CPU ``other_core``
- ``wall_s``, ``thread_cpu_s``, ``bytes``: time, CPU time, and bytes of lines written in the window. The
  memory bus carries up to twice ``bytes``, since a line is read before it is written back
- ``overlap``: share of the window in which all involved really wrote
- ``placed``: share of the area's pages on the wanted NUMA node; none where there is one node
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from probes.memory.plan import Writing, choose_area, plan
from probes.memory.pool import WriterPool
from probes.memory.writer import Written
from probes.order_process import ProcessLost
from probes.run import Run
from probes.topology import free_memory_mb, read_topology
from probes.visits import Point, Visits, say_apart, window_s
from profiles.fits.memory import OVERLAP, PLACED

REPETITIONS = 10
MOST_REPETITIONS = 60
WINDOW_S = (0.015, 0.060)
OVERHEAD_S = 0.020  # of one window: orders, warm-up, answers


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
        repeat(run, pool, points)


def repeat(run: Run, pool: WriterPool, points: list[Writing]) -> None:
    """Visit the points until all are narrow or the time is up."""
    count = sum(len(point.windows) for point in points)
    share_s = 0.7 * run.settings.budget_s / REPETITIONS / count
    length_s = window_s(share_s, OVERHEAD_S, WINDOW_S)
    visits = Visits(
        [
            Point(point, most=MOST_REPETITIONS, cost_s=len(point.windows) * (length_s + OVERHEAD_S))
            for point in points
        ],
        run.rng,
        run.left_s,
        target=0.05 if run.settings.quick else 0.02,
        least_values=REPETITIONS,
    )
    misplaced: set[str] = set()  # titles
    for visit in visits:
        run.progress(visit.key.title)
        try:
            observe(run, pool, visit, length_s=length_s, misplaced=misplaced)
        except ProcessLost as lost:
            remedy = "see whether memory or processes are limited: ulimit -a"
            run.absent(visit.key.title, str(lost), remedy)
            visits.points.remove(visit)
    for visit in visits.points:
        if not visit.values:
            explain_nothing(run, visit, misplaced=visit.key.title in misplaced)
    visits.say_wide(run, lambda point: point.title)


def observe(
    run: Run, pool: WriterPool, visit: Point[Writing], *, length_s: float, misplaced: set[str]
) -> None:
    """Repeat one point: all its windows, one after the other (a pair: alone, then beside)."""
    speeds: list[float] = []
    for window in visit.key.windows:
        rows, overlap = pool.write(window.spots, length_s, beside=window.beside)
        for spot, row in zip(window.spots, rows, strict=True):
            run.sample(
                **visit.key.labels,
                **window.labels,
                repetition=visit.count,
                core=spot.core,
                wall_s=row.wall_s,
                thread_cpu_s=row.thread_cpu_s,
                bytes=row.bytes,
                overlap=round(overlap, 4),
                placed=row.placed,
            )
        if overlap < OVERLAP or not all(row.bytes for row in rows):
            continue
        if any(row.placed is not None and row.placed < PLACED for row in rows):
            misplaced.add(visit.key.title)
        else:
            speeds.append(speed_gbs(rows))
    if len(speeds) == len(visit.key.windows):
        visit.values.append(speeds[0] / speeds[1] if len(speeds) == 2 else speeds[0])


def speed_gbs(rows: Sequence[Written]) -> float:
    """Divide the bytes that all wrote together by the longest of their times, in GB/s (1e9)."""
    return sum(row.bytes for row in rows) / max(row.wall_s for row in rows) / 1e9


def explain_nothing(run: Run, visit: Point[Writing], *, misplaced: bool) -> None:
    """Say why a point has no usable observation."""
    if not misplaced:
        say_apart(run, visit.key.title, visit.count, "write")
        return
    reason = "less than 95 % of the pages were on the wanted NUMA node: it is full, or the kernel moved them"
    run.absent(visit.key.title, reason, "free memory on that node; set kernel.numa_balancing=0 with sysctl")
