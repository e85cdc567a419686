"""Quantiles of Student's t, without scipy, whose import takes longer than most commands run."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=1024)
def t_quantile(p: float, freedom: int) -> float:
    """Compute a quantile above the median, by bisection of the angle of t / sqrt(freedom)."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        if _within(angle, freedom) < 2 * p - 1:
            low = angle
        else:
            high = angle
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Compute the probability that |t| < sqrt(freedom) tan(angle) (Abramowitz and Stegun, 26.7.3, 26.7.4)."""
    odd, squared = freedom % 2, math.cos(angle) ** 2
    term, series = math.cos(angle) ** odd, 0.0
    for power in range(odd, freedom - 1, 2):
        series += term
        term *= squared * (power + 1) / (power + 2)
    series *= math.sin(angle)
    return (angle + series) * 2 / math.pi if odd else series
