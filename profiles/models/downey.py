"""Run time over cores after Downey: mean parallelism A, its variance sigma, and the time T1 on one core.

A. B. Downey, A Model For Speedup of Parallel Programs, UCB/CSD-97-933 (1997); eq. 4.4 of Huang et al. (2014)
is its form for sigma up to 1, written as time.

Limits of the data. Below saturation (n < A) the model is ``T1 (1/n + f (1 - 1/n))`` with the one number
``f = sigma / 2A`` (or ``sigma / (sigma + 1) A`` for sigma >= 1): A and sigma cannot be told apart. Only
counts up to 2A and beyond show A itself. With fewer the verdict is "A >= x": ``low`` is x, ``high`` is
None, and ``value`` is the smallest A that fits well (with its sigma), so that predictions within the measured
counts hold.

Fit. Scatter is taken robustly from the repetitions at each count, medians of log time are weighted by it, and
the sum of squares is minimised over all of (A, sigma) by a grid that is refined; log T1 enters linearly.
Intervals are those of the profile likelihood, scaled up where the model misses the medians.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..records import Coefficient, Model, Quality
from ..stats import MAD_TO_SD, MEDIAN_ERROR
from . import Prediction, t_quantile
from .constant import at_best, judge, judged, largest_gap, worse

Floats = NDArray[np.float64]

FARTHEST = 100.0  # A is sought up to this multiple of the largest count
STEEPEST = 0.999  # share at which sigma ends: 999
GRID = 80  # steps from one end to the other, before refinement
LEAST_SCATTER = 1e-4  # relative; keeps weights finite where a clock repeats itself
ENOUGH = 1.9  # counts up to this multiple of A show it: the rule's 2, less 5 % for the scatter of A itself
WELL = 0.1  # how far above its minimum the sum of squares may be for a fit as good as the best


def speedup(n: ArrayLike, A: ArrayLike, sigma: ArrayLike) -> Floats:
    """Compute S(n) on ``n`` >= 1 cores, for A >= 1 and sigma >= 0; the arguments broadcast."""
    n, A, sigma = (np.asarray(value, dtype=float) for value in (n, A, sigma))
    is_calm = sigma <= 1
    if is_calm.all():
        return _calm(n, A, sigma)
    if not is_calm.any():
        return _steep(n, A, sigma)
    return np.where(is_calm, _calm(n, A, np.minimum(sigma, 1.0)), _steep(n, A, np.maximum(sigma, 1.0)))


def _calm(n: Floats, A: Floats, sigma: Floats) -> Floats:
    rising = A * n / (A + sigma / 2 * (n - 1))
    bending = A * n / (sigma * (A - 0.5) + n * (1 - sigma / 2))
    return np.where(n < A, rising, np.where(n < 2 * A - 1, bending, A))


def _steep(n: Floats, A: Floats, sigma: Floats) -> Floats:
    rising = n * A * (sigma + 1) / (sigma * (n + A - 1) + A)
    return np.where(n < A + A * sigma - sigma, rising, A)


def run_s(n: ArrayLike, T1: float, A: float, sigma: float) -> Floats:
    """Compute the run time in seconds on ``n`` cores (eq. 4.4 for sigma up to 1)."""
    return T1 / speedup(n, A, sigma)


def fit(
    cores: Sequence[float],
    seconds: Sequence[float],
    *,
    probe: str,
    quantity: str,
    labels: dict[str, str] | None = None,
    emulated: bool = False,
    note: str = "",
) -> Model:
    """Fit T1, A and sigma to run times, a pair (cores, seconds) a run.

    Raises:
        ValueError: no run on one core, or on no other count.
    """
    data = _Medians.of(np.asarray(cores, dtype=float), np.asarray(seconds, dtype=float))
    top = float(data.n[-1])
    surface = _Surface(data, float(np.log(FARTHEST * top)))
    A, share, least = surface.best()
    reach = data.reach * max(1.0, least / max(len(data.n) - 3, 1))
    interval = surface.interval_a(A, least + reach)
    slopes = surface.interval_sigma(share, least + reach)
    known = data.freedom > 0
    bounded = known and interval[1] is not None and interval[1] <= top and ENOUGH * interval[0] <= top
    if not bounded:
        A, share = surface.smallest_a(A, least + WELL)
        interval, slopes = (interval[0], None), (slopes[0], None)
    elif slopes[1] is None:
        A, share = surface.smallest_share(share, least + WELL)
    sigma = float(_sigma(share))
    log_t1 = float(surface.log_t1(A, sigma))
    half = float(np.sqrt(reach / data.weight[0]))
    predicted = log_t1 - np.log(speedup(data.cores, A, sigma))
    total = float(((data.y - data.y.mean()) ** 2).sum())
    missed = float(((data.y - log_t1 + np.log(speedup(data.n, A, sigma))) ** 2).sum())
    doubts, best = _doubts(data, np.expm1(data.log_seconds - predicted))
    coefficients = (
        _t1(float(np.exp(log_t1)), half if known else None, len(seconds)),
        _parallelism(A, interval if known else (None, None), top=top, bounded=bounded, n=len(seconds)),
        _variance(sigma, slopes if known else (None, None), len(seconds)),
    )
    return Model(
        probe=probe,
        quantity=quantity,
        form="downey",
        labels=labels or {},
        x="cores",
        x_min=1.0,
        x_max=top,
        method="Downey 1997 on medians of log time, profile likelihood",
        coefficients=at_best(coefficients, best),
        residual_sd=float(MAD_TO_SD * np.median(np.abs(data.log_seconds - predicted))),
        r2=1.0 - missed / total if total > 0 else None,
        emulated=emulated,
        note="; ".join(filter(None, (note, *doubts))),
    )


def predict(model: Model, x: float = 1.0) -> Prediction:
    """Predict seconds on ``x`` cores.

    Beyond the largest measured count, where A is only bounded from below, the interval reaches from ideal
    scaling on from that count to no gain at all.

    Raises:
        ValueError: fewer than one core.
    """
    if x < 1:
        raise ValueError(f"{x:g} cores: at least 1 is needed")
    T1, A, sigma = model["T1"], model["A"], model["sigma"]
    value = float(run_s(x, T1.value, A.value, sigma.value))
    own = 0.0 if T1.high is None else np.log(T1.high / T1.value) / 1.96
    factor = float(np.exp(1.96 * np.hypot(model.residual_sd or 0.0, own)))
    top = model.x_max or 1.0
    if x > top and A.high is None:
        at_top = float(run_s(top, T1.value, A.value, sigma.value))
        return Prediction(value, at_top * top / x / factor, at_top * factor)
    return Prediction(value, value / factor, value * factor)


def verdict(model: Model) -> str:
    """Write ``A ≥ 3.90``, or ``A = 7.00 [6.86, 7.15], σ = 0.02 [0.00, 0.09]``, or ``A unknown``."""
    A, sigma = model["A"], model["sigma"]
    if A.quality is Quality.POOR and A.high is None:
        return "A unknown"
    least = max(A.low or 1.0, 1.0)  # intervals that were widened for rounds that differ know no limits
    if A.high is None:
        return f"A ≥ {least:.2f}" if least > 1 else "A unknown"
    text = f"A = {A.value:.2f} [{least:.2f}, {A.high:.2f}]{' (poor)' * (A.quality is Quality.POOR)}"
    if sigma.low is None or sigma.high is None:
        return text
    return f"{text}, σ = {sigma.value:.2f} [{max(sigma.low, 0.0):.2f}, {sigma.high:.2f}]"


def _doubts(data: _Medians, residuals: Floats) -> tuple[list[str], Quality]:
    """Describe deviations of the runs from this form, and the best quality of its coefficients."""
    words, quality = [], Quality.GOOD
    if outside := _outside(data):
        words, quality = [outside], Quality.NOISY
    if gap := largest_gap(data.cores, residuals):
        cores = f"{gap.at:g} core{'s' * (gap.at != 1)}"
        words.append(f"the median on {cores} is {gap.percent} off the curve")
        quality = worse(quality, gap.quality)
    return words, quality


def _outside(data: _Medians) -> str:
    """Describe medians that the model cannot follow."""
    gain = np.exp(data.y[0] - data.y)
    if (slower := data.n[gain < 0.95]).size:
        return f"slower on {slower[0]:g} cores than on one, which the model cannot follow"
    if (faster := data.n[gain > 1.05 * data.n]).size:
        return f"more than {faster[0]:g} times as fast on {faster[0]:g} cores, which the model cannot follow"
    return ""


def _t1(value: float, half: float | None, n: int) -> Coefficient:
    bounds = (None, None) if half is None else (value * np.exp(-half), value * np.exp(half))
    return judged("T1", value, "s", bounds, n=n)


def _parallelism(
    value: float, interval: tuple[float | None, float | None], *, top: float, bounded: bool, n: int
) -> Coefficient:
    low, high = interval
    note = "too few repetitions for an interval" if low is None else ""
    if bounded or low is None:
        quality = judge(value, low, high)
    elif low == 1:
        quality, note = Quality.POOR, "the samples cannot tell"
    else:
        quality = Quality.NOISY  # the bound can be relied on, the value cannot
        note = f"A >= {low:.3g}; up to {top:g} cores cannot say more (that takes at least 2A)"
    return Coefficient(
        name="A", value=value, unit="cores", low=low, high=high, n=n, quality=quality, note=note
    )


def _variance(value: float, interval: tuple[float | None, float | None], n: int) -> Coefficient:
    note = "the samples cannot tell" if None in interval else ""
    scale = max(value, 1.0)  # relative to 1 where sigma is less, because it is often 0
    return judged("sigma", value, "", interval, n=n, scale=scale, note=note)


@dataclass(frozen=True)
class _Medians:
    """Runs, and for every count the median of log time with its weight (1 / standard error squared)."""

    cores: Floats
    log_seconds: Floats
    n: Floats
    y: Floats
    weight: Floats
    freedom: int  # runs beyond one for each count

    @classmethod
    def of(cls, cores: Floats, seconds: Floats) -> _Medians:
        usable = np.isfinite(seconds) & (seconds > 0)
        cores, logs = cores[usable], np.log(seconds[usable])
        n, index, runs = np.unique(cores, return_inverse=True, return_counts=True)
        if len(n) < 2 or n[0] != 1:
            raise ValueError("run times on one core and on another count of cores are needed")
        y = np.array([np.median(logs[index == i]) for i in range(len(n))])
        away = np.abs(logs - y[index])
        freedom = len(logs) - len(n)
        pooled = MAD_TO_SD * np.median(away) * np.sqrt(len(logs) / max(freedom, 1))
        own = [
            MAD_TO_SD * np.median(away[index == i]) * np.sqrt(k / max(k - 1, 1)) for i, k in enumerate(runs)
        ]
        scatter = np.maximum(own, max(pooled, LEAST_SCATTER))
        return cls(cores, logs, n, y, runs / (MEDIAN_ERROR * scatter) ** 2, freedom)

    @property
    def reach(self) -> float:
        """The excess of the sum of squares over its minimum that bounds a 95 % interval."""
        return t_quantile(0.975, max(self.freedom, 1)) ** 2


def _sigma(share: ArrayLike) -> Floats:
    """Compute sigma from its share in [0, 1): sigma / 2 up to one half, sigma / (sigma + 1) beyond."""
    share = np.asarray(share, dtype=float)
    return np.where(share <= 0.5, 2 * share, share / (1 - share))


@dataclass(frozen=True)
class _Surface:
    """Weighted sum of squares over (log A, share of sigma), with the best T1 everywhere."""

    data: _Medians
    log_a_end: float

    def log_t1(self, A: ArrayLike, sigma: ArrayLike) -> Floats:
        return self._mean(self._by_counts(A, sigma))

    def _mean(self, of_counts: Floats) -> Floats:
        weight = self.data.weight
        return np.asarray((of_counts * weight).sum(axis=-1) / weight.sum())

    def _by_counts(self, A: ArrayLike, sigma: ArrayLike) -> Floats:
        """Compute log T1 by every count alone, along a new last axis."""
        A, sigma = np.asarray(A, dtype=float)[..., None], np.asarray(sigma, dtype=float)[..., None]
        return self.data.y + np.log(speedup(self.data.n, A, sigma))

    def at(self, log_a: Floats, share: Floats) -> Floats:
        of_counts = self._by_counts(np.exp(log_a), _sigma(share))
        middle = self._mean(of_counts)
        return np.asarray((self.data.weight * (of_counts - middle[..., None]) ** 2).sum(axis=-1))

    def over_share(self, log_a: Floats) -> tuple[Floats, Floats]:
        """Minimise over sigma for each A: the least sum of squares, and its share."""
        return _least(lambda share: self.at(log_a[:, None], share), len(log_a), STEEPEST)

    def over_a(self, share: Floats) -> tuple[Floats, Floats]:
        """Minimise over A for each share: the least sum of squares, and its log A."""
        return _least(lambda log_a: self.at(log_a, share[:, None]), len(share), self.log_a_end)

    def best(self) -> tuple[float, float, float]:
        """Find A, share of sigma and sum of squares of the best fit."""
        _, log_a = _least(lambda row: self.over_share(row[0])[0][None], 1, self.log_a_end)
        (value,), (share,) = self.over_share(log_a)
        return float(np.exp(log_a[0])), float(share), float(value)

    def smallest_a(self, A: float, limit: float) -> tuple[float, float]:
        """Find the smallest A that fits within ``limit``, from an A that does, with its share of sigma."""
        log_a, _ = self._region_a(A, limit)
        (value,), (share,) = self.over_share(np.array([log_a]))
        nearly = value * (1 + 1e-6) + 1e-9  # saturated: every sigma up to a bound does equally well
        low, _ = _region(lambda g: self.at(np.full_like(g, log_a), g), STEEPEST, nearly, float(share))
        return float(np.exp(log_a)), low

    def smallest_share(self, share: float, limit: float) -> tuple[float, float]:
        """Find the smallest share of sigma that fits within ``limit``, from a share that does; A too."""
        share, _ = self._region_share(share, limit)
        _, (log_a,) = self.over_a(np.array([share]))
        return float(np.exp(log_a)), share

    def interval_a(self, A: float, limit: float) -> tuple[float, float | None]:
        """Find the smallest and the largest A that fit within ``limit``, from an A that does."""
        low, high = self._region_a(A, limit)
        return float(np.exp(low)), None if high is None else float(np.exp(high))

    def interval_sigma(self, share: float, limit: float) -> tuple[float, float | None]:
        """Find the smallest and the largest sigma that fit within ``limit``, from a share that does."""
        low, high = self._region_share(share, limit)
        return float(_sigma(low)), None if high is None else float(_sigma(high))

    def _region_a(self, A: float, limit: float) -> tuple[float, float | None]:
        return _region(lambda log_a: self.over_share(log_a)[0], self.log_a_end, limit, float(np.log(A)))

    def _region_share(self, share: float, limit: float) -> tuple[float, float | None]:
        return _region(lambda g: self.over_a(g)[0], STEEPEST, limit, share)


def _least(function: Callable[[Floats], Floats], rows: int, end: float) -> tuple[Floats, Floats]:
    """Minimise ``function`` over [0, end] row by row, on a grid and then finer grids; value and place."""
    grid = np.tile(np.linspace(0.0, end, GRID + 1), (rows, 1))
    every = np.arange(rows)
    step = end / GRID
    for _ in range(4):
        values = function(grid)
        index = values.argmin(axis=1)
        value, place = values[every, index], grid[every, index]
        grid = np.clip(place[:, None] + step * np.linspace(-1, 1, 21), 0.0, end)
        step /= 10
    return value, place


def _region(
    function: Callable[[Floats], Floats], end: float, limit: float, within: float
) -> tuple[float, float | None]:
    """Find the outermost places of [0, end] where ``function`` is at most ``limit``, from a place inside.

    The upper place is None where it is the end.
    """
    grid = np.unique(np.append(np.linspace(0.0, end, 2 * GRID + 1), within))
    inside = (function(grid) <= limit) | (grid == within)
    first, last = np.flatnonzero(inside)[[0, -1]]

    def edge(outside: float, inner: float) -> float:
        for _ in range(20):
            middle = (outside + inner) / 2
            if function(np.array([middle]))[0] <= limit:
                inner = middle
            else:
                outside = middle
        return inner

    low = grid[0] if first == 0 else edge(grid[first - 1], grid[first])
    high = None if last == len(grid) - 1 else edge(grid[last + 1], grid[last])
    return float(low), high
