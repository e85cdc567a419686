"""Weigh's plan of all jobs that wait, for the least makespan: in which order they start, and how large.

A plan is an order and a size of each job. It is carried out by starting, whenever units come free, each job
in the order that fits then. A local search changes the size of a job, or its place in the order, and keeps
what is no worse; it begins with the plan of the decision before. Its cost is the end of the last job, a part
of the mean end, the price of the energy, and a little of all the machine that the jobs hold.

The first job of the queue is passed by others only until the plan that was made when it became the first is
over. From then on it has a reservation (``malleable``). So it has where more jobs wait than are weighed,
because the longest are not among them; where a run time is not known; and beside jobs that are suspended,
malleable or of another priority, or under caps or a budget.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from scheduler.model.events import Action, Start
from scheduler.model.jobs import JobState, counted
from scheduler.policies.base import View
from scheduler.policies.weigh.malleable import Machine
from scheduler.policies.weigh.waiting import believed_end, left_s

STEPS_A_JOB, STEPS = 30, 8000  # of the search; the second over the number of jobs
MEAN, LITTLE = 0.3, 0.004  # weights of the mean end, and of a second of the whole machine


class Size(NamedTuple):
    """Units of a job, how long it has them, and what that costs beside the end of the plan."""

    units: int
    seconds: float
    cost_s: float


class Ahead:
    """The plan, kept from decision to decision."""

    def __init__(self, joule_s: float) -> None:
        self._joule_s = joule_s
        self._order: list[int] = []
        self._sizes: dict[int, Size] = {}
        self._first: int | None = None
        self._until_s = math.inf  # others may pass the first

    def starts(
        self, view: View, waits: Sequence[JobState], holes: Mapping[int, float]
    ) -> list[Action] | None:
        """Return who of those that wait starts now; None: this cannot be planned."""
        pool, jobs = view.cluster.pools[0], [state.job for state in waits]
        able = (
            0 < len(jobs) == len(view.waiting)
            and view.free[pool.name] > 0
            and view.budget_w is None
            and not pool.caps_w
            and not view.suspended
            and len({job.priority for job in jobs}) == 1
            and not any(job.malleable or job.reference_s(pool.name) == math.inf for job in jobs)
        )
        if not able:
            return None
        machine = Machine(pool, view.in_service[pool.name], math.inf, self._joule_s)
        sizes = {}
        for state in waits:
            left = left_s(state, view.now, pool.name)
            sizes[state.job.id] = [
                Size(
                    way.units,
                    left / way.speed,
                    left * (way.own_s - 1.0 / way.speed) + LITTLE * way.share * left / way.speed,
                )
                for way in machine.claim(state, left, math.inf).ways.all
                if way.units <= machine.units
            ]
        if not all(sizes.values()):
            return None
        running = view.running.values()
        ends = [(believed_end(state, view, holes) - view.now, state.place.units) for state in running]
        plan = _Plan(ends, view.free[pool.name])
        end_s = self._search(plan, sizes)
        if end_s == math.inf:
            return None
        first = next(iter(view.waiting))
        if first != self._first:
            self._first, self._until_s = first, view.now + end_s
        elif view.now >= self._until_s:
            return None
        *_, now = plan.carry_out(self._order, self._sizes)
        return [Start(job_id, counted(pool.name, self._sizes[job_id].units)) for job_id in now]

    def _search(self, plan: _Plan, sizes: Mapping[int, Sequence[Size]]) -> float:
        """Improve the plan; return its end."""
        known = [job_id for job_id in self._order if job_id in sizes]
        order = known + [job_id for job_id in sizes if job_id not in self._sizes]
        chosen = {
            job_id: self._sizes[job_id]
            if self._sizes.get(job_id) in able
            else min(able, key=lambda size: size.cost_s)
            for job_id, able in sizes.items()
        }
        best, draw = plan.cost(order, chosen), random.Random(0)
        for _ in range(min(STEPS_A_JOB * len(order), STEPS // len(order))):
            job_id = draw.choice(order)
            order_then, chosen_then = order, chosen
            if draw.random() < 0.5:
                chosen_then = chosen | {job_id: draw.choice(sizes[job_id])}
            else:
                order_then = [other for other in order if other != job_id]
                order_then.insert(draw.randrange(len(order)), job_id)
            cost = plan.cost(order_then, chosen_then)
            if cost <= best:
                best, order, chosen = cost, order_then, chosen_then
        self._order, self._sizes = order, chosen
        return plan.carry_out(order, chosen)[0]


class _Plan(NamedTuple):
    """Ends and units of those that run, and the units that are free now."""

    running: Sequence[tuple[float, int]]
    free: int

    def cost(self, order: Sequence[int], chosen: Mapping[int, Size]) -> float:
        end_s, mean_s, _ = self.carry_out(order, chosen)
        return end_s + MEAN * mean_s + sum(size.cost_s for size in chosen.values())

    def carry_out(self, order: Sequence[int], chosen: Mapping[int, Size]) -> tuple[float, float, list[int]]:
        """Return the last and the mean end, and who starts at once; infinite: one never fits."""
        running, free, now, end, ends = list(self.running), self.free, 0.0, 0.0, 0.0
        heapify(running)
        left, at_once = list(order), list[int]()
        while True:
            waits = []
            for job_id in left:
                units, seconds, _ = chosen[job_id]
                if units > free:
                    waits.append(job_id)
                    continue
                free -= units
                heappush(running, (now + seconds, units))
                end = max(end, now + seconds)
                ends += now + seconds
                if not now:
                    at_once.append(job_id)
            left = waits
            if not left:
                return end, ends / len(order), at_once
            if not running:
                return math.inf, math.inf, at_once
            now, units = heappop(running)
            free += units
            while running and running[0][0] <= now:
                free += heappop(running)[1]
