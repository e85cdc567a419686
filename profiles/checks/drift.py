"""Every coefficient of a node over time: all profiles and checks, with change points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median

from pydantic import Field

from profiles.checks.check import LEAST_LOSS, Check, Finding, usable
from profiles.quantities import Better, better
from profiles.records import Profile, Record

CHECKS, PROFILES = "checks", "profiles"
FEWEST = 6  # values, because a level has three


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
    starts = [0]
    if len(values) >= FEWEST:
        from profiles.stats import change_points  # late, because it needs numpy

        # A coefficient that may be 0 has no logarithm.
        starts += change_points([math.log(value) for value in values] if min(values) > 0 else values)
    ends = [*starts[1:], len(values)]
    levels: list[Level] = []
    for start, end in zip(starts, ends, strict=True):
        value = median(values[start:end])
        before = levels[-1].value if levels else None
        change = value / before - 1 if before else None
        if change is not None and abs(change) < LEAST_LOSS:  # no change that matters
            last = levels.pop()
            whole = values[len(values[:start]) - last.n : end]
            update = {"until": times[end - 1], "n": last.n + end - start, "value": median(whole)}
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
    return {title: median(values) for title, values in last.items()}
