"""Every coefficient of a node over time: all profiles and checks, with change points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

import numpy as np
from pydantic import Field

from profiles.checks.check import Check, Finding
from profiles.checks.figures import LEAST_LOSS
from profiles.checks.verdict import usable
from profiles.quantities import Better, better
from profiles.records import Profile, Record
from profiles.stats import MAD_TO_SD

CHECKS, PROFILES = "checks", "profiles"


class Level(Record):
    """A stretch of time in which a quantity stayed at one level."""

    since: datetime
    until: datetime
    value: float = Field(description="median")
    n: int
    change_ratio: float | None = Field(
        default=None, description="against the level before; of the value, so a latency that rises is above 0"
    )


class Drift(Record):
    """A quantity of a node over time."""

    source: str = Field(description="checks, or profiles; their values are not mixed")
    quantity: str
    labels: dict[str, str]
    coefficient: str = ""
    unit: str
    times: tuple[datetime, ...]
    values: tuple[float, ...]
    levels: tuple[Level, ...]

    @property
    def title(self) -> str:
        """The quantity with its labels and coefficient."""
        labels = " ".join(f"{k}={v}" for k, v in sorted(self.labels.items()))
        name = self.coefficient if self.source == PROFILES else ""
        return " ".join(filter(None, (self.quantity, name, labels)))

    @property
    def change_ratio(self) -> float:
        """The last level against the first."""
        return self.levels[-1].value / self.levels[0].value - 1

    @property
    def finding(self) -> Finding | None:
        """The last change, where it made the machine worse by more than does not matter."""
        last = self.levels[-1]
        way = {Better.HIGHER: -1, Better.LOWER: 1, Better.NEITHER: 0}[better(self.quantity, self.coefficient)]
        if last.change_ratio is None or way * last.change_ratio <= LEAST_LOSS:
            return None
        return Finding(self.quantity, self.labels, last.change_ratio, LEAST_LOSS, last.since)


def drift(profiles: Sequence[Profile], checks: Sequence[Check]) -> list[Drift]:
    """Collect every quantity over time, those of checks first. Checks that others disturbed are left out."""
    points_of: dict[tuple[str, ...], list[tuple[datetime, float]]] = {}
    about: dict[tuple[str, ...], dict[str, object]] = {}
    for check in usable(checks):
        for f in check.figures:
            key = (CHECKS, *f.key)
            points_of.setdefault(key, []).append((check.created, f.value))
            about[key] = {"source": CHECKS, "quantity": f.quantity, "labels": f.labels, "unit": f.unit}
    for profile in profiles:
        for model in profile.models:
            for c in model.coefficients:
                key = (PROFILES, *model.key, c.name)
                points_of.setdefault(key, []).append((profile.created, c.value))
                about[key] = {
                    "source": PROFILES,
                    "quantity": model.quantity,
                    "labels": model.labels,
                    "coefficient": c.name,
                    "unit": c.unit,
                }
    return [_drift(sorted(points), about[key]) for key, points in points_of.items()]


def _drift(points: Sequence[tuple[datetime, float]], about: dict[str, object]) -> Drift:
    times, values = tuple(t for t, _ in points), tuple(x for _, x in points)
    # A coefficient that may be 0 has no logarithm.
    starts = [0, *change_points(np.log(values).tolist() if min(values) > 0 else values)]
    ends = [*starts[1:], len(values)]
    levels: list[Level] = []
    for start, end in zip(starts, ends, strict=True):
        value = float(np.median(values[start:end]))
        before = levels[-1].value if levels else None
        change = value / before - 1 if before else None
        if change is not None and abs(change) < LEAST_LOSS:  # no change that matters
            last = levels.pop()
            whole = values[len(values[:start]) - last.n : end]
            update = {"until": times[end - 1], "n": last.n + end - start, "value": float(np.median(whole))}
            levels.append(last.model_copy(update=update))
            continue
        levels.append(
            Level(since=times[start], until=times[end - 1], value=value, n=end - start, change_ratio=change)
        )
    return Drift.model_validate({**about, "times": times, "values": values, "levels": levels})


def medians(others: Iterable[Sequence[Drift]]) -> dict[str, float]:
    """Compute the median over siblings of the last level of each quantity of their checks."""
    last: dict[str, list[float]] = {}
    for series in others:
        for quantity in series:
            if quantity.source == CHECKS:
                last.setdefault(quantity.title, []).append(quantity.levels[-1].value)
    return {title: float(np.median(values)) for title, values in last.items()}


# -- change points: the best division of a series into levels, at a price for each point -------------------
#
# Optimal partitioning with a squared cost (Jackson et al., IEEE Signal Processing Letters 12(2), 2005),
# which finds the same division as PELT (Killick, Fearnhead and Eckley, JASA 107(500), 2012). The noise is
# estimated from the differences of neighbours, which a change of level hardly touches, and large residuals
# cost no more than ``OUTLIER`` of it, so that a single odd value is no change (Fearnhead and Rigaill, JASA
# 114(525), 2019).


PRICE = 4.0  # of a change point, in variances of the noise times log n
OUTLIER = 3.0  # standard deviations beyond which a value is drawn in
LEAST_PART = 3  # values
FEWEST = 2 * LEAST_PART


def change_points(values: Sequence[float]) -> list[int]:
    """Find the places at which a new level begins, in ascending order; empty for short series."""
    x = np.asarray(values, dtype=float)
    n = len(x)
    if n < FEWEST:
        return []
    noise = _noise(x)
    if not noise:
        noise = 1e-12
    x = _without_outliers(x, noise)
    sums, squares = (np.concatenate(([0.0], np.cumsum(y))) for y in (x, x**2))
    price = PRICE * noise**2 * math.log(n)
    best, origin = np.full(n + 1, math.inf), np.zeros(n + 1, dtype=int)
    best[0] = -price
    for end in range(LEAST_PART, n + 1):
        starts = np.arange(0, end - LEAST_PART + 1)
        length = end - starts
        cost = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / length
        total = best[starts] + cost + price
        origin[end] = int(starts[total.argmin()])
        best[end] = float(total.min())
    places, end = [], n
    while (end := int(origin[end])) > 0:
        places.append(end)
    return places[::-1]


def _noise(x: np.ndarray) -> float:
    """Estimate the standard deviation of the noise from the differences of neighbours."""
    steps = np.diff(x)
    return float(MAD_TO_SD * np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)


def _without_outliers(x: np.ndarray, noise: float) -> np.ndarray:
    """Draw values that are far from the median of their neighbours in to ``OUTLIER`` deviations."""
    half = LEAST_PART - 1
    padded = np.pad(x, half, mode="edge")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    drawn: np.ndarray = np.clip(x, middle - OUTLIER * noise, middle + OUTLIER * noise)
    return drawn
