"""Steps of a curve that never falls, on logarithmic scales, as latency over the working set rises by caches.

A step is a stretch on which the curve rises steeply, to at least ``LEAST_RISE`` times its value. Stretches
with less than an octave of level curve between them are one step. The place of a step is where half of the
rise is done (in logarithms), its bounds are where a quarter and three quarters are done. So a step is wide
where a cache keeps part of a working set that is too large for it, or where others use the cache as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STEEP = 1.2  # times its value in an octave: the curve rises
LEAST_RISE = 1.7  # times its value: a step. Pages that a TLB does not hold cost less than that
LEAST_LEVEL = 1.0  # octaves


class Step(NamedTuple):
    """A step at ``x``, with bounds; the curve is level up to ``begin`` and from ``end`` on."""

    x: float
    low: float
    high: float
    begin: float
    end: float


def find_steps(x: Sequence[float], y: Sequence[float]) -> list[Step]:
    """Find the steps of ``y`` (positive) over ``x`` (positive and rising), in their order."""
    if len(x) < 4:
        return []
    octaves = np.log2(np.asarray(x, dtype=float))
    heights = _never_falling(np.log2(np.asarray(y, dtype=float)))
    steep = np.diff(heights) > np.log2(STEEP) * np.diff(octaves)
    return [
        _step(octaves[first : last + 1], heights[first : last + 1])
        for first, last in _stretches(steep, octaves)
        if heights[last] - heights[first] >= np.log2(LEAST_RISE)
    ]


def _never_falling(heights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smooth single outliers by the median of three, then all falls by isotonic regression."""
    from scipy.optimize import isotonic_regression  # late, because this takes half a second

    inner = np.median([heights[:-2], heights[1:-1], heights[2:]], axis=0)
    smooth: NDArray[np.float64] = isotonic_regression(np.array([inner[0], *inner, inner[-1]])).x
    return smooth


def _stretches(steep: NDArray[np.bool_], octaves: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Join steep intervals to stretches, from the index of the first point to that of the last."""
    found: list[tuple[int, int]] = []
    for i in np.flatnonzero(steep):
        if found and octaves[i] - octaves[found[-1][1]] < LEAST_LEVEL - 1e-6:
            found[-1] = (found[-1][0], int(i) + 1)
        else:
            found.append((int(i), int(i) + 1))
    return found


def _step(octaves: NDArray[np.float64], heights: NDArray[np.float64]) -> Step:
    """Make the step of a stretch, by straight lines between its points."""
    parts = (heights - heights[0]) / (heights[-1] - heights[0])
    low, middle, high = (float(2 ** np.interp(part, parts, octaves)) for part in (0.25, 0.5, 0.75))
    return Step(middle, low, high, float(2 ** octaves[0]), float(2 ** octaves[-1]))
