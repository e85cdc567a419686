"""Statistics of probes (when to stop repeating), of fits (what to report), and of series (change points)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

MAD_TO_SD = 1.4826  # from the median absolute deviation to a standard deviation, of a normal distribution
MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean


def finite(*columns: ArrayLike) -> tuple[Floats, ...]:
    """Keep the places at which all columns are finite."""
    arrays = [np.asarray(column, dtype=float) for column in columns]
    keep = np.logical_and.reduce([np.isfinite(array) for array in arrays])
    return tuple(array[keep] for array in arrays)


def binomial_ranks(n: int, confidence: float = 0.95) -> tuple[int, int] | None:
    """Find the ranks (0-based) of the order statistics that enclose the median with at least ``confidence``.

    None where n is too small (below 6 for 95 %). The ranks are exact, because the count below the median is
    Binomial(n, 1/2).
    """
    tail = (1 - confidence) / 2
    cumulative = 0.0
    lowest = -1
    for k in range(n // 2):
        cumulative += math.comb(n, k) * 0.5**n
        if cumulative > tail:
            break
        lowest = k
    return None if lowest < 0 else (lowest, n - 1 - lowest)


def median_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float | None, float | None]:
    """Compute the median with its distribution-free interval; (None, None) below 6 values."""
    ordered = np.sort(np.asarray(values, dtype=float))
    ranks = binomial_ranks(len(ordered), confidence)
    middle = float(np.median(ordered))
    if ranks is None:
        return middle, None, None
    return middle, float(ordered[ranks[0]]), float(ordered[ranks[1]])


def half_width(values: ArrayLike) -> float:
    """Compute the half-width of the median's interval, relative to the median; infinite if unknown."""
    middle, low, high = median_interval(values) if np.size(values) else (0.0, None, None)
    if low is None or high is None or not middle:
        return math.inf
    return (high - low) / 2 / abs(middle)


# -- change points: the best division of a series into levels, at a price for each point -------------------
#
# Optimal partitioning with a squared cost (Jackson et al., IEEE Signal Processing Letters 12(2), 2005),
# which finds the same division as PELT (Killick, Fearnhead and Eckley, JASA 107(500), 2012). The noise is
# estimated from the differences of neighbours, which a change of level hardly touches, and large residuals
# cost no more than ``OUTLIER`` of it, so that a single odd value is no change (Fearnhead and Rigaill, JASA
# 114(525), 2019).


PRICE = 4.0  # of a change point, in variances of the noise times log n
OUTLIER = 3.0  # standard deviations beyond which a value is drawn in
LEAST_PART = 3  # values


def change_points(values: Sequence[float]) -> list[int]:
    """Find the places at which a new level begins, in ascending order; empty for short series."""
    x = np.asarray(values, dtype=float)
    n = len(x)
    if n < 2 * LEAST_PART:
        return []
    noise = _noise(x)
    if not noise:
        noise = 1e-12
    x = _without_outliers(x, noise)
    sums, squares = (np.concatenate(([0.0], np.cumsum(y))) for y in (x, x**2))
    price = PRICE * noise**2 * math.log(n)
    best, origin = np.full(n + 1, math.inf), np.zeros(n + 1, dtype=int)
    best[0] = -price
    for end in range(LEAST_PART, n + 1):
        starts = np.arange(0, end - LEAST_PART + 1)
        length = end - starts
        cost = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / length
        total = best[starts] + cost + price
        origin[end] = int(starts[total.argmin()])
        best[end] = float(total.min())
    places, end = [], n
    while (end := int(origin[end])) > 0:
        places.append(end)
    return places[::-1]


def _noise(x: np.ndarray) -> float:
    """Estimate the standard deviation of the noise from the differences of neighbours."""
    steps = np.diff(x)
    return float(MAD_TO_SD * np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)


def _without_outliers(x: np.ndarray, noise: float) -> np.ndarray:
    """Draw values that are far from the median of their neighbours in to ``OUTLIER`` deviations."""
    half = LEAST_PART - 1
    padded = np.pad(x, half, mode="edge")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    drawn: np.ndarray = np.clip(x, middle - OUTLIER * noise, middle + OUTLIER * noise)
    return drawn
