"""Speed and power of a job on some nodes under a cap, and bounds of the speed of one class over another.

The speed is that of paper C, equations 4.3 - 4.5.

The bounds are for programs that have never run on one of the classes. The figures of a device are its
bandwidths and its speeds of arithmetic, each as an interval. A program is bound by these in shares that
nobody knows. Its speed on one device over that on another lies between the least and the greatest ratio of
their figures: if t_i is its time for resource i, and every t_i shrinks by a factor between these, so does
their sum, and so does their maximum (the roofline).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

BLOCK = 64  # numbers of units whose speeds are computed together


@dataclass(frozen=True)
class CapLine:
    """Speed under a power cap (equation 4.5): 1 at the lowest, rising by ``slope_per_w`` up to the knee."""

    slope_per_w: float
    lowest_w: float
    knee_w: float

    def __call__(self, cap_w: float | None) -> float:
        return under_cap(cap_w, self.slope_per_w, self.lowest_w, self.knee_w)


@dataclass(frozen=True)
class CapTable:
    """Speeds, or watts, measured under ascending power caps.

    Straight between them; uncapped as under the last.
    """

    caps_w: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, cap_w: float | None) -> float:
        if cap_w is None or cap_w >= self.caps_w[-1]:
            return self.values[-1]
        place = bisect_right(self.caps_w, cap_w)
        if place == 0:
            return self.values[0]
        below, above = self.caps_w[place - 1 : place + 1]
        slow, fast = self.values[place - 1 : place + 1]
        return slow + (fast - slow) * (cap_w - below) / (above - below)


@dataclass(frozen=True)
class CappedSpeed:
    """Downey's scaling over nodes times a line over the cap: ``s(n, p) = s(n) * s(p)``.

    Attributes:
        parallelism: Downey's A, mean parallelism; infinite: speed is proportional to the nodes.
        variance: Downey's sigma.
        slope_per_w: m, gain in speed by each watt above the lowest cap.
        lowest_w: lowest cap, where ``s(p)`` is 1. knee_w: cap from which on the speed is constant.
        least_units: the fewest nodes, where ``s(n)`` is 1.
    """

    parallelism: float
    variance: float
    slope_per_w: float
    lowest_w: float = 30.0
    knee_w: float = 50.0
    least_units: int = 1

    def __post_init__(self) -> None:
        if not self.parallelism >= 1 or not 0 <= self.variance < math.inf:
            raise ValueError("parallelism must be at least 1, variance at least 0")
        if not 0 <= self.slope_per_w < math.inf or not 0 < self.lowest_w <= self.knee_w < math.inf:
            raise ValueError("slope_per_w must be at least 0, knee_w at least lowest_w")
        if self.least_units < 1:
            raise ValueError("least_units must be at least 1")

    def __call__(self, units: int, cap_w: float | None) -> float:
        gain = scaling(self.parallelism, self.variance, units)
        if self.least_units > 1:
            gain /= scaling(self.parallelism, self.variance, self.least_units)
        return gain * under_cap(cap_w, self.slope_per_w, self.lowest_w, self.knee_w)

    @property
    def useful_units(self) -> float:
        """Number of nodes of the highest speed: 2A - 1, or A + A sigma - sigma for sigma > 1."""
        A, sigma = self.parallelism, self.variance
        return A + A * sigma - sigma if sigma > 1 else 2 * A - 1


@dataclass(frozen=True)
class TabulatedSpeed:
    """Speed by number of units, from ``least_units`` (where it is 1) on, times that under the cap."""

    least_units: int
    by_units: tuple[float, ...]
    caps: CapLine | CapTable | None = None

    def __call__(self, units: int, cap_w: float | None) -> float:
        place = min(max(units - self.least_units, 0), len(self.by_units) - 1)
        return self.by_units[place] * (1.0 if self.caps is None else self.caps(cap_w))


@dataclass(frozen=True)
class TabulatedPower:
    """Power of a program that draws as much on each of its units; ``watts`` must not fall."""

    watts: CapTable

    def __call__(self, units: int, cap_w: float | None) -> float:
        return units * self.watts(cap_w)


def scaling(parallelism: float, variance: float, units: int) -> float:
    """Compute Downey's S(n)."""
    if math.isinf(parallelism):
        return units
    return _scalings(parallelism, variance, units // BLOCK)[units % BLOCK]


@lru_cache(maxsize=1 << 14)
def _scalings(parallelism: float, variance: float, block: int) -> list[float]:
    """Compute S(n) of many n at once, in the time of a few."""
    from profiles.models import downey  # here, because the command line needs no numpy to name jobs

    units = range(BLOCK * block, BLOCK * (block + 1))
    speeds: list[float] = downey.speedup([max(number, 1) for number in units], parallelism, variance).tolist()
    return speeds


def under_cap(cap_w: float | None, slope_per_w: float, lowest_w: float, knee_w: float) -> float:
    """Compute the speed under a cap (None: uncapped), equation 4.5."""
    cap = knee_w if cap_w is None else min(max(cap_w, lowest_w), knee_w)
    return 1.0 + (cap - lowest_w) * slope_per_w


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
    ratios = {}
    for device, its in figures.items():
        for other, others in figures.items():
            bounds = speed_bounds(its, others) if device != other else None
            if bounds is not None:
                ratios[device, other] = bounds
    return ratios


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
    estimates = dict(known_s)
    for pool in (pool for pool, seconds in known_s.items() if math.isinf(seconds)):
        bounds = run_time_on(pool, known_s, ratios)
        estimates[pool] = least_s if bounds is None else bounds.middle_s
    return estimates
