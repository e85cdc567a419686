"""Conservative backfilling: a job may pass others if it delays none of them.

Algorithm:

1. The first ``depth`` waiting jobs have reservations, made in the order of the queue: the earliest interval
   as long as its estimate in which the job's units are free beside all running jobs and all reservations made
   before. The job starts when its interval begins. Of several classes a job gets the one on which it would
   end first (equal: the earlier start, then the better class).
2. The jobs behind them hold nothing. In the order of the queue, a job starts when it delays no reservation
   and should end before the last reservation begins; of several classes, on the one where it would then end
   first (equal: the better class).
3. When a job ends before its expected end, each reservation moves once, in the order of the queue, to the
   earliest interval that is free now; on several classes, to the best interval by step 1.
4. When a reservation cannot be kept (a job takes longer than expected, or nodes failed), all are made
   anew, in the order of the queue; a late job is then believed to need a tenth of its time so far more, or
   a minute.

Guarantee: when no job takes longer than its estimate and no node fails, no job starts later (on several
classes: is expected to end later) than by its first reservation. While no more than ``depth`` jobs wait, a
job has that since its submission, and no later job changes it. On one class with exact estimates no job
starts later than under fcfs, at any depth: fcfs starts no job behind the first ``depth`` before the last
reservation begins. With wrong estimates this does not hold for every job.
A job of unknown run time is taken to run for ever. While no reservation can be found for a job, those behind
it get none on the classes that it can run on, and do not pass there.
Cost: O(plan) vector work a reservation and class (the plan has at most two steps for each job that runs or
has a reservation); an early end costs that for each of the first ``depth`` jobs that what was freed is large
enough for. A job behind them costs O(log n) in the length of the queue.
Source: Feitelson and Weil, IPPS 1998; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from scheduler.model.events import Action, Event, Finished, Start, Submitted, Timer, WakeAt
from scheduler.model.jobs import Job, counted, instant
from scheduler.policies.backfill.availability import Availability, earliest_end
from scheduler.policies.backfill.conservative_on_nodes import (
    MOMENT_S,
    NOT_SO_LONG,
    NodeConservative,
    planned_end,
)
from scheduler.policies.backfill.multi_pool import MultiPoolQueue
from scheduler.policies.backfill.on_nodes import node_pools
from scheduler.policies.backfill.queue import Stair
from scheduler.policies.base import Policy, Reason, View, counted_pools, fits_now, waits_for

Plans = Mapping[str, Availability]
Peaks = tuple[list[float], list[int]]  # as ``Availability.peaks`` says it


@dataclass(frozen=True)
class ConservativeParameters:
    """``depth``: number of waiting jobs with reservations."""

    depth: int = 1000

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError("depth must be at least 1")


class Conservative(Policy):
    """Conservative backfilling on counted pools, or on nodes (``conservative_on_nodes``)."""

    Parameters = ConservativeParameters
    promises = frozenset({"no-delay"})
    suits = frozenset({"counted", "classes", "nodes"})
    parameters: ConservativeParameters

    def begin(self, view: View) -> None:
        nodes = node_pools(view, "conservative")
        self._nodes = NodeConservative(nodes, self.parameters.depth, view) if nodes else None
        if nodes:
            return
        self._pools = counted_pools(view, "conservative")
        self._starts: dict[int, float] = {}  # of the jobs with reservations, in the order of the queue
        self._on: dict[int, str] = {}  # the class of each reservation
        self._ends: dict[int, float] = {}  # of the running jobs, as the plans have them
        self._stuck: dict[int, Job] = {}  # of the first jobs those for which no reservation was found
        self._due: list[tuple[float, int]] = []  # reservations by time; void where _starts disagrees
        self._early = False
        self._wakes_s = -math.inf  # the last timer asked for
        self._line_up(view)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if self._nodes is not None:
            return self._nodes.decide(view, event)
        if isinstance(event, Submitted):
            self._new.append(event.job)
        elif isinstance(event, Finished):
            end = self._ends.pop(event.job.id)
            if end > view.now:
                self._plans[event.placement.pool].release(view.now, end, event.placement.units)
                self._early = True
        elif not isinstance(event, Timer):
            self._broken = True  # nodes or jobs failed
        return () if view.upcoming is not None else self._actions(view)

    def _actions(self, view: View) -> list[Action]:
        """Decide at an instant of which all events are known."""
        for plan in self._plans.values():
            plan.trim(view.now)
        if self._broken:
            self._line_up(view)
        elif self._early and self._starts:
            if len(self._plans) == 1:
                self._move_up(view)
            else:
                self._move_up_on_classes(view)
        self._early = False
        self._admit(view.now)
        due = self._due_now(view)
        if self._late(due, view):
            self._make_anew(view)
            due = self._due_now(view)
        actions: list[Action] = []
        while due:
            actions += [self._start(job_id, at, view) for at, job_id in due]
            self._admit(view.now)
            due = self._due_now(view)
        if self._rest.waiting:
            actions += self._pass(view.now)
        self._forget_void()
        if self._due and self._due[0][0] not in (self._wakes_s, math.inf):
            self._wakes_s = self._due[0][0]
            actions.append(WakeAt(self._wakes_s))
        return actions

    def why(self, job: Job, view: View) -> Reason:
        if self._nodes is not None:
            return self._nodes.why(job, view)
        at = self._starts.get(job.id, math.inf)
        if not fits_now(job, view):
            return Reason(waits_for(job, view), None if at == math.inf else at)
        return Reason(NOT_SO_LONG, None if at == math.inf else at)

    def _admit(self, now: float) -> None:
        """Reserve for the jobs that have become one of the first (step 1)."""
        rest, depth = self._rest, self.parameters.depth
        while rest.waiting and len(self._starts) < depth:
            job = next(iter(rest.waiting.values()))
            rest.remove(job)
            self._reserve(job, now, self._open())
        for job in self._new:
            if len(self._starts) < depth:
                self._reserve(job, now, self._open())
            else:
                rest.add(job)
        self._new.clear()

    def _pass(self, now: float) -> list[Action]:
        """Start jobs that delay no reservation (step 2)."""
        actions: list[Action] = []
        last = max(self._starts.values())  # while others wait, ``depth`` jobs have one
        plans = self._open()
        room = {pool: stairs for pool, plan in plans.items() if (stairs := plan.stairs(last))}
        while room and (job := self._rest.first(room)):
            fits = [pool for pool, stairs in room.items() if _fits(job, pool, stairs)]
            pool = min(fits, key=job.estimate_on)
            self._rest.remove(job)
            end = self._ends[job.id] = instant(now + self._length(job, pool))
            plans[pool].reserve(now, end, job.units)
            actions.append(Start(job.id, counted(pool, job.units)))
            room[pool] = plans[pool].stairs(last)
            if not room[pool]:
                del room[pool]
        return actions

    def _reserve(self, job: Job, now: float, plans: Plans) -> None:
        """Give the job the earliest interval, on the best of the classes of ``plans``."""
        end, start, pool = earliest_end(job, plans, now, MOMENT_S)
        self._put(job, start, pool)
        if start < math.inf:
            plans[pool].reserve(start, end, job.units)

    def _put(self, job: Job, start: float, pool: str) -> None:
        if start == math.inf:
            self._stuck[job.id] = job
        elif self._stuck:
            self._stuck.pop(job.id, None)
        if self._starts.get(job.id) != start:
            self._starts[job.id] = start
            heappush(self._due, (start, job.id))
        self._on[job.id] = pool

    def _length(self, job: Job, pool: str) -> float:
        """Return the length of a reservation, at least a moment, because every job needs its units."""
        length = job.estimate_on(pool)
        return length if length > MOMENT_S else MOMENT_S  # max() is slower

    def _open(self) -> Plans:
        """Leave out the classes that a waiting job without reservation can run on."""
        plans: Plans = self._plans
        for job in self._stuck.values():
            plans = without(job, plans)
            if not plans:
                break
        return plans

    def _move_up(self, view: View) -> None:
        """Move reservations to earlier intervals on one class (step 3)."""
        ((pool, plan),) = self._plans.items()
        times, most = plan.peaks()
        stale = False  # moved jobs have left more units free, later on
        for job_id, start in list(self._starts.items()):
            job = view.waiting[job_id]
            if start == math.inf:
                if job.units <= most[-1] or stale:
                    self._reserve(job, view.now, self._plans)
                if self._starts[job_id] == math.inf:
                    break
                stale = True
                continue
            if job.units > most[max(bisect_left(times, start) - 1, 0)]:
                if not stale:
                    continue
                times, most = plan.peaks()
                stale = False
                if job.units > most[max(bisect_left(times, start) - 1, 0)]:
                    continue
            if start > view.now:
                earlier_s = plan.move_up(start, instant(start + self._length(job, pool)), job.units, view.now)
                if earlier_s < start:
                    self._starts[job_id] = earlier_s
                    heappush(self._due, (earlier_s, job_id))
                    stale = True

    def _move_up_on_classes(self, view: View) -> None:
        """Move reservations on several classes, in queue order, each to the best interval (step 3)."""
        plans: Plans = self._plans
        peaks: dict[str, Peaks] = {}
        for job_id, start in list(self._starts.items()):
            job, pool = view.waiting[job_id], self._on[job_id]
            if start < math.inf:
                end = instant(start + self._length(job, pool))
                if not self._may_end_sooner(job, end, view.now, peaks):
                    continue
                self._plans[pool].release(start, end, job.units)
            self._reserve(job, view.now, plans)
            if self._starts[job_id] == math.inf:
                plans = without(job, plans)
                if not plans:
                    break
            elif (start, pool) != (self._starts[job_id], self._on[job_id]):
                peaks.clear()

    def _may_end_sooner(self, job: Job, end: float, now: float, peaks: dict[str, Peaks]) -> bool:
        """Return False if on no class the job's units are free early enough at any one time."""
        if end == math.inf:
            return True
        for pool, plan in self._plans.items():
            if not job.runs_on(pool):
                continue
            latest = instant(end - self._length(job, pool))
            if latest >= now:
                if pool not in peaks:
                    peaks[pool] = plan.peaks()
                times, most = peaks[pool]
                if job.units <= most[max(bisect_right(times, latest) - 1, 0)]:
                    return True
        return False

    def _start(self, job_id: int, at: float, view: View) -> Action:
        """Start the job whose interval begins now."""
        job = view.waiting[job_id]
        pool = self._on.pop(job_id)
        del self._starts[job_id]
        self._ends[job_id] = instant(at + self._length(job, pool))
        return Start(job_id, counted(pool, job.units))

    def _late(self, due: list[tuple[float, int]], view: View) -> bool:
        """Tell if the reservations that are due now cannot be kept."""
        if any(at < view.now for at, _ in due):
            return True
        left = dict(view.free)
        for _, job_id in due:
            left[self._on[job_id]] -= view.waiting[job_id].units
        if self._rest.waiting:  # they take what is free by the plans
            return any(left[pool] < plan.at(view.now) for pool, plan in self._plans.items())
        return min(left.values()) < 0

    def _due_now(self, view: View) -> list[tuple[float, int]]:
        """Take the reservations whose time has come, those of a higher priority first."""
        due: list[tuple[float, int]] = []
        while self._due and self._due[0][0] <= view.now:
            at, job_id = heappop(self._due)
            if self._starts.get(job_id) == at and (at, job_id) not in due[-1:]:
                due.append((at, job_id))
        return sorted(due, key=lambda of: -view.waiting[of[1]].priority) if len(due) > 1 else due

    def _forget_void(self) -> None:
        """Drop void reservations from the front."""
        while self._due and self._starts.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)

    def _line_up(self, view: View) -> None:
        """Take the jobs in the order in which they wait now, and make all reservations anew."""
        self._starts.clear()
        self._rest = MultiPoolQueue(self._pools)  # the jobs behind the first ``depth``
        self._new = list(view.waiting.values())
        self._broken = False
        self._make_anew(view)

    def _make_anew(self, view: View) -> None:
        """Make all reservations anew (step 4)."""
        first = [view.waiting[job_id] for job_id in self._starts]
        self._starts.clear()
        self._on.clear()
        self._stuck.clear()
        self._due.clear()
        self._ends.clear()
        held: dict[str, list[tuple[float, int]]] = {pool: [] for pool in self._pools}
        for state in view.running.values():
            end = self._ends[state.job.id] = planned_end(state, view.now)
            for place in state.places:
                held[place.pool].append((end, place.units))
        self._plans = {
            pool: Availability.beside(held[pool], view.in_service[pool], view.now) for pool in self._pools
        }
        for job in first:
            self._reserve(job, view.now, self._open())
        self._admit(view.now)


def _fits(job: Job, pool: str, stairs: Sequence[Stair]) -> bool:
    """Tell if the job can run there within the units and seconds of one of the stairs."""
    return job.runs_on(pool) and any(
        job.units <= units and job.estimate_on(pool) <= length for units, length in stairs
    )


def without(job: Job, plans: Plans) -> Plans:
    """Leave out the classes that the job can run on."""
    return {pool: plan for pool, plan in plans.items() if not job.runs_on(pool)}
