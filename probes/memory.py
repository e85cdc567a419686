"""memprobe: memory bandwidth over cores and NUMA nodes, and how much one core's writing slows another's.

Each core writes at cache-line stride through an area of at least 4 times the last-level cache, in a process
of its own (``probes.memory_writer``). Konishi, Nomura, Matsuba, Ishikawa (2008) compare programs alone and
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
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from probes.memory_plan import Spot, Writing, choose_area, plan_writings
from probes.memory_writer import Written
from probes.order_process import PATIENCE_S, ProcessLost, ProcessPool
from probes.run import Run
from probes.topology import free_memory_mb, read_topology
from probes.visits import Point, Visits, say_apart, window_s
from profiles.fits.memory import OVERLAP, PLACED

# -- writers at work together, in the same window of time --------------------------------------------------
#
# ``Stream`` has them press on memory while something else is measured beside them. Each writer then has an
# intensity of its own; its speed in each window tells how much it suffers meanwhile.


TOUCHED_MBS = 20.0  # slowest first touch of an area, on a machine that is taken
MOST_TOUCH_S = 600.0
WARM_S = 0.005


class WriterPool(ProcessPool):
    """Writers, each with areas to write to."""

    def __init__(self, area_mb: float, line_bytes: int = 64) -> None:
        super().__init__("probes.memory_writer", ["--serve", f"--line-bytes={line_bytes}"], "writer")
        self.area_mb = area_mb
        self._ready: set[Spot] = set()

    def prepare(self, spots: Iterable[Spot]) -> None:
        """Have a writer with its area ready at every spot, all at once.

        Raises:
            ProcessLost: a writer could not start, or found no memory.
        """
        missing = [spot for spot in spots if spot not in self._ready]
        self.start(sorted({spot.core for spot in missing}))
        with self.all_or_none():
            for spot in missing:
                self._processes[spot.core].order(
                    "place", node=spot.node, touch_core=spot.touch_core, size_mb=self.area_mb
                )
            for spot in missing:
                self._processes[spot.core].answer(PATIENCE_S + min(self.area_mb / TOUCHED_MBS, MOST_TOUCH_S))
        self._ready.update(missing)

    def write(
        self, spots: Sequence[Spot], seconds: float, *, beside: Spot | None = None
    ) -> tuple[list[Written], float]:
        """Have all ``spots`` write in one window of ``seconds``, with ``beside`` writing all the while.

        Returns what each spot wrote, and the share of the window in which really all of them wrote.

        Raises:
            ProcessLost: a writer is gone; all writers are started anew when needed again.
        """
        everyone = [*spots, *([beside] if beside else [])]
        self.prepare(everyone)
        start = time.monotonic() + 0.003 + 0.0002 * len(everyone) + 2 * WARM_S
        with self.all_or_none():
            for spot in everyone:
                margin = WARM_S if spot is beside else 0.0
                self._processes[spot.core].order(
                    "write",
                    node=spot.node,
                    start_s=start - margin,
                    warm_s=WARM_S,
                    seconds=seconds + 2 * margin,
                    check=spot.check,
                )
            done = [Written(**self._processes[spot.core].answer(PATIENCE_S + seconds)) for spot in everyone]
        return done[: len(spots)], overlap(done[: len(spots)], done)

    def order(self, spot: Spot, **arguments: Any) -> None:
        """Tell a writer to write at a spot that is prepared; ``answer`` must follow.

        Raises:
            ProcessLost: the writer is gone; all writers are started anew when needed again.
        """
        with self.all_or_none():
            self._processes[spot.core].order("write", node=spot.node, check=spot.check, **arguments)

    def answer(self, spot: Spot, within_s: float) -> Written:
        """Wait for the answer to the oldest order of that writer; ProcessLost as for ``order``."""
        with self.all_or_none():
            return Written(**self._processes[spot.core].answer(within_s))

    def discard(self) -> None:
        super().discard()
        self._ready.clear()


def overlap(measured: Sequence[Written], everyone: Sequence[Written]) -> float:
    """Compute the share of the longest ``measured`` window in which ``everyone`` was writing (0-1)."""
    begin = max(w.start_s for w in everyone)
    end = min(w.start_s + w.wall_s for w in everyone)
    longest = max(w.wall_s for w in measured)
    return max(end - begin, 0.0) / longest if longest > 0 else 0.0


WINDOW_S = 0.2
AHEAD = 2  # windows ordered in advance, so that a writer never waits for us
LEAD_S = 0.02
FIRST_WARM_S = 0.1  # written before the first window, uncounted: a writer that has just rested is slower


class WriterWindow(NamedTuple):
    """A writer in one window."""

    spot: Spot
    written: Written


class Stream:
    """A context in which the writers write; on leaving, the windows under way are waited for.

    Args:
        intensities: of each spot, above 0 up to 1: share of the time spent writing.
        most: number of windows; None: until the context is left.

    Raises:
        ProcessLost: a writer is gone, or found no memory.
    """

    def __init__(
        self,
        pool: WriterPool,
        intensities: Mapping[Spot, float],
        window_s: float = WINDOW_S,
        most: int | None = None,
    ) -> None:
        self._pool, self._intensities = pool, dict(intensities)
        self._window_s, self._most = window_s, most
        self._ordered = self._answered = 0

    def __enter__(self) -> Self:
        self._pool.prepare(self._intensities)
        self._begin_s = time.monotonic() + LEAD_S + FIRST_WARM_S
        for _ in range(AHEAD):
            self._order()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # the windows under way are of no use
            self._pool.discard()
        while kind is None and self._answered < self._ordered:
            self._collect()

    def step(self) -> list[WriterWindow]:
        """Wait for the end of the oldest window, with the next one under way."""
        rows = self._collect()
        self._order()
        return rows

    def _order(self) -> None:
        if self._ordered == self._most:
            return
        start_s = self._begin_s + self._ordered * self._window_s
        warm_s = 0.0 if self._ordered else FIRST_WARM_S
        for spot, intensity in self._intensities.items():
            self._pool.order(
                spot, start_s=start_s, warm_s=warm_s, seconds=self._window_s, intensity=intensity
            )
        self._ordered += 1

    def _collect(self) -> list[WriterWindow]:
        within_s = PATIENCE_S + AHEAD * self._window_s
        rows = [WriterWindow(spot, self._pool.answer(spot, within_s)) for spot in self._intensities]
        self._answered += 1
        return rows


# -- the probe: every window of the plan, in turns ---------------------------------------------------------


REPETITIONS = 10
MOST_REPETITIONS = 60
LENGTHS_S = (0.015, 0.060)
OVERHEAD_S = 0.020  # of one window: orders, warm-up, answers


def measure(run: Run) -> None:
    """Measure every point, then again in another order, until all are narrow or the time is up."""
    settings = run.settings
    topology = read_topology(settings.sysfs, os.sched_getaffinity(0))
    if not topology.cpus:
        online = f"{settings.sysfs}/devices/system/cpu/online"
        run.absent("memory bandwidth and interference", f"{online} lists none of the CPUs that we may use")
        return
    free_mb = free_memory_mb(settings.sysfs, settings.procfs) / 2
    area_mb, amiss = choose_area(topology, free_mb)
    points, missing = plan_writings(topology, int(free_mb / area_mb)) if area_mb else ([], [])
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
    length_s = window_s(share_s, OVERHEAD_S, LENGTHS_S)
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
        rows, together = pool.write(window.spots, length_s, beside=window.beside)
        for spot, row in zip(window.spots, rows, strict=True):
            run.sample(
                **visit.key.labels,
                **window.labels,
                repetition=visit.count,
                core=spot.core,
                wall_s=row.wall_s,
                thread_cpu_s=row.thread_cpu_s,
                bytes=row.bytes,
                overlap=round(together, 4),
                placed=row.placed,
            )
        if together < OVERLAP or not all(row.bytes for row in rows):
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
