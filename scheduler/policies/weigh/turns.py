"""Turns on nodes: who gives way to whom where run times are not known.

A job is *open* if its run time is unknown and it has a checkpoint, or can be paused and ``pause`` allows it;
it has one task, and one way to run. Who has run long will run long (a heavy tail), so an open job is believed
to need as long again as it has had. The *worth* of a second of a job is

    (its time left + its wait) / its time left ^ 2

the hope that it ends in this second, times how much its wait has lengthened it.

**Who gives way**: where an open job, or the first of the queue, fits nowhere, open jobs on one node give way
to it if its worth, its time left made longer by their stops and restarts, is above ``GAIN`` times the sum of
theirs. Of the ``PROBED`` nodes on which most is free that one is taken on which this sum is least. A paused
job goes on where it is. So a new job displaces who has run long, and who was stopped is worth more and more
while it waits, until it has its turn.

**Bound**: a job gives way only if it has run for ``SPARE_S``, and for ``COSTS`` times as long as a stop and a
restart take, for each stop that it has had. A stopped or an open job may wait for those who do not: when it
has waited for longer than it needs, and than any job in its way, that node is kept for it, and nobody else
starts there. One at a time has that; the first of the queue may wait for it too, until it gives way.

On the nodes of a reservation open jobs only take each other's places. An open first job has none, because
others give way to it. Where no job is open all is decided as if this module were not there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from scheduler.model.events import Action, Event, Resume, Start, Suspend, WakeAt
from scheduler.model.jobs import CHECKPOINT, PAUSE, STOPPING, Job, JobState, Placement, Pool, instant
from scheduler.model.state import rooms
from scheduler.policies.backfill.on_nodes import OPEN, Choice, Limit, Places, Vector, covers
from scheduler.policies.base import Reason, View
from scheduler.policies.weigh.on_nodes import NodeWeigh
from scheduler.policies.weigh.parameters import WeighParameters
from scheduler.policies.weigh.waiting import FLOOR_S, is_unknown, left_s

GAIN = 1.2
SPARE_S, COSTS = 60.0, 5.0
PROBED = 8
LOOK = "look"  # tag of timers
LOOK_S = 60.0  # between looks at those who are stopped, where nothing happens

Spot = tuple[str, int]  # pool and node


class Neighbour(NamedTuple):
    """A job that runs on a node: its worth, its time left, what it has there, and if it may give way."""

    worth: float
    job_id: int
    state: JobState
    left_s: float
    amounts: Vector
    gives: bool


class Swap(NamedTuple):
    """Those who give way to a job on a node, and their worth; infinite: it is not worth while."""

    worth: float
    spot: Spot = ("", 0)
    others: Sequence[Neighbour] = ()


NONE = Swap(math.inf)


class NodeTurns(NodeWeigh):
    """Weigh on nodes, where open jobs take turns (see the head of this module)."""

    def __init__(self, pools: Sequence[Pool], parameters: WeighParameters) -> None:
        super().__init__(pools, parameters)
        self._open = dict[int, None]()  # of those that wait
        self._kept: dict[int, Spot] = {}  # for each of these jobs a node
        self._touched = set[Spot]()  # something may have changed there
        self._wake_s = -math.inf

    def _is_open(self, job: Job) -> bool:
        """Tell if a job takes turns: it may be stopped, and its run time is not known."""
        may = job.stop is CHECKPOINT or (job.stop is PAUSE and self._parameters.pause)
        return may and job.units == 1 and not job.alternatives and is_unknown(job)

    # -- what happens ---------------------------------------------------------------------------------

    def _rank(self, job: Job) -> None:
        super()._rank(job)
        if self._is_open(job):
            self._open[job.id] = None

    def _start(self, job: Job, pool: str, places: Places, chosen: list[Choice]) -> None:
        super()._start(job, pool, places, chosen)
        self._open.pop(job.id, None)

    def _look_at(self, pool: str, nodes: set[int]) -> None:
        super()._look_at(pool, nodes)
        self._touched.update((pool, node) for node in nodes)
        for spot in self._kept.values():
            self._close(spot)

    def _close(self, spot: Spot) -> None:
        """Let nothing be free on a node."""
        nodes, node = self.nodes[spot[0]], spot[1]
        nodes.take(((node, 1),), tuple(nodes.rows[node]))

    def _keep(self, spot: Spot, job: Job) -> None:
        """Let nobody else start on a node."""
        self._kept[job.id] = spot
        self._close(spot)

    def _release(self, job_id: int, view: View) -> None:
        if job_id in self._kept:
            pool, node = self._kept.pop(job_id)
            self.nodes[pool].read(view.nodes[pool].free, (node,))
            self._changed[pool].add(node)

    def _reserve(self, job: Job, view: View, chosen: Sequence[Choice]) -> dict[str, Limit]:
        """Reserve nothing for an open job, because others give way to it."""
        if job.id not in self._open:
            return super()._reserve(job, view, chosen)
        self._promise = job.id, math.inf
        return {}

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        for job_id in list(self._kept):
            if job_id not in view.waiting and job_id not in view.suspended:
                self._release(job_id, view)
        starts = super().decide(view, event)
        if view.upcoming is not None:
            return starts
        self.read(view)
        actions = [*starts, *self._take_turns(view)]
        self._touched.clear()
        look_s = instant(view.now + (FLOOR_S if self._open else LOOK_S))
        if (self._open or view.suspended) and (self._wake_s <= view.now or look_s < self._wake_s):
            self._wake_s = look_s
            actions.append(WakeAt(look_s, LOOK))
        return actions

    # -- turns ----------------------------------------------------------------------------------------

    def _take_turns(self, view: View) -> list[Action]:
        """Let jobs start and go on for which others give way, those of most worth first."""
        first = next(iter(self.waiting), None)
        self._head = None if first is None or first in self._open else self.waiting[first]
        asks = [view.state(job_id) for job_id in self._open]
        if self._head is not None and self._head.units == 1 and not self._head.alternatives:
            asks.append(view.state(self._head.id))
        for state in view.suspended.values():
            if state.job.stop is CHECKPOINT or _spot(state.place) in self._touched:
                asks.append(state)
        self._bounds = self._limits or {}
        self._crowds = dict[Spot, list[Neighbour]]()
        asks.sort(key=lambda state: (-state.job.priority, -self._worth(state, view), state.job.id))
        actions: list[Action] = []
        for state in asks[: self._parameters.depth]:
            actions += self._serve(state, view)
        if actions:
            self._limits = None
        return actions

    def _times(self, state: JobState, view: View) -> tuple[float, float]:
        """Return the believed time left of a job, and its wait with all stops."""
        pool = state.place.pool if state.placement else self.classes(state.job)[0][0]
        had = state.attained_s(view.now)
        left = had if self._is_open(state.job) else left_s(state, view.now, pool)
        return max(left, FLOOR_S), state.waited_s(view.now)

    def _worth(self, state: JobState, view: View, more_s: float = 0.0) -> float:
        """Return the worth of a second of a job that takes so many seconds more than is left of it."""
        left, wait = self._times(state, view)
        return (left + wait) / (left * (left + more_s))

    def _serve(self, state: JobState, view: View) -> list[Action]:
        """Let a job begin or go on where it fits, or where others give way; nothing, if it must wait."""
        job, kept = state.job, self._kept.get(state.job.id)
        if job.units > 1:
            return self._go_on(state, view)
        if kept is not None and _stopping(kept, view):
            return []
        spots = [_spot(state.place)] if _bound(state, view) else [kept] if kept else self._probed(job, view)
        spots = [spot for spot in spots if spot == kept or spot not in self._kept.values()]
        best = min((self._swap(state, spot, view) for spot in spots), key=itemgetter(0), default=NONE)
        if best.worth < math.inf:
            return self._displace(state, best, view)
        left, wait = self._times(state, view)
        if not self._kept and wait > left and (job.id in view.suspended or job.id in self._open):
            for spot in spots:
                if all(other.left_s < wait for other in self._crowds[spot]):
                    self._keep(spot, job)
                    break
        return []

    def _go_on(self, state: JobState, view: View) -> list[Action]:
        """Let a job of several tasks go on that another policy has stopped."""
        at, demand = state.place, state.job.demand
        for node, tasks in at.nodes:
            if not covers(self._left_for(state.job, (at.pool, node), view), [tasks * d for d in demand]):
                return []
        self.nodes[at.pool].take(at.nodes, demand)
        self._begun.append(state.job.id)
        return [Resume(state.job.id, at)]

    def _probed(self, job: Job, view: View) -> list[Spot]:
        """List the nodes on which most is free, of those that could hold a job."""
        # Where the head fits elsewhere than at its reservation it would rather wait.
        pools = self._bounds if job is self._head else [pool for pool, _ in self.classes(job)]
        found: list[tuple[float, Spot]] = []
        for pool in pools:
            there, free = view.nodes[pool], self.nodes[pool].fullness
            able = np.flatnonzero(rooms(there.capacity, job.demand) * there.up)
            most = able[np.argsort(-free[able], kind="stable")[:PROBED]].tolist()
            found += [(-free[node], (pool, node)) for node in most]
        return [spot for _, spot in sorted(found)[:PROBED]]

    def _left_for(self, job: Job, spot: Spot, view: View) -> Sequence[float]:
        """Return what is free for a job on a node, beside a reservation."""
        pool, node = spot
        if self._kept.get(job.id) == spot:
            return view.nodes[pool].free[node].tolist()  # type: ignore[no-any-return]
        free, limit = self.nodes[pool].rows[node], self._bounds.get(pool, OPEN)
        bound = job is not self._head and (limit.closed or node in limit.spare)
        return [0.0] * len(free) if bound else free

    def _swap(self, state: JobState, spot: Spot, view: View) -> Swap:
        """Choose who gives way to a job on a node."""
        job, free = state.job, self._left_for(state.job, spot, view)
        if covers(free, job.demand):
            return Swap(0.0, spot)
        if spot not in self._crowds:
            self._crowds[spot] = self._crowd(spot, view)
        crowd, most = self._crowds[spot], job.priority
        may = [other for other in crowd if other.gives and other.state.job.priority <= most]
        others = _least(may, free, job.demand)
        more_s = sum(_cost_s(other.state, view) for other in others)
        worth = sum(other.worth for other in others)
        if not others or self._worth(state, view, more_s) <= GAIN * worth:
            return NONE
        return Swap(worth, spot, others)

    def _crowd(self, spot: Spot, view: View) -> list[Neighbour]:
        """List who runs on a node, of least worth first; nobody, while one stops there."""
        (pool, node), crowd = spot, list[Neighbour]()
        for job_id, units in view.nodes[pool].jobs[node].items() if not _stopping(spot, view) else ():
            state = view.state(job_id)
            amounts = tuple(units * d for d in state.job.way(state.place).demand)
            gives = self._is_open(state.job) and not _spared(state, view)
            left, _ = self._times(state, view)
            crowd.append(Neighbour(self._worth(state, view), job_id, state, left, amounts, gives))
        return sorted(crowd)

    def _displace(self, state: JobState, swap: Swap, view: View) -> list[Action]:
        """Stop those who give way; the job begins at once if that takes no time."""
        job, spot, (pool, node) = state.job, swap.spot, swap.spot
        nodes, actions = self.nodes[pool], list[Action]()
        self._release(job.id, view)
        for other in swap.others:
            self._crowds[spot].remove(other)
            actions.append(Suspend(other.job_id))
            if other.state.job.stop is not CHECKPOINT and view.costs.stop_s(other.state.job, pool) <= 0:
                self.ended(other.job_id, other.state.place)
                nodes.take(((node, -1),), other.amounts)
        if not covers(nodes.rows[node], job.demand):
            self._keep(spot, job)  # until they have stopped
            return actions
        if job.id in self.waiting:
            chosen: list[Choice] = []
            self._start(job, pool, ((node, 1),), chosen)
            return [*actions, Start(job.id, chosen[0][1])]
        nodes.take(((node, 1),), job.demand)
        self._begun.append(job.id)
        return [*actions, Resume(job.id, Placement(pool, 1, ((node, 1),)))]

    def why(self, job: Job, view: View) -> Reason:
        """Name those who give way to a job, where their stops take time."""
        if job.id not in self._kept:
            return super().why(job, view)
        spot = self._kept[job.id]
        names = ", ".join(_stopping(spot, view))
        at = self.pools[spot[0]].name_of(spot[1])
        return Reason(f"waits on {at} until {names or 'enough'} {'gives way' if names else 'is free'}")


def _spot(place: Placement) -> Spot:
    return place.pool, place.nodes[0][0]


def _bound(state: JobState, view: View) -> bool:
    """Tell if a job is paused, so that it must go on where it is."""
    return state.job.stop is PAUSE and state.job.id in view.suspended


def _stopping(spot: Spot, view: View) -> list[str]:
    """Name the jobs that are being stopped on a node."""
    states = map(view.state, view.nodes[spot[0]].jobs[spot[1]])
    return [f"job {state.job.name}" for state in states if state.stage is STOPPING]


def _cost_s(state: JobState, view: View) -> float:
    """Return how long a stop and a restart of a job take."""
    return view.costs.stop_s(state.job, state.place.pool) + view.costs.restart_s(state.job, state.place.pool)


def _spared(state: JobState, view: View) -> bool:
    """Tell if a job has been stopped often for the time that it has run."""
    return state.attained_s(view.now) < state.preemptions * max(SPARE_S, COSTS * _cost_s(state, view))


def _least(crowd: Sequence[Neighbour], free: Sequence[float], demand: Vector) -> Sequence[Neighbour]:
    """Choose those of least worth who make room; nobody, if there would be too little."""
    chosen, room = list[Neighbour](), free
    for other in crowd:
        chosen.append(other)
        room = [r + d for r, d in zip(room, other.amounts, strict=True)]
        if covers(room, demand):
            break
    else:
        return ()
    for other in chosen[-2::-1]:
        without = [r - d for r, d in zip(room, other.amounts, strict=True)]
        if covers(without, demand):
            room = without
            chosen.remove(other)
    return chosen
