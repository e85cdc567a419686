"""Queues of jobs for several counted classes: first fit and EASY.

``queue`` has the same rules for one class, in half the time, because it keeps the ends of running
jobs. Here each reservation reads the running jobs from the view.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from scheduler.model.jobs import Job, instant
from scheduler.policies.backfill.queue import HALF_STEP_S, Held, IndexedQueue, Stair, when_free
from scheduler.policies.base import View


class MultiPoolQueue:
    """Waiting jobs in order, searched for the first that is small and short enough for one of the classes."""

    def __init__(self, pools: Sequence[str]) -> None:
        self.waiting: OrderedDict[int, Job] = OrderedDict()
        self._queues = {pool: IndexedQueue() for pool in pools}
        self._positions: dict[int, int] = {}
        self._next, self._front = 0, -1

    def add(self, job: Job) -> None:
        """Append a job."""
        self.waiting[job.id] = job
        self._positions[job.id] = self._next
        self._next += 1
        for pool in self.classes(job):
            self._queues[pool].add(job.id, job.units, job.estimate_on(pool))

    def add_first(self, job: Job) -> None:
        """Put a job that lost its units before all others."""
        self.waiting[job.id] = job
        self.waiting.move_to_end(job.id, last=False)
        self._positions[job.id] = self._front
        self._front -= 1
        for pool in self.classes(job):
            self._queues[pool].add_first(job.id, job.units, job.estimate_on(pool))

    def remove(self, job: Job) -> None:
        """Take a job out."""
        del self.waiting[job.id], self._positions[job.id]
        for pool in self.classes(job):
            self._queues[pool].remove(job.id)

    def classes(self, job: Job) -> list[str]:
        """List the classes that the job can run on, best first."""
        return [pool for pool in self._queues if job.runs_on(pool)]

    def first(self, stairs: Mapping[str, Sequence[Stair]]) -> Job | None:
        """Find the first job within the units and the length of one of the stairs of a class."""
        firsts = [self._queues[pool].first(steps) for pool, steps in stairs.items()]
        known = [job_id for job_id in firsts if job_id is not None]
        return self.waiting[min(known, key=self._positions.__getitem__)] if known else None


class MultiPoolFirstFit(MultiPoolQueue):
    """First fit, as ``scheduler/policies/backfill/first_fit.py`` says it."""

    def choose(self, view: View) -> list[tuple[Job, str]]:
        """Choose the jobs that start now, and the class of each; they leave the queue."""
        left = dict(view.free)
        chosen = []
        while job := self.first({pool: ((free, math.inf),) for pool, free in left.items() if free}):
            pool = next(pool for pool in self.classes(job) if job.units <= left[pool])
            self.remove(job)
            left[pool] -= job.units
            chosen.append((job, pool))
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

    def choose(self, view: View) -> list[tuple[Job, str]]:
        """Choose the jobs that start now, and the class of each; they leave the queue."""
        left, now = dict(view.free), view.now
        chosen: list[tuple[Job, str]] = []
        if self._limits is None:
            while self.waiting:
                job = next(iter(self.waiting.values()))
                if not any(job.units <= left[pool] for pool in self.classes(job)):
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
        chosen: list[tuple[Job, str]],
    ) -> None:
        """Start the job on the class, of those open to it now, on which it would end first."""
        may = [
            pool
            for pool, stairs in self._stairs(now, left, limits).items()
            if job.runs_on(pool)
            and any(job.units <= most and job.estimate_on(pool) <= length for most, length in stairs)
        ]
        pool = min(may, key=job.estimate_on)
        if pool in limits:
            until, spare = limits[pool]
            if job.estimate_on(pool) > until - now + HALF_STEP_S:
                limits[pool] = until, spare - job.units
        left[pool] -= job.units
        self.remove(job)
        chosen.append((job, pool))

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
        self, job: Job, view: View, left: dict[str, int], chosen: list[tuple[Job, str]]
    ) -> dict[str, tuple[float, int]]:
        """Reserve for the first job by the expected ends of running jobs; return what is left to others."""
        held: dict[str, list[Held]] = {
            pool: [] for pool in self.classes(job) if job.units <= view.in_service[pool]
        }
        for state in view.running.values():
            placement = state.place
            if placement.pool in held:
                held[placement.pool].append((state.expected_end_s, state.job.id, placement.units))
        for other, pool in chosen:
            if pool in held:
                held[pool].append((instant(view.now + other.estimate_on(pool)), other.id, other.units))
        best = math.inf, math.inf
        limits = dict.fromkeys(held, (-math.inf, 0))  # without a time no job passes
        for pool, ends in held.items():
            at, spare = when_free(sorted(ends), job.units, left[pool], view.now)
            end_and_start = instant(at + job.estimate_on(pool)), at
            if end_and_start < best:
                best, limits = end_and_start, {pool: (at, spare)}
        return limits
