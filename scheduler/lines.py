"""Who of the jobs that wait for the same units starts next: fcfs, first fit and EASY, each written once.

A line stands before a number of units: a whole class of resource, or one region of it. It is told what
happens to its jobs and its units, and chooses who starts. Its order is that of ``add``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable

from scheduler.model import Job, instant
from scheduler.queue import IndexedQueue

HALF_STEP_S = 5e-7  # half the grid of time: a job that ends just in time does, whatever the rounding


Held = tuple[float, int, int]  # expected end, job, units


class Line:
    """First come, first served: a job that does not fit holds up all behind it.

    Args:
        pool: class of resource whose units it stands before.
    """

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.waiting: OrderedDict[int, Job] = OrderedDict()

    def add(self, job: Job) -> None:
        """A new job, behind all others."""
        self.waiting[job.id] = job

    def add_first(self, job: Job) -> None:
        """A job that lost its units waits again, before all others."""
        self.waiting[job.id] = job
        self.waiting.move_to_end(job.id, last=False)

    def hold(self, job_id: int, units: int, expected_end_s: float) -> None:
        """A job that already runs holds so many of these units."""

    def ended(self, job_id: int) -> None:
        """A job that ``choose`` started, or that was said to ``hold`` units, holds none any more."""

    def changed(self) -> None:
        """Something else than a new job may have changed who fits."""

    def choose(self, now: float, free: int, in_service: int) -> list[Job]:
        """Who starts now, with ``free`` units; the jobs leave the line and hold units from now on."""
        chosen = []
        while self.waiting:
            job = next(iter(self.waiting.values()))
            if job.units > free:
                break
            del self.waiting[job.id]
            free -= job.units
            chosen.append(job)
        return chosen


class FirstFitLine(Line):
    """Whoever fits starts, in the order of the line: small jobs pass large ones without limit."""

    def __init__(self, pool: str) -> None:
        super().__init__(pool)
        self._queue = IndexedQueue()

    def add(self, job: Job) -> None:
        super().add(job)
        self._queue.add(job.id, job.units, 0.0)

    def add_first(self, job: Job) -> None:
        super().add_first(job)
        self._queue.add_first(job.id, job.units, 0.0)

    def choose(self, now: float, free: int, in_service: int) -> list[Job]:
        chosen = []
        while free > 0 and (found := self._queue.first(((free, 0.0),))) is not None:
            self._queue.remove(found)
            job = self.waiting.pop(found)
            free -= job.units
            chosen.append(job)
        return chosen


class EasyLine(Line):
    """EASY backfilling, as ``scheduler/policies/easy.py`` says it."""

    def __init__(self, pool: str) -> None:
        super().__init__(pool)
        self._queue = IndexedQueue()
        # of the running jobs: by job, and sorted
        self._end_of: dict[int, Held] = {}
        self._ends: list[Held] = []
        self._new: list[Job] = []  # since the last choice
        self._reserved: tuple[float, int] | None = None  # time for the first job, spare units

    def add(self, job: Job) -> None:
        self.waiting[job.id] = job
        self._new.append(job)

    def add_first(self, job: Job) -> None:
        super().add_first(job)
        self._queue.add_first(job.id, job.units, job.estimate_on(self.pool))

    def hold(self, job_id: int, units: int, expected_end_s: float) -> None:
        entry = self._end_of[job_id] = (expected_end_s, job_id, units)
        insort(self._ends, entry)

    def ended(self, job_id: int) -> None:
        self._reserved = None
        entry = self._end_of.pop(job_id)
        del self._ends[bisect_left(self._ends, entry)]

    def changed(self) -> None:
        self._reserved = None

    def choose(self, now: float, free: int, in_service: int) -> list[Job]:
        if self._reserved is None:
            return self._of_all(now, free, in_service)
        return self._of_new(now, free, *self._reserved)

    def _of_all(self, now: float, free: int, in_service: int) -> list[Job]:
        """The head while it fits, then whoever does not delay the first that does not."""
        pool, queue, waiting = self.pool, self._queue, self.waiting
        chosen: list[Job] = []
        while waiting:
            job = next(iter(waiting.values()))
            if job.units > free:
                break
            if job.id in queue:
                queue.remove(job.id)
            else:
                del self._new[0]  # the older jobs have all started
            free -= job.units
            self._start(job, job.estimate_on(pool), now, chosen)
        else:
            return chosen
        for new in self._new:
            queue.add(new.id, new.units, new.estimate_on(pool))
        self._new.clear()
        at, spare = when_free(self._ends, job.units, free, now)
        if job.units > in_service:
            at, spare = math.inf, free
        window = at - now + HALF_STEP_S if at < math.inf else -math.inf
        while free and len(waiting) > 1:
            found = queue.first(((min(spare, free), math.inf), (free, window)))
            if found is None:
                break
            queue.remove(found)
            passing = waiting[found]
            length = passing.estimate_on(pool)
            free -= passing.units
            spare -= passing.units if length > window else 0
            self._start(passing, length, now, chosen)
        self._reserved = (at, spare)
        return chosen

    def _of_new(self, now: float, free: int, at: float, spare: int) -> list[Job]:
        """Who passes among the new jobs: nothing has changed for the others."""
        chosen: list[Job] = []
        window = at - now + HALF_STEP_S if at < math.inf else -math.inf
        for job in self._new:
            length = job.estimate_on(self.pool)
            if job.units <= free and (length <= window or job.units <= spare):
                free -= job.units
                spare -= job.units if length > window else 0
                self._start(job, length, now, chosen)
            else:
                self._queue.add(job.id, job.units, length)
        self._new.clear()
        self._reserved = (at, spare)
        return chosen

    def _start(self, job: Job, length_s: float, now: float, chosen: list[Job]) -> None:
        del self.waiting[job.id]
        chosen.append(job)
        self.hold(job.id, job.units, instant(now + length_s))


def when_free(ends: Iterable[Held], needed: int, free: int, now: float) -> tuple[float, int]:
    """When ``needed`` units will be free, and how many will be spare then; infinite and 0: not known.

    ``ends`` are those of the running jobs, in their order; ``free`` units are free now.
    """
    for end, _, freed in ends:
        free += freed
        if free >= needed:
            return (max(now, end), free - needed) if end < math.inf else (end, 0)
    return math.inf, 0


LINES = {"fcfs": Line, "easy": EasyLine, "first-fit": FirstFitLine}
