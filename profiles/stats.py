"""Intervals and tests shared by probes (when to stop repeating) and fits (what to report)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def binomial_ranks(n: int, confidence: float = 0.95) -> tuple[int, int] | None:
    """Ranks (0-based) of the order statistics that enclose the median with at least ``confidence``.

    None where n is too small (below 6 for 95 %). Exact: the count below the median is Binomial(n, 1/2).
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
    """Median with its distribution-free interval; below 6 values the interval is unknown (None, None)."""
    ordered = np.sort(np.asarray(values, dtype=float))
    ranks = binomial_ranks(len(ordered), confidence)
    middle = float(np.median(ordered))
    if ranks is None:
        return middle, None, None
    return middle, float(ordered[ranks[0]]), float(ordered[ranks[1]])


def narrow_enough(values: ArrayLike, relative: float) -> bool:
    """Whether the median's interval is within ``relative`` (half-width over median); False while unknown."""
    middle, low, high = median_interval(values)
    if low is None or high is None:
        return False
    return (high - low) / 2 <= relative * abs(middle)
