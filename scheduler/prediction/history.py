"""Quantiles of the needs of a job, from earlier runs.

The first basis with enough data counts (``Basis``):

1. ``arguments``: runs of the same program with the same arguments, size and device. From nine runs on the
   quantiles are order statistics, right for any distribution; with fewer runs, those of a log-normal
   distribution by Student's t.
2. ``scaled``: runs whose arguments differ in numbers only: time = c x^p of the numbers that vary, by least
   squares on logarithms. The law must beat the mean when each run is left out in turn, and holds up to
   ``BEYOND`` times outside the known numbers.
3. ``name``: all runs of the program, on any size; on that device if there are any.
4. ``user``: the mean of the last two jobs of the same user (EASY++: Tsafrir, Etsion and Feitelson, IEEE TPDS
   18(6), 2007). Its quantiles are those of actual over predicted time of that user's jobs by this rule. The
   rule is ``proved`` if 8 of 10 of its last outcomes for that user were within a factor 2, which is also
   assumed after one run of the same program. Plans do not use it before that.

The last ``RECENT`` runs count. Quantiles are 10, 50 and 90 %, of the next value and not of a mean.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, NamedTuple

import numpy as np

from profiles.models import t_quantile

Basis = Literal["arguments", "scaled", "name", "user", "devices", "tried"]  # the last two: see ``run_times``
Quantity = Literal["run_s", "memory_mb", "registered_mb", "compile_s"]

RECENT = 20
KEPT = 200  # runs of a program
ERRORS_KEPT = 100  # of the rule of a user's last two
LEVELS = (0.1, 0.5, 0.9)
ENOUGH = 9  # runs from which on the 10 and 90 % order statistics exist
PROVED = 0.8  # share of the last outcomes of the rule by user within ``ONE_RUN``
LEAST_SPREAD = 0.02  # least standard deviation of the logarithm
ONE_RUN = math.log(2.0)  # spread assumed after a single run: its 10 and 90 % quantiles are a factor 2 apart
STRANGER = math.log(5.0)  # likewise for a user's next job
BEYOND = 4.0
NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
INTERPRETERS = re.compile(r"(?:python|perl|ruby|lua|julia|node|Rscript|(?:ba|da|z|k)?sh)[0-9.]*")


class JobSignature(NamedTuple):
    """The properties of a job by which earlier runs are compared.

    Attributes:
        size: cores and nodes; only runs of one size are compared.
        pool: class of device; "" if all are alike.
    """

    program: str
    arguments: tuple[str, ...] = ()
    user: str = ""
    size: tuple[int, ...] = ()
    pool: str = ""


class PastRun(NamedTuple):
    """A run that ended with success.

    Attributes:
        memory_mb: peak of its process tree. registered_mb: what its checkpoints hold (paper A's M_max).
        compile_s: to build its kernels (paper A's K).
    """

    asked: JobSignature
    run_s: float
    memory_mb: float | None = None
    registered_mb: float | None = None
    compile_s: float | None = None


@dataclass(frozen=True)
class HistoryPrediction:
    """10, 50 and 90 % quantiles, from ``n`` runs; ``rule`` names the rule, as a clause.

    ``proved`` is False for predictions from unrelated jobs that plans must not use.
    """

    low: float
    middle: float
    high: float
    n: int
    basis: Basis
    rule: str
    proved: bool = True


class History:
    """Runs in the order of their ends."""

    def __init__(self, runs: Iterable[PastRun] = ()) -> None:
        self._of_program: dict[str, deque[PastRun]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._last_two: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=2))
        self._errors: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=ERRORS_KEPT))
        # Each is computed once between two ends of runs.
        self._alike = cache(self._find_alike)
        self._by_name = cache(self._predict_by_name)
        self._by_user = cache(self._predict_by_user)
        for run in runs:
            self.add(run)

    def add(self, run: PastRun) -> None:
        """Learn from a run that has ended."""
        for cached in (self._alike, self._by_name, self._by_user):
            cached.cache_clear()
        self._of_program[run.asked.program].append(run)
        if run.run_s <= 0:
            return
        last = self._last_two[run.asked.user]
        if last:
            self._errors[run.asked.user].append(math.log(run.run_s / _mean(last)))
        last.append(run.run_s)

    def programs(self) -> list[str]:
        """List the programs whose runs are known."""
        return sorted(self._of_program)

    def proved(self, user: str) -> bool:
        """Tell if the mean of the user's last two jobs predicted the next ones well enough for plans."""
        errors = list(self._errors[user])[-RECENT:]
        right = sum(abs(error) <= ONE_RUN for error in errors)
        return len(errors) >= ENOUGH and right >= PROVED * len(errors)

    def predict(self, asked: JobSignature, quantity: Quantity = "run_s") -> HistoryPrediction | None:
        """Predict a quantity of the next run; None if nothing is known."""
        if asked.program not in self._of_program:
            return self._by_user(asked.user) if quantity == "run_s" else None
        alike = self._alike(asked.program, asked.size, asked.pool, quantity)
        if same := alike.same.get(asked.arguments):
            return _of_values(same[-RECENT:], "arguments", "same program and arguments")
        found = alike.scaled(asked.arguments) or self._by_name(asked.program, asked.pool, quantity)
        return self._by_user(asked.user) if found is None and quantity == "run_s" else found

    def _find_alike(self, program: str, size: tuple[int, ...], pool: str, quantity: Quantity) -> _Alike:
        runs = self._values(program, quantity)
        there = ((run.asked, value) for run, value in runs)
        return _Alike(
            [(one.arguments, value) for one, value in there if (one.size, one.pool) == (size, pool)]
        )

    def _predict_by_name(self, program: str, pool: str, quantity: Quantity) -> HistoryPrediction | None:
        there = [value for run, value in self._values(program, quantity) if run.asked.pool == pool][-RECENT:]
        rule = "same program, other arguments or another size"
        return _of_values(there, "name", rule) if there else None

    def _values(self, program: str, quantity: Quantity) -> list[tuple[PastRun, float]]:
        """List the program's runs of which the quantity is known."""
        runs = ((run, getattr(run, quantity)) for run in self._of_program.get(program, ()))
        return [(run, value) for run, value in runs if value is not None and value > 0]

    def _predict_by_user(self, user: str) -> HistoryPrediction | None:
        last = self._last_two.get(user)
        if not last:
            return None
        middle, errors = _mean(last), self._errors[user]
        if len(errors) < ENOUGH:
            low, high = middle / math.exp(STRANGER), middle * math.exp(STRANGER)
        else:
            low, _, high = (middle * math.exp(error) for error in _quantiles(errors))
        proved = self.proved(user)
        rule = "mean of the last two jobs of the same user"
        rule += ", which has proved right" if proved else ": unrelated jobs; not used for planning"
        return HistoryPrediction(
            low=min(low, middle),
            middle=middle,
            high=max(high, middle),
            n=len(last),
            basis="user",
            rule=rule,
            proved=proved,
        )


def shape_of(arguments: Sequence[str]) -> tuple[str, ...] | None:
    """Replace the numbers in arguments; None if no law can go by them (none, or not above 0)."""
    shape, numbers = _numbers(arguments)
    return shape if numbers and min(numbers) > 0 else None


def program_of(command: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Split a command into its program, by file name, and arguments; scripts count, not interpreters."""
    first, rest = command[0].rpartition("/")[2] or command[0], list(command[1:])
    if not INTERPRETERS.fullmatch(first):
        return first, tuple(rest)
    for place, word in enumerate(rest):
        if not word.startswith("-"):
            return word.rpartition("/")[2] if " " not in word else word, tuple(rest[place + 1 :])
        if word == "-m" and place + 1 < len(rest):
            return f"-m {rest[place + 1]}", tuple(rest[place + 2 :])
    return first, tuple(rest)


def _of_values(values: Sequence[float], basis: Basis, rule: str) -> HistoryPrediction:
    """Predict quantiles of the next value after these."""
    if len(values) >= ENOUGH:
        low, middle, high = _quantiles(values)
        return HistoryPrediction(low, middle, high, len(values), basis, rule)
    logs = np.log(values)
    if len(values) == 1:
        half, rule = ONE_RUN, f"{rule}; one run: a factor 2 either way is assumed"
    else:
        half = t_quantile(LEVELS[-1], len(values) - 1) * max(float(np.std(logs, ddof=1)), LEAST_SPREAD)
        half *= math.sqrt(1 + 1 / len(values))
    middle = math.exp(float(np.mean(logs))) if len(values) > 1 else values[0]
    return HistoryPrediction(
        middle / math.exp(half), middle, middle * math.exp(half), len(values), basis, rule
    )


def _quantiles(values: Iterable[float]) -> list[float]:
    """Compute quantiles of the next value on straight lines between order statistics.

    The k-th of n values is exceeded with probability 1 - k / (n + 1), whatever their distribution.
    """
    ordered = np.sort(np.fromiter(values, float))
    places = np.arange(1, len(ordered) + 1) / (len(ordered) + 1)
    return [float(value) for value in np.interp(LEVELS, places, ordered)]


class _Alike:
    """Runs that differ in their arguments alone: (arguments, value) each, in the order of their ends.

    Attributes:
        same: values by arguments.
    """

    def __init__(self, runs: Sequence[tuple[tuple[str, ...], float]]) -> None:
        self.same: dict[tuple[str, ...], list[float]] = defaultdict(list)
        self._runs = runs
        self._laws: dict[tuple[str, ...], _Law | None] = {}
        for arguments, value in runs:
            self.same[arguments].append(value)

    @cached_property
    def _points(self) -> dict[tuple[str, ...], list[tuple[list[float], float]]]:
        """Group (numbers, value) by the shape of the arguments."""
        points = defaultdict(list)
        for arguments, value in self._runs:
            shape, numbers = _numbers(arguments)
            points[shape].append((numbers, value))
        return points

    def scaled(self, arguments: tuple[str, ...]) -> HistoryPrediction | None:
        """Predict along the numbers among the arguments; None where they do not explain the values."""
        shape, wanted = _numbers(arguments)
        if not wanted or min(wanted) <= 0:
            return None
        if shape not in self._laws:
            self._laws[shape] = _law(self._points.get(shape, ()))
        law = self._laws[shape]
        return None if law is None else law.at(np.log(wanted))


class _Law(NamedTuple):
    """y = a + p x, both logarithms; ``at`` tells the next y.

    Attributes:
        low, high: least and largest x that were seen, of all numbers. varies: which of them count.
        coefficients, inverse: a and p; the inverse of X'X.
        spread: standard deviation of y about the line, of ``freedom``. n: runs.
    """

    low: np.ndarray
    high: np.ndarray
    varies: np.ndarray
    coefficients: np.ndarray
    inverse: np.ndarray
    spread: float
    freedom: int
    n: int

    def at(self, x: np.ndarray) -> HistoryPrediction | None:
        """Predict the next value and its interval; None where x lies too far off."""
        room = math.log(BEYOND)
        if ((x < self.low - room) | (x > self.high + room) | ((x != self.low) & ~self.varies)).any():
            return None
        point = np.concatenate([[1.0], x[self.varies]])
        half = (
            t_quantile(LEVELS[-1], self.freedom)
            * self.spread
            * math.sqrt(1 + float(point @ self.inverse @ point))
        )
        middle = math.exp(float(point @ self.coefficients))
        powers = ", ".join(f"{power:.2g}" for power in self.coefficients[1:])
        rule = f"same program, scaled by the numbers among its arguments (to the power {powers})"
        return HistoryPrediction(
            middle / math.exp(half), middle, middle * math.exp(half), self.n, "scaled", rule
        )


def _law(points: Sequence[tuple[list[float], float]]) -> _Law | None:
    """Fit a law by least squares to (numbers, value) pairs; None if the mean is as good."""
    if len(points) < 3 or min(min(numbers) for numbers, _ in points) <= 0:
        return None
    every, y = np.log([numbers for numbers, _ in points]), np.log([value for _, value in points])
    low, high = every.min(axis=0), every.max(axis=0)
    varies = high > low
    x = every[:, varies]
    n, k = x.shape
    if not k or n < k + 3:
        return None
    design = np.column_stack([np.ones(n), x])
    inverse = np.linalg.pinv(design.T @ design)
    if np.linalg.matrix_rank(design) <= k:
        return None  # the numbers vary together, so their effects cannot be told apart
    coefficients = inverse @ design.T @ y
    left = 1.0 - np.einsum("ij,jk,ik->i", design, inverse, design)
    if left.min() < 1e-9:
        return None  # one run alone determines the line
    residuals = y - design @ coefficients
    alone = (y - y.mean()) * n / (n - 1)  # of the mean of the others
    if np.sum((residuals / left) ** 2) >= np.sum(alone**2):
        return None
    freedom = n - k - 1
    spread = max(math.sqrt(float(residuals @ residuals) / freedom), LEAST_SPREAD)
    return _Law(
        low=low,
        high=high,
        varies=varies,
        coefficients=coefficients,
        inverse=inverse,
        spread=spread,
        freedom=freedom,
        n=n,
    )


def _numbers(arguments: Sequence[str]) -> tuple[tuple[str, ...], list[float]]:
    """Split arguments into their shape without numbers, and the numbers."""
    shape = tuple(NUMBER.sub("#", argument) for argument in arguments)
    return shape, [float(found) for argument in arguments for found in NUMBER.findall(argument)]


def _mean(values: Sequence[float] | deque[float]) -> float:
    return sum(values) / len(values)
