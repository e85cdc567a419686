"""A slow-down over the traffic beside: straight between the measured levels, never falling.

More traffic never speeds a program up, so neighbouring levels that fall are pooled (isotonic regression,
weighted by the number of observations). Beyond the last level the curve goes on with the mean slope, up to
twice the last traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.jobs import Curve
from profiles.models import Prediction
from profiles.models.constant import judged
from profiles.records import Coefficient

FURTHEST = 2.0  # times the last level's traffic
LEAST_RISE = 0.05  # if a reference rises less, an error of 1 % is a fifth of the pressure or more
Floats = NDArray[np.float64]


class Lines(NamedTuple):
    """A curve and its 95 % bounds at ascending traffic (GB/s), all never falling."""

    gbs: Floats
    middle: Floats
    low: Floats
    high: Floats


def predict(
    curve: Curve, gbs: float, low_gbs: float | None = None, high_gbs: float | None = None
) -> Prediction:
    """Predict the slow-down beside this traffic; the 95 % interval is of the median (0 to infinity: unknown).

    ``low_gbs`` and ``high_gbs`` bound the traffic, if that is uncertain too.
    """
    lines = lines_of(curve)
    if not bounded(level.slowdown for level in curve.levels):
        return Prediction(_at(lines.gbs, lines.middle, gbs), 0.0, math.inf)
    low = _at(lines.gbs, lines.low, gbs if low_gbs is None else low_gbs)
    high = _at(lines.gbs, lines.high, gbs if high_gbs is None else high_gbs)
    middle = _at(lines.gbs, lines.middle, gbs)
    return Prediction(middle, min(low, middle), max(high, middle))


def equivalent(reference: Curve, slowdown: Coefficient) -> Coefficient | None:
    """Find the traffic (GB/s) beside which the reference suffers as much; None if it hardly suffers."""
    if not suffers(reference):
        return None
    lines = lines_of(reference)
    value = _inverse(lines.gbs, lines.middle, slowdown.value)
    low = high = None
    if (
        slowdown.low is not None
        and slowdown.high is not None
        and bounded(level.slowdown for level in reference.levels)
    ):
        low = min(_inverse(lines.gbs, lines.high, slowdown.low), value)
        high = max(_inverse(lines.gbs, lines.low, slowdown.high), value)
    full = float(lines.gbs[-1])
    note = "beyond what memprobe itself can do" if value > full else ""
    return judged("equivalent", value, "GB/s", (low, high), n=slowdown.n, scale=full, note=note)


def suffers(reference: Curve) -> bool:
    """Tell whether a probe is slowed down beside itself, by more than a little and by more than chance."""
    lines, most = lines_of(reference), reference.levels[-1].slowdown
    rise = lines.middle[-1] - lines.middle[0]
    return bool(rise >= LEAST_RISE and (most.low is None or most.low > 1))


def bounded(found: Iterable[Coefficient]) -> bool:
    """Tell whether the intervals are known (a single repetition has none)."""
    return all(c.low is not None and c.high is not None for c in found)


def three(found: Coefficient) -> tuple[float, float, float]:
    """Give value, low and high; the value also for an unknown bound."""
    low, high = (found.value if bound is None else bound for bound in (found.low, found.high))
    return found.value, low, high


def lines_of(curve: Curve) -> Lines:
    """Make lines of the levels that never fall."""
    from scipy.optimize import isotonic_regression  # late, because the display of a profile needs none

    levels = curve.levels
    weights = [level.slowdown.n for level in levels]
    bounds = zip(*(three(level.slowdown) for level in levels), strict=True)
    rising = (isotonic_regression(y, weights=weights).x for y in bounds)
    return Lines(np.array([level.offered_gbs for level in levels]), *rising)


def _at(gbs: Floats, values: Floats, x: float) -> float:
    last = float(gbs[-1])
    if x <= last:
        return float(np.interp(x, gbs, values))
    return float(values[-1] + _mean_slope(gbs, values) * (min(x, FURTHEST * last) - last))


def _inverse(gbs: Floats, values: Floats, y: float) -> float:
    """Find the least traffic at which the line reaches ``y``."""
    if y <= values[0]:
        return 0.0
    for i in range(1, len(gbs)):
        if y <= values[i]:
            rise = values[i] - values[i - 1]
            return float(gbs[i - 1] + (gbs[i] - gbs[i - 1]) * (y - values[i - 1]) / rise)
    last, slope = float(gbs[-1]), _mean_slope(gbs, values)
    return min(last + (y - float(values[-1])) / slope, FURTHEST * last) if slope > 0 else last


def _mean_slope(gbs: Floats, values: Floats) -> float:
    """Compute the slope of the whole curve, because the last two levels lie too near each other."""
    return float((values[-1] - values[0]) / (gbs[-1] - gbs[0])) if len(gbs) > 1 else 0.0
