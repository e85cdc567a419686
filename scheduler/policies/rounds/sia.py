"""Sia: class and size of every job chosen anew in each round by an integer program, restarts made dearer.

Algorithm: in every round at most one configuration (class, units) is chosen for each job, so that

    sum over jobs of   u ^ p,  or ``penalty`` for a job that gets nothing

is least within the units of each class. u: speed on the configuration, over the least of the job's, times the
fewest units that it can have; times the **restart factor**

    r = (age - restarts * cost) / (age + cost)

on any other configuration than the one on which it runs. age: time since submission; cost: of a stop here and
a restart there. So who is young, or was restarted often, stays where it is. A stopped job must restart
anyhow, and has no factor. Sizes: the fewest units, twice as many, and so on, and the most; without a
checkpoint a job keeps what it has.

Guarantee: none to a single job. While enough others come of which the sum gains more, one may wait, above
all one of many units (0.1 to 1.1 is gained for each job that runs).
Cost: an integer program a round, seconds for 2,000 jobs of many sizes on three classes.
Left out: goodput's statistical efficiency and batch sizes, and learning of speeds, with the slow growth of
new jobs that it needs (speeds are known here); nodes. Added: ``KEEP`` for the configuration that a job has,
as in the authors' first program, and the order of priorities and submissions, between equals only.
Source: S. Jayaram Subramanya, D. Arfeen, S. Lin, A. Qiao, Z. Jia, G. R. Ganger: Sia: heterogeneity-aware,
goodput-optimized ML-cluster scheduling, SOSP 2023. The factor is Pollux's (OSDI 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.model.jobs import Job, JobState
from scheduler.policies.base import View
from scheduler.policies.rounds.rounds import (
    Configuration,
    Rounds,
    places,
    restarts,
    runs_on,
    seconds_on,
)

KEEP = 0.01
MUST = 1e3  # gained by a job that keeps what it has to keep
ORDER = 1e-6  # for each earlier job


@dataclass(frozen=True)
class SiaParameters:
    """Settings of the paper.

    Attributes:
        round_s: length of a round.
        p: power of the utilities, below 0: the lower, the fairer.
        penalty: cost of a job that gets nothing, the paper's lambda.
    """

    round_s: float = 60.0
    p: float = -0.5
    penalty: float = 1.1

    def __post_init__(self) -> None:
        if not 0 < self.round_s < math.inf:
            raise ValueError("round_s must be above 0")
        if not -math.inf < self.p < 0 or not 1 < self.penalty < math.inf:
            raise ValueError("p must be below 0, penalty above 1")


class Sia(Rounds):
    """An integer program over configurations, in rounds."""

    Parameters = SiaParameters
    parameters: SiaParameters

    @property
    def round_s(self) -> float:
        return self.parameters.round_s

    def choose(
        self, jobs: Sequence[JobState], room: Mapping[str, int], view: View
    ) -> Mapping[int, Configuration]:
        columns, costs = list[tuple[int, Configuration]](), list[float]()
        for row, state in enumerate(jobs):
            for place, cost in self._costs(state, room, view).items():
                if cost < self.parameters.penalty:
                    columns.append((row, place))
                    costs.append(cost - self.parameters.penalty + ORDER * row)
        return {jobs[row].job.id: place for row, place in least(columns, costs, room)}

    def _costs(self, state: JobState, room: Mapping[str, int], view: View) -> dict[Configuration, float]:
        """Compute u ^ p of each configuration of a job for which there is room."""
        job, here = state.as_it_runs, runs_on(state)
        if here is not None and restarts(state, view):
            return {here: -MUST}
        every = places(state, sizes(job), view.in_service)
        slowest = max((seconds_on(job, place) for place in every), default=0.0)
        costs = {}
        for place in dict.fromkeys([*places(state, sizes(job), room), *([here] if here else [])]):
            utility = job.units * slowest / seconds_on(job, place)
            if here is not None and place != here:
                utility *= restart_factor(state, view, place[0])
            costs[place] = utility**self.parameters.p if utility > 0 else math.inf
            costs[place] -= KEEP * (place == here)
        return costs


def sizes(job: Job) -> tuple[int, ...]:
    """List numbers of units: the fewest, twice as many, and so on, and the most."""
    most, listed = job.max_units or job.units, [job.units]
    while 2 * listed[-1] < most:
        listed.append(2 * listed[-1])
    return (*listed, most) if most > listed[-1] else tuple(listed)


def restart_factor(state: JobState, view: View, pool: str) -> float:
    """Compute r of a running job for a configuration in that pool."""
    age = view.now - state.job.submit_s
    cost = view.costs.move_s(state.job, state.place.pool, pool).middle
    return (age - state.preemptions * cost) / (age + cost) if age > 0 else 0.0


def least(
    columns: Sequence[tuple[int, Configuration]], costs: Sequence[float], room: Mapping[str, int]
) -> list[tuple[int, Configuration]]:
    """Choose columns of the least sum of costs, at most one of each row, within the room of each pool."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    if (best := _separately(columns, costs, room)) is not None:
        return best
    rows = np.array([row for row, _ in columns])
    count, every = int(rows.max()) + 1, np.arange(len(columns))
    pools = np.array([count + list(room).index(pool) for _, (pool, _) in columns])
    units = np.array([units for _, (_, units) in columns], dtype=np.float64)
    table = coo_array(
        (np.concatenate((np.ones(len(columns)), units)), (np.concatenate((rows, pools)), np.tile(every, 2))),
        shape=(count + len(room), len(columns)),
    )
    limits = np.concatenate((np.ones(count), [float(left) for left in room.values()]))
    # With -inf in place of 0 HiGHS 1.12 prints a line of its own at times.
    result = milp(
        np.array(costs),
        integrality=np.ones(len(columns)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(table.tocsr(), 0.0, limits),
        options={"mip_rel_gap": 0.0},
    )
    return [column for column, taken in zip(columns, result.x, strict=True) if taken > 0.5]


def _separately(
    columns: Sequence[tuple[int, Configuration]], costs: Sequence[float], room: Mapping[str, int]
) -> list[tuple[int, Configuration]] | None:
    """Give each row its least column; None: there is no room for that."""
    best = dict[int, tuple[float, Configuration]]()
    for (row, place), cost in zip(columns, costs, strict=True):
        if row not in best or cost < best[row][0]:
            best[row] = cost, place
    left = dict(room)
    for _, (pool, units) in best.values():
        left[pool] -= units
    return [(row, place) for row, (_, place) in best.items()] if min(left.values()) >= 0 else None
