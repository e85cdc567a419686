"""Tests of a figure against its reference, with a stated rate of false alarms.

A figure is judged by the logarithm of its value, so that a loss is relative. The reference are earlier checks
of the unchanged machine. Their spread *between* checks decides: what varies within a check is averaged there,
what varies from one hour to the next is not. With n references and s their standard deviation, the mean of
the last w checks is ``t`` standard errors worse, and ``t`` has Student's distribution with n - 1 degrees of
freedom if nothing changed. So the rate holds from the first checks on, when s is hardly known.

Windows of the last 1, 2, ... 5 checks are tried, because a small loss shows in several checks only. The last
check has to show it too, so that a machine that was mended passes at once. Bonferroni over the windows and
Holm over the figures keep the rate of all together, however they depend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np

FALSE_ALARM_RATIO = 0.01
WINDOW = 5  # checks within which a loss of 3 % is to be found
LEAST_REFERENCES = 4
MOST_REFERENCES = 50
LEAST_LOSS = 0.02  # smaller ones do not matter to jobs, however surely they are told
POWER = 0.95
FEWEST_FOR_CORRELATION = 10
MOST_CORRELATION = 0.8

K = TypeVar("K")


class Observed(NamedTuple):
    """A figure in one check: its value, and that of each round."""

    value: float
    rounds: tuple[float, ...]


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
        p_worse, p_better: chance of so much if nothing changed, over all windows.
        tells: the least loss that one check finds with ``POWER``.
    """

    loss: float
    half: float
    window: int
    p_worse: float
    p_better: float
    tells: float
    was: float
    now: float


def judge(series: Series, tests: int, alpha: float = FALSE_ALARM_RATIO) -> Judged | None:
    """Test a figure; None with fewer than ``LEAST_REFERENCES`` references.

    Args:
        tests: figures that are tested together; for the least loss that can be told.
    """
    n = len(series.reference)
    if n < LEAST_REFERENCES or not series.recent:
        return None
    old = _losses(series.reference, series.sign)
    new = _losses(series.recent, series.sign)[-WINDOW:]
    mean, spread = float(old.mean()), _spread(series, old)
    correlation = _correlation(old)
    last = float(new[-1]) - mean
    found = []
    for w in range(1, len(new) + 1):
        loss = float(new[-w:].mean()) - mean
        error = _error(spread, w, n, correlation)
        worse, better = (
            _tail(way * loss / error, n - 1) if way * last > LEAST_LOSS / 2 else 1.0 for way in (1, -1)
        )
        found.append((worse, better, loss, error, w))
    p_worse, p_better = min(one[0] for one in found), min(one[1] for one in found)
    best = min(found, key=lambda one: min(one[:2]))
    level = alpha / tests / len(new)
    error = _error(spread, 1, n, correlation)
    tells = max((_quantile(1 - level, n - 1) + _quantile(POWER, n - 1)) * error, -math.log(1 - LEAST_LOSS))
    _, _, loss, best_error, window = best
    was = math.exp(-series.sign * mean)
    return Judged(
        loss=loss,
        half=_quantile(0.975, n - 1) * best_error,
        window=window,
        p_worse=min(p_worse * len(new), 1.0),
        p_better=min(p_better * len(new), 1.0),
        tells=tells,
        was=was,
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
    return -sign * np.log([one.value for one in observed])


def _spread(series: Series, old: np.ndarray) -> float:
    """Estimate the standard deviation of the last check, which may have fewer rounds than the references."""
    variance = float(old.var(ddof=1))
    fewest = min(len(one.rounds) for one in series.recent)
    several = [np.log(one.rounds) for one in series.reference if len(one.rounds) > 1]
    if several:
        within = float(np.mean([rounds.var(ddof=1) for rounds in several]))
        usual = float(np.mean([1 / len(one.rounds) for one in series.reference]))
        variance += within * max(1 / fewest - usual, 0.0)
    return math.sqrt(max(variance, 1e-12))


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


def _tail(t: float, freedom: int) -> float:
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))


def _quantile(p: float, freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))
