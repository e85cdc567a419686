"""Quantiles of what is predicted, and of what is left of it."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

NORMAL = NormalDist()
LEVELS = (0.1, 0.5, 0.9)
TO_HIGH = NORMAL.inv_cdf(LEVELS[-1])  # standard deviations between the middle and the high quantile
FARTHEST = 8.0  # standard deviations: what lasts longer is beyond all that was predicted
LEAST = 1e-9  # standard deviation of a logarithm


class Quantiles(NamedTuple):
    """10, 50 and 90 % quantiles; where something is known exactly, or nobody knows better, all the same."""

    low: float
    middle: float
    high: float

    def left_after(self, passed: float) -> Quantiles:
        """Return the quantiles of what is left of a time that has not ended after ``passed``.

        It is taken as log-normal, with a spread of its own on either side of the middle.
        """
        if passed <= 0.0 or self.middle == math.inf:
            return self
        logarithms = [math.log(max(value, LEAST)) for value in self]
        below, above = (max((b - a) / TO_HIGH, LEAST) for a, b in pairwise(logarithms))
        off = math.log(passed) - logarithms[1]
        beyond = NORMAL.cdf(-min(off / (above if off > 0 else below), FARTHEST))
        ends = [-NORMAL.inv_cdf((1.0 - level) * beyond) for level in LEVELS]
        times = (math.exp(logarithms[1] + end * (above if end > 0 else below)) for end in ends)
        return Quantiles(*(max(time - passed, 0.0) for time in times))


def exactly(value: float) -> Quantiles:
    """Return the quantiles of what is known."""
    return Quantiles(value, value, value)
