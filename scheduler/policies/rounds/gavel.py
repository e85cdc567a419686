"""Gavel's max-min fairness: each job gets as much of the classes as the others, by what it makes of them.

Algorithm: in every round a linear program over X, the share of the time that each job has on each class.

    greatest is the least of   z * sum of X * speed over the classes / mean speed over all units
    within                     sum of X of a job <= 1,  sum of X * z of a class <= its units

z: the job's units, so that jobs get equal times of units (least attained service). Of such allocations that
of the most throughput is taken, and of equal ones that of the fewest moves. A job's *due* on a class is the
sum of its X over the rounds since it came. Jobs take units in the order of due / (rounds that they have had
there + 1/2): that is X over the share of rounds, where X does not change. Units that are left go to jobs of
which X is 0 there. A job that keeps its class is not stopped.

Guarantee: each job is due more in every round, so its turn comes, unless others that have no checkpoint hold
its units: they keep what they have. Only ratios of run times count; where these are not known, classes are
alike. After a restart of the coordinator dues begin anew.
Cost: a linear program a round, some 10 ms for 100 jobs on two classes, 0.5 s for 2,000 on three.
Left out: packing (pairs of jobs as further rows of X), weights, hierarchies, and estimates of throughputs.
Priorities put a job first in each round, and do not enter X.
Source: D. Narayanan, K. Santhanam, F. Kazhamiaka, A. Phanishayee, M. Zaharia: Heterogeneity-aware cluster
scheduling policies for deep learning workloads, OSDI 2020. There X is computed when jobs come and go, and
rounds are counted from then on, with deficits; dues are these in one number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.model.jobs import JobState
from scheduler.policies.base import View
from scheduler.policies.rounds.rounds import (
    Configuration,
    Rounds,
    begun,
    places,
    restarts,
    runs_on,
    seconds_on,
)

SPREAD = 1e-3  # weight of the mean in the program, and there of the place that a job has
HALF = 0.5


@dataclass(frozen=True)
class GavelParameters:
    """Settings of the paper.

    Attributes:
        round_s: length of a round.
    """

    round_s: float = 360.0

    def __post_init__(self) -> None:
        if not 0 < self.round_s < math.inf:
            raise ValueError("round_s must be above 0")


class Gavel(Rounds):
    """Max-min fairness over classes, in rounds."""

    Parameters = GavelParameters
    parameters: GavelParameters

    def __init__(self, parameters: object = None, seed: int = 0) -> None:
        super().__init__(parameters, seed)
        self._due: dict[tuple[int, str], float] = {}  # by job and pool
        self._had: dict[tuple[int, str], int] = {}

    @property
    def round_s(self) -> float:
        return self.parameters.round_s

    def choose(
        self, jobs: Sequence[JobState], room: Mapping[str, int], view: View
    ) -> Mapping[int, Configuration]:
        options = []
        for state in jobs:
            units = (begun(state) or state.job).units
            options += [(state, place) for place in places(state, (units,), room)]
        shares = max_min(options, room, view.in_service)
        there = {*view.waiting, *view.suspended, *view.running}
        self._due = {key: due for key, due in self._due.items() if key[0] in there}
        self._had = {key: had for key, had in self._had.items() if key[0] in there}
        ranks = []
        for at, ((state, place), share) in enumerate(zip(options, shares, strict=True)):
            key, moves = (state.job.id, place[0]), runs_on(state) != place
            self._due[key] = self._due.get(key, 0.0) + share
            turn = round(self._due[key] / (self._had.get(key, 0) + HALF), 6)
            ranks.append((moves or not restarts(state, view), -state.job.priority, -turn, moves, at))
        left, chosen = dict(room), dict[int, Configuration]()
        for *_, at in sorted(ranks):
            state, (pool, units) = options[at]
            if state.job.id not in chosen and units <= left[pool]:
                chosen[state.job.id] = pool, units
                left[pool] -= units
                self._had[state.job.id, pool] = self._had.get((state.job.id, pool), 0) + 1
        return chosen


def max_min(
    options: Sequence[tuple[JobState, Configuration]], room: Mapping[str, int], every: Mapping[str, int]
) -> NDArray[np.float64]:
    """Compute X of each option within the room of each pool.

    Args:
        every: all units of each pool, by which speeds have their means.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    if not options:
        return np.zeros(0)
    numbers = {state.job.id: row for row, state in enumerate({s.job.id: s for s, _ in options}.values())}
    rows = np.array([numbers[state.job.id] for state, _ in options])
    pools = np.array([list(room).index(pool) for _, (pool, _) in options])
    units = np.array([units for _, (_, units) in options], dtype=np.float64)
    speeds = np.array([1.0 / seconds_on(state.as_it_runs, place) for state, place in options])
    weights = np.array([every[pool] for _, (pool, _) in options], dtype=np.float64)
    mean = np.bincount(rows, speeds * weights) / np.bincount(rows, weights)
    worth = units * speeds / mean[rows]
    count, columns = len(numbers), np.arange(len(options))
    # Rows: least <= worth of each job; X of each job; units of each pool. The last column is the least.
    table = coo_array(
        (
            np.concatenate((-worth, np.ones(count), np.ones(len(options)), units)),
            (
                np.concatenate((rows, np.arange(count), count + rows, 2 * count + pools)),
                np.concatenate((columns, np.full(count, len(options)), columns, columns)),
            ),
        ),
        shape=(2 * count + len(room), len(options) + 1),
    )
    limits = np.concatenate((np.zeros(count), np.ones(count), [float(left) for left in room.values()]))
    keeps = np.array([runs_on(state) == place for state, place in options])
    gain = np.append(SPREAD / count * worth * np.where(keeps, 1.0 + SPREAD, 1.0), 1.0)
    result = linprog(-gain, A_ub=table.tocsr(), b_ub=limits)
    shares: NDArray[np.float64] = np.clip(result.x[:-1], 0.0, 1.0)
    return shares
