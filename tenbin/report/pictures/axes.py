"""Axes of a picture: from values to places between 0 and 1, and the ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from tenbin.text import number

WANTED_TICKS = 6
FEW_DECADES = 2.0  # at most so many decades have ticks at 2 and 5 too
LEAST_DECADES = 0.7  # less than that has the ticks of a linear axis
MOST_REACH = 3.0  # of an interval beyond all values, in spans of the values
FREE = 0.04  # of an axis, beyond the first and the last value


@dataclass(frozen=True)
class Axis:
    """An axis; ``low`` and ``high`` are its ends, of a logarithmic axis their logarithms."""

    names: tuple[str, ...]
    log: bool
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def scaled(self, values: Iterable[Any]) -> np.ndarray:
        """Convert values to the axis's scale; NaN where a value has no place on it."""
        return scaled(values, self.names, self.log)

    def at(self, scale: Any) -> np.ndarray:
        """Place what is on the axis's scale: 0 is the axis's beginning, 1 its end."""
        place: np.ndarray = (np.asarray(scale, dtype=float) - self.low) / (self.high - self.low)
        return place

    def label(self, value: Any, *, snap: bool) -> str:
        """Write a value; ``snap``: by the nearest tick, because dots stand beside each other there."""
        place = float(self.scaled([value])[0])
        if self.ticks and snap and math.isfinite(place):
            apart = min((abs(b[0] - a[0]) for a, b in pairwise(self.ticks)), default=1.0)
            nearest, name = min(self.ticks, key=lambda tick: abs(tick[0] - place))
            if abs(nearest - place) <= 0.5 * apart:
                return name.replace("\n", ", ")
        return str(value).replace("<br>", ", ") if isinstance(value, str) else number(float(value))


def scaled(values: Iterable[Any], names: Sequence[str], log: bool) -> np.ndarray:
    """Convert values to numbers, categories to their places, and to logarithms on such an axis."""
    if names:
        places = {name: float(i) for i, name in enumerate(names)}
        return np.array([places.get(str(value), math.nan) for value in values])
    found = np.array([math.nan if value is None else float(value) for value in values], dtype=float)
    if log:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(found > 0, np.log10(found), math.nan)
    return found


def categories(layout: Any, columns: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """List the names on an axis, in their order; empty for an axis of numbers."""
    found = tuple(dict.fromkeys(str(one) for one in chain(*columns)))
    if not any(isinstance(one, str) for one in chain(*columns)):
        return ()
    order = tuple(layout.categoryarray) if layout.categoryarray is not None else ()
    return (*order, *(name for name in found if name not in order))


def within_reach(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Cut ends of intervals that are so far from all values that these would become a line."""
    known = values[np.isfinite(values)]
    if not len(known):
        return ends
    low, high = float(known.min()), float(known.max())
    reach = MOST_REACH * max(high - low, abs(high), 1e-300)
    cut: np.ndarray = np.clip(ends, low - reach, high + reach)
    return cut


def axis(layout: Any, names: tuple[str, ...], extents: Sequence[np.ndarray], *, from_zero: bool) -> Axis:
    """Make an axis around ``extents`` (on its scale), with the range and ticks that its layout asks for."""
    log = layout.type == "log"
    low, high = _range(layout, names, extents, from_zero=from_zero and not log)
    if layout.tickvals is not None:
        texts = layout.ticktext if layout.ticktext is not None else map(number, layout.tickvals)
        ticks = list(zip(scaled(layout.tickvals, names, log).tolist(), texts, strict=True))
    elif names:
        ticks = [(float(place), name) for place, name in enumerate(names)]
    else:
        ticks = _log_ticks(low, high) if log else linear_ticks(low, high)
    lines = tuple((place, str(text).replace("<br>", "\n")) for place, text in ticks)
    ends = (high, low) if layout.autorange == "reversed" else (low, high)
    return Axis(names, log, *ends, ticks=lines)


def _range(
    layout: Any, names: tuple[str, ...], extents: Sequence[np.ndarray], *, from_zero: bool
) -> tuple[float, float]:
    if layout.range is not None:
        return float(layout.range[0]), float(layout.range[1])
    if names:
        return -0.5, len(names) - 0.5
    every = np.concatenate([np.zeros(0), *extents])
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    zero = from_zero or (layout.rangemode == "tozero" and layout.type != "log")
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    free = FREE * (high - low) or 0.5
    return low - free * (not (zero and low == 0)), high + free * (not (zero and high == 0))


def linear_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Choose about six round numbers between two."""
    rough = (high - low) / WANTED_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1.0, 2.0, 2.5, 5.0, 10.0) if s * power >= rough * (1 - 1e-9))
    places = [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return [(place, f"{place:.10g}") for place in places]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    if high - low < LEAST_DECADES:
        plain = [(value, text) for value, text in linear_ticks(10**low, 10**high) if value > 0]
        return [(math.log10(value), text) for value, text in plain]
    digits = (1, 2, 5) if high - low <= FEW_DECADES else (1,)
    found = [d * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for d in digits]
    return [(math.log10(value), f"{value:.10g}") for value in found if low <= math.log10(value) <= high]
