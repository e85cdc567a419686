"""Queues of jobs for several counted classes, or with alternatives: first fit and EASY.

``queue`` has the same rules for one class and jobs without alternatives, in half the time, because it keeps
the ends of running jobs. Here each reservation reads the running jobs from the view. A job with alternatives
takes the shortest of those that may start now.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from scheduler.model.jobs import Job, instant
from scheduler.policies.backfill.on_nodes import Way
from scheduler.policies.backfill.queue import HALF_STEP_S, Held, IndexedQueue, Stair, when_free
from scheduler.policies.base import View


def ways_on(job: Job, pools: Iterable[str]) -> list[Way]:
    """List how the job can run and on which of these classes, as it takes them: alternatives by length."""
    if not job.alternatives:
        return [(pool, job) for pool in pools if job.runs_on(pool)]
    ways = [(pool, way) for way in job.ways for pool in pools if way.runs_on(pool)]
    return sorted(ways, key=lambda at: at[1].estimate_on(at[0]))


class MultiPoolQueue:
    """Waiting jobs in order, searched for the first that is small and short enough for one of the classes."""

    def __init__(self, pools: Sequence[str]) -> None:
        self.waiting: OrderedDict[int, Job] = OrderedDict()
        self._pools = pools
        self._queues = defaultdict[tuple[str, int], IndexedQueue](IndexedQueue)  # by class and alternative
        self._positions: dict[int, int] = {}
        self._next, self._front = 0, -1

    def add(self, job: Job) -> None:
        """Append a job."""
        self.waiting[job.id] = job
        self._positions[job.id] = self._next
        self._next += 1
        for pool, way in self.ways(job):
            self._queues[pool, way.alternative].add(job.id, way.units, way.estimate_on(pool))

    def add_first(self, job: Job) -> None:
        """Put a job that lost its units before all others."""
        self.waiting[job.id] = job
        self.waiting.move_to_end(job.id, last=False)
        self._positions[job.id] = self._front
        self._front -= 1
        for pool, way in self.ways(job):
            self._queues[pool, way.alternative].add_first(job.id, way.units, way.estimate_on(pool))

    def remove(self, job: Job) -> None:
        """Take a job out."""
        del self.waiting[job.id], self._positions[job.id]
        for pool, way in self.ways(job):
            self._queues[pool, way.alternative].remove(job.id)

    def ways(self, job: Job) -> list[Way]:
        """List how and where the job can run, as it takes them."""
        return ways_on(job, self._pools)

    def first(self, stairs: Mapping[str, Sequence[Stair]]) -> Job | None:
        """Find the first job within the units and the length of one of the stairs of a class."""
        firsts = [queue.first(stairs[pool]) for (pool, _), queue in self._queues.items() if pool in stairs]
        known = [job_id for job_id in firsts if job_id is not None]
        return self.waiting[min(known, key=self._positions.__getitem__)] if known else None


class MultiPoolFirstFit(MultiPoolQueue):
    """First fit, as ``scheduler/policies/backfill/first_fit.py`` says it."""

    def choose(self, free: Mapping[str, int]) -> list[Way]:
        """Choose the jobs that start now, how, and the class of each; they leave the queue."""
        left = dict(free)
        chosen = []
        while job := self.first({pool: ((free, math.inf),) for pool, free in left.items() if free}):
            pool, way = next((pool, way) for pool, way in self.ways(job) if way.units <= left[pool])
            self.remove(job)
            left[pool] -= way.units
            chosen.append((pool, way))
        return chosen


class MultiPoolEasy(MultiPoolQueue):
    """EASY, as ``scheduler/policies/backfill/easy.py`` says it."""

    def __init__(self, pools: Sequence[str]) -> None:
        super().__init__(pools)
        # For the first job: until when passing jobs may run on a class, and the units spare then.
        # A class without an entry is free to all. None: the reservation must be made.
        self._limits: dict[str, tuple[float, int]] | None = None

    def ended(self, job_id: int) -> None:
        """Note that a job holds no units any more."""
        self._limits = None

    def changed(self) -> None:
        """Note that who fits may have changed otherwise than by a new job."""
        self._limits = None

    def choose(self, view: View) -> list[Way]:
        """Choose the jobs that start now, how, and the class of each; they leave the queue."""
        left, now = dict(view.free), view.now
        chosen: list[Way] = []
        if self._limits is None:
            while self.waiting:
                job = next(iter(self.waiting.values()))
                if not any(way.units <= left[pool] for pool, way in self.ways(job)):
                    break
                self._start(job, now, left, {}, chosen=chosen)
            else:
                return chosen
            self._limits = self._reserve(job, view, left, chosen)
        while passing := self.first(self._stairs(now, left, self._limits)):
            self._start(passing, now, left, self._limits, chosen=chosen)
        return chosen

    def _start(
        self,
        job: Job,
        now: float,
        left: dict[str, int],
        limits: dict[str, tuple[float, int]],
        *,
        chosen: list[Way],
    ) -> None:
        """Start the job so, and on the class of those open to it now, that it would end first."""
        stairs = self._stairs(now, left, limits)
        may = [
            (pool, way)
            for pool, way in self.ways(job)
            if any(
                way.units <= most and way.estimate_on(pool) <= length for most, length in stairs.get(pool, ())
            )
        ]
        pool, way = min(may, key=lambda at: at[1].estimate_on(at[0]))
        if pool in limits:
            until, spare = limits[pool]
            if way.estimate_on(pool) > until - now + HALF_STEP_S:
                limits[pool] = until, spare - way.units
        left[pool] -= way.units
        self.remove(job)
        chosen.append((pool, way))

    def _stairs(
        self, now: float, left: dict[str, int], limits: dict[str, tuple[float, int]]
    ) -> dict[str, tuple[Stair, ...]]:
        """List what may start on each class, as (at most units, at most seconds)."""
        stairs: dict[str, tuple[Stair, ...]] = {}
        for pool, free in left.items():
            if free and pool in limits:
                until, spare = limits[pool]
                stairs[pool] = (min(spare, free), math.inf), (free, until - now + HALF_STEP_S)
            elif free:
                stairs[pool] = ((free, math.inf),)
        return stairs

    def _reserve(
        self, job: Job, view: View, left: dict[str, int], chosen: list[Way]
    ) -> dict[str, tuple[float, int]]:
        """Reserve for the first job by the expected ends of running jobs; return what is left to others."""
        ways = [(pool, way) for pool, way in self.ways(job) if way.units <= view.in_service[pool]]
        held: dict[str, list[Held]] = {pool: [] for pool, _ in ways}
        for state in view.running.values():
            placement = state.place
            if placement.pool in held:
                held[placement.pool].append((state.expected_end_s, state.job.id, placement.units))
        for pool, other in chosen:
            if pool in held:
                held[pool].append((instant(view.now + other.estimate_on(pool)), other.id, other.units))
        best = math.inf, math.inf
        limits = dict.fromkeys(held, (-math.inf, 0))  # without a time no job passes
        for pool, way in ways:
            at, spare = when_free(sorted(held[pool]), way.units, left[pool], view.now)
            end_and_start = instant(at + way.estimate_on(pool)), at
            if end_and_start < best:
                best, limits = end_and_start, {pool: (at, spare)}
        return limits
