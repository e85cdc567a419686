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
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from scheduler.model.events import Action, Event
from scheduler.model.jobs import EPSILON, Job, Placement, Pool, counted, instant
from scheduler.model.state import Nodes
from scheduler.policies.backfill import on_nodes
from scheduler.policies.backfill.availability import Availability
from scheduler.policies.backfill.multi_pool import MultiPoolQueue, ways_on
from scheduler.policies.backfill.on_nodes import (
    MOST,
    ROOM,
    FreeNodes,
    Places,
    PoolOrder,
    Vector,
    Way,
    choose,
    covers,
    node_pools,
)
from scheduler.policies.backfill.queue import Stair
from scheduler.policies.backfill.reservations import Reservation, Reservations, length_of
from scheduler.policies.base import Policy, Reason, View, fits_now, in_turn, waits_for, where_paused

Peaks = tuple[list[float], list[int]]  # as ``Availability.peaks`` says it


@dataclass(frozen=True)
class ConservativeParameters:
    """``depth``: number of waiting jobs with reservations."""

    depth: int = 1000

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError("depth must be at least 1")


class Conservative(Policy):
    """Conservative backfilling on counted pools, or on nodes (``NodeReservations``)."""

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


# -- on nodes that have several resources ------------------------------------------------------------------
#
# The rules are those above, with "so many units" read as "this vector, so many times on the nodes of one
# pool". A reservation names its nodes: of those that have room for all of its time, the ones that
# ``on_nodes`` would take at its begin. A reservation that cannot begin earlier keeps its nodes. A job whose
# processes are paused on nodes has its reservation there.
#
# Cost: a reservation is O(steps of the plan) vector work over the nodes. An early end costs that for each
# reservation that could fit on the nodes that it leaves.


SLACK = 1e-6  # of sums that were added and subtracted many times
AHEAD = 64  # steps that are looked at first
MOST_AHEAD = 32  # jobs of a queue whose starts are predicted

NodePeaks = tuple[list[float], list[list[float]]]


class NodePlan:
    """Free resources of the nodes of one pool over time, as steps; the last one lasts for ever."""

    def __init__(self, pool: Pool, free: NDArray[np.float64], now: float) -> None:
        self._shares = np.array(FreeNodes(pool).shares).T
        self._free = np.zeros((AHEAD, *self._shares.shape))  # slots of steps, resources, nodes
        self._free[0] = free.T
        self._times = [now, math.inf]  # the begin of each step, and the end of the last
        self._slots = [0]
        self._unused = list(range(1, AHEAD))

    def now(self) -> NDArray[np.float64]:
        """Return what is free in the first step, resources x nodes."""
        first: NDArray[np.float64] = self._free[self._slots[0]]
        return first

    def peaks(self, node: int) -> NodePeaks:
        """Return the begin of each step, and the most of each resource that is free on a node up to it."""
        most = np.maximum.accumulate(self._free[self._slots, :, node], axis=0)
        return self._times[:-1], most.tolist()

    def trim(self, now: float) -> None:
        """Forget what is past."""
        first = bisect_right(self._times, now, 0, len(self._slots)) - 1
        if first > 0:
            self._unused += self._slots[:first]
            del self._times[:first], self._slots[:first]
        self._times[0] = max(self._times[0], now)

    def charge(self, start_s: float, end_s: float, places: Places, demand: Vector, *, sign: int = 1) -> None:
        """Take so much in an interval (-1: give it back)."""
        start_s = max(start_s, self._times[0])
        if end_s <= start_s:
            return
        first, last = self._cut(start_s), self._cut(end_s)
        slots = self._slots[first:last]
        for node, tasks in places:
            self._free[slots, :, node] -= np.multiply(demand, sign * tasks)
        for step in (last, first):
            if 0 < step < len(self._slots) and self._same(step):
                self._unused.append(self._slots.pop(step))
                del self._times[step]

    def _cut(self, time_s: float) -> int:
        """Let a step begin at that time; return it (of infinity: one past the last)."""
        step = bisect_left(self._times, time_s)
        if self._times[step] != time_s:
            if not self._unused:
                size = len(self._free)
                self._free = np.concatenate([self._free, np.zeros_like(self._free)])
                self._unused += range(size, 2 * size)
            slot = self._unused.pop()
            self._free[slot] = self._free[self._slots[step - 1]]
            self._slots.insert(step, slot)
            self._times.insert(step, time_s)
        return step

    def _same(self, step: int) -> bool:
        before, after = self._free[self._slots[step - 1]], self._free[self._slots[step]]
        return bool((np.abs(before - after) < ROOM).all())

    def earliest(
        self, job: Job, length_s: float, after_s: float, until_s: float = math.inf
    ) -> tuple[float, Places]:
        """Return the earliest begin of an interval in which the job has room, and its nodes there.

        Args:
            until_s: it must begin by then; else the begin is infinite.
        """
        first = bisect_right(self._times, after_s, 0, len(self._slots)) - 1
        last = min(bisect_left(self._times, until_s + length_s, first) + 1, len(self._slots))
        for end in (first + AHEAD, last):
            if end <= last:
                times = np.array(self._times[first : end + 1])
                times[0] = max(times[0], after_s)
                rooms = self._rooms(job.demand, first, end)
                if job.stays is not None:  # no room anywhere else
                    nodes, units = map(list, zip(*job.stays.nodes, strict=True))
                    there = np.zeros_like(rooms[0])
                    there[nodes] = units
                    rooms = np.minimum(rooms, there)
                ends = np.searchsorted(times, times[:-1] + length_s)
                room = _least(rooms, ends)
                step = int((room.sum(axis=1) >= job.units).argmax())
                if room[step].sum() >= job.units and times[step] <= until_s:
                    return float(times[step]), self._place(first + step, room[step], job.units)
        return math.inf, ()

    def _rooms(self, demand: Vector, first: int, end: int) -> NDArray[np.int64]:
        """Count for some steps how often the demand fits on each node."""
        block = self._free[self._slots[first:end]]
        rooms = np.full((len(block), block.shape[2]), MOST)
        for r, d in enumerate(demand):
            if d > 0:
                np.minimum(rooms, block[:, r, :] / d, out=rooms)
        return np.maximum(np.floor(rooms + EPSILON), 0.0).astype(np.int64)

    def _place(self, step: int, room: NDArray[np.int64], tasks: int) -> Places:
        return choose(room, (self._free[self._slots[step]] * self._shares).sum(axis=0), tasks)


def _least(rooms: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each step the least room of each node from it to before a later one; 0 if that is beyond.

    The least of 1, 2, 4, ... steps is computed for all steps at once; two of these cover any interval.
    """
    steps = np.arange(len(rooms))
    least, length = rooms.copy(), 1  # of so many steps from each on
    minima = np.zeros_like(rooms)
    while True:
        now = (ends <= len(rooms)) & (ends - steps >= length) & (ends - steps < 2 * length)
        minima[now] = np.minimum(least[now], least[ends[now] - length])
        if 2 * length > len(rooms):
            return minima
        least[:-length] = np.minimum(least[:-length], least[length:])
        length *= 2


class NodeReservations(Reservations):
    """Jobs that wait for pools with nodes."""

    _plans: dict[str, NodePlan]

    def __init__(self, pools: Sequence[Pool], depth: int, view: View) -> None:
        self._order = PoolOrder(pools, by_length=True)
        super().__init__(pools, depth, view)

    def _ways(self, job: Job) -> list[Way]:
        return self._order(job)

    def why(self, job: Job, view: View) -> Reason:
        expected_s = self.expected_start(job)
        if job.stays is not None:
            pool = view.cluster[job.stays.pool]
            return Reason(where_paused(pool.name_of(node) for node, _ in job.stays.nodes), expected_s)
        ways = self._ways(job)
        needs = on_nodes.needs(job, view, ways)
        turn = in_turn(job, view, self.ends_at(expected_s)) if needs else ""
        return Reason((needs or self._why_not_now(job, view)) + turn, expected_s)

    def _empty_queue(self) -> MultiPoolQueue:
        return MultiPoolQueue(())  # in order, not to be searched by units

    def _plan(self, view: View, running: Sequence[Reservation]) -> dict[str, NodePlan]:
        # Nodes that something has left before its time, by pool: for this time and the next.
        self._freed: dict[str, set[int]] = {}
        self._left: dict[str, set[int]] = {}
        self._peaks: dict[tuple[str, int], NodePeaks] = {}
        plans = {
            pool.name: NodePlan(pool, _in_service(view.nodes[pool.name]), view.now) for pool in self._pools
        }
        for at in running:
            plans[at.pool].charge(at.start_s, at.end_s, at.places, at.way.demand)
        return plans

    def _charge(self, at: Reservation, sign: int) -> None:
        self._plans[at.pool].charge(at.start_s, at.end_s, at.places, at.way.demand, sign=sign)

    def _earliest(
        self, way: Job, pool: str, length_s: float, after_s: float, *, until_s: float
    ) -> tuple[float, Places]:
        return self._plans[pool].earliest(way, length_s, after_s, until_s)

    def _move_up(self, view: View) -> None:
        # What moves leave, jobs before them may take the next time.
        self._freed, self._left = self._left, {}
        self._peaks.clear()
        super()._move_up(view)

    def _may_move(self, job: Job, at: Reservation, now: float) -> bool:
        """Tell if one task of the job fits early enough on a node that something has left."""
        if at.start_s <= now and len(self._pools) == 1 and not job.alternatives:
            return False
        for pool, way in self._ways(job):
            same = pool == at.pool and way is at.way
            latest_s = at.start_s if same else at.end_s - length_of(way, pool)
            for node in self._freed.get(pool, ()):
                if (pool, node) not in self._peaks:
                    self._peaks[pool, node] = self._plans[pool].peaks(node)
                times, most = self._peaks[pool, node]
                before = bisect_left(times, latest_s) if same else bisect_right(times, latest_s)
                if before and covers(most[before - 1], way.demand):
                    return True
        return False

    def _has_moved(self, before: Reservation) -> None:
        for node, _ in before.places:
            self._left.setdefault(before.pool, set()).add(node)
            self._freed.setdefault(before.pool, set()).add(node)
            self._peaks.pop((before.pool, node), None)

    def _lacks(self, due: Sequence[int], view: View) -> bool:
        for pool in self._pools:
            left: NDArray[np.float64] = view.nodes[pool.name].free.T.copy()
            for at in map(self._reserved.__getitem__, due):
                for node, tasks in at.places if at.pool == pool.name else ():
                    left[:, node] -= np.multiply(at.way.demand, tasks)
            if left.min() < -EPSILON:
                return True
            if self._rest.waiting and (left < self._plans[pool.name].now() - SLACK).any():
                return True
        return False

    def _pass(self, now: float) -> list[Action]:
        actions: list[Action] = []
        last_s = max(at.start_s for at in self._reserved.values())
        failed: set[tuple[str, Vector, int, float, Placement | None]] = set()
        for job in list(self._rest.waiting.values()):
            for pool, way in self._ways(job):
                length_s = length_of(way, pool)
                request = pool, way.demand, way.units, length_s, way.stays
                if pool in self._stuck or now + length_s > last_s or request in failed:
                    continue
                start_s, places = self._plans[pool].earliest(way, length_s, now, now)
                if start_s > now:
                    failed.add(request)
                    continue
                self._rest.remove(job)
                at = Reservation(now, instant(now + length_s), pool, places, way)
                self._charge(at, 1)
                actions.append(self._start(job.id, at))
                break
        return actions


def _in_service(nodes: Nodes) -> NDArray[np.float64]:
    """Return the capacity of nodes that are in service; the others have none."""
    capacity: NDArray[np.float64] = np.where(nodes.up[:, None], nodes.capacity, 0.0)
    return capacity


def awaited(job: Job, view: View) -> tuple[float | None, list[int]]:
    """Predict when one of the first ``MOST_AHEAD`` waiting jobs starts if no job delays an earlier one.

    Returns:
        Also the jobs whose ends let it start then.
    """
    for place, job_id in enumerate(islice(view.waiting, MOST_AHEAD), 1):
        if job_id == job.id:
            plan = NodeReservations(view.cluster.pools, place, view)
            return (at := plan.expected_start(job)), plan.ends_at(at)
    return None, []


def awaited_in_order(job: Job, view: View) -> tuple[float | None, list[int]]:
    """Predict when one of the first ``MOST_AHEAD`` jobs starts if none passes another; on one pool only.

    Returns:
        Also the jobs whose ends let it start then.
    """
    ahead = list(islice(view.waiting.values(), MOST_AHEAD))
    if len(view.cluster.pools) > 1 or all(other.id != job.id for other in ahead):
        return None, []
    plan, after_s = NodeReservations(view.cluster.pools, 0, view), view.now
    for other in ahead:
        after_s = plan.reserve(other, after_s)
        if other.id == job.id or after_s == math.inf:
            break
    at = None if after_s == math.inf else after_s
    return at, plan.ends_at(at)
