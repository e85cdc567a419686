"""Conservative backfilling: a job may pass others if it delays none of them.

Algorithm:

1. The first ``depth`` waiting jobs have reservations, made in the order of the queue: the earliest interval
   as long as its estimate in which the job's units are free beside all running jobs and all reservations made
   before. The job starts when its interval begins. Of several classes a job gets the one on which it would
   end first (equal: the earlier start, then the better class), and likewise of its alternatives.
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
job has that since its submission, and no later job changes it; on one class this holds over restarts too,
because each reservation is noted (``events.Promise``). On one class with exact estimates no job starts later
than under fcfs, at any depth: fcfs starts no job behind the first ``depth`` before the last reservation
begins. With wrong estimates this does not hold for every job.
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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappush

from scheduler.model.events import Action, Event
from scheduler.model.jobs import Job, Placement, counted, instant
from scheduler.policies.backfill.availability import Availability
from scheduler.policies.backfill.conservative_on_nodes import NodeReservations
from scheduler.policies.backfill.multi_pool import MultiPoolQueue, ways_on
from scheduler.policies.backfill.on_nodes import Places, Way, node_pools
from scheduler.policies.backfill.queue import Stair
from scheduler.policies.backfill.reservations import Reservation, Reservations, length_of
from scheduler.policies.base import Policy, Reason, View, fits_now, waits_for

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
        kind = NodeReservations if node_pools(view, "conservative") else UnitReservations
        self.reservations: Reservations = kind(view.cluster.pools, self.parameters.depth, view)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        return self.reservations.decide(view, event)

    def why(self, job: Job, view: View) -> Reason:
        return self.reservations.why(job, view)


class UnitReservations(Reservations):
    """Jobs that wait for counted pools."""

    _plans: dict[str, Availability]
    _choices = False  # a job had alternatives

    def why(self, job: Job, view: View) -> Reason:
        waits = waits_for(job, view, job.ways)
        sentence = self._why_not_now(job, view) if fits_now(job, view) else waits
        return Reason(sentence, self.expected_start(job))

    def _ways(self, job: Job) -> list[Way]:
        self._choices = self._choices or bool(job.alternatives)
        return ways_on(job, self._plans)

    def _empty_queue(self) -> MultiPoolQueue:
        return MultiPoolQueue([pool.name for pool in self._pools])

    def _plan(self, view: View, running: Sequence[Reservation]) -> dict[str, Availability]:
        ends: dict[str, list[tuple[float, int]]] = {pool.name: [] for pool in self._pools}
        for at in running:
            ends[at.pool].append((at.end_s, at.places[0][1]))
        self._peaks: dict[str, Peaks] = {}
        return {
            pool: Availability.beside(held, view.in_service[pool], view.now) for pool, held in ends.items()
        }

    def _charge(self, at: Reservation, sign: int) -> None:
        self._plans[at.pool].reserve(at.start_s, at.end_s, sign * at.places[0][1])

    def _earliest(
        self, way: Job, pool: str, length_s: float, after_s: float, *, until_s: float
    ) -> tuple[float, Places]:
        start_s = self._plans[pool].earliest(way.units, length_s, after_s)
        return start_s, (() if start_s == math.inf else _whole(way.units))

    def _placement(self, at: Reservation) -> Placement:
        return counted(at.pool, at.way.units, at.way.alternative)

    def _move_up(self, view: View) -> None:
        self._peaks.clear()
        if len(self._pools) > 1 or self._choices:
            super()._move_up(view)
        else:
            self._move_up_on_one(view)

    def _move_up_on_one(self, view: View) -> None:
        """Move reservations to earlier intervals on one class, by searches that end where they begin."""
        ((pool, plan),) = self._plans.items()
        times, most = plan.peaks()
        stale = False  # moved jobs have left more units free, later on
        self._stuck.clear()
        for job_id, (before_s, before_end_s, _, places, job) in list(self._reserved.items()):
            if not places:
                if view.waiting[job_id].units <= most[-1] or stale:
                    self.reserve(view.waiting[job_id], view.now)
                if not self._reserved[job_id].places:
                    self._stuck.add(pool)
                    break
                stale = True
                continue
            if before_s <= view.now:
                continue
            if job.units > most[bisect_left(times, before_s) - 1]:
                if not stale:
                    continue
                times, most = plan.peaks()
                stale = False
                if job.units > most[bisect_left(times, before_s) - 1]:
                    continue
            start_s = plan.move_up(before_s, before_end_s, job.units, view.now)
            if start_s < before_s:
                end_s = instant(start_s + length_of(job, pool))
                self._reserved[job_id] = Reservation(start_s, end_s, pool, places, job)
                heappush(self._due, (start_s, job_id))
                self._moved[job_id] = None
                stale = True

    def _may_move(self, job: Job, at: Reservation, now: float) -> bool:
        """Return False if on no class the job's units are free early enough at any one time."""
        if at.end_s == math.inf:
            return True
        for pool, way in self._ways(job):
            latest_s = instant(at.end_s - length_of(way, pool))
            if latest_s >= now:
                if pool not in self._peaks:
                    self._peaks[pool] = self._plans[pool].peaks()
                times, most = self._peaks[pool]
                if way.units <= most[max(bisect_right(times, latest_s) - 1, 0)]:
                    return True
        return False

    def _has_moved(self, before: Reservation) -> None:
        self._peaks.clear()

    def _lacks(self, due: Sequence[int], view: View) -> bool:
        left = dict(view.free)
        for at in map(self._reserved.__getitem__, due):
            left[at.pool] -= at.way.units
        if self._rest.waiting:  # they take what is free by the plans
            return any(left[pool] < plan.at(view.now) for pool, plan in self._plans.items())
        return min(left.values()) < 0

    def _pass(self, now: float) -> list[Action]:
        actions: list[Action] = []
        # While jobs wait behind the first ``depth``, these have one.
        last_s = max(at.start_s for at in self._reserved.values())
        plans = {pool: plan for pool, plan in self._plans.items() if pool not in self._stuck}
        room = {pool: stairs for pool, plan in plans.items() if (stairs := plan.stairs(last_s))}
        while room and (job := self._rest.first(room)):
            ways = [(pool, way) for pool, way in self._ways(job) if _fits(way, room.get(pool, ()), pool)]
            pool, way = min(ways, key=lambda at: at[1].estimate_on(at[0]))
            self._rest.remove(job)
            end_s = instant(now + length_of(way, pool))
            at = Reservation(now, end_s, pool, _whole(way.units), way)
            self._charge(at, 1)
            actions.append(self._start(job.id, at))
            room[pool] = plans[pool].stairs(last_s)
            if not room[pool]:
                del room[pool]
        return actions


@cache
def _whole(units: int) -> Places:
    """Return the place of so many units of a counted pool, cached because most are asked for repeatedly."""
    return ((0, units),)


def _fits(way: Job, stairs: Sequence[Stair], pool: str) -> bool:
    """Tell if the job can run there within the units and seconds of one of the stairs."""
    return any(way.units <= units and way.estimate_on(pool) <= length for units, length in stairs)
