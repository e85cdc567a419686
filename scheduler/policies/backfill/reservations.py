"""Jobs that wait with reservations: the rules of ``conservative``, for units and for nodes.

``Reservations`` has the steps that stand at the head of ``conservative``. Its two kinds differ in their plans
of a pool: ``UnitReservations`` counts free units over time, ``NodeReservations`` has what is free on each
node. A kind says how its plans are made, searched and charged, and which searches can be left out.

All reservations in ``_reserved`` are charged to the plans: one that changes is given back first. ``_due``
still has the begin that it had before, which is passed over when its time comes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple, Protocol

from scheduler.model.events import Action, Event, Finished, Promise, Start, Submitted, Timer, WakeAt
from scheduler.model.jobs import Job, JobState, Placement, Pool, instant
from scheduler.policies.backfill.multi_pool import MultiPoolQueue
from scheduler.policies.backfill.on_nodes import Places, Way
from scheduler.policies.base import Reason, View

MOMENT_S = 1e-6
LATE_SHARE = 0.1
LATE_LEAST_S = 60.0
NOT_SO_LONG = "there is room, but not for as long as it may run without a delay of earlier jobs"


class Plan(Protocol):
    """Free units or resources of a pool over time."""

    def trim(self, now: float) -> None:
        """Forget what is past."""


class Reservation(NamedTuple):
    """Time and nodes of a job, and the way in which it runs there; a counted pool is one node, number 0."""

    start_s: float
    end_s: float
    pool: str
    places: Places
    way: Job


NONE = Reservation(math.inf, math.inf, "", (), Job(0, 0.0))


class Reservations(ABC):
    """Waiting jobs, the first ``depth`` of them with reservations."""

    _plans: Mapping[str, Plan]

    def __init__(self, pools: Sequence[Pool], depth: int, view: View) -> None:
        self._pools, self._depth = pools, depth
        self._reserved: dict[int, Reservation] = {}  # in the order of the queue
        self._due: list[tuple[float, int]] = []  # reservations by time; void where _reserved disagrees
        self._moved: dict[int, None] = {}  # jobs whose reservations have come or changed
        self._wakes_s = -math.inf  # the last timer asked for
        self._line_up_as_promised(view)

    # -- what depends on the kind of pool --------------------------------------------------------------

    @abstractmethod
    def why(self, job: Job, view: View) -> Reason:
        """Explain what a job waits for, and until when."""

    @abstractmethod
    def _ways(self, job: Job) -> list[Way]:
        """List the pools on which the job can run, and how, the best first where it ends at the same time."""

    @abstractmethod
    def _empty_queue(self) -> MultiPoolQueue:
        """Return an empty queue for the jobs without reservation."""

    @abstractmethod
    def _plan(self, view: View, running: Sequence[Reservation]) -> Mapping[str, Plan]:
        """Plan each pool as the running jobs make it."""

    @abstractmethod
    def _charge(self, at: Reservation, sign: int) -> None:
        """Take what a reservation takes (1), or give it back (-1)."""

    @abstractmethod
    def _earliest(
        self, way: Job, pool: str, length_s: float, after_s: float, *, until_s: float
    ) -> tuple[float, Places]:
        """Return the earliest begin of an interval with room for the job, and its place; none: no place.

        One that begins after ``until_s`` need not be searched for.
        """

    @abstractmethod
    def _may_move(self, job: Job, at: Reservation, now: float) -> bool:
        """Return False if it is certain that no better interval is free for the job."""

    @abstractmethod
    def _has_moved(self, before: Reservation) -> None:
        """Note that something has left its place before its time."""

    @abstractmethod
    def _lacks(self, due: Sequence[int], view: View) -> bool:
        """Tell if less is free now than these jobs need, or than the plans say."""

    @abstractmethod
    def _pass(self, now: float) -> list[Action]:
        """Start jobs without reservation that delay none, and end before the last one begins (step 2)."""

    # -- the rules ---------------------------------------------------------------------------------------

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        """Note what has happened, and start jobs at the last event of an instant."""
        if isinstance(event, Submitted):
            self._new.append(event.job)
        elif isinstance(event, Finished):
            end_s = self._ends.pop(event.job.id, view.now)
            if end_s > view.now:
                at = held_by(event.job, event.placement, view.now, end_s)
                self._charge(at, -1)
                self._has_moved(at)
                self._early = True
        elif not isinstance(event, Timer):
            self._broken = True  # nodes or jobs failed
        return () if view.upcoming is not None else self._actions(view)

    def expected_start(self, job: Job) -> float | None:
        """Return the begin of the job's reservation; None: it has none."""
        at_s = self._reserved.get(job.id, NONE).start_s
        return None if at_s == math.inf else at_s

    def _why_not_now(self, job: Job, view: View) -> str:
        """Say why a job waits for which there is room."""
        stuck = next((job_id for job_id, at in self._reserved.items() if not at.places), job.id)
        if stuck == job.id or self._reserved.get(job.id, NONE).places:
            return NOT_SO_LONG
        return (
            f"there is room, but it might delay job {view.state(stuck).job.name}, of which no start is known"
        )

    def ends_at(self, at_s: float | None) -> list[int]:
        """List the jobs, running or with a reservation, that end then."""
        reserved = {job_id: at.end_s for job_id, at in self._reserved.items()}
        return [job_id for job_id, end_s in {**self._ends, **reserved}.items() if end_s == at_s]

    def reserve(self, job: Job, after_s: float) -> float:
        """Reserve for a job from an instant on; return the begin."""
        self._put(job, at := self._best(job, after_s))
        return at.start_s

    def _actions(self, view: View) -> list[Action]:
        """Decide at an instant of which all events are known."""
        now = view.now
        for plan in self._plans.values():
            plan.trim(now)
        if self._broken:
            self._line_up(view)
        elif self._early and self._reserved:
            self._move_up(view)
        self._early = False
        self._admit(now)
        due = self._due_now(view)
        if (due or self._rest.waiting) and self._late(due, view):
            self._make_anew(view)
            due = self._due_now(view)
        actions: list[Action] = []
        while due:
            actions += [self._start(job_id, self._reserved.pop(job_id)) for job_id in due]
            self._admit(now)
            due = self._due_now(view)
        actions += self._promises(view)
        if self._rest.waiting:
            actions += self._pass(now)
        while self._due and self._is_void(*self._due[0]):
            heappop(self._due)
        if self._due and self._due[0][0] != self._wakes_s:
            self._wakes_s = self._due[0][0]
            actions.append(WakeAt(self._wakes_s))
        return actions

    def _late(self, due: Sequence[int], view: View) -> bool:
        """Tell if the reservations that are due now cannot be kept, or less is free than by the plans."""
        return any(self._reserved[job_id].start_s < view.now for job_id in due) or self._lacks(due, view)

    def _admit(self, now: float) -> None:
        """Reserve for the jobs that have become one of the first (step 1)."""
        rest = self._rest
        while rest.waiting and len(self._reserved) < self._depth:
            job = next(iter(rest.waiting.values()))
            rest.remove(job)
            self.reserve(job, now)
        for job in self._new:
            if len(self._reserved) < self._depth:
                self.reserve(job, now)
            else:
                rest.add(job)
        self._new.clear()

    def _best(self, job: Job, now: float) -> Reservation:
        """Find the interval where the job would end first (equal: the earlier start, then the first pool).

        Not on pools where a job before it waits without reservation.
        """
        best = NONE
        for pool, way in self._ways(job):
            if pool in self._stuck:
                continue
            length_s = length_of(way, pool)
            start_s, places = self._earliest(way, pool, length_s, now, until_s=best.end_s)
            end_s = instant(start_s + length_s)
            if places and (not best.places or (end_s, start_s) < (best.end_s, best.start_s)):
                best = Reservation(start_s, end_s, pool, places, way)
        return best

    def _put(self, job: Job, at: Reservation) -> None:
        """Enter a job's reservation, in place of one that was given back."""
        if at.places:
            self._charge(at, 1)
            if self._reserved.get(job.id, NONE).start_s != at.start_s:
                heappush(self._due, (at.start_s, job.id))
                self._moved[job.id] = None
        elif job.stays is None:  # else its nodes are out of service, and others need not wait for them
            self._stuck.update(pool for pool, _ in self._ways(job))
        self._reserved[job.id] = at

    def _move_up(self, view: View) -> None:
        """Move reservations to earlier intervals, in the order of the queue (step 3)."""
        self._stuck.clear()
        for job_id, before in list(self._reserved.items()):
            job = view.waiting[job_id]
            if before.places:
                if not self._may_move(job, before, view.now):
                    continue
                self._charge(before, -1)
            at = self._best(job, view.now)
            if before.places and (at == before or not self._is_better(job, at, before)):
                self._charge(before, 1)  # on the same nodes
            else:
                self._put(job, at)
                self._has_moved(before)

    def _is_better(self, job: Job, at: Reservation, before: Reservation) -> bool:
        """Compare intervals of a job by step 1."""
        new, old = (at.end_s, at.start_s), (before.end_s, before.start_s)
        if new != old:
            return new < old
        ways = self._ways(job)
        return ways.index((at.pool, at.way)) < ways.index((before.pool, before.way))

    def _start(self, job_id: int, at: Reservation) -> Action:
        self._ends[job_id] = at.end_s
        return Start(job_id, self._placement(at))

    def _placement(self, at: Reservation) -> Placement:
        return Placement(at.pool, at.way.units, at.places, alternative=at.way.alternative)

    def _is_void(self, at_s: float, job_id: int) -> bool:
        return self._reserved.get(job_id, NONE).start_s != at_s

    def _due_now(self, view: View) -> list[int]:
        """Take the reservations whose time has come, those of a higher priority first."""
        due: list[int] = []
        while self._due and self._due[0][0] <= view.now:
            at_s, job_id = heappop(self._due)
            if not self._is_void(at_s, job_id) and job_id not in due[-1:]:
                due.append(job_id)
        if len(due) > 1:
            due.sort(key=lambda job_id: -view.waiting[job_id].priority)
        return due

    def _promises(self, view: View) -> list[Action]:
        """Note the reservations that have changed."""
        now = [(job_id, self._reserved.get(job_id, NONE)) for job_id in self._moved]
        self._moved.clear()
        return [
            Promise(job_id, at.start_s)
            for job_id, at in now
            if at.places and at.start_s != view.state(job_id).promised_s
        ]

    def _line_up_as_promised(self, view: View) -> None:
        """Keep what was promised, up to the first job of the queue that has no promise.

        Reserved for in the order of the promises, each job fits at the promised time at the latest, on one
        counted class: those before it in this order have left by then what they would have left.
        """
        promised_s = {}
        for job_id in islice(view.waiting, self._depth):
            if (start_s := view.state(job_id).promised_s) is None:
                break
            promised_s[job_id] = start_s
        self._line_up(view, sorted(promised_s, key=promised_s.__getitem__))
        if any(self._reserved[job_id].start_s > start_s for job_id, start_s in promised_s.items()):
            self._line_up(view)
        self._reserved = {
            job_id: self._reserved[job_id] for job_id in view.waiting if job_id in self._reserved
        }

    def _line_up(self, view: View, first: Iterable[int] = ()) -> None:
        """Take the jobs in the order in which they wait now, some first, and make all reservations anew."""
        self._reserved = dict.fromkeys(first, NONE)
        self._rest = self._empty_queue()  # the jobs behind the first ``depth``
        self._new = [job for job in view.waiting.values() if job.id not in self._reserved]
        self._early = self._broken = False
        self._make_anew(view)

    def _make_anew(self, view: View) -> None:
        """Make all reservations anew (step 4)."""
        first = [view.waiting[job_id] for job_id in self._reserved]
        self._reserved.clear()
        self._due.clear()
        self._stuck: set[str] = set()  # pools on which a job waits for which no reservation was found
        self._ends: dict[int, float] = {}  # of the running jobs, as the plans have them
        running = []
        for state in view.running.values():
            end_s = self._ends[state.job.id] = planned_end(state, view.now)
            running += [held_by(state.job, place, view.now, end_s) for place in state.places]
        self._plans = self._plan(view, running)
        for job in first:
            self.reserve(job, view.now)
        self._admit(view.now)


def held_by(job: Job, placement: Placement, now: float, end_s: float) -> Reservation:
    """Return what a running job holds until its end."""
    places = placement.nodes or ((0, placement.units),)
    return Reservation(now, end_s, placement.pool, places, job.way(placement))


def length_of(job: Job, pool: str) -> float:
    """Return the length of a reservation, at least a moment, because every job needs its units."""
    length_s = job.estimate_on(pool)
    return length_s if length_s > MOMENT_S else MOMENT_S  # max() is slower


def planned_end(state: JobState, now: float) -> float:
    """Return when a running job gives its units back by the plans; one that is late, some time from now."""
    end_s = state.expected_end_s
    return end_s if end_s > now else instant(now + max(LATE_LEAST_S, LATE_SHARE * state.attained_s(now)))
