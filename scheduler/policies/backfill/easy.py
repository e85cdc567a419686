"""EASY backfilling: first come, first served, but a job that does not delay the first one may pass.

Algorithm, once for every instant at which something changed:

1. Jobs start in the order of their submission while they fit.
2. The first job that does not fit gets a reservation: the running jobs are counted in the order of their
   expected ends (a job that takes longer than expected counts as about to end; ties by number) until enough
   units would be free. The end of the last one is the reserved time; the units beyond need are *spare*.
3. The others follow in the order of their submission, each once: a job starts now if it fits now and should
   end by the reserved time, or needs no more than the spare units (which it then uses up).

The one reservation is made anew whenever units were freed. A job of unknown run time passes only within the
spare units; while the reserved time is unknown, no job passes. If too few units are in service for the first
job, it gets no reservation, and all others may pass.

On several classes a job starts on the class on which it would end first, of those on which it may start now
(equal: the better class); alternatives of a job are like classes. If the first job fits on none, its
reservation is on the class on which it would end first by step 2 (equal: the earlier start, then the better
class). Step 3 binds passing jobs on that class only; on the others every job that fits passes. While the time
is unknown on all classes, no job passes on those that the first job can run on. Classes with too few units in
service for it do not count.

Guarantee: when no job takes longer than its estimate, no passing job delays the first one. On several
classes: no passing job delays the end by its reservation. But the first job starts as soon as it fits on any
class, even if it ends later there.
Cost: O(log n) an event and a start in the length of the queue; a reservation is O(running jobs), on several
classes times a logarithm.
Source: Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.model.events import Action, Event, Failed, Finished, Start, Submitted
from scheduler.model.jobs import Job, counted
from scheduler.policies.backfill import conservative, on_nodes
from scheduler.policies.backfill.availability import awaited
from scheduler.policies.backfill.multi_pool import MultiPoolEasy
from scheduler.policies.backfill.queue import EasyQueue
from scheduler.policies.base import (
    Policy,
    Reason,
    View,
    any_alternatives,
    counted_pools,
    fits_now,
    in_turn,
    waits_for,
    would_delay,
)


class Easy(Policy):
    """EASY backfilling on counted pools."""

    suits = frozenset({"counted", "classes", "nodes"})

    def begin(self, view: View) -> None:
        self._nodes = on_nodes.queue(view, on_nodes.NodeEasy, "easy")
        self.revises = False
        if self._nodes is not None:
            return
        pools = counted_pools(view, "easy")
        self._pool = pools[0]
        several = len(pools) > 1 or any_alternatives(view)
        self._queue = MultiPoolEasy(pools) if several else EasyQueue(self._pool)
        self.revises = isinstance(self._queue, EasyQueue)
        for job in view.waiting.values():
            self._queue.add(job)
        if isinstance(self._queue, EasyQueue):
            for state in view.running.values():
                self._queue.hold(state.job.id, state.place.units, state.expected_end_s)

    def revise(self, jobs: Sequence[Job]) -> None:
        assert isinstance(self._queue, EasyQueue)
        self._queue.revise(jobs)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if self._nodes is not None:
            return self._nodes.decide(view, event)
        queue = self._queue
        if isinstance(event, Submitted):
            if event.job.alternatives and self._begins_anew(view):
                queue = self._queue
            else:
                queue.add(event.job)
        elif isinstance(event, Finished):
            queue.ended(event.job.id)
        elif isinstance(event, Failed):
            queue.ended(event.job.id)
            if event.job.alternatives and self._begins_anew(view):
                queue = self._queue
            else:
                queue.add_first(event.job)
        else:
            queue.changed()
        if view.upcoming is not None or not view.waiting:
            return ()
        if isinstance(queue, MultiPoolEasy):
            return [Start(way.id, counted(on, way.units, way.alternative)) for on, way in queue.choose(view)]
        pool = self._pool
        chosen = queue.choose(view.now, view.free[pool], view.in_service[pool])
        return [Start(job.id, counted(pool, job.units)) for job in chosen] if chosen else ()

    def _begins_anew(self, view: View) -> bool:
        """Begin anew if the queue does not know of alternatives; return whether it did not."""
        if isinstance(self._queue, MultiPoolEasy):
            return False
        self.begin(view)
        return True

    def why(self, job: Job, view: View) -> Reason:
        first = next(iter(view.waiting.values()))
        if self._nodes is not None:
            at, ends = conservative.awaited(job, view)
            if needs := on_nodes.needs(job, view, self._nodes.classes(job)):
                return Reason(needs + in_turn(job, view, ends), at)
            return would_delay(first)._replace(expected_start_s=at)
        at, ends = awaited(job, view)
        if job.id == first.id:
            return Reason(f"{waits_for(job, view, job.ways)}; first in the queue", at)
        if not fits_now(job, view):
            return Reason(waits_for(job, view, job.ways) + in_turn(job, view, ends), at)
        return would_delay(first)._replace(expected_start_s=at)
