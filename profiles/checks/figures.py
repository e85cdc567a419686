"""From the slices of a check to its figures, and the tests of each against its reference.

Neighbours and other guests only ever slow a slice down, most of them for a moment. So the value of a round is
the best tenth of its slices (``BEST``): it stays where it was while one slice in ten is undisturbed, but a
fault slows all slices alike. Time that the slice spent without its processors is not counted, because it
says who else ran and not how fast the machine is; ``cpu_share`` tells it by itself.

Of the cores, the mean is a figure, and the slowest beside the median core, so that their number does not
decide how many figures are tested together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from profiles.checks.check import LEAST_LOSS, Figure
from profiles.quantities import Better, better

BEST = 0.9  # quantile of the speeds; of times 1 - BEST
OF_CORES = {"compute_gflops": "compute_core_ratio", "compute_clock_ghz": "compute_core_clock_ratio"}
UNDISTURBED = 0.9  # share of its time in which a slice had all its processors
FEWEST = 5  # such slices in a round; with fewer of them all slices count

Row = Mapping[str, Any]
Rounds = dict[int, list[float]]
Subject = tuple[str, str, str]  # quantity, labels as JSON, unit


def sign(quantity: str) -> Literal[1, -1]:
    """Tell whether a higher value is better (1) or worse (-1)."""
    return -1 if better(quantity) is Better.LOWER else 1


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Make the figures of a check of the rows of its battery."""
    by_round: dict[Subject, dict[int, list[Row]]] = {}
    for row in rows:
        subject = (row["quantity"], row["labels"], row["unit"])
        by_round.setdefault(subject, {}).setdefault(int(row["part"]), []).append(row)
    values = {
        subject: {part: _undisturbed(several) for part, several in parts.items()}
        for subject, parts in by_round.items()
    }
    single = {subject: rounds for subject, rounds in values.items() if subject[0] not in OF_CORES}
    made = [_figure(subject, rounds) for subject, rounds in single.items()]
    for quantity in OF_CORES:
        made += _of_cores(quantity, {s: rounds for s, rounds in values.items() if s[0] == quantity})
    return made


def _undisturbed(rows: Sequence[Row]) -> list[float]:
    """Take the values of the slices that had all their processors, because cores must stream together."""
    kept = [row for row in rows if row["cpu_ratio"] is None or row["cpu_ratio"] >= UNDISTURBED]
    return [float(row["cpu_value"]) for row in (kept if len(kept) >= FEWEST else rows)]


def cpu_share(rows: Sequence[Row]) -> float | None:
    """Compute the share of their time in which the slices had their processor; None without such slices."""
    shares = [float(row["cpu_ratio"]) for row in rows if row["cpu_ratio"] is not None]
    return min(float(np.mean(shares)), 1.0) if shares else None


def best(values: Sequence[float], quantity: str) -> float:
    """Take the best tenth of the slices."""
    return float(np.quantile(values, BEST if sign(quantity) > 0 else 1 - BEST))


def _figure(subject: Subject, rounds: Rounds) -> Figure:
    quantity, labels, unit = subject
    every = np.concatenate(list(map(np.asarray, rounds.values())))
    of_rounds = tuple(best(rounds[part], quantity) for part in sorted(rounds))
    return Figure(
        quantity=quantity,
        labels=json.loads(labels),
        unit=unit,
        value=float(np.mean(of_rounds)),
        rounds=of_rounds,
        slices=len(every),
        spread_ratio=_spread(every),
    )


def _of_cores(quantity: str, cores: Mapping[Subject, Rounds]) -> Iterator[Figure]:
    """Give the mean of all cores, and the slowest of them beside the median."""
    names = [json.loads(labels)["core"] for _, labels, _ in cores]
    parts = sorted(set.intersection(*map(set, cores.values()))) if cores else []
    if not parts:
        return
    table = np.array([[best(rounds[part], quantity) for part in parts] for rounds in cores.values()])
    every = np.concatenate([np.asarray(rounds[part]) for rounds in cores.values() for part in parts])
    mean = Figure(
        quantity=quantity,
        labels={"cores": str(len(names))},
        unit=next(iter(cores))[2],
        value=float(table.mean()),
        rounds=tuple(table.mean(axis=0).tolist()),
        slices=len(every),
        spread_ratio=_spread(every),
    )
    yield mean
    if len(names) > 1:
        slowest = table.min(axis=0) / np.median(table, axis=0)
        update = {
            "quantity": OF_CORES[quantity],
            "unit": "ratio",
            "value": float(slowest.mean()),
            "rounds": tuple(slowest.tolist()),
            "note": f"CPU {names[int(table.mean(axis=1).argmin())]}",
        }
        yield mean.model_copy(update=update)


def _spread(values: NDArray[np.float64]) -> float:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / middle)


# -- tests of a figure against its reference, with a stated rate of false alarms ---------------------------
#
# A figure is judged by the logarithm of its value, so that a loss is relative. The reference are earlier
# checks of the unchanged machine. Their spread *between* checks decides: what varies within a check is
# averaged there, what varies from one hour to the next is not. The distance in standard errors is held
# against Student's t.
#
# Checks of shared machines have outliers, and few references may all be alike by chance. So
#
# - the spread that a value has by its slices stands for ``PRIOR`` further references,
# - the degrees of freedom are ``HEAVY`` with few references, and with many follow the kurtosis of theirs,
# - of the rounds of the last check the best one counts, of four the second. A fault slows all rounds, a
#   neighbour often one.
#
# The last check is tried, and the mean of the last five, because a small loss shows in several checks only.
# The last check has to show it too, so that a machine that was mended passes at once. Bonferroni over these
# two and Holm over the figures keep the rate of all together, however they depend.
#
# The figures of an OpenCL device are a family of their own, at ``DEVICE_FALSE_ALARM_RATIO``: a device that is
# called slower is given to jobs last, and how many others there are must not decide that. A loss of
# ``DEVICE_LOSS`` is to be found with ``DEVICE_POWER``. How many checks in a row that takes follows from the
# device's own spread, as the sample size of a t test does (NIST/SEMATECH e-Handbook of Statistical Methods,
# 7.2.2.2): the quantiles of false alarms and of power together, in standard errors of the mean, may not
# exceed the loss. ``judge`` tells the least loss of one check and of ``WINDOW`` in a row. Where both are
# larger, no number of checks that anybody would wait for finds it, and that is said.


FALSE_ALARM_RATIO = 0.01
WINDOW = 5  # checks within which a loss of 3 % is to be found
LEAST_REFERENCES = 8
MOST_REFERENCES = 50
POWER = 0.95
DEVICE_FALSE_ALARM_RATIO, DEVICE_POWER, DEVICE_LOSS = 0.005, 0.99, 0.03
PRIOR = 4  # references that the spread within checks stands for
HEAVY = 4.0  # degrees of freedom
MANY = 20  # references that show their kurtosis
FEWEST_FOR_CORRELATION = 10
MOST_CORRELATION = 0.8

K = TypeVar("K")


class Observed(NamedTuple):
    """A figure in one check: its value, that of each round, and its standard error by its slices."""

    value: float
    rounds: tuple[float, ...]
    spread: float = 0.0


@dataclass(frozen=True)
class Series:
    """A figure over time.

    Attributes:
        reference: in checks of the unchanged machine.
        recent: in the checks after these, the last one last; at least one.
        sign: 1 where a higher value is better, else -1.
    """

    reference: Sequence[Observed]
    recent: Sequence[Observed]
    sign: Literal[1, -1]


class Judged(NamedTuple):
    """A figure beside its reference; losses as logarithms, above 0 where it became worse.

    Attributes:
        window: the number of last checks over which the change shows best.
        p_worse, p_better: chance of so much if nothing changed, over both windows.
        tells, tells_in_window: the least loss that one check finds, and that ``WINDOW`` in a row find.
    """

    loss: float
    half: float
    window: int
    p_worse: float
    p_better: float
    tells: float
    tells_in_window: float
    was: float
    now: float


def judge(
    series: Series, tests: int, alpha: float = FALSE_ALARM_RATIO, power: float = POWER
) -> Judged | None:
    """Test a figure; None with fewer than ``LEAST_REFERENCES`` references.

    Args:
        tests: figures that are tested together; for the least loss that can be told.
        power: share of cases in which that is found.
    """
    n = len(series.reference)
    if n < LEAST_REFERENCES or not series.recent:
        return None
    old, new = _losses(series.reference, series.sign), _losses(series.recent, series.sign)[-WINDOW:]
    rounds = sorted(_losses_of(series.recent[-1].rounds, series.sign))
    new[-1] = rounds[len(rounds) // 4]
    mean, spread = float(old.mean()), _spread_between(series, old)
    correlation, freedom = _correlation(old), _freedom(old, spread)
    last = float(new[-1]) - mean
    windows = sorted({1, len(new)})
    tried = []
    for w in windows:
        loss = float(new[-w:].mean()) - mean
        error = _error(spread, w, n, correlation)
        p_of_ways = (
            _tail(way * loss / error, freedom) if way * last > LEAST_LOSS / 2 else 1.0 for way in (1, -1)
        )
        tried.append((*p_of_ways, loss, error, w))
    p_worse, p_better = min(test[0] for test in tried), min(test[1] for test in tried)
    _, _, loss, clearest_error, window = min(tried, key=lambda test: min(test[:2]))
    level = alpha / tests / len(windows)
    quantiles = _quantile(1 - level, freedom) + _quantile(power, freedom)
    tells, tells_in_window = (
        max(quantiles * _error(spread, w, n, correlation), -math.log(1 - LEAST_LOSS)) for w in (1, WINDOW)
    )
    return Judged(
        loss=loss,
        half=_quantile(0.975, freedom) * clearest_error,
        window=int(window),
        p_worse=min(p_worse * len(windows), 1.0),
        p_better=min(p_better * len(windows), 1.0),
        tells=tells,
        tells_in_window=tells_in_window,
        was=math.exp(-series.sign * mean),
        now=math.exp(-series.sign * (mean + loss)),
    )


def significant(p: Mapping[K, float], alpha: float = FALSE_ALARM_RATIO) -> set[K]:
    """Choose what is significant by Holm's procedure: any by chance with probability ``alpha`` at most."""
    chosen: set[K] = set()
    for i, (key, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        if value > alpha / (len(p) - i):
            break
        chosen.add(key)
    return chosen


def relative(loss: float, sign: int) -> float:
    """Turn a loss as a logarithm into a share of the reference: speed lost, or (sign -1) time added."""
    return -math.expm1(-loss) if sign > 0 else math.expm1(loss)


def _losses(observed: Sequence[Observed], sign: int) -> np.ndarray:
    return _losses_of([observation.value for observation in observed], sign)


def _losses_of(values: Sequence[float], sign: int) -> np.ndarray:
    losses: np.ndarray = -sign * np.log(values)
    return losses


def _spread_between(series: Series, old: np.ndarray) -> float:
    """Estimate the standard deviation of the last check, which may have fewer rounds than the references."""
    within = float(np.median([observation.spread for observation in series.reference]))
    variance = (PRIOR * within**2 + float(((old - old.mean()) ** 2).sum())) / (PRIOR + len(old) - 1)
    fewest = min(len(observation.rounds) for observation in series.recent)
    several = [np.log(observation.rounds) for observation in series.reference if len(observation.rounds) > 1]
    if several:
        of_rounds = float(np.mean([rounds.var(ddof=1) for rounds in several]))
        usual = float(np.mean([1 / len(observation.rounds) for observation in series.reference]))
        variance += of_rounds * max(1 / fewest - usual, 0.0)
    return math.sqrt(max(variance, 1e-12))


def _freedom(old: np.ndarray, spread: float) -> float:
    """Choose the degrees of freedom whose tails are as heavy as those of the references may be.

    Student's t has the excess kurtosis 6 / (freedom - 4). To that of the references two standard errors are
    added.
    """
    n = len(old)
    if n < MANY:
        return HEAVY
    excess = float((((old - old.mean()) / spread) ** 4).mean()) - 3 + 2 * math.sqrt(24 / n)
    return min(n - 1.0, HEAVY + 6 / max(excess, 0.01))


def _correlation(old: np.ndarray) -> float:
    """Estimate the correlation of checks that follow one another, without the bias of short series."""
    n = len(old)
    if n < FEWEST_FOR_CORRELATION or not old.std():
        return 0.0
    apart = old - old.mean()
    lagged = float((apart[1:] * apart[:-1]).sum() / (apart**2).sum()) + 1 / n
    return min(max(lagged, 0.0), MOST_CORRELATION)


def _error(spread: float, w: int, n: int, correlation: float) -> float:
    """Compute the standard error of the mean of ``w`` checks over that of ``n`` references."""
    return spread * math.sqrt(_of_mean(w, correlation) + _of_mean(n, correlation))


def _of_mean(count: int, correlation: float) -> float:
    """Compute the variance of a mean of correlated values (AR(1)), over that of one value."""
    if not correlation:
        return 1 / count
    lags = np.arange(1, count)
    return float(1 + 2 * ((1 - lags / count) * correlation**lags).sum()) / count


def _tail(t: float, freedom: float) -> float:
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))


def _quantile(p: float, freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))
