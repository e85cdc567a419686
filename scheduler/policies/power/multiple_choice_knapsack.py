"""Multiple-choice knapsack: one option for each job, for the greatest sum of values within units and watts.

Equations 3.2 - 3.5 of paper C are this problem. Each job takes exactly one option. Column 0 is waiting (no
value, no resources), where the job may wait.

``solve`` proves the quality of its answer, and does the costly steps last:

1. If every job can have its most valuable option, these are the optimum.
2. Lagrangian bound: with prices of a unit and of a watt each job chooses for itself. At any prices, the jobs'
   net values plus the priced capacities bound the optimum from above. Kelley's cutting planes find the best
   prices, those of the linear relaxation, as the lowest point of some planes each time.
3. The choices at these prices, cut down to what fits and filled up greedily, are a solution. It is the answer
   if it lies within the gap.
4. Fixing: an option is left out if no solution better by more than the gap contains it, because its net value
   lies further below its job's best than the bound above (1 + gap) times the solution of step 3.
5. HiGHS solves the rest. Identical jobs share integer columns, so it does not try all their permutations.

Cost: 2 and 3 take some dozens of passes over (jobs x options) numbers. 5 is limited by branching nodes (the
same answer on every machine) and, as a last resort, by time. HiGHS alone is no substitute: for 50 jobs (the
cases of ``tests/benchmarks/policies/test_parm_speed.py``) the median decision takes 23 to 109 ms in place of
1 to 31, and for 500 jobs on 40,960 nodes a decision takes 1.7 to 4 s in place of 0.01 to 3. Without step 5
gaps of up to 7 % stay unproven.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROUNDING = 1e-9  # relative error of sums of watts and values
CUTS = 40  # of Kelley's method; the bound holds after any number of them
PARALLEL = 1e-12  # sine of an angle
CLOSE = 1e-4  # relative distance of the bound from the best, at which no further cut is needed


@dataclass(frozen=True)
class Problem:
    """Jobs (rows) and their options (columns); rows are filled up with options of value -inf.

    Attributes:
        values, units, watts: of each option. Column 0: the job waits (-inf where it must run); column 1: its
            least option, which needs no more of either resource than any other; later columns are preferred
            less when values are equal. Values that can be chosen are not negative.
        max_units, max_watts: what all may take together.
    """

    values: Floats
    units: Floats
    watts: Floats
    max_units: float
    max_watts: float

    @cached_property
    def start(self) -> Integers:
        """Waiting where allowed, else the least option: if this does not fit, nothing does."""
        return np.where(np.isneginf(self.values[:, 0]), 1, 0)

    def totals(self, choice: Integers) -> tuple[float, float, float]:
        """Sum value, units and watts of a choice."""
        rows = np.arange(len(choice))
        return (
            float(self.values[rows, choice].sum()),
            float(self.units[rows, choice].sum()),
            float(self.watts[rows, choice].sum()),
        )

    def fits(self, choice: Integers) -> bool:
        """Tell if the choice keeps to both limits."""
        value, units, watts = self.totals(choice)
        within = units <= self.max_units * (1 + ROUNDING) and watts <= self.max_watts * (1 + ROUNDING)
        return within and value > -np.inf


@dataclass(frozen=True)
class Solution:
    """The option of each job and their value; ``bound`` is above all solutions."""

    choice: Integers
    value: float
    bound: float
    how: str  # the step that ended the search

    @property
    def gap(self) -> float:
        """By how much, relatively, an optimum could be better at most."""
        return max(0.0, self.bound - self.value) / self.value if self.value > 0 else 0.0


def solve(
    problem: Problem, gap: float = 0.001, time_limit_s: float = 10.0, node_limit: int = 20_000
) -> Solution | None:
    """Choose to within ``gap`` of the optimum unless a limit is met; None if not even ``start`` fits."""
    if not problem.fits(problem.start):
        return None
    most_units, most_watts = problem.units.max(axis=1).sum(), problem.watts.max(axis=1).sum()
    problem = replace(
        problem,
        max_units=min(problem.max_units, float(most_units)),
        max_watts=min(problem.max_watts, float(most_watts)),
    )
    dearest = problem.values.argmax(axis=1)
    if problem.fits(dearest):
        value = problem.totals(dearest)[0]
        return Solution(dearest, value, value, "everything fits")
    prices, bound, choice = _prices(problem)
    choice = _fill(problem, _cut_down(problem, choice, prices))
    value = problem.totals(choice)[0]
    how = "prices"
    if bound > value * (1 + gap):
        kept = _worth_keeping(problem, prices, bound, value * (1 + gap))
        branched, rest = _branch(problem, kept, choice, gap, time_limit_s=time_limit_s, node_limit=node_limit)
        bound = min(bound, max(rest, value * (1 + gap)))
        choice, how = _fill(problem, branched), "branch and bound"
        value = problem.totals(choice)[0]
    choice = _earlier_first(problem, choice)
    return Solution(choice, value, max(bound, value), how)


# -- prices --------------------------------------------------------------------------------------------


def _net(problem: Problem, prices: Floats) -> Floats:
    """Subtract the priced resources from the values."""
    net: Floats = problem.values - prices[0] * problem.units - prices[1] * problem.watts
    return net


def _prices(problem: Problem) -> tuple[Floats, float, Integers]:
    """Search prices of a unit and a watt with a tight bound; return them, the bound, and the choices."""
    limits = np.array([problem.max_units, problem.max_watts])
    rows = np.arange(len(problem.values))
    scale = 1.0 / np.maximum(limits, 1.0)
    cuts: list[tuple[float, float, float]] = []
    prices, best = np.zeros(2), (np.zeros(2), np.inf, problem.start)
    for _ in range(CUTS):
        net = _net(problem, prices)
        choice = net.argmax(axis=1)
        spare = limits - (problem.units[rows, choice].sum(), problem.watts[rows, choice].sum())
        bound = float(net[rows, choice].sum() + prices @ limits)
        if bound < best[1]:
            best = (prices, bound, choice)
        # bound(u) >= bound + spare (u - prices), in prices for the whole capacity
        slope = spare * scale
        cuts.append((float(slope[0]), float(slope[1]), bound - float(spare @ prices)))
        below, at = _lowest(np.array(cuts), problem.values.max(initial=0.0) * len(rows))
        if best[1] - below <= CLOSE * abs(best[1]):
            break
        prices = at * scale
    return best


def _lowest(cuts: Floats, top: float) -> tuple[float, Floats]:
    """Find the minimum over 0 <= u <= top of the highest of the planes ``a u + b``, and its place.

    The last plane is the newest, which lies above the minimum of the others. So a minimum of all lies on it,
    in a corner of the region where it is the highest. There are few borders, so all pairs are tried, in a
    tenth of the time of a solver. Rounding does no harm, because the bound holds at any prices.
    """
    newest, others = cuts[-1], cuts[:-1]
    normals = np.vstack((others[:, :2] - newest[:2], -np.eye(2), np.eye(2)))  # normals u <= offsets
    offsets = np.concatenate((newest[2] - others[:, 2], (0.0, 0.0, top, top)))
    lengths = np.linalg.norm(normals, axis=1)
    sound = lengths > 0
    normals, offsets = normals[sound] / lengths[sound, None], offsets[sound] / lengths[sound]
    first, second = np.triu_indices(len(normals), 1)
    across = normals[first, 0] * normals[second, 1] - normals[first, 1] * normals[second, 0]
    meet = np.abs(across) > PARALLEL
    first, second, across = first[meet], second[meet], across[meet]
    x = (offsets[first] * normals[second, 1] - normals[first, 1] * offsets[second]) / across
    y = (normals[first, 0] * offsets[second] - offsets[first] * normals[second, 0]) / across
    corners = np.column_stack((x, y))
    inside = (corners @ normals.T <= offsets + ROUNDING * top).all(axis=1)
    if not inside.any():
        return -np.inf, np.zeros(2)
    heights = corners[inside] @ newest[:2] + newest[2]
    lowest = int(heights.argmin())
    return float(heights[lowest]), np.maximum(corners[inside][lowest], 0.0)


# -- solutions -----------------------------------------------------------------------------------------


def _cut_down(problem: Problem, wished: Integers, prices: Floats) -> Integers:
    """Grant the wished options while they fit, those first that bring most for their price."""
    rows = np.arange(len(wished))
    choice = problem.start.copy()
    _, units, watts = problem.totals(choice)
    left_units, left_watts = problem.max_units - units, problem.max_watts - watts
    more_units = problem.units[rows, wished] - problem.units[rows, choice]
    more_watts = problem.watts[rows, wished] - problem.watts[rows, choice]
    gain = problem.values[rows, wished]
    price = prices[0] * more_units + prices[1] * more_watts
    rank = np.argsort(-gain / np.maximum(price, 1e-12), kind="stable")
    for row in rank.tolist():
        if more_units[row] <= left_units and more_watts[row] <= left_watts:
            choice[row] = wished[row]
            left_units -= more_units[row]
            left_watts -= more_watts[row]
    return choice


def _fill(problem: Problem, choice: Integers) -> Integers:
    """Change one job after the other to the option that brings most and fits, until none brings more."""
    choice = choice.copy()
    rows = np.arange(len(choice))
    for _ in range(2 * len(choice)):
        value, units, watts = (
            table[rows, choice] for table in (problem.values, problem.units, problem.watts)
        )
        left_units = (problem.max_units - units.sum() + units)[:, None]
        left_watts = (problem.max_watts - watts.sum() + watts)[:, None]
        fits = (problem.units <= left_units) & (problem.watts <= left_watts)
        gain = np.where(fits, problem.values - value[:, None], -np.inf)
        row, option = np.unravel_index(int(gain.argmax()), gain.shape)
        if not gain[row, option] > ROUNDING * value[row]:
            break
        choice[row] = option
    return choice


def _same_jobs(problem: Problem) -> dict[bytes, list[int]]:
    """Group equal rows, in the order of the rows."""
    together: dict[bytes, list[int]] = {}
    tables = np.hstack((problem.values, problem.units, problem.watts))
    for row, key in enumerate(tables):
        together.setdefault(key.tobytes(), []).append(row)
    return together


def _earlier_first(problem: Problem, choice: Integers) -> Integers:
    """Let the earlier ones run of jobs that are equal to the problem."""
    choice = choice.copy()
    for rows in _same_jobs(problem).values():
        if len(rows) > 1:
            options = choice[rows]
            choice[rows] = np.concatenate((options[options > 0], options[options == 0]))
    return choice


# -- branch and bound ------------------------------------------------------------------------------------


def _worth_keeping(problem: Problem, prices: Floats, bound: float, enough: float) -> NDArray[np.bool_]:
    """Tell which options may be part of a solution worth more than ``enough``.

    At these prices no solution with an option is worth more than the bound less what the option's net value
    lacks to its job's best, because all other jobs have their best net values in the bound.
    """
    net = _net(problem, prices)
    lacks = net.max(axis=1, keepdims=True) - net
    kept: NDArray[np.bool_] = np.isfinite(problem.values) & (bound - lacks > enough)
    return kept


def _branch(
    problem: Problem,
    kept: NDArray[np.bool_],
    known: Integers,
    gap: float,
    *,
    time_limit_s: float,
    node_limit: int,
) -> tuple[Integers, float]:
    """Solve the kept options by HiGHS; return the better of its choice and ``known``, and its bound."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    groups = list(_same_jobs(problem).values())
    first = np.array([rows[0] for rows in groups])
    group, option = np.nonzero(kept[first])
    row = first[group]
    counts = np.array([len(rows) for rows in groups], dtype=float)
    columns = np.arange(len(group))
    option_of_each_job = csr_array((np.ones(len(group)), (group, columns)), shape=(len(groups), len(group)))
    limits = np.maximum([problem.max_units, problem.max_watts], 0.0)
    taken = np.array([problem.units[row, option], problem.watts[row, option]])
    with silent_solver():
        result = milp(
            -problem.values[row, option],
            integrality=np.ones(len(group)),
            bounds=Bounds(0, counts[group]),
            constraints=[
                LinearConstraint(option_of_each_job, counts, counts),
                LinearConstraint(taken, -np.inf, limits),
            ],
            options={"mip_rel_gap": gap, "time_limit": time_limit_s, "node_limit": node_limit},
        )
    bound = np.inf if result.mip_dual_bound is None else -float(result.mip_dual_bound)
    if result.status == 2:  # no choice is worth more than the known one
        return known, -np.inf
    if result.x is None:
        return known, bound
    choice = known.copy()
    for at, rows in enumerate(groups):
        mine = columns[group == at]
        times = np.round(result.x[mine]).astype(np.int64)
        choice[rows] = np.repeat(option[mine], times)
    better = problem.fits(choice) and problem.totals(choice)[0] > problem.totals(known)[0]
    return (choice if better else known), bound


@contextmanager
def silent_solver() -> Iterator[None]:
    """Keep lines that HiGHS prints now and then, whatever it is told, off standard output."""
    sys.stdout.flush()
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        yield
        ctypes.CDLL(None).fflush(None)  # what C has buffered
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)
