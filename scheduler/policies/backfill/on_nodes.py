"""Fcfs, first fit and EASY on nodes that have several resources: cores, memory, GPUs of each kind.

A job has tasks that each take the same vector on one node. It fits if the nodes of one pool have room for all
its tasks, where a node's room is the number of times that the vector fits into what is free there. The rules
are those of the counted queues (``queue``, ``multi_pool``), with "so many units" read as "this vector, so
many times".

**Where a job goes**: of several pools (kinds of nodes), EASY takes the one on which the job would end first.
Of equal ones, and under the others, that goes first which has the fewest kinds of resources that the job does
not want, then the better class. In a pool one task goes to the node that is fullest (the least sum of free
shares over its resources), so that large jobs and jobs of scarce resources find whole nodes later: a job
without GPUs goes to a node without GPUs where there is one. Several tasks go to as few nodes as possible.

**The reservation** of the first job that does not fit: the running jobs are counted by their expected ends
until there is room for it. What is free then on the nodes of its place, less itself, is *spare*; of several
pools, that on which it would end first. A job passes if it fits now and should end by then, or if it fits
into what is both free now and spare then. On all other nodes every job that fits passes.

A job with alternatives takes the shortest of those that fit now, and its reservation is that by which it
would end first. Each of them is a *way*: a job of the same number.

Cost: a decision looks only at nodes that have changed, and at those of the reservation. There it compares
all waiting jobs at once: O(waiting jobs) vector work for each such node and each start. A reservation is
O(running jobs).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter, mul
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from scheduler.jobs.literals import resource_text
from scheduler.model.events import Action, Event, Failed, Finished, Start, Submitted
from scheduler.model.jobs import EPSILON, Job, JobState, Placement, Pool, instant
from scheduler.model.state import Nodes, rooms
from scheduler.policies.backfill.queue import HALF_STEP_S
from scheduler.policies.base import View

Vector = tuple[float, ...]
Places = tuple[tuple[int, int], ...]  # (node, tasks there)
Rank = tuple[float, ...]
Choice = tuple[Job, Placement]  # the way of the job
Way = tuple[str, Job]  # a pool, and how the job would run there
Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
ROOM = EPSILON / 2  # less than the engine allows, so that the engine never refuses a task that fits
NEARLY = 1.0 - EPSILON  # of large amounts whose sums carry rounding errors
TINY, MOST = 1e-300, 2.0**31  # so that nothing times infinity is infinite, and a room is a number
LEAST = 64  # waiting jobs for which there is room at first
MANY = 16  # changed nodes of a pool, from which on each job is looked at by itself


class FreeNodes:
    """Free resources of each node of a pool.

    Attributes:
        rows: by node. columns: the same, by resource. fullness: of each node, the sum of its free shares.
        before: of nodes that have changed since somebody cleared this, what was free there.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        capacities = pool.capacities or [pool.capacity] * pool.units
        self.shares = [tuple(1.0 / c if c > 0 else 0.0 for c in capacity) for capacity in capacities]
        self.rows = [[0.0] * len(pool.resources) for _ in capacities]
        self._matrix = np.zeros((len(pool.resources), pool.units))
        self.columns = list(self._matrix)
        self.fullness = np.zeros(pool.units)
        self.before: dict[int, list[float]] = {}

    def read(self, free: Matrix, nodes: Iterable[int]) -> None:
        """Take what is free on these nodes from there."""
        for node in nodes:
            self._enter(node, free[node].tolist())

    def take(self, places: Places, demand: Vector) -> None:
        """Charge tasks to nodes."""
        for node, tasks in places:
            self._enter(node, [f - tasks * d for f, d in zip(self.rows[node], demand, strict=True)])

    def _enter(self, node: int, row: list[float]) -> None:
        self.before.setdefault(node, self.rows[node])
        self.rows[node] = row
        self._matrix[:, node] = row
        self.fullness[node] = self._fullness(node, row)

    def place(self, demand: Vector, tasks: int, spare: Mapping[int, Sequence[float]]) -> Places:
        """Choose nodes for so many tasks, within what is spare where that is stated; none: no room."""
        if tasks == 1:
            able: Mask | None = None
            for column, needed in zip(self.columns, demand, strict=True):
                if needed > 0:
                    fits = column >= needed - ROOM
                    able = fits if able is None else np.logical_and(able, fits, out=able)
            assert able is not None
            for node, row in spare.items():
                able[node] = able[node] and covers(row, demand)
            best = int(np.where(able, self.fullness, math.inf).argmin())
            return ((best, 1),) if able[best] else ()
        room = self.room(demand)
        for node, row in spare.items():
            room[node] = min(room[node], room_in(row, demand))
        return choose(room, self.fullness, tasks) if int(room.sum()) >= tasks else ()

    def room(self, demand: Vector) -> NDArray[np.int64]:
        """Count for each node how often the demand fits on it."""
        return rooms(self._matrix.T, demand)

    def place_after(
        self, freed: Mapping[int, list[float]], room: Sequence[int], demand: Vector, tasks: int
    ) -> Places:
        """Choose nodes for so many tasks, which fit when so much is free on these nodes.

        Args:
            room: of each node then; only for several tasks.
        """
        if tasks == 1:  # before, it fitted nowhere
            able = [node for node, row in freed.items() if covers(row, demand)]
            return ((min(able, key=lambda node: (self._fullness(node, freed[node]), node)), 1),)
        fullness = self.fullness.copy()
        for node, row in freed.items():
            fullness[node] = self._fullness(node, row)
        return choose(np.array(room), fullness, tasks)

    def _fullness(self, node: int, row: Sequence[float]) -> float:
        fullness: float = sum(map(mul, row, self.shares[node]))
        return fullness


def covers(free: Sequence[float], demand: Sequence[float]) -> bool:
    """Tell if the demand fits into what is free."""
    for f, d in zip(free, demand, strict=True):  # noqa: SIM110 (three times as fast as all())
        if d * NEARLY > f + ROOM:
            return False
    return True


def room_in(free: Sequence[float], demand: Vector) -> int:
    """Count how often the demand fits into what is free on a node."""
    room = math.inf
    for f, d in zip(free, demand, strict=True):  # twice as fast as min() of a generator
        if d > 0 and f < room * d:
            room = f / d
    return int(room + EPSILON)


def choose(room: NDArray[np.int64], fullness: Matrix, tasks: int) -> Places:
    """Choose nodes for several tasks: as few as possible, of equal ones the fullest."""
    (able,) = room.nonzero()
    places, left = [], tasks
    for place in np.lexsort((fullness[able], -np.minimum(room[able], tasks))):
        node = int(able[place])
        here = min(int(room[node]), left)
        places.append((node, here))
        left -= here
        if not left:
            break
    return tuple(sorted(places))


class Limit(NamedTuple):
    """Resources that a reservation leaves to passing jobs on the nodes of its place.

    Attributes:
        until_s: a job that ends by then may take what is free.
        spare: what any job may take, by node. closed: nothing is to be taken in the pool at all.
    """

    until_s: float
    spare: dict[int, list[float]]
    closed: bool = False

    def spare_for(self, job: Job, pool: str, now: float) -> dict[int, list[float]]:
        """Return what bounds the job: nothing if it should end in time."""
        in_time = self.spare and job.estimate_on(pool) <= self.until_s - now + HALF_STEP_S
        return {} if in_time else self.spare


OPEN = Limit(math.inf, {})
CLOSED = Limit(-math.inf, {}, closed=True)


class WaitingJobs:
    """Jobs that wait for one pool, in order, as columns: what a task takes of each resource, and the length.

    The column of a job that has left is infinite, so that it fits nowhere. Of jobs of several tasks it is
    kept up to date for how many there is room.
    """

    def __init__(self, nodes: FreeNodes) -> None:
        self._nodes = nodes
        self._slots: dict[int, list[int]] = {}  # of each job, one for each way
        self._lay([], LEAST)

    def _lay(self, entries: Sequence[tuple[int, Job, float]], capacity: int) -> None:
        """Lay the (turn, job, length) out anew."""
        self._nodes.before.clear()
        self._demands = np.full((len(self._nodes.columns), capacity), math.inf)
        self._lengths = np.full(capacity, math.inf)
        self._missing = np.zeros(capacity)  # tasks for which there is no room; 0 of jobs of one
        self._number = 0  # of jobs of several tasks
        self._several = np.zeros(capacity, dtype=np.intp)  # their slots
        self._parts = np.zeros((len(self._nodes.columns), capacity))  # one over what a task of them takes
        self._least = [math.inf] * len(self._nodes.columns)  # nobody takes less
        self.entries: list[tuple[int, Job, float]] = []
        self._slots.clear()
        self.extend(entries)

    def _live(self) -> list[tuple[int, Job, float]]:
        return [self.entries[slot] for slot in sorted(chain.from_iterable(self._slots.values()))]

    def extend(self, entries: Sequence[tuple[int, Job, float]]) -> None:
        """Append jobs, as (turn, job, length)."""
        begin, end = len(self.entries), len(self.entries) + len(entries)
        if end > len(self._lengths):
            live = [*self._live(), *entries]
            self._lay(live, 2 * len(live))
        elif entries:
            jobs = [job for _, job, _ in entries]
            demands = np.array([job.demand for job in jobs]).T
            self._demands[:, begin:end] = demands
            self._lengths[begin:end] = [length_s for _, _, length_s in entries]
            self._missing[begin:end] = 0
            self._least = [*map(min, self._least, demands.min(axis=1).tolist())]
            self.entries += entries
            for slot, job in enumerate(jobs, begin):
                self._slots.setdefault(job.id, []).append(slot)
                if job.units > 1:
                    self.count()
                    self._parts[:, self._number] = [1.0 / d if d > 0 else math.inf for d in job.demand]
                    self._several[self._number] = slot
                    self._number += 1
                    self._missing[slot] = job.units - self._nodes.room(job.demand).sum()

    def count(self) -> None:
        """Count anew for how many tasks of each job of several there is room."""
        if self._number:
            parts, less = self._parts[:, : self._number], np.zeros(self._number)
            for node, before in self._nodes.before.items():
                if covers(before, self._least):  # else there was no room for anybody
                    less += _rooms(parts, before)
                if covers(self._nodes.rows[node], self._least):
                    less -= _rooms(parts, self._nodes.rows[node])
            self._missing[self._several[: self._number]] += less
        self._nodes.before.clear()

    def add_first(self, turn: int, job: Job, length_s: float) -> None:
        """Put a job before all others (takes time in proportion to the queue)."""
        entries = [(turn, job, length_s), *self._live()]
        self._lay(entries, max(LEAST, 2 * len(entries)))

    def remove(self, job_id: int) -> None:
        """Take a job out, if it is there."""
        for slot in self._slots.pop(job_id, ()):
            self._demands[:, slot] = math.inf
        if not self._slots:  # the usual case
            self.entries.clear()
            self._number = 0
            self._least = [math.inf] * len(self._least)

    def slots(self, begin: int) -> slice | NDArray[np.intp]:
        """Return the slots of the jobs in their order, from a turn on."""
        return slice(begin, len(self.entries))

    def at(self, turn: int) -> tuple[Rank, Job]:
        """Return the job whose turn this is, and its rank among the jobs of all tables."""
        entry = self.entries[turn]
        return (entry[0],), entry[1]

    def able(self, look: Iterable[int], limit: Limit, now: float, *, begin: int) -> Mask:
        """Tell of each job from a turn on if a task fits on one of these nodes, and all of them in all."""
        self.count()
        slots = self.slots(begin)
        demands = [column[slots] for column in self._demands]
        lengths = self._lengths[slots]
        may = np.zeros(len(lengths), dtype=np.bool_)
        for node in look:
            if not covers(self._nodes.rows[node], self._least):
                continue
            fits = _fit(demands, self._nodes.rows[node])
            if node in limit.spare:
                passes = _fit(demands, limit.spare[node])
                passes |= lengths <= limit.until_s - now + HALF_STEP_S
                fits &= passes
            may |= fits
        if self._number:
            may &= self._missing[slots] <= 0
        return may

    def waiting(self, *, begin: int) -> Mask:
        """Tell of each turn from one on whether its job is still there."""
        present: Mask = self._demands[0, self.slots(begin)] < math.inf
        return present


def _fit(demands: Sequence[Matrix], free: Sequence[float]) -> Mask:
    fits: Mask = demands[0] <= free[0] + ROOM
    for column, f in zip(demands[1:], free[1:], strict=True):
        fits &= column <= f + ROOM
    return fits


def _rooms(parts: Matrix, free: Sequence[float]) -> Matrix:
    """Count how many tasks of each job fit into what is free; ``parts``: one over what a task takes."""
    room: Matrix = np.full(parts.shape[1], MOST)
    for column, f in zip(parts, free, strict=True):
        np.minimum(room, column * max(f, TINY), out=room)
    room += EPSILON
    np.floor(room, out=room)
    return room


class PoolOrder:
    """The pools that a job can run on, and its ways there, in the order in which it takes them.

    Args:
        by_length: those pools first on which it is shortest; so are alternatives in any case.
    """

    def __init__(self, pools: Sequence[Pool], *, by_length: bool) -> None:
        self._pools = pools
        self._by_length = by_length
        self._orders: dict[tuple[bool, ...], list[str]] = {}

    def __call__(self, job: Job) -> list[Way]:
        ways = [(pool, way) for way in job.ways for pool in self._order(way)]
        if job.alternatives or (job.estimates_s and self._by_length):
            ways.sort(key=lambda at: at[1].estimate_on(at[0]))
        return ways

    def _order(self, job: Job) -> list[str]:
        wants = tuple(d > 0 for d in job.demand) if len(self._pools) > 1 else ()
        if wants not in self._orders:
            pools = sorted(self._pools, key=lambda pool: _unwanted(pool, wants)) if wants else self._pools
            self._orders[wants] = [pool.name for pool in pools]
        order = self._orders[wants]
        if not job.estimates_s:
            return order
        return [name for name in order if job.runs_on(name)]


def _unwanted(pool: Pool, wants: Sequence[bool]) -> int:
    """Count the kinds of resources that nodes of the pool have, and the job does not want."""
    has = [any(column) for column in zip(*(pool.capacities or [pool.capacity]), strict=True)]
    return sum(there and not needed for there, needed in zip(has, wants, strict=True))


class NodeQueue:
    """Jobs that wait for pools with nodes, first come, first served."""

    by_length = False  # a job goes to the pool on which it is shortest

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.pools = {pool.name: pool for pool in pools}
        self.nodes = {pool.name: FreeNodes(pool) for pool in pools}
        self.waiting: OrderedDict[int, Job] = OrderedDict()
        self._changed = {pool.name: set(range(pool.units)) for pool in pools}  # are to be read again
        self.classes = PoolOrder(pools, by_length=self.by_length)

    def add(self, job: Job) -> None:
        """Append a job."""
        self.waiting[job.id] = job

    def add_first(self, job: Job) -> None:
        """Put a job that lost its nodes before all others."""
        self.waiting[job.id] = job
        self.waiting.move_to_end(job.id, last=False)

    def ended(self, job_id: int, placement: Placement) -> None:
        """Note that a job has left its nodes."""
        self._changed[placement.pool].update(node for node, _ in placement.nodes)

    def changed(self) -> None:
        """Note that anything may have changed."""
        for name, pool in self.pools.items():
            self._changed[name].update(range(pool.units))

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        """Note what has happened, and start jobs at the last event of an instant."""
        self.note(event)
        if view.upcoming is not None or not self.waiting:
            return ()
        self.read(view)
        return [Start(job.id, placement) for job, placement in self.choose(view)]

    def note(self, event: Event) -> None:
        """Note what has happened."""
        match event:
            case Submitted():
                self.add(event.job)
            case Finished():
                self.ended(event.job.id, event.placement)
            case Failed():
                self.ended(event.job.id, event.placement)
                self.add_first(event.job)
            case _:
                self.changed()

    def read(self, view: View) -> None:
        """Read what is free on the nodes that have changed."""
        for name, changed in self._changed.items():
            if changed:
                self.nodes[name].read(view.nodes[name].free, changed)
                self._look_at(name, changed)
                changed.clear()

    def _look_at(self, pool: str, nodes: set[int]) -> None:
        """Note that jobs may fit on these nodes that did not before."""

    def choose(self, view: View) -> list[Choice]:
        """Choose the jobs that start now; they leave the queue and hold their nodes."""
        chosen: list[Choice] = []
        self._start_heads(chosen)
        return chosen

    def _start_heads(self, chosen: list[Choice]) -> None:
        while self.waiting:
            job = next(iter(self.waiting.values()))
            if not self._start_somewhere(job, chosen):
                return

    def _start_somewhere(self, job: Job, chosen: list[Choice]) -> bool:
        """Start the job in the first pool in which it fits; False if there is none."""
        for pool, way in self.classes(job):
            places = self.nodes[pool].place(way.demand, way.units, {})
            if places:
                self._start(way, pool, places, chosen)
                return True
        return False

    def _start(self, job: Job, pool: str, places: Places, chosen: list[Choice]) -> None:
        self.nodes[pool].take(places, job.demand)
        del self.waiting[job.id]
        chosen.append((job, Placement(pool, job.units, places, alternative=job.alternative)))


class NodeFirstFit(NodeQueue):
    """First fit: every job that fits starts, in the order of the queue."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        super().__init__(pools)
        self._tables: Mapping[str, WaitingJobs] = {
            name: WaitingJobs(nodes) for name, nodes in self.nodes.items()
        }
        self._look: dict[str, set[int]] = {pool.name: set() for pool in pools}
        self._new: list[Job] = []  # not yet in the tables
        self._freed = True  # else only new jobs may fit
        self._failed: set[tuple[str, Vector, int, bool]] = set()  # requests that fitted nowhere in this pass
        self._next, self._front = 0, -1

    def add(self, job: Job) -> None:
        super().add(job)
        self._new.append(job)

    def add_first(self, job: Job) -> None:
        super().add_first(job)
        for pool, way in reversed(self.classes(job)):
            self._tables[pool].add_first(self._front, way, way.estimate_on(pool))
        self._front -= 1
        self.changed()

    def _look_at(self, pool: str, nodes: set[int]) -> None:
        self._look[pool] |= nodes
        self._freed = True

    def choose(self, view: View) -> list[Choice]:
        chosen: list[Choice] = []
        self._pass(chosen, view.now, {})
        return chosen

    def _enter_new(self) -> None:
        """Enter the new jobs that still wait in the tables."""
        entries: dict[str, list[tuple[int, Job, float]]] = {pool: [] for pool in self._tables}
        for job in self._new:
            if job.id in self.waiting:
                for pool, way in self.classes(job):
                    entries[pool].append((self._next, way, way.estimate_on(pool)))
                self._next += 1
        for pool, table in self._tables.items():
            table.extend(entries[pool])
        self._new.clear()

    def _start(self, job: Job, pool: str, places: Places, chosen: list[Choice]) -> None:
        super()._start(job, pool, places, chosen)
        for table in self._tables.values():
            table.remove(job.id)

    def _pass(self, chosen: list[Choice], now: float, limits: Mapping[str, Limit]) -> None:
        """Start jobs in order that fit now within the limits of each pool."""
        self._failed.clear()
        if self._freed:
            self._freed = False
            self._pass_all(chosen, now, limits)
            for pool, look in self._look.items():
                limit = limits.get(pool, OPEN)
                if limit.closed:  # who comes meanwhile is looked at on no node
                    look.update(range(len(self.nodes[pool].rows)))
                else:
                    look.clear()
                    look.update(limit.spare)
        for job in self._new:
            if job.id in self.waiting:
                self._start_passing(job, chosen, now, limits)
        self._enter_new()

    def _start_passing(self, job: Job, chosen: list[Choice], now: float, limits: Mapping[str, Limit]) -> None:
        """Start a job in the first pool in which it may pass."""
        for pool, way in self.classes(job):
            limit = limits.get(pool, OPEN)
            places = self._passes(way, pool, limit, now)
            if places:
                self._start_within(way, pool, places, limit, now=now, chosen=chosen)
                return

    def _pass_all(self, chosen: list[Choice], now: float, limits: Mapping[str, Limit]) -> None:
        """Start jobs of the tables; ``turns`` says from where on each table is still to be looked at."""
        turns = dict.fromkeys(self._tables, 0)
        firsts: dict[str, int] = {}
        stale = set(self._tables)
        while True:
            for pool in stale:
                first = self._first(pool, turns[pool], limits.get(pool, OPEN), now)
                firsts.pop(pool, None)
                if first is not None:
                    firsts[pool] = first
            if not firsts:
                return
            heads = {pool: self._tables[pool].at(turn) for pool, turn in firsts.items()}
            rank, way = min(heads.values(), key=itemgetter(0))
            stale = {pool for pool, head in heads.items() if head[0] == rank}
            for pool in stale:
                turns[pool] = firsts[pool] + 1
            self._start_passing(self.waiting[way.id], chosen, now, limits)

    def _first(self, pool: str, begin: int, limit: Limit, now: float) -> int | None:
        """Find the turn of the first job from one on that may pass."""
        look, table = self._look[pool], self._tables[pool]
        if limit.closed or not look:
            return None
        few = len(look) < MANY
        may = table.able(look, limit, now, begin=begin) if few else table.waiting(begin=begin)
        turn = int(may.argmax()) if len(may) else 0
        while len(may) and may[turn]:
            if self._passes(table.at(begin + turn)[1], pool, limit, now):
                return begin + turn
            may[turn] = False
            turn += int(may[turn:].argmax())
        return None

    def _passes(self, job: Job, pool: str, limit: Limit, now: float) -> Places:
        """Choose the nodes of a job that may pass; none if it may not."""
        if limit.closed:
            return ()
        spare = limit.spare_for(job, pool, now)
        request = pool, job.demand, job.units, not spare
        if request in self._failed:
            return ()
        places = self.nodes[pool].place(job.demand, job.units, spare)
        if not places:
            self._failed.add(request)
        return places

    def _start_within(
        self, job: Job, pool: str, places: Places, limit: Limit, *, now: float, chosen: list[Choice]
    ) -> None:
        """Start a job that may pass, and charge it to what is spare if it does not end in time."""
        spare = limit.spare_for(job, pool, now)
        for node, tasks in places if spare else ():
            if node in spare:
                spare[node] = [s - tasks * d for s, d in zip(spare[node], job.demand, strict=True)]
        self._start(job, pool, places, chosen)


Held = tuple[float, int, str, Vector, Places]  # expected end, job, pool, what a task takes, nodes


class NodeEasy(NodeFirstFit):
    """EASY (see ``easy``)."""

    by_length = True

    def __init__(self, pools: Sequence[Pool]) -> None:
        super().__init__(pools)
        self._limits: dict[str, Limit] | None = None  # None: the reservation must be made
        # Of the running jobs by their expected ends, and by job; unknown: to be read anew.
        self._ends: list[Held] = []
        self._held: dict[int, list[Held]] = {}
        self._begun: list[int] = []  # to be entered
        self._known = False
        self._fitting: tuple[int, list[Way]] = (-1, [])  # a first job, and the pools with enough in service

    def ended(self, job_id: int, placement: Placement) -> None:
        super().ended(job_id, placement)
        self._limits = None
        for held in self._held.pop(job_id, ()):
            del self._ends[bisect_left(self._ends, held)]

    def changed(self) -> None:
        super().changed()
        self._limits = None
        self._known = False
        self._fitting = (-1, [])

    def _start(self, job: Job, pool: str, places: Places, chosen: list[Choice]) -> None:
        super()._start(job, pool, places, chosen)
        self._begun.append(job.id)

    def choose(self, view: View) -> list[Choice]:
        chosen: list[Choice] = []
        if self._limits is None:
            self._start_heads(chosen)
            if not self.waiting:
                self._new.clear()
                for look in self._look.values():
                    look.clear()
                return chosen
            self._limits = self._reserve(next(iter(self.waiting.values())), view, chosen)
            self._freed = True
        self._pass(chosen, view.now, self._limits)
        return chosen

    def _reserve(self, job: Job, view: View, chosen: Sequence[Choice]) -> dict[str, Limit]:
        """Reserve for the first job by the expected ends; a pool without a limit is open to all.

        A pool with too few nodes in service for it does not count.
        """
        held = self._all_held(view, chosen)
        best, limits = tuple[float, ...](), dict[str, Limit]()
        if self._fitting[0] != job.id:
            ways = self.classes(job)
            self._fitting = job.id, [(pool, way) for pool, way in ways if _in_service(way, view.nodes[pool])]
        for pool, way in self._fitting[1]:
            start_s, spare = self._when_free(way, pool, held, view.nodes[pool])
            start_s = max(start_s, view.now)
            preference = self._preference(way, pool, start_s, view.now)
            if start_s < math.inf and (not best or preference < best):
                best, limits = preference, {pool: Limit(start_s, spare)}
            elif not best:
                limits[pool] = CLOSED
        return limits

    def _preference(self, job: Job, pool: str, start_s: float, now: float) -> tuple[float, ...]:
        """Rate a start of the job in a pool: the least is the best."""
        return instant(start_s + job.estimate_on(pool)), start_s

    def _all_held(self, view: View, chosen: Sequence[Choice]) -> Sequence[Held]:
        """List what the running and the chosen jobs hold, by their expected ends."""
        self._read_ends(view, chosen)
        if not chosen:
            return self._ends
        held = [*self._ends]
        for other, at in chosen:
            end_s = instant(view.now + other.estimate_on(at.pool))
            insort(held, (end_s, other.id, at.pool, other.demand, at.nodes))
        return held

    def _read_ends(self, view: View, chosen: Sequence[Choice]) -> None:
        """Enter jobs that have begun since the last reservation; all, where that is not enough."""
        for job_id in self._begun if self._known else ():
            self._hold(view.running.get(job_id))
        if not self._known or len(self._held) != len(view.running):
            self._ends.clear()
            self._held.clear()
            for state in view.running.values():
                self._hold(state)
            self._known = True
        self._begun = [job.id for job, _ in chosen]  # they are not among the running ones yet

    def _hold(self, state: JobState | None) -> None:
        """Enter a job that runs, if it still does."""
        if state is not None:
            job, end_s = state.job, state.expected_end_s
            held = [(end_s, job.id, at.pool, job.way(at).demand, at.nodes) for at in state.places]
            self._held[job.id] = held
            for entry in held:
                insort(self._ends, entry)

    def _when_free(
        self, job: Job, pool: str, ends: Sequence[Held], state: Nodes
    ) -> tuple[float, dict[int, list[float]]]:
        """Return when a pool has room for the job, and what is spare then on the nodes of its place."""
        nodes, demand, tasks = self.nodes[pool], job.demand, job.units
        freed: dict[int, list[float]] = {}
        room: list[int] = nodes.room(demand).tolist() if tasks > 1 else []
        total = sum(room)
        for end_s, _, where, taken, places in ends:
            if end_s == math.inf:
                break
            for node, count in places if where == pool else ():
                if state.up[node]:
                    before = freed.get(node) or nodes.rows[node]
                    after = freed[node] = [f + count * t for f, t in zip(before, taken, strict=True)]
                    if tasks > 1:
                        total -= room[node]
                        room[node] = room_in(after, demand)
                        total += room[node]
                    elif covers(after, demand):
                        total += 1
            if total >= tasks:
                place = nodes.place_after(freed, room, demand, tasks)
                for node, count in place:
                    row = freed.get(node) or nodes.rows[node]
                    freed[node] = [f - count * d for f, d in zip(row, demand, strict=True)]
                return end_s, {node: freed[node] for node, _ in place}
        return math.inf, {}


def _in_service(job: Job, nodes: Nodes) -> bool:
    """Tell if enough nodes are in service for the job."""
    return int((rooms(nodes.capacity, job.demand) * nodes.up).sum()) >= job.units


# -- the machine -------------------------------------------------------------------------------------------


Queue = TypeVar("Queue", bound=NodeQueue)


def node_pools(view: View, policy: str) -> tuple[Pool, ...]:
    """List the cluster's pools if they have nodes; none if all are counted.

    Raises:
        BadInput: only some have nodes, or they have different resources.
    """
    pools = view.cluster.pools
    if all(pool.counted for pool in pools):
        return ()
    if any(pool.resources != pools[0].resources for pool in pools):
        names = ", ".join(pool.name for pool in pools)
        raise BadInput(
            f"policy {policy} schedules counted pools, or nodes of the same resources; "
            f"this cluster has {names}",
            "give all pools the same resources",
        )
    return pools


def queue(view: View, kind: Callable[[Sequence[Pool]], Queue], policy: str) -> Queue | None:
    """Return the queue of a cluster of pools with nodes; None if all its pools are counted."""
    pools = node_pools(view, policy)
    if not pools:
        return None
    made = kind(pools)
    for job in view.waiting.values():
        made.add(job)
    return made


# -- reasons -----------------------------------------------------------------------------------------------


def needs(job: Job, view: View, ways: Sequence[Way]) -> str:
    """Describe what a job waits for on nodes: all resources that it lacks; "" if there is room for it.

    Args:
        ways: how and where it can run, in the order in which it takes them.
    """
    if any(has_room(view.nodes[pool], way) for pool, way in ways):
        return ""
    several = len(view.cluster.pools) > 1
    lacking = [
        ("" if way.units == 1 else f"{way.units} times ")
        + _need(way, view.nodes[pool], f" of {pool}" if several else "")
        for pool, way in ways
        if not view.nodes[pool].misfit(way)
    ]
    return f"waits for {', or for '.join(dict.fromkeys(lacking))}"


def has_room(nodes: Nodes, job: Job) -> bool:
    """Tell if the job fits on what is free now."""
    return int(nodes.room(job.demand).sum()) >= job.units


def _need(job: Job, nodes: Nodes, where: str) -> str:
    """Describe what the job lacks on the nodes of a pool."""
    demands = [(r, d) for r, d in enumerate(job.demand) if d > 0]
    names, free, total = nodes.pool.resources, nodes.free.sum(axis=0), nodes.capacity[nodes.up].sum(axis=0)
    at = "" if nodes.pool.units == 1 and not where else f" on a node{where}"
    lacking = [
        f"{resource_text(names[r], d)} ({resource_text(names[r], free[r], total[r], named=False)} free)"
        for r, d in demands
        if int(np.floor(nodes.free[:, r] / d + EPSILON).sum()) < job.units
    ]
    if lacking:
        return f"{' and '.join(lacking)}{at}"
    vector = ", ".join(resource_text(names[r], d) for r, d in demands)
    return f"{vector} on one node{where} (no node has all of it free)"
