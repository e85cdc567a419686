"""Conservative backfilling: a job may pass others if that delays none of them.

Algorithm:

1. Each job gets, when it is submitted, a reservation: the earliest interval as long as its estimate in which
   its units are free beside all running jobs and all reservations made before. It starts when that begins.
2. When a job ends before its expected end, the waiting jobs are looked at once, in the order of submission
   (the first ``depth`` of them), and each reservation moves to the earliest interval that is free now.
3. When a reservation cannot be kept (a job takes longer than expected, or nodes failed), all are made
   anew, in the order of submission; a late job is then believed to need a tenth of its time so far more, or
   a minute.

Guarantee: when no job takes longer than its estimate and no node fails, no job starts later than the
reservation made when it was submitted, whatever comes after it. A job of unknown run time is taken to run for
ever, and while no reservation can be found for a job, those behind it get none.
Cost: O(plan) vector work a submission (the plan has at most two steps for each job); an early end costs that
for each of the first ``depth`` jobs that what was freed is large enough for.
Source: Feitelson and Weil, IPPS 1998; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from scheduler.actions import Action, Start, WakeAt
from scheduler.availability import Availability
from scheduler.events import Event, Finished, Started, Submitted, Timer
from scheduler.model import Job, counted, instant
from scheduler.policies.easy import only_counted_pool
from scheduler.policy import Policy, Reason, View, units

MOMENT_S = 1e-6
LATE_SHARE = 0.1
LATE_LEAST_S = 60.0


@dataclass(frozen=True)
class ConservativeParameters:
    """``depth``: so many waiting jobs are moved up when a job ends early."""

    depth: int = 1000

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError("depth must be at least 1")


class Conservative(Policy):
    """Conservative backfilling on one counted pool."""

    Parameters = ConservativeParameters
    promises = frozenset({"no-delay"})
    suits = frozenset({"counted"})
    ignores = frozenset({Started})
    parameters: ConservativeParameters

    def begin(self, view: View) -> None:
        self._pool = only_counted_pool(view, "conservative")
        self._starts: dict[int, float] = {}  # of the waiting jobs, in the order of submission
        self._ends: dict[int, float] = {}  # of the running jobs, as the plan has them
        self._due: list[tuple[float, int]] = []  # reservations by time; void where _starts disagrees
        self._new: list[Job] = []
        self._early = self._broken = False
        self._wakes_s = -math.inf  # the last timer asked for
        self._make_anew(view)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if isinstance(event, Submitted):
            self._new.append(event.job)
        elif isinstance(event, Finished):
            end = self._ends.pop(event.job.id)
            if end > view.now:
                self._plan.release(view.now, end, event.placement.units)
                self._early = True
        elif not isinstance(event, Timer):
            self._broken = True  # nodes or jobs failed
        if view.upcoming is not None:
            return ()
        self._plan.trim(view.now)
        if self._early and self._starts and not self._broken:
            self._move_up(view)
        for job in self._new:
            self._reserve(job, view.now)
        self._new.clear()
        self._early = False
        due = self._due_now(view.now)
        if self._broken or self._late(due, view):
            self._broken = False
            self._make_anew(view)
            due = self._due_now(view.now)
        actions: list[Action] = [self._start(job_id, at, view) for at, job_id in due]
        self._forget_void()
        if self._due and self._due[0][0] not in (self._wakes_s, math.inf):
            self._wakes_s = self._due[0][0]
            actions.append(WakeAt(self._wakes_s))
        return actions

    def why(self, job: Job, view: View) -> Reason:
        at = self._starts.get(job.id, math.inf)
        free = view.free[self._pool]
        if job.units > free:
            return Reason(f"waits for {units(job)}; {free} free", None if at == math.inf else at)
        sentence = f"{units(job)} are free, but not for as long as it may run without delaying earlier jobs"
        return Reason(sentence, None if at == math.inf else at)

    def _reserve(self, job: Job, now: float, after_all: bool = True) -> None:
        """Step 1; ``after_all`` says that the job is the last of the queue."""
        length = self._length(job)
        hopeless = after_all and next(reversed(self._starts.values()), 0.0) == math.inf
        start = math.inf if hopeless else self._plan.earliest(job.units, length, now)
        self._put(job.id, start)
        if start < math.inf:
            self._plan.reserve(start, instant(start + length), job.units)

    def _length(self, job: Job) -> float:
        """Of its reservation: at least a moment, because even a job of no length needs its units."""
        return max(job.estimate_on(self._pool), MOMENT_S)

    def _put(self, job_id: int, start: float) -> None:
        self._starts[job_id] = start
        heappush(self._due, (start, job_id))

    def _move_up(self, view: View) -> None:
        """Step 2."""
        times, most = self._plan.peaks()
        stale = False  # moved jobs have left more units free, later on
        for job_id, start in list(islice(self._starts.items(), self.parameters.depth)):
            job = view.waiting[job_id]
            if start == math.inf:
                if job.units <= most[-1] or stale:
                    self._reserve(job, view.now, after_all=False)
                if self._starts[job_id] == math.inf:
                    break
                stale = True
                continue
            if job.units > most[max(bisect_left(times, start) - 1, 0)]:
                if not stale:
                    continue
                times, most = self._plan.peaks()
                stale = False
                if job.units > most[max(bisect_left(times, start) - 1, 0)]:
                    continue
            if start > view.now:
                found = self._plan.move_up(start, instant(start + self._length(job)), job.units, view.now)
                if found < start:
                    self._put(job_id, found)
                    stale = True

    def _start(self, job_id: int, at: float, view: View) -> Action:
        """The job whose interval begins now."""
        job = view.waiting[job_id]
        del self._starts[job_id]
        self._ends[job_id] = instant(at + self._length(job))
        return Start(job_id, counted(self._pool, job.units))

    def _late(self, due: list[tuple[float, int]], view: View) -> bool:
        """Whether the reservations that are due now cannot be kept."""
        if any(at < view.now for at, _ in due):
            return True
        return sum(view.waiting[job_id].units for _, job_id in due) > view.free[self._pool]

    def _due_now(self, now: float) -> list[tuple[float, int]]:
        """Take the reservations whose time has come."""
        due: list[tuple[float, int]] = []
        while self._due and self._due[0][0] <= now:
            at, job_id = heappop(self._due)
            if self._starts.get(job_id) == at and (at, job_id) not in due[-1:]:
                due.append((at, job_id))
        return due

    def _forget_void(self) -> None:
        """The first reservation to come is no void one."""
        while self._due and self._starts.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)

    def _make_anew(self, view: View) -> None:
        """Step 3."""
        self._starts.clear()
        self._due.clear()
        self._ends.clear()
        held = []
        for state in view.running.values():
            assert state.placement is not None
            end = state.expected_end_s
            if end <= view.now:
                end = instant(view.now + max(LATE_LEAST_S, LATE_SHARE * state.attained_s(view.now)))
            self._ends[state.job.id] = end
            held.append((end, state.placement.units))
        self._plan = Availability.beside(held, view.in_service[self._pool], view.now)
        for job in view.waiting.values():
            self._reserve(job, view.now)
