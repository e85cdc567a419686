"""Weigh for jobs that may have more or fewer units, and for power caps: what each holds of the machine.

A *way* of a job is a number of units under a cap. It holds a share of the machine: that of its units or
that of its watts in the budget, whichever is larger. Who runs holds at least the fewest units at the lowest
cap. Malleable jobs are given their way anew at every change; moldable ones keep that of their start.

**Turnaround**: jobs in the order of their index take the way of least

    time left / speed x (1 + jobs behind x share)

that is free, which is the job's own end and what the jobs behind it wait for its share. What is left over
goes to the jobs in that order, where it speeds up.

**Makespan**: shares go where they are worth most, by (time left + wait) ^ 0.5 x speed for each share, along
the concave hull of speed over share, so that long jobs do not come last and alone (after ``parm``, whose
program this answers greedily).

While the first job of the queue does not fit beside what runs, no other starts; those that run grow
meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from scheduler.model.events import Action, Start
from scheduler.model.jobs import Job, JobState, Placement, Pool
from scheduler.model.state import POWER_TOLERANCE_W
from scheduler.policies.base import View
from scheduler.policies.power.parm import changes, numbers

CHOICES = 64  # numbers of units that are considered for a job
PATIENCE = 0.5  # power of the time left and the wait, for the makespan
FLOOR_S = 10.0  # shorter jobs are no more urgent


class Way(NamedTuple):
    """Units under a cap, in the order of their shares."""

    share: float
    units: int
    watts: float
    cap_w: float | None
    speed: float


NOTHING = Way(0.0, 0, 0.0, None, 0.0)


@dataclass
class Machine:
    """Free units and watts of the machine; ``take`` changes them.

    Attributes:
        units, watts: of the whole.
    """

    pool: Pool
    units: int
    watts: float
    free: int = field(init=False)
    free_w: float = field(init=False)

    def __post_init__(self) -> None:
        self.free, self.free_w = self.units, self.watts

    def has(self, way: Way, held: Way = NOTHING) -> bool:
        """Tell if there is room for a way in place of another."""
        return (
            way.units - held.units <= self.free
            and way.watts - held.watts <= self.free_w + POWER_TOLERANCE_W / 2
        )

    def take(self, way: Way, held: Way = NOTHING) -> Way:
        self.free -= way.units - held.units
        self.free_w -= way.watts - held.watts
        return way

    def ways(self, job: Job) -> tuple[Way, ...]:
        """List the ways of a job, by their shares; none is there that holds as much as a faster one."""
        most = min(job.units if job.max_units is None else job.max_units, self.units)
        speed: Any = job.speed  # a key: it must have a hash, as frozen dataclasses have
        return _ways(
            speed,
            (job.units, max(most, job.units)),
            self.pool,
            all_units=self.units,
            all_watts=self.watts,
        )

    def least(self, job: Job) -> Way:
        """Return the fewest units at the lowest cap."""
        cap = self.pool.caps_w[0] if self.pool.caps_w else None
        watts = self.pool.power_w(job.units, cap)
        speed = 1.0 if job.speed is None else job.speed(job.units, cap)
        return Way(max(job.units / self.units, watts / self.watts), job.units, watts, cap, speed)


@lru_cache(maxsize=4096)
def _ways(
    speed: Any, least_most: tuple[int, int], pool: Pool, *, all_units: int, all_watts: float
) -> tuple[Way, ...]:
    every, best = [], 0.0
    for units in numbers(*least_most, CHOICES).tolist():
        for cap in pool.caps_w or (None,):
            watts = pool.power_w(units, cap)
            share = max(units / all_units, watts / all_watts)
            every.append(Way(share, units, watts, cap, 1.0 if speed is None else speed(units, cap)))
    ways: list[Way] = []
    for way in sorted(every, key=lambda way: (way.share, -way.speed, way.watts)):
        if way.speed > best * (1 + 1e-9):
            ways.append(way)
            best = way.speed
    return tuple(ways)


class Claim(NamedTuple):
    """A job that takes part, and what it may take."""

    state: JobState
    left_s: float
    ways: tuple[Way, ...]
    least: Way


def shares(view: View, lefts: Sequence[tuple[JobState, float]], *, fairness: float, aim: str) -> list[Action]:
    """Give each job its way.

    Args:
        lefts: jobs that are weighed, with their believed times left: the first of the queue, all running
            malleable ones, and others that wait.
    """
    pool = view.cluster.pools[0]
    if not view.in_service[pool.name]:
        return []
    machine = Machine(pool, view.in_service[pool.name], math.inf if view.budget_w is None else view.budget_w)
    running: list[JobState] = []
    for state in view.running.values():
        if state.job.malleable:
            running.append(state)
        else:
            machine.free -= state.place.units
            machine.free_w -= pool.power_w(state.place.units, state.place.cap_w)
    claims = [
        Claim(state, max(left, 1.0), machine.ways(state.job), machine.least(state.job))
        for state, left in lefts
    ]
    held = {
        claim.state.job.id: machine.take(claim.least)
        for claim in claims
        if claim.state.job.id in view.running
    }
    if machine.free < 0 or machine.free_w < -POWER_TOLERANCE_W:
        return changes(running, [_place(pool, held[state.job.id]) for state in running])
    first = next(iter(view.waiting), None)
    if first is not None:
        head = next(claim for claim in claims if claim.state.job.id == first)
        if not machine.has(head.least):
            claims = [claim for claim in claims if claim.state.job.id in view.running]
        elif head.least.units:
            held[first] = machine.take(head.least)
    if aim == "makespan":
        _for_makespan(machine, claims, held, view.now)
    else:
        _for_turnaround(machine, claims, held, now=view.now, fairness=fairness)
    actions: list[Action] = changes(running, [_place(pool, held[state.job.id]) for state in running])
    actions += [Start(job_id, _place(pool, way)) for job_id, way in held.items() if job_id in view.waiting]
    return actions


def _place(pool: Pool, way: Way) -> Placement:
    return Placement(pool.name, way.units, cap_w=way.cap_w)


def _for_turnaround(
    machine: Machine, claims: list[Claim], held: dict[int, Way], *, now: float, fairness: float
) -> None:
    def index(claim: Claim) -> float:
        state = claim.state
        area = claim.left_s * min(way.share / way.speed for way in claim.ways)
        wait = now - state.job.submit_s - state.attained_s(now)
        return area / (1.0 + fairness * wait / max(claim.left_s, FLOOR_S))

    ranked = sorted(claims, key=lambda claim: (-claim.state.job.priority, index(claim), claim.state.job.id))
    for behind, claim in zip(range(len(ranked) - 1, -1, -1), ranked, strict=True):
        job_id = claim.state.job.id
        has = held.get(job_id, NOTHING)
        ways = [way for way in claim.ways if way.speed > has.speed and machine.has(way, has)]
        if ways:
            best = min(ways, key=lambda way: (1.0 + behind * way.share) / way.speed)
            if (1.0 + behind * best.share) / best.speed < (
                (1.0 + behind * has.share) / has.speed if has.speed else math.inf
            ):
                held[job_id] = machine.take(best, has)
    _fill(machine, ranked, held)


def _for_makespan(machine: Machine, claims: list[Claim], held: dict[int, Way], now: float) -> None:
    steps: list[tuple[float, int, int]] = []  # (-worth for each share, claim, place in its hull)
    hulls = [_hull(claim.ways) for claim in claims]
    weights = [(claim.left_s + now - claim.state.job.submit_s) ** PATIENCE for claim in claims]

    def step(number: int, place: int) -> None:
        hull = hulls[number]
        before = hull[place - 1] if place else NOTHING
        if place < len(hull):
            gain = (hull[place].speed - before.speed) / max(hull[place].share - before.share, 1e-12)
            steps.append((-weights[number] * gain, number, place))

    for number in range(len(claims)):
        step(number, 0)
    heapify(steps)
    while steps:
        _, number, place = heappop(steps)
        job_id, way = claims[number].state.job.id, hulls[number][place]
        has = held.get(job_id, NOTHING)
        if way.speed > has.speed:
            if not machine.has(way, has):  # a long step, of a job that scales well: what fits of it
                within = [w for w in claims[number].ways if w.speed > has.speed and machine.has(w, has)]
                if within:
                    held[job_id] = machine.take(within[-1], has)
                continue
            held[job_id] = machine.take(way, has)
        count = len(steps)
        step(number, place + 1)
        if len(steps) > count:
            heappush(steps, steps.pop())
    order = sorted(range(len(claims)), key=lambda number: -weights[number])
    _fill(machine, [claims[number] for number in order], held)


def _hull(ways: Sequence[Way]) -> list[Way]:
    """Return the upper concave hull of speed over share, from nothing."""
    hull: list[Way] = []
    for way in ways:
        while hull:
            before = hull[-2] if len(hull) > 1 else NOTHING
            last = hull[-1]
            if (last.speed - before.speed) * (way.share - before.share) > (way.speed - before.speed) * (
                last.share - before.share
            ):
                break
            hull.pop()
        hull.append(way)
    return hull


def _fill(machine: Machine, ranked: Sequence[Claim], held: dict[int, Way]) -> None:
    """Give what is left over to those that run, where it speeds up."""
    for claim in ranked:
        has = held.get(claim.state.job.id)
        if has is None:
            continue
        for way in reversed(claim.ways):
            if way.speed > has.speed * (1 + 1e-9) and machine.has(way, has):
                held[claim.state.job.id] = machine.take(way, has)
                break
