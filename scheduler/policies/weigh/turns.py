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
restart take, for each stop that it has had. A stopped job, or an open first, may wait for those who do not:
when it has waited for longer than it needs, and than any job in its way, that node is kept for it, and nobody
else starts there. One at a time has that; the first of the queue may wait for it too, until it gives way.

The reservation of a first job that is not open binds open jobs, but they may take each other's places. That
of an open one does not bind them, because they give way to it. Where there never was an open job all is
decided as if this module were not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import itemgetter, le
from typing import NamedTuple

import numpy as np

from scheduler.model.events import Action, Checkpointed, Event, Resume, Start, Suspend, Timer, WakeAt
from scheduler.model.jobs import CHECKPOINT, PAUSE, STOPPING, Job, JobState, Placement, Pool, instant
from scheduler.policies.backfill.on_nodes import (
    OPEN,
    ROOM,
    Choice,
    Limit,
    Places,
    Vector,
    covers,
)
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
    job: Job
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
        self._seen: bool | None = None  # there was an open job; None: nobody has looked
        self._kept: dict[Spot, int] = {}  # nodes, and for whom
        self._touched = set[Spot]()  # something has ended there
        self._looks = False  # at all nodes
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
            self._seen = True

    def _start(self, job: Job, pool: str, places: Places, chosen: list[Choice]) -> None:
        super()._start(job, pool, places, chosen)
        self._open.pop(job.id, None)

    def note(self, event: Event) -> None:
        match event:
            case Timer(tag=tag) if tag == LOOK:
                self._looks = True
            case Checkpointed():
                self.ended(event.job.id, event.placement)
            case _:
                super().note(event)

    def _look_at(self, pool: str, nodes: set[int]) -> None:
        super()._look_at(pool, nodes)
        if self._seen:
            self._touched.update((pool, node) for node in nodes)
        for spot in self._kept:
            self._close(spot)

    def _close(self, spot: Spot) -> None:
        """Let nothing be free on a node."""
        nodes, node = self.nodes[spot[0]], spot[1]
        nodes.take(((node, 1),), tuple(nodes.rows[node]))

    def _keep(self, spot: Spot, job: Job) -> None:
        """Let nobody else start on a node."""
        self._kept[spot] = job.id
        self._close(spot)

    def _release(self, spot: Spot, view: View) -> None:
        del self._kept[spot]
        self.nodes[spot[0]].read(view.nodes[spot[0]].free, (spot[1],))
        self._changed[spot[0]].add(spot[1])

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if self._seen is None:
            self._seen = bool(view.suspended) or any(
                self._is_open(state.job) for state in view.running.values()
            )
        for spot, job_id in list(self._kept.items()):
            if job_id not in view.waiting and job_id not in view.suspended:
                self._release(spot, view)
        starts = super().decide(view, event)
        if not self._seen or view.upcoming is not None:
            return starts
        self.read(view)
        actions = [*starts, *self._take_turns(view)]
        self._touched.clear()
        self._looks = False
        look_s = instant(view.now + (FLOOR_S if self._open else LOOK_S))
        if (self._open or view.suspended) and (self._wake_s <= view.now or look_s < self._wake_s):
            self._wake_s = look_s
            actions.append(WakeAt(look_s, LOOK))
        return actions

    # -- turns ----------------------------------------------------------------------------------------

    def _take_turns(self, view: View) -> list[Action]:
        """Let jobs start and go on for which others give way, those of most worth first."""
        first = next(iter(self.waiting.values()), None)
        asks = [view.state(job_id) for job_id in self._open]
        opens = first is not None and first.id in self._open
        self._head = first if opens else None
        self._binds = None if opens else first  # its reservation binds open jobs
        if self._binds is not None and self._binds.units == 1 and not self._binds.alternatives:
            asks.append(view.state(self._binds.id))
        for state in view.suspended.values():
            if self._looks or state.job.stop is CHECKPOINT or _spot(state.place) in self._touched:
                asks.append(state)
        ranks = [(-state.job.priority, -self._worth(state, view), state.job.id) for state in asks]
        self._limits_now = self._limits or {}
        self._crowds = dict[Spot, list[Neighbour]]()
        actions: list[Action] = []
        refused: list[Vector] = []
        for place in sorted(range(len(asks)), key=ranks.__getitem__)[: self._parameters.depth]:
            state = asks[place]
            by_itself = self._looks or _bound(state, view) or state.job.id in self._kept.values()
            if by_itself or not any(all(map(le, demand, state.job.demand)) for demand in refused):
                done = self._serve(state, view)
                actions += done
                if not done and not by_itself:
                    refused.append(state.job.demand)
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
        job = state.job
        if job.units > 1:
            return self._go_on(state, view)
        kept = [spot for spot, job_id in self._kept.items() if job_id == job.id]
        if any(_stopping(spot, view) for spot in kept):
            return []
        if _bound(state, view):
            spots = [_spot(state.place)]
        else:
            pools = [pool for pool, _ in self.classes(job)]
            if job is self._binds:  # where it fits it has been decided on
                pools = [pool for pool in pools if pool in self._limits_now] or pools
            elif fits := self._with_room(job, pools):
                return self._displace(state, Swap(0.0, fits), view)
            spots = kept + self._probed(job, pools, view)
        spots = [spot for spot in spots if self._kept.get(spot, job.id) == job.id]
        best = min((self._swap(state, spot, view) for spot in spots), key=itemgetter(0), default=NONE)
        if best.worth < math.inf:
            return self._displace(state, best, view)
        if self._looks and not self._kept and (job.id in view.suspended or job is self._head):
            left, wait = self._times(state, view)
            for spot in spots if wait > left else ():
                if all(other.left_s < wait for other in self._crowds[spot]):
                    self._keep(spot, job)
                    break
        return []

    def _with_room(self, job: Job, pools: Iterable[str]) -> Spot | None:
        for pool in pools:
            limit = self._limit(job, pool)
            places = () if limit.closed else self.nodes[pool].place(job.demand, 1, limit.spare)
            if places:
                return pool, places[0][0]
        return None

    def _go_on(self, state: JobState, view: View) -> list[Action]:
        """Let a job of several tasks go on that another policy has stopped."""
        at, demand = state.place, state.job.demand
        needs = {node: tuple(tasks * d for d in demand) for node, tasks in at.nodes}
        if not all(
            covers(self._left_for(state.job, (at.pool, node), view), need) for node, need in needs.items()
        ):
            return []
        self.nodes[at.pool].take(at.nodes, demand)
        self._begun.append(state.job.id)
        return [Resume(state.job.id, at)]

    def _limit(self, job: Job, pool: str) -> Limit:
        """Return what the reservation of the first leaves to a job."""
        binds = self._binds is not None and job is not self._binds
        return self._limits_now.get(pool, OPEN) if binds else OPEN

    def _probed(self, job: Job, pools: Iterable[str], view: View) -> list[Spot]:
        """List the nodes on which most is free, of those that could hold a job."""
        rooms: list[tuple[float, Spot]] = []
        for pool in pools:
            there, free = view.nodes[pool], self.nodes[pool].fullness
            able = np.flatnonzero((there.capacity >= np.subtract(job.demand, ROOM)).all(axis=1) & there.up)
            most = able[np.argsort(-free[able], kind="stable")[:PROBED]].tolist()
            rooms += [(-free[node], (pool, node)) for node in most]
        return [spot for _, spot in sorted(rooms)[:PROBED]]

    def _left_for(self, job: Job, spot: Spot, view: View) -> Sequence[float]:
        """Return what is free for a job on a node."""
        (pool, node), limit = spot, self._limit(job, spot[0])
        if spot in self._kept:  # for this job
            kept: list[float] = view.nodes[pool].free[node].tolist()
            return kept
        free = self.nodes[pool].rows[node]
        if limit.closed:
            return [0.0] * len(free)
        return [*map(min, free, limit.spare[node])] if node in limit.spare else free

    def _swap(self, state: JobState, spot: Spot, view: View) -> Swap:
        """Choose who gives way to a job on a node."""
        pool, job, costs = spot[0], state.job, view.costs
        free = self._left_for(job, spot, view)
        if covers(free, job.demand):
            return Swap(0.0, spot)
        if spot not in self._crowds:
            self._crowds[spot] = self._crowd(spot, view)
        crowd = self._crowds[spot]
        may = [other for other in crowd if other.gives and other.job.priority <= job.priority]
        others = _least(may, free, job.demand)
        more_s = sum(costs.stop_s(other.job, pool) + costs.restart_s(other.job, pool) for other in others)
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
            crowd.append(Neighbour(self._worth(state, view), job_id, state.job, left, amounts, gives))
        return sorted(crowd)

    def _displace(self, state: JobState, swap: Swap, view: View) -> list[Action]:
        """Stop those who give way; the job begins at once if that takes no time."""
        job, spot, (pool, node) = state.job, swap.spot, swap.spot
        nodes, spare = self.nodes[pool], self._limit(job, pool).spare
        for kept in [kept for kept, job_id in self._kept.items() if job_id == job.id]:
            self._release(kept, view)
        actions: list[Action] = []
        for other in swap.others:
            self._crowds[spot].remove(other)
            actions.append(Suspend(other.job_id))
            if other.job.stop is not CHECKPOINT and view.costs.stop_s(other.job, pool) <= 0:
                self.ended(other.job_id, view.state(other.job_id).place)
                nodes.take(((node, -1),), other.amounts)
                if node in spare:
                    spare[node] = [s + d for s, d in zip(spare[node], other.amounts, strict=True)]
        if not covers(nodes.rows[node], job.demand):
            self._keep(spot, job)  # until they have stopped
            return actions
        if node in spare:
            spare[node] = [s - d for s, d in zip(spare[node], job.demand, strict=True)]
        if job.id in self.waiting:
            chosen: list[Choice] = []
            self._start(job, pool, ((node, 1),), chosen)
            return [*actions, Start(job.id, chosen[0][1])]
        nodes.take(((node, 1),), job.demand)
        self._begun.append(job.id)
        return [*actions, Resume(job.id, Placement(pool, 1, ((node, 1),)))]

    def why(self, job: Job, view: View) -> Reason:
        """Name those who give way to a job, where their stops take time."""
        for spot, job_id in self._kept.items():
            if job_id == job.id:
                names = ", ".join(_stopping(spot, view))
                at = self.pools[spot[0]].name_of(spot[1])
                return Reason(
                    f"waits on {at} until {names or 'enough'} {'gives way' if names else 'is free'}"
                )
        return super().why(job, view)


def _spot(place: Placement) -> Spot:
    return place.pool, place.nodes[0][0]


def _bound(state: JobState, view: View) -> bool:
    """Tell if a job is paused, so that it must go on where it is."""
    return state.job.stop is PAUSE and state.job.id in view.suspended


def _stopping(spot: Spot, view: View) -> list[str]:
    """Name the jobs that are being stopped on a node."""
    states = map(view.state, view.nodes[spot[0]].jobs[spot[1]])
    return [f"job {state.job.name}" for state in states if state.stage is STOPPING]


def _spared(state: JobState, view: View) -> bool:
    """Tell if a job has been stopped often for the time that it has run."""
    cost = view.costs.stop_s(state.job, state.place.pool) + view.costs.restart_s(state.job, state.place.pool)
    return state.attained_s(view.now) < state.preemptions * max(SPARE_S, COSTS * cost)


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
    worth = sum(other.worth for other in chosen)
    for other in crowd:  # one alone may do
        if other.worth >= worth:
            break
        if covers([f + d for f, d in zip(free, other.amounts, strict=True)], demand):
            return (other,)
    return chosen
