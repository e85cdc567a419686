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

from collections.abc import Sequence

from profiles.errors import BadInput
from scheduler.actions import Action, Start
from scheduler.availability import expected_start
from scheduler.events import Event, Failed, Finished, Started, Submitted
from scheduler.lines import EasyLine
from scheduler.model import Job, counted
from scheduler.policy import Policy, Reason, View, units


class Easy(Policy):
    """EASY backfilling on one counted pool."""

    suits = frozenset({"counted"})
    ignores = frozenset({Started})

    def begin(self, view: View) -> None:
        self._pool = only_counted_pool(view, "easy")
        self._line = EasyLine(self._pool)
        for job in view.waiting.values():
            self._line.add(job)
        for state in view.running.values():
            assert state.placement is not None
            self._line.hold(state.job.id, state.placement.units, state.expected_end_s)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        line, pool = self._line, self._pool
        if isinstance(event, Submitted):
            line.add(event.job)
        elif isinstance(event, Finished):
            line.ended(event.job.id)
        elif isinstance(event, Failed):
            line.ended(event.job.id)
            line.add_first(event.job)
        else:
            line.changed()
        if view.upcoming is not None or not view.waiting:
            return ()
        chosen = line.choose(view.now, view.free[pool], view.in_service[pool])
        return [Start(job.id, counted(pool, job.units)) for job in chosen] if chosen else ()

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
