"""Conservative backfilling on nodes that have several resources.

The rules are those of ``conservative``, with "so many units" read as "this vector, so many times on the nodes
of one pool". A reservation names its nodes: of those that have room for all of its time, the ones that
``on_nodes`` would take at its begin. A reservation that cannot begin earlier keeps its nodes.

Cost: a reservation is O(steps of the plan) vector work over the nodes. An early end costs that for each
reservation that could fit on the nodes that it leaves.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.model.events import Action, Event, Finished, Start, Submitted, Timer, WakeAt
from scheduler.model.jobs import EPSILON, Job, JobState, Placement, Pool, instant
from scheduler.model.state import Nodes
from scheduler.policies.backfill import on_nodes
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
from scheduler.policies.base import Reason, View

MOMENT_S = 1e-6
LATE_SHARE = 0.1
LATE_LEAST_S = 60.0
SLACK = 1e-6  # of sums that were added and subtracted many times
AHEAD = 64  # steps that are looked at first
NOT_SO_LONG = "there is room, but not for as long as it may run without a delay of earlier jobs"
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


class Reservation(NamedTuple):
    """Time and nodes for a waiting job, and the way in which it is to run there."""

    start_s: float
    end_s: float
    pool: str
    places: Places
    way: Job


NONE = Reservation(math.inf, math.inf, "", (), Job(0, 0.0))


class NodeConservative:
    """Jobs that wait for pools with nodes, the first ``depth`` of them with reservations."""

    def __init__(self, pools: Sequence[Pool], depth: int, view: View) -> None:
        self._classes = PoolOrder(pools, by_length=True)
        self._pools, self._depth = pools, depth
        self._freed: dict[str, set[int]] = {}  # nodes that something has left before its time, by pool
        self._wakes_s = -math.inf  # the last timer asked for
        self._line_up(view)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        """Note what has happened, and start jobs at the last event of an instant."""
        if isinstance(event, Submitted):
            self._new.append(event.job)
        elif isinstance(event, Finished):
            self._ended(event, view.now)
        elif not isinstance(event, Timer):
            self._broken = True  # nodes or jobs failed
        return () if view.upcoming is not None else self._actions(view)

    def _ended(self, event: Finished, now: float) -> None:
        end_s = self._ends.pop(event.job.id, now)
        if end_s > now:
            at = event.placement
            self._plans[at.pool].charge(now, end_s, at.nodes, event.job.way(at).demand, sign=-1)
            self._left(at.pool, at.nodes)
            self._early = True

    def _left(self, pool: str, places: Places) -> None:
        """Note that there may be more room on these nodes."""
        self._freed.setdefault(pool, set()).update(node for node, _ in places)

    def _actions(self, view: View) -> list[Action]:
        now = view.now
        for plan in self._plans.values():
            plan.trim(now)
        if self._broken:
            self._line_up(view)
        elif self._early and self._reserved:
            self._move_up(view)
        self._early = False
        self._admit(now)
        due = self._due(now)
        if self._late(due, view):
            self._make_anew(view)
            due = self._due(now)
        actions: list[Action] = []
        while due:
            actions += [self._start(job_id) for job_id in due]
            self._admit(now)
            due = self._due(now)
        if self._rest:
            actions += self._pass(now)
        first_s = min((at.start_s for at in self._reserved.values()), default=math.inf)
        if first_s not in (self._wakes_s, math.inf):
            self._wakes_s = first_s
            actions.append(WakeAt(first_s))
        return actions

    def why(self, job: Job, view: View) -> Reason:
        """Explain what a job waits for, and until when."""
        expected_s = self.expected_start(job)
        ways = self._classes(job)
        if any(on_nodes.has_room(view.nodes[pool], way) for pool, way in ways):
            return Reason(NOT_SO_LONG, expected_s)
        return Reason(on_nodes.why(job, view, ways, self.ends_at(expected_s)).sentence, expected_s)

    def expected_start(self, job: Job) -> float | None:
        """Return the begin of the job's reservation; None: it has none."""
        at = self._reserved.get(job.id, NONE).start_s
        return None if at == math.inf else at

    def ends_at(self, at_s: float | None) -> list[int]:
        """List the jobs, running or with a reservation, that end then."""
        reserved = {number: at.end_s for number, at in self._reserved.items()}
        return [number for number, end_s in {**self._ends, **reserved}.items() if end_s == at_s]

    def take(self, job: Job, after_s: float) -> float:
        """Reserve for a job from an instant on; return the begin."""
        self._reserve(job, after_s)
        return self._reserved[job.id].start_s

    def _admit(self, now: float) -> None:
        """Reserve for the jobs that have become one of the first (step 1)."""
        for job in self._new:
            self._rest[job.id] = job
        self._new.clear()
        while self._rest and len(self._reserved) < self._depth:
            _, job = self._rest.popitem(last=False)
            self._reserve(job, now)

    def _open(self, job: Job) -> list[Way]:
        """List the ways on pools where no job before it waits without reservation."""
        return [(pool, way) for pool, way in self._classes(job) if pool not in self._stuck]

    def _best(self, job: Job, now: float) -> Reservation:
        """Find the interval where the job would end first (equal: the earlier start, then the first pool)."""
        best = NONE
        for pool, way in self._open(job):
            length_s = self._length(way, pool)
            start_s, places = self._plans[pool].earliest(way, length_s, now, best.end_s)
            end_s = instant(start_s + length_s)
            if places and (not best.places or (end_s, start_s) < (best.end_s, best.start_s)):
                best = Reservation(start_s, end_s, pool, places, way)
        return best

    def _reserve(self, job: Job, now: float) -> None:
        self._put(job, self._best(job, now))

    def _put(self, job: Job, at: Reservation) -> None:
        self._reserved[job.id] = at
        if at.places:
            self._plans[at.pool].charge(at.start_s, at.end_s, at.places, at.way.demand)
        else:
            self._stuck.update(pool for pool, _ in self._classes(job))

    def _length(self, job: Job, pool: str) -> float:
        return max(job.estimate_on(pool), MOMENT_S)

    def _move_up(self, view: View) -> None:
        """Move reservations to earlier intervals, in the order of the queue (step 3)."""
        self._stuck.clear()
        freed, self._freed = self._freed, {}  # what moves leave, jobs before them may take the next time
        peaks: dict[tuple[str, int], Peaks] = {}
        for job_id, before in list(self._reserved.items()):
            job = view.waiting[job_id]
            soonest = before.start_s <= view.now and len(self._pools) == 1 and not job.alternatives
            if before.places and (soonest or not self._may_move(job, before, freed, peaks)):
                continue
            self._release(before)
            at = self._best(job, view.now)
            if before.places and self._rank(job, at) >= self._rank(job, before):
                at = before  # on the same nodes
            self._put(job, at)
            if at != before:
                self._left(before.pool, before.places)
                for node, _ in before.places:
                    freed.setdefault(before.pool, set()).add(node)
                    peaks.pop((before.pool, node), None)

    def _may_move(
        self,
        job: Job,
        at: Reservation,
        freed: Mapping[str, set[int]],
        peaks: dict[tuple[str, int], Peaks],
    ) -> bool:
        """Tell if one task of the job fits early enough on a node that something has left."""
        for pool, way in self._classes(job):
            same = pool == at.pool and way is at.way
            latest_s = at.start_s if same else at.end_s - self._length(way, pool)
            for node in freed.get(pool, ()):
                if (pool, node) not in peaks:
                    peaks[pool, node] = self._plans[pool].peaks(node)
                times, most = peaks[pool, node]
                before = bisect_left(times, latest_s) if same else bisect_right(times, latest_s)
                if before and covers(most[before - 1], way.demand):
                    return True
        return False

    def _rank(self, job: Job, at: Reservation) -> tuple[float, float, int]:
        """Order intervals of a job, the best one first (step 1)."""
        ways = self._classes(job)
        return at.end_s, at.start_s, ways.index((at.pool, at.way)) if at.places else len(ways)

    def _release(self, at: Reservation) -> None:
        if at.places:
            self._plans[at.pool].charge(at.start_s, at.end_s, at.places, at.way.demand, sign=-1)

    def _start(self, job_id: int) -> Action:
        at = self._reserved.pop(job_id)
        self._ends[job_id] = at.end_s
        return Start(job_id, Placement(at.pool, at.way.units, at.places, alternative=at.way.alternative))

    def _due(self, now: float) -> list[int]:
        return [job_id for job_id, at in self._reserved.items() if at.start_s <= now]

    def _late(self, due: Iterable[int], view: View) -> bool:
        """Tell if the reservations that are due now cannot be kept, or less is free than by the plans."""
        for pool in self._pools:
            left: NDArray[np.float64] = view.nodes[pool.name].free.T.copy()
            for job_id in due:
                at = self._reserved[job_id]
                if at.start_s < view.now:
                    return True
                for node, tasks in at.places if at.pool == pool.name else ():
                    left[:, node] -= np.multiply(at.way.demand, tasks)
            if left.min() < -EPSILON or (self._rest and (left < self._plans[pool.name].now() - SLACK).any()):
                return True
        return False

    def _pass(self, now: float) -> list[Action]:
        """Start jobs without reservation that delay none, and end before the last one begins (step 2)."""
        actions: list[Action] = []
        last_s = max(at.start_s for at in self._reserved.values())
        failed: set[tuple[str, Vector, int, float]] = set()
        for job in list(self._rest.values()):
            for pool, way in self._open(job):
                length_s = self._length(way, pool)
                request = pool, way.demand, way.units, length_s
                if now + length_s > last_s or request in failed:
                    continue
                start_s, places = self._plans[pool].earliest(way, length_s, now, now)
                if start_s > now:
                    failed.add(request)
                    continue
                del self._rest[job.id]
                self._put(job, Reservation(now, instant(now + length_s), pool, places, way))
                actions.append(self._start(job.id))
                break
        return actions

    def _line_up(self, view: View) -> None:
        """Take the jobs in the order in which they wait now, and make all reservations anew."""
        self._reserved: dict[int, Reservation] = {}  # in the order of the queue
        self._rest: OrderedDict[int, Job] = OrderedDict()  # the jobs behind the first ``depth``
        self._new = list(view.waiting.values())
        self._freed.clear()
        self._early = False
        self._broken = False
        self._make_anew(view)

    def _make_anew(self, view: View) -> None:
        """Make all reservations anew (step 4)."""
        first = [view.waiting[job_id] for job_id in self._reserved]
        self._reserved.clear()
        self._stuck: set[str] = set()  # pools on which a job waits without reservation
        self._ends: dict[int, float] = {}  # of the running jobs, as the plans have them
        self._plans = {
            pool.name: NodePlan(pool, _in_service(view.nodes[pool.name]), view.now) for pool in self._pools
        }
        for state in view.running.values():
            end_s = self._ends[state.job.id] = planned_end(state, view.now)
            for at in state.places:
                self._plans[at.pool].charge(view.now, end_s, at.nodes, state.job.way(at).demand)
        for job in first:
            self._reserve(job, view.now)
        self._admit(view.now)


def planned_end(state: JobState, now: float) -> float:
    """Return when a running job gives its units back by the plans; one that is late, some time from now."""
    end_s = state.expected_end_s
    return end_s if end_s > now else instant(now + max(LATE_LEAST_S, LATE_SHARE * state.attained_s(now)))


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
            plan = NodeConservative(view.cluster.pools, place, view)
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
    plan, after_s = NodeConservative(view.cluster.pools, 0, view), view.now
    for other in ahead:
        after_s = plan.take(other, after_s)
        if other.id == job.id or after_s == math.inf:
            break
    at = None if after_s == math.inf else after_s
    return at, plan.ends_at(at)
