"""Intervals and tests for probes (when to stop repeating) and for fits (what to report)."""

from __future__ import annotations

import math

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
