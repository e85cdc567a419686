"""A slow-down over the traffic beside: straight between the measured levels, never falling.

More traffic never speeds a program up; where noise says so neighbouring levels are pooled (isotonic
regression, weighted by the number of observations). Beyond the last level it goes on with the mean slope,
but no further than to twice its traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.jobs import Curve, JobProfile, ProbePressure
from profiles.models import Prediction
from profiles.models.constant import judge
from profiles.records import Coefficient

FURTHEST = 2.0  # times the last level's traffic
LEAST_RISE = 0.02  # a reference that rises less tells nothing about pressure
Floats = NDArray[np.float64]


class _Lines(NamedTuple):
    """The curve and its 95 % bounds at ascending traffic (GB/s), all never falling."""

    gbs: Floats
    middle: Floats
    low: Floats
    high: Floats


def predict(
    curve: Curve, gbs: float, low_gbs: float | None = None, high_gbs: float | None = None
) -> Prediction:
    """Slow-down beside so much traffic, with the 95 % interval of the median; from 0 to infinity if unknown.

    ``low_gbs`` and ``high_gbs`` bound the traffic, where that is uncertain too.
    """
    lines = _lines(curve)
    if not _bounded(level.slowdown for level in curve.levels):
        return Prediction(_at(lines.gbs, lines.middle, gbs), 0.0, math.inf)
    low = _at(lines.gbs, lines.low, gbs if low_gbs is None else low_gbs)
    high = _at(lines.gbs, lines.high, gbs if high_gbs is None else high_gbs)
    middle = _at(lines.gbs, lines.middle, gbs)
    return Prediction(middle, min(low, middle), max(high, middle))


def slowdown_beside(
    job: JobProfile, others: Sequence[JobProfile], network: bool = False
) -> Prediction | None:
    """Run time of a job beside others / run time alone; their pressures are added up.

    With ``network`` they share the hosts' network too, and what that costs comes on top of what memory costs.
    None where its sensitivity, or the pressure of one of the others, was not measured, or cannot be told.
    """
    curve, pressures = job.sensitivity_by(), [other.pressure_by() for other in others]
    memory = _beside(curve, pressures)
    if not network:
        return memory
    if memory is None and curve is not None and None not in pressures:
        # memprobe hardly suffers beside itself: nothing is expected, but what all of memprobe does may be.
        memory = Prediction(1.0, 1.0, max(float(_lines(curve).high[-1]), 1.0))
    halves = [one.network for one in (job, *others)]
    if memory is None or any(half is None for half in halves):
        return None
    own, *theirs = [half for half in halves if half is not None]
    added = _beside(own.sensitivity, [half.pressure for half in theirs])
    if added is None:
        return None
    return Prediction(*(max(a + b - 1, 0.0) for a, b in zip(memory, added, strict=True)))


def _beside(curve: Curve | None, pressures: Sequence[ProbePressure | None]) -> Prediction | None:
    known = [p.equivalent_gbs for p in pressures if p is not None and p.equivalent_gbs is not None]
    if curve is None or len(known) < len(pressures):
        return None
    found = predict(
        curve,
        sum(p.value for p in known),
        sum(p.value if p.low is None else p.low for p in known),
        sum(p.value if p.high is None else p.high for p in known),
    )
    return found if _bounded(known) else Prediction(found.value, 0.0, math.inf)


def equivalent(reference: Curve, slowdown: Coefficient) -> Coefficient | None:
    """The traffic (GB/s) beside which the reference suffers as much; None where it hardly suffers at all."""
    lines = _lines(reference)
    if len(lines.gbs) < 2 or lines.middle[-1] - lines.middle[0] < LEAST_RISE:
        return None
    value = _inverse(lines.gbs, lines.middle, slowdown.value)
    low = high = None
    if (
        slowdown.low is not None
        and slowdown.high is not None
        and _bounded(level.slowdown for level in reference.levels)
    ):
        low = min(_inverse(lines.gbs, lines.high, slowdown.low), value)
        high = max(_inverse(lines.gbs, lines.low, slowdown.high), value)
    full = float(lines.gbs[-1])
    return Coefficient(
        name="equivalent",
        value=value,
        unit="GB/s",
        low=low,
        high=high,
        n=slowdown.n,
        quality=judge(value, low, high, scale=full),
        scale=full,
        note="beyond what memprobe itself can do" if value > full else "",
    )


def _bounded(found: Iterable[Coefficient]) -> bool:
    """Whether the intervals are known (of one repetition they are not)."""
    return all(c.low is not None and c.high is not None for c in found)


def _lines(curve: Curve) -> _Lines:
    from scipy.optimize import isotonic_regression  # not for those who only look at a profile

    levels = curve.levels
    weights = [level.slowdown.n for level in levels]
    middle = [level.slowdown.value for level in levels]
    lows = [level.slowdown.value if level.slowdown.low is None else level.slowdown.low for level in levels]
    highs = [level.slowdown.value if level.slowdown.high is None else level.slowdown.high for level in levels]
    rising = (isotonic_regression(y, weights=weights).x for y in (middle, lows, highs))
    return _Lines(np.array([level.offered_gbs for level in levels]), *rising)


def _at(gbs: Floats, values: Floats, x: float) -> float:
    last = float(gbs[-1])
    if x <= last:
        return float(np.interp(x, gbs, values))
    return float(values[-1] + _mean_slope(gbs, values) * (min(x, FURTHEST * last) - last))


def _inverse(gbs: Floats, values: Floats, y: float) -> float:
    """The least traffic at which the line reaches ``y``."""
    if y <= values[0]:
        return 0.0
    for i in range(1, len(gbs)):
        if y <= values[i]:
            rise = values[i] - values[i - 1]
            return float(gbs[i - 1] + (gbs[i] - gbs[i - 1]) * (y - values[i - 1]) / rise)
    last, slope = float(gbs[-1]), _mean_slope(gbs, values)
    return min(last + (y - float(values[-1])) / slope, FURTHEST * last) if slope > 0 else last


def _mean_slope(gbs: Floats, values: Floats) -> float:
    """Of the whole curve: the last two levels lie too near each other for a slope."""
    return float((values[-1] - values[0]) / (gbs[-1] - gbs[0])) if len(gbs) > 1 else 0.0
