"""Queues, weigh and conservative on nodes with several resources, second by second for whole numbers.

What is free is computed from the schedule each time anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from scheduler.model.jobs import Job, Pool
from scheduler.simulator.trace import Arrival

NEVER = 10**9  # the limit of a job of unknown run time

Free = dict[tuple[str, int], list[float]]  # by pool and node
Nodes = dict[int, int]  # tasks by node


@dataclass
class Held:
    """The place of a job (as it runs there), its start, and its end at most and in fact."""

    job: Job
    pool: str
    nodes: Nodes
    start: int
    limit_end: int
    end: int


Schedule = dict[int, Held]


def limit(job: Job, pool: str) -> int:
    believed = job.estimates_s.get(pool, job.estimate_s)
    return NEVER if believed is None else int(believed)


def run_time(arrival: Arrival, pool: str, way: Job) -> int:
    ways_s = [arrival.runs_s.get(pool, arrival.run_s), *arrival.others_s]
    return int(min(ways_s[arrival.job.ways.index(way)], limit(way, pool)))


def order(job: Job, pools: tuple[Pool, ...], by_length: bool) -> list[tuple[Pool, Job]]:
    """Sort the pools that the job can run on, and its ways there, as it takes them."""

    def key(choice: tuple[Pool, Job]) -> tuple[int, int, int, int]:
        pool, way = choice
        rows = pool.capacities or (pool.capacity,)
        unwanted = sum(any(row[r] for row in rows) and not d for r, d in enumerate(way.demand))
        length = limit(way, pool.name) if by_length or job.alternatives else 0
        return length, job.ways.index(way), unwanted, pool.rank

    may = [(p, way) for p in pools for way in job.ways if not way.estimates_s or p.name in way.estimates_s]
    return sorted(may, key=key)


def free_at(pools: tuple[Pool, ...], held: list[Held]) -> Free:
    """Return what is free beside these jobs."""
    free = {(pool.name, n): list(pool.capacity_of(n)) for pool in pools for n in range(pool.units)}
    for at in held:
        for node, tasks in at.nodes.items():
            free[at.pool, node] = take(free[at.pool, node], at.job, tasks)
    return free


def take(row: list[float], job: Job, tasks: int) -> list[float]:
    return [f - tasks * d for f, d in zip(row, job.demand, strict=True)]


def room(row: list[float], job: Job) -> int:
    return int(min(f // d for f, d in zip(row, job.demand, strict=True) if d))


def place(job: Job, pool: Pool, free: Free, within: Free | None = None) -> Nodes:
    """One task on the fullest node, several on as few as possible; none if they do not fit."""
    rows = [free[pool.name, n] for n in range(pool.units)]
    bound = [(within or free)[pool.name, n] for n in range(pool.units)]
    rooms = [min(room(row, job), room(b, job)) for row, b in zip(rows, bound, strict=True)]
    if sum(rooms) < job.units:
        return {}

    def fullness(n: int) -> float:
        shares = [f * (1.0 / c) for f, c in zip(rows[n], pool.capacity_of(n), strict=True) if c]
        return sum(shares)

    nodes: Nodes = {}
    for n in sorted(range(pool.units), key=lambda n: (-min(rooms[n], job.units), fullness(n), n)):
        here = min(rooms[n], job.units - sum(nodes.values()))
        if here:
            nodes[n] = here
    return nodes


class Simulation:
    """fcfs, first-fit or easy; weigh on one pool, where prices change nothing."""

    def __init__(self, name: str, pools: tuple[Pool, ...], arrivals: tuple[Arrival, ...]) -> None:
        self.name, self.pools = name, pools
        self.of = {arrival.job.id: arrival for arrival in arrivals}
        self.schedule: Schedule = {}
        self.first: Job | None = None  # has the reservation
        self.reserved: dict[str, tuple[int, Free]] = {}

    def run(self) -> Schedule:
        for second in count():
            jobs = [arrival.job for arrival in self.of.values()]
            if len(self.schedule) == len(jobs):
                break
            waiting = [job for job in jobs if job.submit_s <= second and job.id not in self.schedule]
            freed = any(held.end == second for held in self.schedule.values())
            if not freed and all(job.submit_s < second for job in waiting):
                continue  # what did not fit a second ago does not now
            if self.name == "weigh":
                self.weigh(waiting, second, freed)
                continue
            while waiting and self.start(waiting[0], second):
                waiting.pop(0)
            if self.name == "first-fit":
                for job in waiting:
                    self.start(job, second)
            if self.name != "easy" or not waiting:
                continue
            if freed or waiting[0] is not self.first:
                self.first = waiting[0]
                self.reserved = reservation(self.first, self.pools, self.running(second))
            for job in waiting[1:]:
                self.start(job, second, self.reserved)
        return self.schedule

    def weigh(self, waiting: list[Job], second: int, changed: bool) -> None:
        """Start the first job, or reserve for it or for the next; then the others by their index."""
        if waiting and (changed or waiting[0] is not self.first):
            begun = self.start(waiting[0], second) and waiting.pop(0)
            while begun and waiting and waiting[0].estimate_s is None and self.start(waiting[0], second):
                waiting.pop(0)
            self.first, self.reserved = None, {}
            free = free_at(self.pools, self.running(second))
            if waiting and not (begun and place(waiting[0], self.pools[0], free)):
                self.first = waiting[0]
                self.reserved = reservation(self.first, self.pools, self.running(second))
        total = [sum(column) or 1.0 for column in zip(*free_at(self.pools, []).values(), strict=True)]

        def index(job: Job) -> tuple[float, int]:
            length, share = 60.0, 1.0  # as if it took all, so that its wait alone counts
            if job.estimate_s is not None:
                length = max(float(job.estimate_s), 1e-6)
                share = max(job.units * d / t for d, t in zip(job.demand, total, strict=True))
            wait, longest = second - job.submit_s, second - waiting[0].submit_s
            old = share > 0.25 and wait > length and wait >= 0.8 * longest
            area = length * share * (1e-9 if old else 1.0)
            return area / (1.0 + 30.0 * wait / max(length, 10.0)), job.id

        for job in sorted(waiting, key=index):
            if job is not self.first:
                self.start(job, second, self.reserved)

    def running(self, second: int) -> list[Held]:
        return [held for held in self.schedule.values() if held.end > second]

    def start(self, job: Job, second: int, reserved: dict[str, tuple[int, Free]] | None = None) -> bool:
        """Start the job where it fits, and delays no reservation; False if that is nowhere."""
        free = free_at(self.pools, self.running(second))
        for pool, way in order(job, self.pools, self.name == "easy"):
            at, spare = (reserved or {}).get(pool.name, (2 * NEVER, {}))
            bound = spare if second + limit(way, pool.name) > at else {}
            nodes = place(way, pool, free, bound)
            if nodes:
                run_s = run_time(self.of[job.id], pool.name, way)
                ends = second + limit(way, pool.name), second + run_s
                self.schedule[job.id] = Held(way, pool.name, nodes, second, *ends)
                for node, tasks in nodes.items() if bound else ():
                    bound[pool.name, node] = take(bound[pool.name, node], way, tasks)
                return True
        return False


def reservation(job: Job, pools: tuple[Pool, ...], running: list[Held]) -> dict[str, tuple[int, Free]]:
    """Find the pool where the job would end first at all limits, the time, and what is spare there then.

    While that is unknown nothing is spare on any pool that is large enough.
    """
    choices = []
    for rank, (pool, way) in enumerate(order(job, pools, True)):
        left = sorted(running, key=lambda held: (held.limit_end, held.job.id))
        while left:
            if left[0].pool != pool.name:
                left.pop(0)
                continue
            at = left.pop(0).limit_end
            if at >= NEVER:
                break
            # The jobs of other pools are of no matter; those that end sooner here are gone.
            free = free_at(pools, left)
            nodes = place(way, pool, free)
            if nodes:
                for node, tasks in nodes.items():
                    free[pool.name, node] = take(free[pool.name, node], way, tasks)
                choices.append((at + limit(way, pool.name), at, rank, pool.name, free))
                break
    if not choices:
        able = [pool for pool, way in order(job, pools, True) if place(way, pool, free_at(pools, []))]
        nothing = {key: [0.0] * len(row) for key, row in free_at(pools, []).items()}
        return {pool.name: (-1, nothing) for pool in able}
    _, at, _, name, free = min(choices, key=lambda choice: choice[:3])
    return {name: (at, free)}


class Conservative:
    """Tables of what is free in every second, with the reservations of the first ``depth`` waiting jobs.

    The rules are those of ``classes.Conservative``; a job that cannot begin earlier keeps its nodes.
    """

    def __init__(self, pools: tuple[Pool, ...], arrivals: tuple[Arrival, ...], depth: int = 1000) -> None:
        self.pools, self.depth = pools, depth
        self.of = {arrival.job.id: arrival for arrival in arrivals}
        longest = sum(max(limit(way, p.name) for p, way in order(a.job, pools, True)) for a in arrivals)
        self.horizon = 2 + longest + max((int(a.job.submit_s) for a in arrivals), default=0)
        self.free = [free_at(pools, []) for _ in range(2 * self.horizon)]
        self.schedule: Schedule = {}
        self.promised: dict[int, int] = {}  # ends

    def run(self) -> Schedule:
        behind: list[Job] = []
        for second in range(self.horizon):
            early = False
            for held in self.schedule.values():
                if held.start < second == held.end:
                    early |= held.limit_end > second
                    self.book(held, -1, second)
            for held in self.reserved(second) if early else ():
                self.book(held, -1, second)
                again = self.earliest(self.of[held.job.id].job, second)
                if self.rank(again) < self.rank(held):
                    held.job = again.job
                    held.pool, held.nodes, held.start = again.pool, again.nodes, again.start
                    held.limit_end, held.end = again.limit_end, again.end
                self.book(held, 1, second)
            behind += [a.job for a in self.of.values() if a.job.submit_s == second]
            while behind and len(self.reserved(second + 1)) < self.depth:
                job = behind.pop(0)
                self.reserve(self.earliest(job, second), second)
                self.promised[job.id] = self.schedule[job.id].limit_end
            for job in list(behind):
                last = max(held.start for held in self.reserved(second + 1))
                for choice in self.ways_of(job):
                    held = self.earliest(job, second, [choice])
                    if held.start == second and held.limit_end <= last:
                        behind.remove(job)
                        self.reserve(held, second)
                        break
        return self.schedule

    def rank(self, held: Held) -> tuple[int, int, int]:
        ways = [(pool.name, way) for pool, way in self.ways_of(self.of[held.job.id].job)]
        return held.limit_end, held.start, ways.index((held.pool, held.job))

    def reserved(self, second: int) -> list[Held]:
        """Return what starts then or later, in the order of the queue."""
        return [held for _, held in sorted(self.schedule.items()) if held.start >= second]

    def reserve(self, held: Held, second: int) -> None:
        self.schedule[held.job.id] = held
        self.book(held, 1, second)

    def book(self, held: Held, sign: int, second: int) -> None:
        """Take (1) or give back (-1) the interval from ``second`` on."""
        for s in range(max(held.start, second), held.limit_end):
            for node, tasks in held.nodes.items():
                self.free[s][held.pool, node] = take(self.free[s][held.pool, node], held.job, sign * tasks)

    def earliest(self, job: Job, second: int, ways: list[tuple[Pool, Job]] | None = None) -> Held:
        """Find the interval where the job would end first."""
        choices = []
        for rank, (pool, way) in enumerate(ways or self.ways_of(job)):
            length, at = limit(way, pool.name), second
            while not (nodes := self.room_for(way, pool, at, at + length)):
                at += 1
            ends = at + length, at + run_time(self.of[job.id], pool.name, way)
            choices.append((at + length, at, rank, Held(way, pool.name, nodes, at, *ends)))
        return min(choices, key=lambda choice: choice[:3])[3]

    def ways_of(self, job: Job) -> list[tuple[Pool, Job]]:
        """List the ways on pools that are large enough, as the job takes them."""
        ways = order(job, self.pools, True)
        return [(pool, way) for pool, way in ways if place(way, pool, free_at(self.pools, []))]

    def room_for(self, job: Job, pool: Pool, begin: int, end: int) -> Nodes:
        """Choose nodes at ``begin`` that have room until ``end``."""
        if not place(job, pool, self.free[begin]):  # most seconds need no further look
            return {}
        least = {
            (pool.name, n): [min(amounts) for amounts in zip(*rows, strict=True)]
            for n in range(pool.units)
            for rows in [[self.free[s][pool.name, n] for s in range(begin, end)]]
        }
        return place(job, pool, self.free[begin], least)
