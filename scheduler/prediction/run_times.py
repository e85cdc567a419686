"""Estimates of run times and other needs of jobs: by earlier runs, by trials, and by figures of the devices.

An estimate has an interval, and names its basis. What the owner of a job states comes before all of them. On
each class of device the first of these counts of which enough is known:

1. ``arguments``: runs of the same program with the same arguments, size and device. From nine runs on the
   quantiles are order statistics, right for any distribution; with fewer runs, those of a log-normal
   distribution by Student's t.
2. ``scaled``: runs whose arguments differ in numbers only: time = c x^p of the numbers that vary, by least
   squares on logarithms. The law must beat the mean when each run is left out in turn, and holds up to
   ``BEYOND`` times outside the known numbers.
3. ``name``: all runs of the program, on any size; on that device if there are any.
4. ``tried``: its time on another device, and the latest trial of the running program on both.
5. ``devices``: its time on another device, and the measured figures of both.
6. ``user``: the mean of the last two jobs of the same user (EASY++: Tsafrir, Etsion and Feitelson, IEEE TPDS
   18(6), 2007). Its quantiles are those of actual over predicted time of that user's jobs by this rule. An
   outcome is the first run of a program: later ones say nothing of other programs. The rule is ``proved`` if
   8 of 10 of its last outcomes for that user were within a factor 2, which is also assumed after one run of
   the same program. Plans do not use it before that.

The last ``RECENT`` runs count. Quantiles are 10, 50 and 90 %, of the next value and not of a mean. Waiting
jobs are indexed by what they can be predicted from, so the end of a job costs time only for those jobs that
it may predict better.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np

from agent.opencl_layer.trials import Trial
from profiles.models import t_quantile
from profiles.quantities import stamp
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.quantiles import LEVELS
from scheduler.model.speeds import SpeedRatios, run_time_on
from scheduler.prediction.predictions import ELSEWHERE, STATED, TRIED

Basis = Literal["arguments", "scaled", "name", "user", "devices", "tried"]
Quantity = Literal["run_s", "memory_mb", "registered_mb", "compile_s"]

RECENT = 20
KEPT = 200  # runs of a program
ERRORS_KEPT = 100  # of the rule of a user's last two
ENOUGH = 9  # runs from which on the 10 and 90 % order statistics exist
PROVED = 0.8  # share of the last outcomes of the rule by user within ``ONE_RUN``
LEAST_SPREAD = 0.02  # least standard deviation of the logarithm
ONE_RUN = math.log(2.0)  # spread assumed after a single run: its 10 and 90 % quantiles are a factor 2 apart
STRANGER = math.log(5.0)  # likewise for a user's next job
BEYOND = 4.0
NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
INTERPRETERS = re.compile(r"(?:python|perl|ruby|lua|julia|node|Rscript|(?:ba|da|z|k)?sh)[0-9.]*")


# -- history -----------------------------------------------------------------------------------------------


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

    signature: JobSignature
    run_s: float
    memory_mb: float | None = None
    registered_mb: float | None = None
    compile_s: float | None = None


@dataclass(frozen=True)
class Estimate:
    """10, 50 and 90 % quantiles of a quantity, or its bounds, from ``n`` runs; ``rule``: a clause for people.

    ``proved`` is False for estimates from unrelated jobs that plans must not use.
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
        first = run.signature.program not in self._of_program
        self._of_program[run.signature.program].append(run)
        if run.run_s <= 0:
            return
        last = self._last_two[run.signature.user]
        if last and first:
            self._errors[run.signature.user].append(math.log(run.run_s / _mean(last)))
        last.append(run.run_s)

    def proved(self, user: str) -> bool:
        """Tell if the mean of the user's last two jobs predicted new programs well enough for plans."""
        errors = list(self._errors[user])[-RECENT:]
        right = sum(abs(error) <= ONE_RUN for error in errors)
        return len(errors) >= ENOUGH and right >= PROVED * len(errors)

    def predict(self, signature: JobSignature, quantity: Quantity = "run_s") -> Estimate | None:
        """Predict a quantity of the next run; None if nothing is known."""
        if signature.program not in self._of_program:
            return self._by_user(signature.user) if quantity == "run_s" else None
        alike = self._alike(signature.program, signature.size, signature.pool, quantity)
        if same := alike.same.get(signature.arguments):
            return _of_values(same[-RECENT:], "arguments", "same program and arguments")
        estimate = alike.scaled(signature.arguments) or self._by_name(
            signature.program, signature.pool, quantity
        )
        return self._by_user(signature.user) if estimate is None and quantity == "run_s" else estimate

    def _find_alike(self, program: str, size: tuple[int, ...], pool: str, quantity: Quantity) -> _Alike:
        runs = self._values(program, quantity)
        there = ((run.signature, value) for run, value in runs)
        return _Alike(
            [(job.arguments, value) for job, value in there if (job.size, job.pool) == (size, pool)]
        )

    def _predict_by_name(self, program: str, pool: str, quantity: Quantity) -> Estimate | None:
        there = [value for run, value in self._values(program, quantity) if run.signature.pool == pool][
            -RECENT:
        ]
        rule = "same program, other arguments or another size"
        return _of_values(there, "name", rule) if there else None

    def _values(self, program: str, quantity: Quantity) -> list[tuple[PastRun, float]]:
        """List the program's runs of which the quantity is known."""
        runs = ((run, getattr(run, quantity)) for run in self._of_program.get(program, ()))
        return [(run, value) for run, value in runs if value is not None and value > 0]

    def _predict_by_user(self, user: str) -> Estimate | None:
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
        return Estimate(
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


def _of_values(values: Sequence[float], basis: Basis, rule: str) -> Estimate:
    """Predict quantiles of the next value after these."""
    if len(values) >= ENOUGH:
        low, middle, high = _quantiles(values)
        return Estimate(low, middle, high, len(values), basis, rule)
    logs = np.log(values)
    if len(values) == 1:
        half, rule = ONE_RUN, f"{rule}; one run: a factor 2 either way is assumed"
    else:
        half = t_quantile(LEVELS[-1], len(values) - 1) * max(float(np.std(logs, ddof=1)), LEAST_SPREAD)
        half *= math.sqrt(1 + 1 / len(values))
    middle = math.exp(float(np.mean(logs))) if len(values) > 1 else values[0]
    return Estimate(middle / math.exp(half), middle, middle * math.exp(half), len(values), basis, rule)


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

    def scaled(self, arguments: tuple[str, ...]) -> Estimate | None:
        """Predict along the numbers among the arguments; None where they do not explain the values."""
        shape, numbers = _numbers(arguments)
        if not numbers or min(numbers) <= 0:
            return None
        if shape not in self._laws:
            self._laws[shape] = _law(self._points.get(shape, ()))
        law = self._laws[shape]
        return None if law is None else law.at(np.log(numbers))


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

    def at(self, x: np.ndarray) -> Estimate | None:
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
        return Estimate(middle / math.exp(half), middle, middle * math.exp(half), self.n, "scaled", rule)


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
    return shape, [float(number) for argument in arguments for number in NUMBER.findall(argument)]


def _mean(values: Sequence[float] | deque[float]) -> float:
    return sum(values) / len(values)


# -- other devices: by trials, and by figures --------------------------------------------------------------


COVERED = 0.9  # least share of the launches of which a trial has to tell


@dataclass(frozen=True)
class TriedRatio:
    """Speed of a program on the class ``pool`` over its speed on ``over``, with an interval.

    Attributes:
        at_s: when it was tried (Unix time). agrees: results were the same on both.
    """

    pool: str
    over: str
    low: float
    value: float
    high: float
    at_s: float
    agrees: bool = True

    @property
    def inverse(self) -> TriedRatio:
        """The same, seen from the other class."""
        low, value, high = 1 / self.high, 1 / self.value, 1 / self.low
        return replace(self, pool=self.over, over=self.pool, low=low, value=value, high=high)


Pair = frozenset[str]  # two classes
TriedRatios = Mapping[Pair, TriedRatio]  # the latest of each pair


def pair(pool: str, other: str) -> Pair:
    """Return the pair of two classes, in whichever order they are named."""
    return frozenset((pool, other))


def ratio_of(trial: Trial) -> TriedRatio | None:
    """Take the ratio of the whole program from a trial; None: too few of its launches could be tried."""
    ratio = trial.program_ratio
    tried = sum(kernel.launches for kernel in trial.kernels if kernel.there is not None)
    launches = sum(kernel.launches for kernel in trial.kernels) + trial.not_kept
    if ratio is None or tried < COVERED * launches:
        return None
    agrees = trial.agrees is not False
    return TriedRatio(trial.on, trial.device, **ratio._asdict(), at_s=trial.at_s, agrees=agrees)


def by_trial(pool: str, known: Mapping[str, Estimate], trials: TriedRatios) -> Estimate | None:
    """Estimate the run time on a class by that on another, and the latest trial of both; None: no trial."""
    ratios = [trials[pair(pool, over)] for over in known if over != pool and pair(pool, over) in trials]
    if not ratios:
        return None
    latest = max(ratios, key=attrgetter("at_s"))
    ratio = latest if latest.pool == pool else latest.inverse
    there = known[ratio.over]
    low, middle, high = (there.middle / speed for speed in (ratio.high, ratio.value, ratio.low))
    rule = f"{there.middle:.3g} s on {ratio.over}, {there.rule}; {tried_words(ratio)}"
    return Estimate(low, middle, high, there.n, TRIED, rule)


def by_figures(pool: str, known: Mapping[str, Estimate], ratios: SpeedRatios) -> Estimate | None:
    """Estimate the run time on a class by that on another, and the figures of both; None: without them."""
    bounds = run_time_on(pool, {over: estimate.middle for over, estimate in known.items()}, ratios)
    if bounds is None:
        return None
    there, ratio = known[bounds.of], bounds.ratio
    rule = (
        f"{there.middle:.3g} s on {bounds.of}, {there.rule}; {pool} is {ratio.low:.3g} to {ratio.high:.3g} "
        "times as fast by memory and arithmetic"
    )
    return Estimate(bounds.low_s, bounds.middle_s, bounds.high_s, there.n, ELSEWHERE, rule)


def tried_words(ratio: TriedRatio) -> str:
    """Write a ratio as a clause."""
    results = "" if ratio.agrees else "; its results differ there"
    return (
        f"{ratio.pool} is {ratio.value:.3g} times ({ratio.low:.3g} .. {ratio.high:.3g}) as fast as "
        f"{ratio.over} by a trial of this program at {stamp(ratio.at_s)}{results}"
    )


# -- the predictor -----------------------------------------------------------------------------------------


REMEMBERED = 5000  # earlier jobs that a new coordinator learns from
NEEDS: tuple[Quantity, ...] = ("memory_mb", "registered_mb", "compile_s")
ORDER = ("user", "name", "scaled", "arguments")  # later ones predict better
AT_ONCE = 50  # jobs that differ in numbers only and are predicted again for each kind that ends
Predicted = dict[str, Any]  # ``Entry.predicted``: estimates as JSON, by quantity, and trials
Key = tuple[object, ...]  # common properties of jobs: a basis of ``ORDER``, then terms of ``JobSignature``
Program = tuple[str, tuple[int, ...]]  # name and size: what a trial tells of


class RunTimePredictor:
    """Predictor of run times that learns from the ends of jobs.

    Args:
        entries: jobs that have ended, in the order of their numbers.
        profiled: returns the runs of a job profile, by name.

    Attributes:
        predictions: how many jobs were predicted.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        user: str,
        cluster: Cluster,
        profiled: Callable[[str], Sequence[PastRun]] = lambda name: (),
    ) -> None:
        self.user, self._profiled = user, profiled
        self._cluster = cluster
        self._pools = [pool.name for pool in cluster.pools if pool.kind] or [""]
        self._introduced: set[str] = set()
        self._kinds: set[JobSignature] = set()
        self._count: Counter[tuple[Key, str]] = Counter()  # kinds, by what they have in common and device
        self._unsure: defaultdict[Key, dict[int, None]] = defaultdict(dict)
        self._trials: defaultdict[Program, dict[Pair, TriedRatio]] = defaultdict(dict)
        self._waiting: defaultdict[Program, dict[int, None]] = defaultdict(dict)  # jobs that have not begun
        self.predictions = 0
        self.history = History()
        for entry in entries:
            self._introduce(entry.spec)  # before the run, because later runs count more
            self.ended(entry)

    def watch(self, entry: Entry) -> None:
        """Watch a job that has not begun, so that it is named when it may be predicted better."""
        self._recall(entry)
        if entry.attempt:
            return
        if self._pools != [""]:
            self._waiting[self.program(entry.spec)][entry.id] = None
        if says_itself(entry.spec):
            return
        level = self._level(entry.predicted)
        for basis, key in enumerate(_keys(signature_of(entry.spec, self.user))):
            if key is not None and level < basis:
                self._unsure[key][entry.id] = None
            elif key is not None and key in self._unsure:
                self._unsure[key].pop(entry.id, None)

    def forget(self, entry: Entry) -> None:
        """Drop a job that is over."""
        for key in _keys(signature_of(entry.spec, self.user)):
            if key is not None and key in self._unsure:
                self._unsure[key].pop(entry.id, None)
                if not self._unsure[key]:
                    del self._unsure[key]
        program = self.program(entry.spec)
        if program in self._waiting:
            self._waiting[program].pop(entry.id, None)
            if not self._waiting[program]:
                del self._waiting[program]

    def ended(self, entry: Entry) -> list[int]:
        """Learn from a job that has ended; return the numbers of jobs that may be predicted better now.

        These are jobs of the same program, or with the same arguments, if the ended job is the first of its
        kind; and all jobs of the user, if the rule by user becomes proved. Jobs that differ in numbers only
        are named for each new kind; if many wait, for the first, second, fourth, ... kind and one in so many,
        so that a sweep over a parameter takes no quadratic time.
        """
        self._recall(entry)
        if (run := run_of(entry, self.user)) is None:
            return []
        signature, proved = run.signature, self.history.proved(run.signature.user)
        self.history.add(run)
        by_user, *others = _keys(signature)
        keys: list[Key | None] = [by_user] if not proved and self.history.proved(signature.user) else []
        if signature not in self._kinds:
            self._kinds.add(signature)
            keys += [key for key in others if key is not None and self._tells(key, signature.pool)]
        groups = (self._unsure.get(key, {}) for key in keys if key is not None)
        return list(dict.fromkeys(job_id for group in groups for job_id in group))

    def _tells(self, key: Key, pool: str) -> bool:
        """Count one more kind of run on that device; true if the jobs of that key may be predicted better."""
        self._count[key, pool] += 1
        count = self._count[key, pool]
        if key[0] != "scaled":
            return count == 1
        alike = len(self._unsure.get(key, ()))
        return count.bit_count() == 1 or count % (alike // AT_ONCE + 1) == 0

    def _level(self, predicted: Predicted | None) -> int:
        """Return the place in ``ORDER`` that the prediction goes by on every device; -1: there is none."""
        if predicted is None:
            return -1
        levels = _levels(predicted)
        if not levels:
            return -1
        return min(levels) if len(levels) == len(self._pools) else 0

    def program(self, spec: JobSpec) -> Program:
        """Return what a trial of the job tells of: other arguments are no other program."""
        signature = signature_of(spec, self.user)
        return signature.program, signature.size

    def tried(self, spec: JobSpec, ratio: TriedRatio) -> list[int]:
        """Learn from a trial of a running job; return the numbers of waiting jobs that may be better known.

        Jobs that have begun are not among them: ``expect`` predicts these anew.
        """
        program = self.program(spec)
        known, classes = self._trials[program], pair(ratio.pool, ratio.over)
        if classes not in known or known[classes].at_s < ratio.at_s:
            known[classes] = ratio
        return list(self._waiting.get(program, ()))

    def wants_trial(self, spec: JobSpec, pool: Pool, over: str) -> bool:
        """Tell if neither the owner, earlier runs nor a trial say how fast a job is on a class."""
        if {"", pool.name, pool.kind} & spec.expect_s.keys():
            return False
        estimate = self.history.predict(signature_of(spec, self.user)._replace(pool=pool.name))
        if estimate is not None and estimate.basis != "user":
            return False
        return pair(pool.name, over) not in self._trials.get(self.program(spec), ())

    def _recall(self, entry: Entry) -> None:
        """Take up trials that an earlier coordinator has journalled with the job."""
        for ratio in (entry.predicted or {}).get("tried", ()):
            self.tried(entry.spec, TriedRatio(**ratio))

    def expect(
        self, specs: Sequence[JobSpec], so_far: Sequence[Predicted | None] = ()
    ) -> list[Predicted | None]:
        """Predict each job, as ``Entry.predicted``; None: nothing is known beside what its owner states.

        With ``so_far``, the present predictions, None also stands for no better prediction.
        """
        of_run_times: dict[JobSignature, Predicted | None] = {}
        whole: dict[JobSignature, Predicted] = {}
        predictions: list[Predicted | None] = []
        for place, spec in enumerate(specs):
            if says_itself(spec):
                stated = self._from_stated(spec)
                predictions.append(
                    None if so_far and stated and not better(stated, so_far[place]) else stated
                )
                continue
            self._introduce(spec)
            self.predictions += 1
            signature = signature_of(spec, self.user)
            if signature not in of_run_times:
                of_run_times[signature] = self._run_times(signature)
            new = of_run_times[signature]
            if new is None or (so_far and not better(new, so_far[place])):
                predictions.append(None)
                continue
            if signature not in whole:
                whole[signature] = new | self._needs(signature)
            predictions.append(whole[signature])
        return predictions

    def unproved(self, entry: Entry) -> Predicted | None:
        """Predict the run time by unrelated jobs of the same user, to be told and not planned with."""
        if says_itself(entry.spec) or (entry.predicted or {}).get("run_s"):
            return None
        estimate = self.history.predict(signature_of(entry.spec, self.user)._replace(pool=self._pools[0]))
        return None if estimate is None or estimate.proved else vars(estimate)

    def _introduce(self, spec: JobSpec) -> None:
        name = spec.job_profile
        if name and name not in self._introduced:
            self._introduced.add(name)
            for run in self._profiled(name):
                self.history.add(run)

    def _run_times(self, signature: JobSignature) -> Predicted | None:
        runs = {pool: self.history.predict(signature._replace(pool=pool)) for pool in self._pools}
        known = {pool: run for pool, run in runs.items() if run is not None and run.proved}
        of_program = {pool: run for pool, run in known.items() if run.basis != "user"}
        trials = self._trials.get((signature.program, signature.size), {})
        return _predicted(of_program | self._on_others(of_program, trials) if of_program else known, trials)

    def _from_stated(self, spec: JobSpec) -> Predicted | None:
        """Predict the run time on devices for which the owner states none, by those for which he does."""
        stated, trials = spec.expect_s, self._trials.get(self.program(spec), {})
        if not (trials or self._cluster.ratios):
            return None
        known = {}
        for pool in self._cluster.pools if "" not in stated else ():
            seconds = stated.get(pool.name, stated.get(pool.kind))
            if seconds is not None:
                known[pool.name] = Estimate(seconds, seconds, seconds, 1, ELSEWHERE, STATED)
        usable = {p.name for p in self._cluster.pools if spec.device in ("any", p.kind, p.name)}
        others = self._on_others(known, trials)
        return _predicted({pool: run for pool, run in others.items() if pool in usable}, trials)

    def _on_others(self, known: Mapping[str, Estimate], trials: TriedRatios) -> dict[str, Estimate]:
        """Estimate the run time on devices where no such job ran: by a trial, else by figures."""
        estimates = {
            pool: by_trial(pool, known, trials) or by_figures(pool, known, self._cluster.ratios)
            for pool in self._pools
            if pool not in known
        }
        return {pool: estimate for pool, estimate in estimates.items() if estimate is not None}

    def _needs(self, signature: JobSignature) -> Predicted:
        there = signature._replace(pool=self._pools[0])
        needs = {name: self.history.predict(there, name) for name in NEEDS}
        return {name: vars(need) for name, need in needs.items() if need is not None}


def _predicted(run_s: Mapping[str, Estimate], trials: TriedRatios) -> Predicted | None:
    """Make a prediction of run times, with the trials for the journal and for who asks about the job."""
    tried = {"tried": [asdict(ratio) for ratio in trials.values()]} if trials else {}
    return {"run_s": {pool: vars(run) for pool, run in run_s.items()}} | tried if run_s or tried else None


def says_itself(spec: JobSpec) -> bool:
    """Tell if the job's owner says how long the job runs."""
    return spec.time_s is not None or bool(spec.expect_s)


@lru_cache(maxsize=1024)
def _keys(signature: JobSignature) -> tuple[Key | None, ...]:
    """List what the job has in common with jobs that can be predicted from it, by the places of ``ORDER``."""
    program, arguments, user, size, _ = signature
    shape = shape_of(arguments)
    scaled = None if shape is None else ("scaled", program, size, shape)
    return ("user", user), ("name", program), scaled, ("arguments", program, size, arguments)


def signature_of(spec: JobSpec, user: str) -> JobSignature:
    """Describe the job in the terms of the history."""
    program, arguments = program_of(spec.command)
    name = spec.job_profile or spec.name or program
    return JobSignature(name, arguments, spec.owner(user), (spec.tasks * spec.cores, spec.nodes or 0))


def run_of(entry: Entry, user: str) -> PastRun | None:
    """Make a run of a job that has ended; None if it did not run from beginning to end in one place."""
    used = entry.usage
    if entry.stage is not Stage.DONE or entry.attempt != 1 or entry.migrations:
        return None
    if used is None or used["running_s"] <= 0:
        return None
    pool = entry.placement.pool if entry.devices and entry.placement is not None else ""
    return PastRun(
        signature_of(entry.way, user)._replace(pool=pool),
        used.get("reference_s", used["running_s"]),
        used.get("peak_memory_mb") or None,  # 0: not measured
        used.get("registered_mb"),
        used.get("compile_s"),
    )


def better(new: Predicted, old: Predicted | None) -> bool:
    """Tell if the new prediction goes by something better than the old one."""
    return old is None or _rank(new) > _rank(old)


def _rank(predicted: Predicted) -> tuple[bool, int, int, float]:
    places = _levels(predicted)
    last_trial_s = max((ratio["at_s"] for ratio in predicted.get("tried", ())), default=0.0)
    return min(places, default=0) > 0, len(places), max(places, default=-1), last_trial_s


def _levels(predicted: Predicted) -> list[int]:
    """Return the place in ``ORDER`` of each device on which jobs have run; others follow from these."""
    return [
        ORDER.index(estimate["basis"])
        for estimate in predicted["run_s"].values()
        if estimate["basis"] in ORDER
    ]
