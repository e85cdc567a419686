"""Bounds of the speed of one class of devices over another, for programs that have never run on one of them.

The figures of a device are its bandwidths and its speeds of arithmetic, each as an interval. A program is
bound by these in shares that nobody knows. Its speed on one device over that on another lies between the
least and the greatest ratio of their figures: if t_i is its time for resource i, and every t_i shrinks by a
factor between these, so does their sum, and so does their maximum (the roofline).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

MEMORY = ("read", "write", "copy")
ARITHMETIC = ("single", "double")

Figures = Mapping[str, tuple[float, float]]  # low and high of each resource of ``MEMORY`` and ``ARITHMETIC``


class SpeedBounds(NamedTuple):
    """Bounds of a ratio of speeds."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Geometric mean of the bounds: as far from either, as a factor."""
        return math.sqrt(self.low * self.high)


SpeedRatios = Mapping[tuple[str, str], SpeedBounds]  # speed on the first class over that on the second


class RunTimeBounds(NamedTuple):
    """Believed run time on a class, from that on the class ``of``, which is ``ratio`` times slower."""

    low_s: float
    middle_s: float
    high_s: float
    of: str
    ratio: SpeedBounds


def speed_bounds(device: Figures, over: Figures) -> SpeedBounds | None:
    """Bound the speed of any program on one device over that on another; None if too little is known.

    Both need a bandwidth in common and a speed of arithmetic.
    """
    common = device.keys() & over.keys()
    if not common & set(MEMORY) or not common & set(ARITHMETIC):
        return None
    lows = [device[name][0] / over[name][1] for name in common]
    highs = [device[name][1] / over[name][0] for name in common]
    return SpeedBounds(min(lows), max(highs))


def all_bounds(figures: Mapping[str, Figures]) -> SpeedRatios:
    """Bound the speeds of all classes over each other, as far as their figures go."""
    found = {}
    for device, its in figures.items():
        for other, others in figures.items():
            bounds = speed_bounds(its, others) if device != other else None
            if bounds is not None:
                found[device, other] = bounds
    return found


def run_time_on(pool: str, known_s: Mapping[str, float], ratios: SpeedRatios) -> RunTimeBounds | None:
    """Bound the run time on a class by those on others, by the one with the nearest bounds; None: unknown."""
    usable = [of for of, seconds in known_s.items() if (pool, of) in ratios and math.isfinite(seconds)]
    if not usable:
        return None
    of = min(usable, key=lambda other: ratios[pool, other].high / ratios[pool, other].low)
    ratio, seconds = ratios[pool, of], known_s[of]
    return RunTimeBounds(seconds / ratio.high, seconds / ratio.middle, seconds / ratio.low, of, ratio)


def estimates_on_all(known_s: Mapping[str, float], ratios: SpeedRatios) -> dict[str, float]:
    """Replace infinite run times: by those that the ratios tell, else by the least of all that are known."""
    least_s = min(known_s.values(), default=math.inf)
    found = dict(known_s)
    for pool in (pool for pool, seconds in known_s.items() if math.isinf(seconds)):
        told = run_time_on(pool, known_s, ratios)
        found[pool] = least_s if told is None else told.middle_s
    return found
