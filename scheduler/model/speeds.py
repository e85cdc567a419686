"""Speed of a job on some nodes under a power cap (paper C, equations 4.3 - 4.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from profiles.models import downey


@dataclass(frozen=True)
class CapLine:
    """Speed under a power cap (equation 4.5): 1 at the lowest, rising by ``slope_per_w`` up to the knee."""

    slope_per_w: float
    lowest_w: float
    knee_w: float

    def __call__(self, cap_w: float | None) -> float:
        return under_cap(cap_w, self.slope_per_w, self.lowest_w, self.knee_w)


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
    """Speed by number of units, from ``least_units`` (where it is 1) on, times a line over the cap."""

    least_units: int
    by_units: tuple[float, ...]
    caps: CapLine | None = None

    def __call__(self, units: int, cap_w: float | None) -> float:
        place = min(max(units - self.least_units, 0), len(self.by_units) - 1)
        return self.by_units[place] * (1.0 if self.caps is None else self.caps(cap_w))


@lru_cache(maxsize=1 << 17)
def scaling(parallelism: float, variance: float, units: int) -> float:
    """Compute Downey's S(n)."""
    return units if math.isinf(parallelism) else float(downey.speedup(units, parallelism, variance))


def under_cap(cap_w: float | None, slope_per_w: float, lowest_w: float, knee_w: float) -> float:
    """Compute the speed under a cap (None: uncapped), equation 4.5."""
    cap = knee_w if cap_w is None else min(max(cap_w, lowest_w), knee_w)
    return 1.0 + (cap - lowest_w) * slope_per_w
