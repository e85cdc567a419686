"""EASY backfilling: first come, first served, but a job that does not delay the first one may pass.

Algorithm, once for every instant at which something changed:

1. Jobs start in the order of their submission while they fit.
2. The first job that does not fit gets a reservation: the running jobs are counted in the order of their
   expected ends (a job that takes longer than expected counts as about to end; ties by number) until enough
   units would be free. The end of the last one is the reserved time; the units beyond need are *spare*.
3. The others are looked at in the order of their submission, each once: a job starts now if it fits now and
   should end by the reserved time, or needs no more than the spare units (which it then uses up).

There is one reservation, made anew whenever units were freed; between that it stands. A job of unknown run
time passes only within the spare units; while the reserved time cannot be said, no job passes. When too few
units are in service for the first job at all, it gets no reservation, and all others may pass.
Guarantee: when no job takes longer than its estimate, no passing job delays the first one.
Cost: O(log n) an event and a start in the length of the queue; a reservation is O(running jobs).
Source: Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence

from profiles.errors import BadInput
from scheduler.actions import Action, Start
from scheduler.availability import expected_start
from scheduler.events import Event, Failed, Finished, Started, Submitted
from scheduler.model import Job, Placement, instant
from scheduler.policy import Policy, Reason, View, units
from scheduler.queue import IndexedQueue

HALF_STEP_S = 5e-7  # half the grid of time: a job that ends just in time does, whatever the rounding


class Easy(Policy):
    """EASY backfilling on one counted pool."""

    suits = frozenset({"counted"})
    ignores = frozenset({Started})

    def begin(self, view: View) -> None:
        self._pool = only_counted_pool(view, "easy")
        self._queue = IndexedQueue()
        # expected end, job, units of the running jobs: by job, and sorted
        self._end_of: dict[int, tuple[float, int, int]] = {}
        self._new: list[Job] = []  # submitted at this instant
        self._reserved: tuple[float, int] | None = None  # time for the first job, spare units
        for job in view.waiting.values():
            self._queue.add(job.id, job.units, job.estimate_on(self._pool))
        for state in view.running.values():
            assert state.placement is not None
            self._end_of[state.job.id] = (state.expected_end_s, state.job.id, state.placement.units)
        self._ends = sorted(self._end_of.values())

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if isinstance(event, Submitted):
            self._new.append(event.job)
        else:
            self._reserved = None
            if isinstance(event, Finished | Failed):
                entry = self._end_of.pop(event.job.id)
                del self._ends[bisect_left(self._ends, entry)]
            if isinstance(event, Failed):
                job = event.job
                self._queue.add_first(job.id, job.units, job.estimate_on(self._pool))
        if view.upcoming is not None:
            return ()
        if self._reserved is None:
            return self._whole_queue(view)
        return self._only_new(view, *self._reserved)

    def why(self, job: Job, view: View) -> Reason:
        first = next(iter(view.waiting.values()))
        free = view.free[self._pool]
        at = expected_start(job, view, self._pool)
        if job.id == first.id:
            return Reason(f"is first in the queue and waits for {units(job)}; {free} free", at)
        if job.units > free:
            return Reason(
                f"waits for {units(job)}; {free} free, and job {first.id} is first in the queue", at
            )
        return Reason(f"would fit, but would delay job {first.id}, which is first in the queue", at)

    def _whole_queue(self, view: View) -> list[Action]:
        """Steps 1 to 3, over all waiting jobs."""
        pool, queue = self._pool, self._queue
        for job in self._new:
            queue.add(job.id, job.units, job.estimate_on(pool))
        self._new.clear()
        actions: list[Action] = []
        free = view.free[pool]
        for job in view.waiting.values():
            if job.units > free:
                break
            queue.remove(job.id)
            free -= job.units
            self._start(job, job.estimate_on(pool), view.now, actions)
        else:
            return actions
        at, spare = self._reserve(job.units, free, view.now)
        if job.units > view.in_service[pool]:
            at, spare = math.inf, free
        window = at - view.now + HALF_STEP_S if at < math.inf else -math.inf
        while free and len(queue) > 1:
            found = queue.first(((min(spare, free), math.inf), (free, window)))
            if found is None:
                break
            queue.remove(found)
            job_found = view.waiting[found]
            length = job_found.estimate_on(pool)
            free -= job_found.units
            spare -= job_found.units if length > window else 0
            self._start(job_found, length, view.now, actions)
        self._reserved = (at, spare)
        return actions

    def _only_new(self, view: View, at: float, spare: int) -> list[Action]:
        """Step 3 for the jobs of this instant: nothing has changed for the others."""
        actions: list[Action] = []
        free = view.free[self._pool]
        window = at - view.now + HALF_STEP_S if at < math.inf else -math.inf
        for job in self._new:
            length = job.estimate_on(self._pool)
            if job.units <= free and (length <= window or job.units <= spare):
                free -= job.units
                spare -= job.units if length > window else 0
                self._start(job, length, view.now, actions)
            else:
                self._queue.add(job.id, job.units, length)
        self._new.clear()
        self._reserved = (at, spare)
        return actions

    def _reserve(self, needed: int, free: int, now: float) -> tuple[float, int]:
        """When ``needed`` units will be free, and how many will be spare then; infinite and 0: not known."""
        for end, _, freed in self._ends:
            free += freed
            if free >= needed:
                return (max(now, end), free - needed) if end < math.inf else (end, 0)
        return math.inf, 0

    def _start(self, job: Job, length: float, now: float, actions: list[Action]) -> None:
        actions.append(Start(job.id, Placement(self._pool, job.units)))
        entry = (instant(now + length), job.id, job.units)
        self._end_of[job.id] = entry
        insort(self._ends, entry)


def only_counted_pool(view: View, policy: str) -> str:
    """Name of the cluster's one pool.

    Raises:
        BadInput: there are several, or its nodes have identity.
    """
    pools = view.cluster.pools
    if len(pools) != 1 or not pools[0].counted:
        names = ", ".join(pool.name for pool in pools)
        raise BadInput(
            f"policy {policy} schedules one class of units without identity; this cluster has {names}",
            "describe the cluster by a count, or choose a policy for several classes or nodes",
        )
    return pools[0].name
