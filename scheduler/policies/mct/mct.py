"""MET, MCT, MCTB, MCTM and MCTBM: each job where it ends first, with backfilling and with migration.

Algorithm: each job gets a plan (``plan``) when it is submitted, in the units that all jobs before it leave.

1. MCT: the class on which its completion C = W + E is least (equation 1; MET: E alone). It starts there no
   earlier than any start already reserved on the class (first come, first served on each class).
2. MCTB: or in the first hole of any class in which the whole job fits, if it ends earlier there.
3. MCTM, MCTBM: or in parts. Regions with enough free units are taken in the order of their starts. Each is
   cut where a region of a better class begins, and the end of MCT's queue takes the rest of the job. A part
   pays for its restart unless it is the first, and for its checkpoint unless it is the last. MCTM considers
   only the ends of the queues (start on a worse class, move when the better class is free), MCTBM every
   region.
4. A plan in parts is kept only if it ends earlier than MCT's (and MCTB's). The printed steps lack this
   condition (``literal``), and make many jobs later.
5. ``priced``: a plan is chosen by its end + what it takes from others. A unit-second of a class costs (jobs
   that wait for it) / (its units) seconds, because a job on a class with a queue delays all jobs that wait
   there, each by the job's share of the class.
6. A job that ends early gives its time back. When units are free that were given up early, the first
   ``tries`` small enough waiting jobs (for any class) are planned again, in the order of submission. The new
   plan counts if the job ends earlier. Jobs that run elsewhere keep their plans, because over-estimated costs
   would make them move again and again (at twice the costs +3.1 instead of +1.4 % of mean turnaround, 3,000
   jobs of mix (a)).
7. When a plan cannot be kept (a job takes longer, nodes or jobs fail), all plans are made anew in that order.
   A late job is then believed to need another tenth of its time so far, at least a second, and a late
   checkpoint as long again. If units were not free in time, no job is stopped again before it has done a
   tenth of its work in its place, because under-estimated costs would stop it again and again for nothing.

Guarantee: with exact estimates and costs, no job changes the plan of an earlier job, and no job of MCTB, MCTM
or MCTBM ends later than under MCT beside the same earlier jobs.
Cost: O(plan) work a submission; an early end costs that for each of the tries, and O(jobs).
Source: Koyama, Sato, Komatsu, Murata, Takizawa, Kobayashi: job scheduling with migration for heterogeneous
computing systems, 2011. MCT: Maheswaran et al., JPDC 59, 1999.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from profiles.errors import BadInput
from scheduler.model.events import (
    Action,
    BudgetChanged,
    Checkpointed,
    Event,
    Finished,
    Resume,
    Start,
    Started,
    Submitted,
    Suspend,
    Timer,
    WakeAt,
)
from scheduler.model.jobs import NEVER, STOPPING, Job, JobState, counted
from scheduler.policies.backfill.availability import Availability
from scheduler.policies.base import Policy, Reason, View, units, waits_for
from scheduler.policies.mct.plan import (
    STINT,
    DueQueue,
    MctParameters,
    PlannedJob,
    PoolPlan,
    Stay,
    in_order,
    plan,
    remaining_job,
    stays_until,
)

TRIM_EVERY = 16  # submissions, after which the past is cut off the plans
ON_TIME_S = 1e-5  # smaller differences of an end from its plan are rounding


class Mct(Policy):
    """MET, MCT, MCTB, MCTM and MCTBM on counted pools."""

    resumes = True
    Parameters = MctParameters
    promises = frozenset({"no-delay"})
    suits = frozenset({"counted", "classes"})
    ignores = frozenset({Started, BudgetChanged})
    parameters: MctParameters

    def begin(self, view: View) -> None:
        for pool in view.cluster.pools:
            if not pool.counted:
                raise BadInput(f"policy mct schedules units, {pool.name} has nodes", "describe it by a count")
        self._woken = -math.inf
        self._since_trim = 0
        self._new: list[Job] = []
        self._plan_anew(view)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if type(event) is not Timer:
            self._note(view, event)
        if view.upcoming is not None:
            return ()
        if self._new or self._gaps:
            self._plan_what_is_new(view)
        now = view.now
        stops, starts = self._due.collect(now)
        actions = self._act(view, stops, starts) if starts or stops or self._broken else []
        if self._due.heap:
            due = self._due.heap[0][0]
            if due < self._woken or self._woken <= now:
                self._woken = due
                actions.append(WakeAt(due))
        return actions

    def why(self, job: Job, view: View) -> Reason:
        planned = self._plans.get(job.id)
        at = math.inf if planned is None else planned.parts[0].start_s
        if planned is None or at == math.inf:
            return Reason(f"{waits_for(job, view)}; when there will be more is unknown")
        first, *later = (part.pool for part in planned.parts)
        sentence = f"is to get {units(job, view.cluster)} of {first}"
        if later:
            sentence += f", from where it goes on to {', '.join(later)}"
        if job.units <= max(view.free[pool.name] for pool in view.cluster.pools if job.runs_on(pool.name)):
            sentence += "; units are free, but earlier jobs have reserved them or it would end later there"
        return Reason(sentence, max(at, view.now))

    # -- events ----------------------------------------------------------------------------

    def _note(self, view: View, event: Event) -> None:
        """Apply an event that is no timer to the plans."""
        if type(event) is Submitted:
            self._new.append(event.job)
        elif type(event) is Finished:
            planned = self._plans.pop(event.job.id)
            planned.version += 1
            self._count(planned, "")
            early = planned.end_s - view.now > ON_TIME_S
            for part in planned.parts:
                self._give(part, event.job.units, view.now, early)
        elif type(event) is Checkpointed and not event.resumed:
            planned = self._plans[event.job.id]
            part = planned.parts[0]
            self._give(part, event.job.units, view.now, part.end_s - view.now > ON_TIME_S)
            planned.running = planned.stopping = False
            self._adopt(planned, planned.parts[1:])
        else:
            self._broken = True  # jobs or nodes failed, nodes are back, or who moved is where it was to go

    def _give(self, part: Stay, held: int, now: float, early: bool) -> None:
        if part.end_s > now:
            self._given.append((part, held))
        if early:
            self._leave_slack(part)
        if self._pool_plans[part.pool].slack_until_s > now:
            self._gaps[part.pool] = None

    def _enter_given(self, now: float) -> None:
        """Release what jobs gave back; as late as before the plans are read, because most is past then.

        A plan in parts is a moment longer than the job, whose work is never done in whole moments.
        """
        for part, held in self._given:
            if part.end_s > now:
                self._pool_plans[part.pool].availability.release(max(part.start_s, now), part.end_s, held)
        self._given.clear()

    def _adopt(self, planned: PlannedJob, parts: tuple[Stay, ...]) -> None:
        """Give the job these parts; what was due before is void."""
        planned.parts = parts
        planned.version += 1
        self._count(planned, parts[-1].pool if not planned.running or len(parts) > 1 else "")
        if not planned.stopping:
            due = parts[0].stop_s if planned.running else parts[0].start_s
            if due < math.inf:
                self._due.add(planned, due)

    # -- plans ----------------------------------------------------------------------------------------

    def _plan_what_is_new(self, view: View) -> None:
        """Plan new jobs and fill gaps (step 6), unless all plans are made anew anyway."""
        if self._broken:
            return
        if self._given:
            self._enter_given(view.now)
        for name in self._gaps:
            if self._pool_plans[name].slack_until_s > view.now:
                self._pull_forward(self._pool_plans[name], view)
        for name in [name for name in self._gaps if not self._may_start(name, view.now)]:
            del self._gaps[name]
        for job in self._new:
            self._plan_new(job, view)
        self._new.clear()

    def _plan_new(self, job: Job, view: View) -> None:
        self._since_trim += 1
        if self._since_trim == TRIM_EVERY:
            self._since_trim = 0
            for pool_plan in self._pool_plans.values():
                pool_plan.availability.trim(view.now)
        planned = self._plans[job.id] = PlannedJob(job)
        if self.parameters.priced:
            self._set_prices()
        parts = plan(remaining_job(view, self._pool_plans, self.parameters.migrate, planned), self.parameters)
        self._adopt(planned, parts)
        for part in parts:
            self._pool_plans[part.pool].take(part, job.units)

    def _count(self, planned: PlannedJob, pool: str) -> None:
        """Count the job among those that wait for this class, and no more for the one before."""
        self._waiting[planned.counts_on] -= 1
        self._waiting[pool] += 1
        planned.counts_on = pool

    def _set_prices(self) -> None:
        for pool_plan in self._pool_plans.values():
            waiting = self._waiting[pool_plan.name]
            pool_plan.price = waiting / pool_plan.units if pool_plan.units else 0.0

    def _pull_forward(self, freed: PoolPlan, view: View) -> None:
        """Move waiting jobs up when units that were given up early are free (step 6)."""
        tries = self.parameters.tries
        now, spare = view.now, freed.availability.at(view.now)
        moved = False
        if not any(p.job.units <= spare and p.could_use(freed.name, now) for p in self._plans.values()):
            return
        lasts = {pool_plan.name: pool_plan.last_start_s for pool_plan in self._pool_plans.values()}
        for pool_plan in self._pool_plans.values():
            pool_plan.last_start_s = now
        for planned in self._plans.values():
            if planned.job.units <= spare and planned.could_use(freed.name, now):
                tries -= 1
                moved = self._move_up(view, planned) or moved
                spare = freed.availability.at(now)
            self._mark(planned)
            if not tries or not spare:
                break
        for pool_plan in self._pool_plans.values():
            pool_plan.last_start_s = now if moved else lasts[pool_plan.name]
        if moved:
            for planned in self._plans.values():
                self._mark(planned)

    def _may_start(self, pool: str, now: float) -> bool:
        """Tell if a job of unknown start has room on a class, but others were tried in its place."""
        spare = self._pool_plans[pool].availability.at(now)
        waiting = (p for p in self._plans.values() if p.parts[-1].start_s == math.inf)
        return any(p.job.units <= spare and p.could_use(pool, now) for p in waiting)

    def _mark(self, planned: PlannedJob) -> None:
        for part in planned.parts:
            self._pool_plans[part.pool].mark(part, planned.job.units)

    def _move_up(self, view: View, planned: PlannedJob) -> bool:
        """Plan a job again, and keep that if it ends earlier."""
        kept = planned.parts[:1] if planned.stopping else ()
        before, held = planned.parts[len(kept) :], planned.job.units
        for part in before:
            self._pool_plans[part.pool].availability.release(part.start_s, part.end_s, held)
        rest = remaining_job(
            view, self._pool_plans, self.parameters.migrate, planned, state=view.state(planned.job.id)
        )
        parts = plan(rest, self.parameters)
        better = _worth(parts) < _worth(planned.parts)
        for part in parts if better else before:
            self._pool_plans[part.pool].availability.reserve(part.start_s, part.end_s, held)
        if better:
            for part in before:
                self._leave_slack(part)
            self._adopt(planned, (*kept, *parts))
        return better

    def _leave_slack(self, part: Stay) -> None:
        pool_plan = self._pool_plans[part.pool]
        pool_plan.slack_until_s = max(pool_plan.slack_until_s, part.end_s)

    def _plan_anew(self, view: View, stint: float = 0.0) -> None:
        """Make all plans anew, in step 7 and after a restart; ``stint`` as in ``RemainingJob``."""
        now = view.now
        self._broken = False
        held: dict[str, list[tuple[float, int]]] = {pool.name: [] for pool in view.cluster.pools}
        for state in view.running.values():
            for place in state.places:
                held[place.pool].append((stays_until(state, view), place.units))
        self._pool_plans = {
            name: PoolPlan(
                name, view.in_service[name], Availability.beside(ends, view.in_service[name], now), now
            )
            for name, ends in held.items()
        }
        self._plans: dict[int, PlannedJob] = {}
        self._waiting = Counter[str]()  # number of jobs that wait for each class
        self._due = DueQueue()
        self._gaps: dict[str, None] = {}  # classes with units that were given up early and may be free now
        self._new.clear()
        self._given: list[tuple[Stay, int]] = []  # parts that ended early, with their units
        for state in in_order(view):
            self._plan_again(view, state, stint)

    def _plan_again(self, view: View, state: JobState, stint: float) -> None:
        job = state.job
        planned = self._plans[job.id] = PlannedJob(job)
        planned.running = job.id in view.running
        planned.stopping = state.stage is STOPPING
        parts: tuple[Stay, ...] = ()
        if planned.running:
            end = stays_until(state, view)
            parts = (Stay(state.place.pool, view.now, math.inf, end),)
            late = state.expected_end_s <= view.now
            if not planned.stopping:
                if job.stop is NEVER or not self.parameters.migrate or late:
                    self._adopt(planned, parts)
                    return
                self._pool_plans[state.place.pool].availability.release(view.now, end, job.units)
                parts = ()
        planned.parts = parts
        if self.parameters.priced:
            self._set_prices()
        rest = remaining_job(
            view, self._pool_plans, self.parameters.migrate, planned, state=state, stint=stint
        )
        more = plan(rest, self.parameters)
        for part in more:
            self._pool_plans[part.pool].take(part, job.units)
        self._adopt(planned, (*parts, *more))

    # -- actions ----------------------------------------------------------------------------------

    def _act(self, view: View, stops: Sequence[PlannedJob], starts: Sequence[PlannedJob]) -> list[Action]:
        """Stop and start what is due, after new plans if the old ones cannot be kept."""
        stint = 0.0
        if not self._broken:
            actions, behind = self._orders(view, stops, starts)
            if not behind:
                return actions
            stint = STINT
        self._plan_anew(view, stint)
        return self._orders(view, *self._due.collect(view.now))[0]

    def _orders(
        self, view: View, stops: Sequence[PlannedJob], starts: Sequence[PlannedJob]
    ) -> tuple[list[Action], bool]:
        """Order what is to stop and start; tell if fewer units are free than the plans say."""
        suspensions: list[Action] = []
        for planned in stops:
            planned.stopping = True
            suspensions.append(
                Suspend(planned.job.id, planned.parts[1].pool if len(planned.parts) > 1 else "")
            )
        if not starts:
            return suspensions, False
        actions: list[Action] = []  # before who moves, and takes units where it goes at once
        suspended, free = view.suspended, view.free
        left: dict[str, int] = {}
        late: list[PlannedJob] = []  # they start when a stop at no cost has freed units, at this instant
        for planned in starts:
            job, part = planned.job, planned.parts[0]
            pool = part.pool
            before = left.get(pool, free[pool])
            if job.units <= before:
                left[pool] = before - job.units
                kind = Resume if job.id in suspended else Start
                actions.append(kind(job.id, counted(pool, job.units)))
                planned.running = True
                self._count(planned, planned.parts[-1].pool if len(planned.parts) > 1 else "")
                if part.stop_s < math.inf:
                    self._due.add(planned, part.stop_s)
            else:
                left[pool] = before
                late.append(planned)
                self._due.add(planned, part.start_s)
        return [*actions, *suspensions], self._behind(view.now, left, late, stops)

    def _behind(
        self, now: float, left: dict[str, int], late: Iterable[PlannedJob], stops: Iterable[PlannedJob]
    ) -> bool:
        """Tell if fewer units are ``left`` than planned, once the ``late`` starts and the stops are done."""
        if self._given:
            self._enter_given(now)
        for planned in late:
            left[planned.parts[0].pool] -= planned.job.units
        for planned in stops:
            part = planned.parts[0]
            if part.end_s <= now and part.pool in left:  # they are free at this very instant
                left[part.pool] += planned.job.units
        behind = False
        for pool, spare in left.items():
            behind = behind or spare < 0 or spare < self._pool_plans[pool].availability.at(now)
        return behind


def _worth(parts: tuple[Stay, ...]) -> tuple[float, float]:
    """Rank a plan by its end; if that is unknown, by its having a start."""
    end_s = round(parts[-1].end_s, 4)  # rounding is no gain
    return end_s, parts[0].start_s if end_s == math.inf else 0.0
