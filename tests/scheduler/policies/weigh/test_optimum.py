"""One decision of weigh beside the optimum of a small state, by an integer program over whole seconds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, linprog, milp
from scipy.sparse import lil_matrix

from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival
from tests.support.amounts import DRILL
from tests.support.scheduling.worlds import World, run

NOW_S = 1.0  # the jobs that wait come then, those that run before


class Request(NamedTuple):
    """Units, and whole seconds on each class."""

    units: int
    times: dict[str, int]


class State(NamedTuple):
    """Units of each class, jobs that run (on their only class), and jobs that wait, in their order."""

    sizes: dict[str, int]
    running: list[Request]
    waiting: list[Request]


Starts = dict[int, tuple[str, int]]  # class and start after now, by place in the queue


def drawn(seed: int, classes: int) -> State:
    chance = random.Random(seed)
    sizes = {name: chance.randint(3, 6) for name in "ab"[:classes]}
    running = []
    for name, units in sizes.items():
        left = units
        while left and chance.random() < 0.8:
            taken = chance.randint(1, min(left, 3))
            left -= taken
            running.append(Request(taken, {name: chance.randint(1, 6)}))
    waiting = [
        Request(chance.randint(1, 3), {name: chance.randint(1, 6) for name in sizes})
        for _ in range(chance.randint(2, 12))
    ]
    return State(sizes, running, waiting)


def lived(policy: str, state: State) -> Starts:
    """Return what becomes of those that wait under a policy, when nobody else comes."""

    def arrival(number: int, submit_s: float, request: Request) -> Arrival:
        times = {name: NOW_S - submit_s + seconds for name, seconds in request.times.items()}
        exact = EstimateKind.EXACT
        job = Job(number, submit_s, request.units, estimate_kind=exact, estimates_s=times)
        return Arrival(job, max(times.values()), times)

    pools = tuple(Pool(name, units, rank) for rank, (name, units) in enumerate(state.sizes.items()))
    arrivals = [arrival(-1 - n, 0.0, request) for n, request in enumerate(state.running)]
    arrivals += [arrival(n, NOW_S, request) for n, request in enumerate(state.waiting)]
    outcomes, _ = run(create(policy), World(Cluster(pools), tuple(arrivals)))
    return {
        outcome.job.id: (outcome.segments[0].placement.pool, round(outcome.start_s - NOW_S))
        for outcome in outcomes
        if outcome.job.id >= 0
    }


def least_total_s(
    state: State, latest_first: int, reached_s: float, now: Mapping[int, str] | None = None
) -> float:
    """Return the least sum of ends.

    Args:
        latest_first: the first of the queue starts by then.
        reached_s: a sum of ends that can be reached: what its linear program prices above it is left out.
        now: who starts now, and on which class; None: anybody.
    """
    area = sum(max(job.times.values()) * job.units for job in (*state.waiting, *state.running))
    horizon = 2 * area // sum(state.sizes.values()) + 13
    options = [
        (place, name, start)
        for place, job in enumerate(state.waiting)
        for name, seconds in job.times.items()
        if job.units <= state.sizes[name]
        for start in range(horizon - seconds)
        if (place or start <= latest_first)
        and (now is None or ((start == 0) == (place in now) and (start or now[place] == name)))
    ]
    names, jobs = list(state.sizes), len(state.waiting)
    matrix = lil_matrix((jobs + len(names) * horizon, len(options)))
    free = np.repeat([float(state.sizes[name]) for name in names], horizon)
    for job in state.running:
        for name, seconds in job.times.items():
            begin = names.index(name) * horizon
            free[begin : begin + seconds] -= job.units
    for column, (place, name, start) in enumerate(options):
        matrix[place, column] = 1.0
        begin = jobs + names.index(name) * horizon + start
        for row in range(begin, begin + state.waiting[place].times[name]):
            matrix[row, column] = state.waiting[place].units
    costs = np.array([start + state.waiting[place].times[name] for place, name, start in options])
    rows, limits = matrix.tocsr(), np.concatenate((np.ones(jobs), free))
    relaxed = linprog(costs, rows[jobs:], free, rows[:jobs], limits[:jobs])
    kept = relaxed.fun + relaxed.lower.marginals <= reached_s + 1e-6
    solved = milp(
        costs[kept],
        constraints=LinearConstraint(rows[:, kept], [1.0] * jobs + [-np.inf] * len(free), limits),
        integrality=np.ones(kept.sum()),
        options={"mip_rel_gap": 0.001},
    )
    assert solved.status == 0, solved.message
    return float(solved.fun)


def regrets(policy: str, states: Sequence[State]) -> list[float]:
    """Return by how much the total is longer with what the policy starts now, if all goes on at best."""
    shares = []
    for state in states:
        starts = lived(policy, state)
        now = {place: name for place, (name, start) in starts.items() if not start}
        reached_s = sum(start + state.waiting[place].times[name] for place, (name, start) in starts.items())
        best_s = least_total_s(state, starts[0][1], reached_s)
        shares.append(least_total_s(state, starts[0][1], reached_s, now) / best_s - 1.0)
    return shares


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("classes", [1, 2])
def test_a_decision_is_within_one_percent_of_the_optimum(classes: int) -> None:
    """In the median and the mean; the first of the queue starts as early as weigh starts it.

    In the mean ``fcfs`` is 1.3 % above on one class, ``weigh,price=0`` 1.2 %, ``mct`` 3.7 % on two.
    """
    shares = regrets("weigh", [drawn(seed, classes) for seed in range(500 if DRILL else 80)])
    assert median(shares) <= 0.01 and fmean(shares) <= 0.01
