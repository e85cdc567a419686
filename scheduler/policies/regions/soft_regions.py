"""Regions that lend their idle units, under a latest start for every job.

Algorithm, once for every instant at which something changed:

1. Plan: the waiting jobs, in the order of submission, each start as early as they can on the *undivided*
   machine without passing each other, if every job takes as long as its limit. A job's start in this plan
   is its latest start. Jobs that can start now do; of the others the first ``depth`` count in step 2.
2. A later job may start now if every job can still start at its planned time. So its units must be free of
   running and planned jobs until it ends or until its own planned start, whichever is earlier. First come
   the owners, jobs with which their region holds no more than its share. Then come the others, which borrow
   idle units. Both are in the order of submission.

Regions follow ``regions`` in bounds and sizes, but they are only shares. A burst in one region spreads over
idle units of the others, and a job that is due ignores regions.
Guarantee, while no job takes longer than its limit and no unit fails: a job's latest start never moves back,
and at its submission it is no later than its start under first come, first served on the undivided machine
if all jobs took as long as their limits. So with exact limits no job starts later than under ``fcfs`` without
regions. (Proof: from a job's fcfs start on, all that runs or is planned before it also runs in the fcfs
schedule, because all of it started no later than there; so the job fits.)
While a latest start is unknown (a job of unknown run time runs), no later job passes.
Cost: O((running + waiting) log) a start, and a decision in which one of the waiting jobs would fit.
Source: ours, for the bursts that Takayama et al. (2021) left open; the plan is conservative backfilling's
(Mu'alem and Feitelson, IEEE TPDS 12(6), 2001) without holes filled ahead of time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from scheduler.model import events
from scheduler.model.jobs import Job, Placement, instant
from scheduler.policies.base import Policy, Reason, View, only_counted_pool, waits_for
from scheduler.policies.regions.regions import Repartitioner, RepartitionParameters, size_range

CUT = "regions"  # tag of the timer
MOMENT_S = 1e-6


@dataclass(frozen=True)
class SoftRegionsParameters(RepartitionParameters):
    """``depth``: number of waiting jobs that may pass; the others: ``RepartitionParameters``."""

    depth: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth < 1:
            raise ValueError("depth must be at least 1")


class LatestStart(NamedTuple):
    """A waiting job, its latest start, and the units left then."""

    job: Job
    start_s: float
    left: int


class LatestStarts:
    """The latest starts of jobs that cannot start now; ``free`` units are idle until the first of them."""

    def __init__(self, later: list[LatestStart], free: int) -> None:
        self._free = free
        self._starts = [planned.start_s for planned in later]
        self._start_of = {planned.job.id: planned.start_s for planned in later}
        # The fewest units before a time are found at a start, because only starts take units.
        self._fewest = list(accumulate((planned.left for planned in later), min, initial=free))

    def lets_pass(self, job: Job, end_s: float) -> bool:
        """Tell if one of the jobs may start now, to end at ``end_s``, without delaying another.

        From its own planned start on its units are set aside for it anyway.
        """
        until = min(end_s, self._start_of[job.id])
        return job.units <= self._fewest[bisect_left(self._starts, until)]


class SoftRegions(Policy):
    """Shares of one counted pool for jobs of some sizes, with a latest start for every job."""

    Parameters = SoftRegionsParameters
    suits = frozenset({"counted"})
    parameters: SoftRegionsParameters

    def begin(self, view: View) -> None:
        self._pool = only_counted_pool(view, "soft-regions")
        self._repartitioner = Repartitioner(self.parameters, view, self._pool)
        self._orders: list[events.Action] = [events.Repartition(self._pool, self._repartitioner.regions())]
        if self.parameters.given() is None:
            self._orders.append(events.WakeAt(self._repartitioner.period_end_s, CUT))

    def decide(self, view: View, event: events.Event) -> Sequence[events.Action]:
        self._note(view, event)
        orders, self._orders = self._orders, []
        if view.upcoming is None and view.waiting:
            for job in self._chosen(view):
                self._repartitioner.started(job, view)
                orders.append(events.Start(job.id, Placement(self._pool, job.units)))
        return orders

    def why(self, job: Job, view: View) -> Reason:
        at = self.latest_starts(view).get(job.id)
        before = list(view.waiting).index(job.id)
        turn = f"behind {before} job{'s' * (before != 1)}" if before else "is next"
        latest = "" if at is None else "; it starts by the time planned for it whatever comes later"
        index = self._repartitioner.region_of(job)
        of_size = size_range(self._repartitioner.layout.bounds, index)
        used, share = self._used(view)[index], self._repartitioner.layout.sizes[index]
        region = f"jobs of {of_size} {view.cluster.unit}s hold {used} of their {share}"
        return Reason(f"{waits_for(job, view)}; {turn}; {region}{latest}", at)

    def latest_starts(self, view: View) -> dict[int, float]:
        """Return the latest start of each waiting job that has one."""
        free = view.free[self._pool]
        latest = self._latest(view, view.waiting.values(), _ends(view), free)
        return {planned.job.id: planned.start_s for planned in latest}

    def _note(self, view: View, event: events.Event) -> None:
        """Apply the event to the period's figures, and divide anew at the period's end."""
        repartitioner = self._repartitioner
        if isinstance(event, events.Submitted):
            repartitioner.submitted(event.job)
        elif isinstance(event, events.Finished | events.Failed):
            repartitioner.left(event.job, view.now, isinstance(event, events.Finished))
        elif isinstance(event, events.Timer) and event.tag == CUT:
            if repartitioner.end_period(view):
                self._orders.append(events.Repartition(self._pool, repartitioner.regions()))
            self._orders.append(events.WakeAt(repartitioner.period_end_s, CUT))

    def _chosen(self, view: View) -> list[Job]:
        """Choose the jobs that start now."""
        now, free = view.now, view.free[self._pool]
        if all(job.units > free for job in view.waiting.values()):
            return []
        held = _ends(view)
        latest = self._latest(view, view.waiting.values(), held, free)
        chosen = [planned.job for planned in latest if planned.start_s <= now]
        free -= sum(job.units for job in chosen)
        held.extend((self._end(job, now), job.units) for job in chosen)
        later = latest[len(chosen) :]
        plan = LatestStarts(later, free)
        used, sizes = self._used(view, chosen), self._repartitioner.layout.sizes
        for borrow in (False, True):
            for job in [planned.job for planned in later if planned.job.units <= free]:
                index = self._repartitioner.region_of(job)
                if job.units > free or not (borrow or used[index] + job.units <= sizes[index]):
                    continue
                end = self._end(job, now)
                if plan.lets_pass(job, end):
                    chosen.append(job)
                    free -= job.units
                    used[index] += job.units
                    held.append((end, job.units))
                    rest = [planned.job for planned in later if planned.job is not job]
                    later = self._latest(view, rest, held, free)
                    plan = LatestStarts(later, free)
        return chosen

    def _latest(
        self, view: View, jobs: Iterable[Job], held: Iterable[tuple[float, int]], free: int
    ) -> list[LatestStart]:
        """List latest starts in the order of the jobs, up to the first whose start cannot be said.

        A job that needs more units than are in service is passed over until they are back.
        """
        ends, at, later = list(held), view.now, 0
        heapify(ends)
        in_service, depth = view.in_service[self._pool], self.parameters.depth
        latest: list[LatestStart] = []
        for job in jobs:
            needed = job.units
            if needed > in_service:
                continue
            while ends and (free < needed or ends[0][0] <= at):
                end, freed = heappop(ends)
                free += freed
                at = max(at, end)
            later += at > view.now
            if free < needed or at == math.inf or later > depth:
                break
            free -= needed
            heappush(ends, (self._end(job, at), needed))
            latest.append(LatestStart(job, at, free))
        return latest

    def _end(self, job: Job, start_s: float) -> float:
        """Predict when the job ends; even one that takes no time is not over before it starts."""
        return instant(start_s + max(job.estimate_on(self._pool), MOMENT_S))

    def _used(self, view: View, chosen: Sequence[Job] = ()) -> list[int]:
        """Count the units that the jobs of each region hold, wherever."""
        used = [0] * len(self._repartitioner.layout.sizes)
        for state in view.running.values():
            used[self._repartitioner.region_of(state.job)] += state.job.units
        for job in chosen:
            used[self._repartitioner.region_of(job)] += job.units
        return used


def _ends(view: View) -> list[tuple[float, int]]:
    """List (expected end, units) of the running jobs; a late one may end any moment, but not now."""
    soon = instant(view.now + MOMENT_S)
    return [(max(state.expected_end_s, soon), state.place.units) for state in view.running.values()]
