"""Conservative backfilling on nodes that have several resources.

The rules are those of ``conservative``, with "so many units" read as "this vector, so many times on the nodes
of one pool". A reservation names its nodes: of those that have room for all of its time, the ones that
``on_nodes`` would take at its begin. A reservation that cannot begin earlier keeps its nodes. A job whose
processes are paused on nodes has its reservation there.

Cost: a reservation is O(steps of the plan) vector work over the nodes. An early end costs that for each
reservation that could fit on the nodes that it leaves.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from scheduler.model.events import Action
from scheduler.model.jobs import EPSILON, Job, Placement, Pool, instant
from scheduler.model.state import Nodes
from scheduler.policies.backfill import on_nodes
from scheduler.policies.backfill.multi_pool import MultiPoolQueue
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
)
from scheduler.policies.backfill.reservations import Reservation, Reservations, length_of
from scheduler.policies.base import Reason, View, in_turn, where_paused

SLACK = 1e-6  # of sums that were added and subtracted many times
AHEAD = 64  # steps that are looked at first
MOST_AHEAD = 32  # jobs of a queue whose starts are predicted


Peaks = tuple[list[float], list[list[float]]]


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

    def peaks(self, node: int) -> Peaks:
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
        self._peaks: dict[tuple[str, int], Peaks] = {}
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
