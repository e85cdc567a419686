"""Fcfs, first fit and EASY on nodes that have several resources: cores, memory, GPUs of each kind.

A job has tasks that each take the same vector on one node. It fits if the nodes have room for all its tasks,
where a node's room is the number of times that the vector fits into what is free there. The rules are those
of the counted queues (``queue``), with "so many units" read as "this vector, so many times".

**Where a job goes**: one task goes to the node that is fullest (the least sum of free shares over its
resources), so that large jobs and jobs of scarce resources find whole nodes later: a job without GPUs goes to
a node without GPUs where there is one. Several tasks go to as few nodes as possible.

**The reservation** of the first job that does not fit: the running jobs are counted by their expected ends
until there is room for it. What is free then, less the first job's own place, is *spare*. A job passes if it
fits now and should end by then, or if it fits into what is both free now and spare then.

Rooms are kept for each distinct vector (a row) and node (a column). An event changes the columns of the
nodes that it touches, for all rows at once; so a decision costs O(vectors) for each such node, and not
O(waiting jobs).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from scheduler.model.events import Action, Event, Failed, Finished, Start, Submitted
from scheduler.model.jobs import EPSILON, Job, Placement, Pool, instant
from scheduler.model.state import rooms
from scheduler.policies.backfill.queue import HALF_STEP_S, IndexedQueue
from scheduler.policies.base import Reason, View, after, would_delay

Vector = tuple[float, ...]
Places = tuple[tuple[int, int], ...]  # (node, tasks there)
Choice = tuple[Job, Placement]
Matrix = NDArray[np.float64]
ROW = 16  # vectors for which there is room at first
MOST = 2.0**31  # tasks on a node
MOST_EMPTY = 64  # kinds of jobs that nobody waits with


class Rooms:
    """Free resources of each node, and how often each vector that somebody asks for fits there.

    Attributes:
        free: nodes x resources. share: one over the capacity, likewise; 0 for what a node does not have.
        totals: how often each vector fits on all nodes together, by its row.
    """

    def __init__(self, pool: Pool) -> None:
        rows = pool.capacities or [pool.capacity] * pool.units
        capacity = np.array(rows, dtype=np.float64).reshape(pool.units, len(pool.resources))
        self.share = np.divide(1.0, capacity, out=np.zeros_like(capacity), where=capacity > 0)
        self.free = np.zeros_like(capacity)
        self._fullness = np.zeros(pool.units)
        self._rows: dict[Vector, tuple[int, int]] = {}  # its row, and how many ask for it
        self._unused = list(range(ROW))
        self._inverse = np.zeros((ROW, len(pool.resources)))
        self._room = np.zeros((ROW, pool.units), dtype=np.int64)
        self.totals = np.zeros(ROW, dtype=np.int64)

    def add(self, demand: Vector) -> int:
        """Note that somebody asks for a vector; return its row."""
        row, number = self._rows.get(demand, (-1, 0))
        if row < 0:
            if not self._unused:
                self._grow()
            row = self._unused.pop()
            needed = np.asarray(demand)
            self._inverse[row] = np.divide(1.0, needed, out=np.zeros_like(needed), where=needed > 0)
            self._room[row] = rooms(self.free, demand)
            self.totals[row] = self._room[row].sum()
        self._rows[demand] = row, number + 1
        return row

    def drop(self, demand: Vector) -> None:
        """Forget one who asked for it."""
        row, number = self._rows[demand]
        if number > 1:
            self._rows[demand] = row, number - 1
        else:
            del self._rows[demand]
            self._unused.append(row)
            self._inverse[row] = 0.0

    def _grow(self) -> None:
        size = len(self.totals)
        self._unused += range(size, 2 * size)
        self._inverse, self._room, self.totals = (
            np.concatenate([table, np.zeros_like(table)])
            for table in (self._inverse, self._room, self.totals)
        )

    def set(self, free: Matrix, nodes: Iterable[int]) -> None:
        """Take what is free on these nodes from there."""
        for node in nodes:
            self.free[node] = free[node]
            self._changed(node)

    def take(self, places: Places, demand: Vector) -> None:
        """Charge tasks to nodes."""
        for node, tasks in places:
            self.free[node] -= np.multiply(demand, tasks)
            self._changed(node)

    def _changed(self, node: int) -> None:
        free, inverse = self.free[node], self._inverse
        self._fullness[node] = float(free @ self.share[node])
        fits = np.where(inverse > 0, free * inverse + EPSILON, np.inf).min(axis=1, initial=MOST)
        column = fits.astype(np.int64)
        self.totals += column - self._room[:, node]
        self._room[:, node] = column

    def fits(self, job: Job) -> bool:
        """Tell if there is room now for a job that asks."""
        return bool(self.totals[self._rows[job.demand][0]] >= job.units)

    def place(self, demand: Vector, tasks: int) -> Places:
        """Choose nodes for so many tasks, which fit."""
        return choose(self._room[self._rows[demand][0]], self._fullness, tasks)

    def totals_within(self, spare: Matrix) -> NDArray[np.int64]:
        """Compute for each row how often its vector fits into what is free and within ``spare``."""
        both, inverse = np.minimum(self.free, spare), self._inverse
        room = np.full((len(inverse), len(both)), MOST)
        for r in range(inverse.shape[1]):
            asks = inverse[:, r] > 0
            room[asks] = np.minimum(room[asks], np.outer(inverse[asks, r], both[:, r]) + EPSILON)
        totals: NDArray[np.int64] = room.astype(np.int64).sum(axis=1)
        return totals

    def place_within(self, demand: Vector, tasks: int, spare: Matrix) -> Places:
        """Choose nodes in what is free and within ``spare``; none if they do not fit there."""
        room = rooms(np.minimum(self.free, spare), demand)
        return choose(room, self._fullness, tasks) if int(room.sum()) >= tasks else ()


def choose(room: NDArray[np.int64], fullness: Matrix, tasks: int) -> Places:
    """Choose nodes for so many tasks: the fullest for one, as few as possible for several."""
    (able,) = room.nonzero()
    if tasks == 1:
        return ((int(able[fullness[able].argmin()]), 1),)
    places, left = [], tasks
    for place in np.lexsort((fullness[able], -np.minimum(room[able], tasks))):
        node = int(able[place])
        here = min(int(room[node]), left)
        places.append((node, here))
        left -= here
        if not left:
            break
    return tuple(sorted(places))


class NodeQueue:
    """Jobs that wait for one pool with nodes, first come, first served."""

    def __init__(self, pool: Pool, view: View) -> None:
        self.pool = pool
        self.waiting: OrderedDict[int, Job] = OrderedDict()
        self.rooms = Rooms(pool)
        self._changed: set[int] = set(range(pool.units))  # nodes whose free resources are to be read again
        for job in view.waiting.values():
            self.add(job)

    def add(self, job: Job) -> None:
        """Append a job."""
        self.waiting[job.id] = job
        self._note(job)

    def add_first(self, job: Job) -> None:
        """Put a job that lost its nodes before all others."""
        self.waiting[job.id] = job
        self.waiting.move_to_end(job.id, last=False)
        self._note(job, first=True)

    def _note(self, job: Job, *, first: bool = False) -> None:
        """Note a job that waits from now on."""
        self.rooms.add(job.demand)

    def _forget(self, job: Job) -> None:
        """Forget a job that waits no more."""
        self.rooms.drop(job.demand)

    def freed(self, nodes: Iterable[int]) -> None:
        """Note that what is free on nodes has changed."""
        self._changed.update(nodes)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        """Note what has happened, and start jobs at the last event of an instant."""
        match event:
            case Submitted():
                self.add(event.job)
            case Finished():
                self.freed(node for node, _ in event.placement.nodes)
            case Failed():
                self.freed(node for node, _ in event.placement.nodes)
                self.add_first(event.job)
            case _:
                self.freed(range(self.pool.units))
        if view.upcoming is not None or not self.waiting:
            return ()
        if self._changed:
            self.rooms.set(view.nodes[self.pool.name].free, self._changed)
            self._changed.clear()
        return [Start(job.id, placement) for job, placement in self.choose(view)]

    def choose(self, view: View) -> list[Choice]:
        """Choose the jobs that start now; they leave the queue and hold their nodes."""
        chosen: list[Choice] = []
        self._start_heads(chosen)
        return chosen

    def _start_heads(self, chosen: list[Choice]) -> None:
        while self.waiting and self.rooms.fits(job := next(iter(self.waiting.values()))):
            chosen.append(self._start(job))

    def _start(self, job: Job, places: Places = ()) -> Choice:
        places = places or self.rooms.place(job.demand, job.units)
        self.rooms.take(places, job.demand)
        self._forget(job)
        del self.waiting[job.id]
        return job, Placement(self.pool.name, job.units, places)


class Kind:
    """The waiting jobs of one vector and number of tasks, by their place in the queue and their length."""

    def __init__(self, demand: Vector, tasks: int, row: int) -> None:
        self.demand, self.tasks, self.row = demand, tasks, row
        self.queue = IndexedQueue()


# Place in the queue, job, its kind, and the length up to which jobs of that kind may pass.
First = tuple[int, int, Kind, float]


class NodeFirstFit(NodeQueue):
    """First fit: every job that fits starts, in the order of the queue.

    Kinds that nobody waits with stay for a while, because the next job is often of one of them.
    """

    def __init__(self, pool: Pool, view: View) -> None:
        self._kinds: dict[tuple[Vector, int], Kind] = {}
        self._turn: dict[int, int] = {}
        self._next, self._front = 0, -1
        self._new: list[Job] | None = []  # since nothing has been freed: only these may fit; None: all
        super().__init__(pool, view)

    def freed(self, nodes: Iterable[int]) -> None:
        super().freed(nodes)
        self._new = None

    def _note(self, job: Job, *, first: bool = False) -> None:
        if self._new is not None:
            self._new.append(job)
        key, length_s = (job.demand, job.units), job.estimate_on(self.pool.name)
        if key not in self._kinds:
            if len(self._kinds) >= MOST_EMPTY:
                self._forget_empty()
            self._kinds[key] = Kind(*key, self.rooms.add(job.demand))
        if first:
            self._turn[job.id] = self._front
            self._front -= 1
            self._kinds[key].queue.add_first(job.id, 1, length_s)
        else:
            self._turn[job.id] = self._next
            self._next += 1
            self._kinds[key].queue.add(job.id, 1, length_s)

    def _forget(self, job: Job) -> None:
        self._kinds[job.demand, job.units].queue.remove(job.id)
        del self._turn[job.id]

    def _forget_empty(self) -> None:
        for key in [key for key, kind in self._kinds.items() if not len(kind.queue)]:
            self.rooms.drop(self._kinds.pop(key).demand)

    def choose(self, view: View) -> list[Choice]:
        chosen: list[Choice] = []
        self._pass(chosen, math.inf, None)
        return chosen

    def _pass(self, chosen: list[Choice], window_s: float, spare: Matrix | None) -> None:
        """Start jobs in order that fit now, and that end within the window or fit into what is spare too.

        Args:
            spare: what may be held beyond the window, nodes x resources; None: all.
        """
        if self._new is not None:
            for job in self._new:
                places = self._passes(job, window_s, spare) if self.rooms.fits(job) else None
                if places is not None:
                    chosen.append(self._start(job, places))
            self._new.clear()
            return
        self._new = []
        within = self.rooms.totals if spare is None else self.rooms.totals_within(spare)
        firsts: list[First] = []
        for kind in self._kinds.values():
            if len(kind.queue) and self.rooms.totals[kind.row] >= kind.tasks:
                self._line_up(firsts, kind, math.inf if within[kind.row] >= kind.tasks else window_s)
        while firsts:
            _, job_id, kind, length_s = heappop(firsts)
            if self.rooms.totals[kind.row] < kind.tasks:
                continue
            places = self._passes(self.waiting[job_id], window_s, spare)
            if places is not None:
                chosen.append(self._start(self.waiting[job_id], places))
            self._line_up(firsts, kind, window_s if places is None else length_s)

    def _line_up(self, firsts: list[First], kind: Kind, length_s: float) -> None:
        """Put the first job of a kind that is short enough among the first ones of the others."""
        job_id = kind.queue.first(((1, length_s),)) if len(kind.queue) else None
        if job_id is not None:
            heappush(firsts, (self._turn[job_id], job_id, kind, length_s))

    def _passes(self, job: Job, window_s: float, spare: Matrix | None) -> Places | None:
        """Choose the nodes of a job that fits and may pass; (): any; None: it may not."""
        if spare is None or job.estimate_on(self.pool.name) <= window_s:
            return ()
        places = self.rooms.place_within(job.demand, job.units, spare)
        for node, tasks in places:
            spare[node] -= np.multiply(job.demand, tasks)
        return places or None


class NodeEasy(NodeFirstFit):
    """EASY (see ``easy``)."""

    def __init__(self, pool: Pool, view: View) -> None:
        self._reserved: tuple[float, Matrix | None] | None = None
        super().__init__(pool, view)

    def choose(self, view: View) -> list[Choice]:
        chosen: list[Choice] = []
        if self._new is None or self._reserved is None:
            self._new = None
            self._start_heads(chosen)
            if not self.waiting:
                self._reserved = None
                return chosen
            self._reserved = self._reserve(next(iter(self.waiting.values())), view, chosen)
        at, spare = self._reserved
        self._pass(chosen, at - view.now + HALF_STEP_S if at < math.inf else -math.inf, spare)
        return chosen

    def _reserve(self, job: Job, view: View, chosen: Sequence[Choice]) -> tuple[float, Matrix | None]:
        """Return when the first job has room by the expected ends, and what is spare then.

        None: anybody may pass, because too few nodes are in service for it.
        """
        now, pool, nodes = view.now, self.pool.name, view.nodes[self.pool.name]
        if int((rooms(nodes.capacity, job.demand) * nodes.up).sum()) < job.units:
            return math.inf, None
        held = [
            (state.expected_end_s, state.job.id, state.job.demand, place.nodes)
            for state in view.running.values()
            for place in state.places
            if place.pool == pool
        ]
        held += [
            (instant(now + other.estimate_on(pool)), other.id, other.demand, place.nodes)
            for other, place in chosen
        ]
        free = self.rooms.free.copy()
        room = rooms(free, job.demand)
        total = int(room.sum())
        for end_s, _, demand, places in sorted(held):
            if end_s == math.inf:
                break
            for node, tasks in places:
                if nodes.up[node]:
                    free[node] += np.multiply(demand, tasks)
                    before, room[node] = room[node], rooms(free[node : node + 1], job.demand)[0]
                    total += int(room[node] - before)
            if total >= job.units:
                for node, tasks in choose(room, (free * self.rooms.share).sum(axis=1), job.units):
                    free[node] -= np.multiply(job.demand, tasks)
                return max(now, end_s), free
        return math.inf, np.zeros_like(free)


Queue = TypeVar("Queue", bound=NodeQueue)


def queue(view: View, kind: Callable[[Pool, View], Queue], policy: str) -> Queue | None:
    """Return the queue of a cluster of one pool with nodes; None if all its pools are counted.

    Raises:
        BadInput: it has several pools, one of them with nodes.
    """
    pools = view.cluster.pools
    if all(pool.counted for pool in pools):
        return None
    if len(pools) > 1:
        names = ", ".join(pool.name for pool in pools)
        raise BadInput(
            f"policy {policy} schedules one pool with nodes, or counted ones; this cluster has {names}",
            "describe it by one kind of nodes, which may differ",
        )
    return kind(pools[0], view)


# -- reasons -----------------------------------------------------------------------------------------------


def why(job: Job, view: View, pool: Pool) -> Reason:
    """Explain what a job waits for on nodes: the resource that binds, and who is first."""
    first = next(iter(view.waiting.values()))
    turn = "" if first.id == job.id else after(first)
    nodes = view.nodes[pool.name]
    if int(rooms(nodes.free, job.demand).sum()) >= job.units:
        return would_delay(first)
    scarce = [
        (int(np.floor(nodes.free[:, r] / needed + EPSILON).sum()), r)
        for r, needed in enumerate(job.demand)
        if needed > 0
    ]
    room, r = min(scarce)
    name, needed = pool.resources[r], job.demand[r]
    tasks = f"{job.units} times " if job.units > 1 else ""
    left = f"{nodes.free[:, r].sum():,.10g} of {nodes.capacity[nodes.up, r].sum():,.10g} free"
    if room < job.units:
        return Reason(f"waits for {tasks}{needed:,.10g} {name} on a node ({left}){turn}")
    vector = ", ".join(f"{d:,.10g} {n}" for d, n in zip(job.demand, pool.resources, strict=True) if d > 0)
    return Reason(f"waits for {tasks}{vector} on one node (no node has all of it free){turn}")
