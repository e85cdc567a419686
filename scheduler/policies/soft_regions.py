"""Regions that lend their idle units, under a latest start for every job: no job pays for the cutting.

Algorithm, once for every instant at which something changed:

1. Plan: the waiting jobs, in the order of submission, each start as early as they can on the *undivided*
   machine without passing each other, if every job takes as long as its limit. A job's start in this plan
   is its latest start. Those that can start now do; of the others the first ``depth`` are looked at.
2. A later job may start now if, beside it, every job can still start when the plan says: its units must be
   free of running and planned jobs until it ends or until its own planned start, whichever comes first.
   Jobs whose region holds less than its share (with them) are asked first: they are its owners. Then the
   others: they borrow what is idle. Both in the order of submission.

Regions are cut and sized as in ``scheduler/policies/regions.py``, but are only shares: nothing is fenced off,
so a burst in one region spreads over what the others leave idle, and a job that is due ignores regions.
Guarantee: when no job takes longer than its limit and no unit fails, a job's latest start never moves back,
and when a job is submitted it is no later than first come, first served on the undivided machine would start
it if all jobs took as long as their limits. So where limits are exact no job ever starts later than under
``fcfs`` without regions. (Proof: at any time from a job's fcfs start on, what runs or is planned before it
also runs in the fcfs schedule, for all of it started no later than there; so the job fits.)
While a latest start cannot be said (a job of unknown run time runs), no later job passes.
Cost: O((running + depth) log) a decision while jobs wait; the plan is made anew each time, none is kept.
Source: own, against the bursts that Takayama et al. (2021) left open; the plan is conservative backfilling's
(Mu'alem and Feitelson, IEEE TPDS 12(6), 2001) without holes filled ahead of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from scheduler.actions import Action, Repartition, Start, WakeAt
from scheduler.availability import Availability
from scheduler.cutter import CutParameters, Cutter, size_range
from scheduler.events import Event, Failed, Finished, Started, Submitted, Timer
from scheduler.model import Job, Placement, instant
from scheduler.policies.easy import only_counted_pool
from scheduler.policy import Policy, Reason, View, units

CUT = "regions"  # tag of the timer
MOMENT_S = 1e-6


@dataclass(frozen=True)
class SoftRegionsParameters(CutParameters):
    """``depth``: so many waiting jobs may pass; the others say how to cut (``cutter.CutParameters``)."""

    depth: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth < 1:
            raise ValueError("depth must be at least 1")


class Planned(NamedTuple):
    """A waiting job with its latest start and the end that belongs to it."""

    job: Job
    start_s: float
    end_s: float


class SoftRegions(Policy):
    """Shares of one counted pool for jobs of some sizes, with a latest start for every job."""

    Parameters = SoftRegionsParameters
    suits = frozenset({"counted"})
    ignores = frozenset({Started})
    parameters: SoftRegionsParameters

    def begin(self, view: View) -> None:
        self._pool = only_counted_pool(view, "soft-regions")
        self._cutter = Cutter(self.parameters, view, self._pool)
        self._orders: list[Action] = [Repartition(self._pool, self._cutter.regions())]
        if self.parameters.given() is None:
            self._orders.append(WakeAt(self._cutter.period_end_s, CUT))

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        self._note(view, event)
        orders, self._orders = self._orders, []
        if view.upcoming is None and view.waiting:
            for job in self._chosen(view):
                self._cutter.started(job, view)
                orders.append(Start(job.id, Placement(self._pool, job.units)))
        return orders

    def why(self, job: Job, view: View) -> Reason:
        planned = {plan.job.id: plan.start_s for plan in self._plan(view, _ends(view))}
        at = planned.get(job.id)
        before = list(view.waiting).index(job.id)
        turn = f"behind {before} job{'s' * (before != 1)}" if before else "is next"
        latest = "" if at is None else "; it starts by the time planned for it whatever comes later"
        index = self._cutter.region_of(job)
        of_size = size_range(self._cutter.layout.bounds, index)
        used, share = self._used(view)[index], self._cutter.layout.sizes[index]
        region = f"jobs of {of_size} units hold {used} of their {share}"
        return Reason(f"waits for {units(job)}, {view.free[self._pool]} free, {turn}; {region}{latest}", at)

    def _note(self, view: View, event: Event) -> None:
        """Keep the period's figures, and cut anew at its end."""
        cutter = self._cutter
        if isinstance(event, Submitted):
            cutter.submitted(event.job)
        elif isinstance(event, Finished | Failed):
            cutter.left(event.job, view.now, isinstance(event, Finished))
        elif isinstance(event, Timer) and event.tag == CUT:
            if cutter.end_period(view):
                self._orders.append(Repartition(self._pool, cutter.regions()))
            self._orders.append(WakeAt(cutter.period_end_s, CUT))

    def _chosen(self, view: View) -> list[Job]:
        """Who starts now."""
        now, free = view.now, view.free[self._pool]
        held = _ends(view)
        plan = self._plan(view, held)
        chosen = [planned.job for planned in plan if planned.start_s <= now]
        free -= sum(job.units for job in chosen)
        later = [planned for planned in plan if planned.start_s > now]
        if not any(planned.job.units <= free for planned in later):
            return chosen
        held.extend((planned.end_s, planned.job.units) for planned in plan if planned.start_s <= now)
        table = Availability.beside(held, view.in_service[self._pool], now)
        for planned in later:
            table.reserve(planned.start_s, planned.end_s, planned.job.units)
        used, sizes = self._used(view, chosen), self._cutter.layout.sizes
        for borrow in (False, True):
            left = []
            for planned in later:
                job, index = planned.job, self._cutter.region_of(planned.job)
                within = borrow or used[index] + job.units <= sizes[index]
                if within and job.units <= free and self._passes(planned, table, now):
                    chosen.append(job)
                    free -= job.units
                    used[index] += job.units
                else:
                    left.append(planned)
            later = left
        return chosen

    def _passes(self, planned: Planned, table: Availability, now: float) -> bool:
        """Start the job now in the ``table`` if that keeps all latest starts; whether it does."""
        job = planned.job
        end = self._end(job, now)
        # From its own planned start on its units are set aside for it anyway.
        if table.least(now, min(end, planned.start_s)) < job.units:
            return False
        table.release(planned.start_s, planned.end_s, job.units)
        table.reserve(now, end, job.units)
        return True

    def _plan(self, view: View, held: Sequence[tuple[float, int]]) -> list[Planned]:
        """Latest starts, in the order of submission, up to the first job whose start cannot be said.

        A job that needs more units than are in service is passed over until they are back.
        """
        ends = list(held)
        heapify(ends)
        at, free = view.now, view.free[self._pool]
        plan: list[Planned] = []
        later = 0
        for job in view.waiting.values():
            if job.units > view.in_service[self._pool]:
                continue
            while ends and (free < job.units or ends[0][0] <= at):
                end, units_freed = heappop(ends)
                free += units_freed
                at = max(at, end)
            later += at > view.now
            if free < job.units or at == math.inf or later > self.parameters.depth:
                break
            free -= job.units
            end = self._end(job, at)
            heappush(ends, (end, job.units))
            plan.append(Planned(job, at, end))
        return plan

    def _end(self, job: Job, start_s: float) -> float:
        """When the job should end; even one that takes no time is not over before it starts."""
        return instant(start_s + max(job.estimate_on(self._pool), MOMENT_S))

    def _used(self, view: View, chosen: Sequence[Job] = ()) -> list[int]:
        """Units that the jobs of each region hold, wherever."""
        used = [0] * len(self._cutter.layout.sizes)
        for state in view.running.values():
            used[self._cutter.region_of(state.job)] += state.job.units
        for job in chosen:
            used[self._cutter.region_of(job)] += job.units
        return used


def _ends(view: View) -> list[tuple[float, int]]:
    """(expected end, units) of the running jobs; one that takes longer may end any moment, but not now."""
    soon = instant(view.now + MOMENT_S)
    return [
        (max(state.expected_end_s, soon), state.placement.units)
        for state in view.running.values()
        if state.placement is not None
    ]
