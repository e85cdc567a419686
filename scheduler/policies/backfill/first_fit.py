"""First fit: every job that fits starts.

Algorithm: at every change, in the order of their submission, each waiting job starts that fits in the units
still free; of several classes, on the best on which it fits (the order of ``Cluster.pools``); of
alternatives, in the shortest.
Guarantee: no job waits while it fits. None for large jobs, because small ones may pass them without end.
Cost: O(log n) an event and a start in the length of the queue.
Source: the list scheduling of Graham, SIAM J. Appl. Math. 17(2), 1969, with jobs that need several units;
here as the other end of the scale to fcfs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from scheduler.model.events import Action, Event, Failed, Start, Submitted
from scheduler.model.jobs import Job, counted, instant
from scheduler.policies.backfill import on_nodes
from scheduler.policies.backfill.availability import believed_end_s
from scheduler.policies.backfill.multi_pool import MultiPoolFirstFit
from scheduler.policies.backfill.queue import FirstFitQueue
from scheduler.policies.base import Policy, Reason, View, any_alternatives, counted_pools, waits_for

PASSED = "smaller jobs may start before it"
MOST_WAITING = 1000  # jobs of a queue whose starts are predicted


class FirstFit(Policy):
    """First fit on counted pools."""

    promises = frozenset({"conserving"})
    suits = frozenset({"counted", "classes", "nodes"})

    def begin(self, view: View) -> None:
        self._nodes = on_nodes.queue(view, on_nodes.NodeFirstFit, "first-fit")
        self.revises = False
        if self._nodes is not None:
            return
        self._pools = counted_pools(view, "first-fit")
        several = len(self._pools) > 1 or any_alternatives(view)
        self._queue = MultiPoolFirstFit(self._pools) if several else FirstFitQueue(self._pools[0])
        self.revises = isinstance(self._queue, FirstFitQueue)  # run times do not matter
        for job in view.waiting.values():
            self._queue.add(job)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if self._nodes is not None:
            return self._nodes.decide(view, event)
        if isinstance(event, Submitted):
            if not event.job.alternatives or not self._begins_anew(view):
                self._queue.add(event.job)
        elif isinstance(event, Failed) and not (event.job.alternatives and self._begins_anew(view)):
            self._queue.add_first(event.job)
        if view.upcoming is not None:
            return ()
        if isinstance(self._queue, MultiPoolFirstFit):
            chosen = self._queue.choose(view.free)
            return [Start(way.id, counted(on, way.units, way.alternative)) for on, way in chosen]
        (pool,) = self._pools
        begun = self._queue.choose(view.now, view.free[pool], view.in_service[pool])
        return [Start(job.id, counted(pool, job.units)) for job in begun]

    def _begins_anew(self, view: View) -> bool:
        """Begin anew if the queue does not know of alternatives; return whether it did not."""
        if isinstance(self._queue, MultiPoolFirstFit):
            return False
        self.begin(view)
        return True

    def why(self, job: Job, view: View) -> Reason:
        if self._nodes is not None:
            needs = on_nodes.needs(job, view, self._nodes.classes(job))
            return Reason(f"{needs or 'there is room'}; {PASSED}")
        expected_s = None if len(view.waiting) > MOST_WAITING else self._expected(job, view)
        return Reason(f"{waits_for(job, view, job.ways)}; {PASSED}", expected_s)

    def _expected(self, job: Job, view: View) -> float | None:
        """Predict the start, as jobs end in their order; None: that cannot be said."""
        queue, at, free = MultiPoolFirstFit(self._pools), view.now, dict(view.free)
        for other in view.waiting.values():
            queue.add(other)
        states = view.running.values()
        ends = [
            (believed_end_s(state, at), where.pool, where.units) for state in states for where in state.places
        ]
        heapify(ends)
        while True:
            for pool, way in queue.choose(free):
                if way.id == job.id:
                    return at
                free[pool] -= way.units
                heappush(ends, (instant(at + way.estimate_on(pool)), pool, way.units))
            if not ends or ends[0][0] == math.inf:
                return None
            at = ends[0][0]
            while ends and ends[0][0] == at:
                _, pool, units = heappop(ends)
                free[pool] += units
