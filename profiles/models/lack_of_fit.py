"""Lack of fit: samples that do not have the form of the curve that was fitted to them.

The medians of groups are compared with the curve. A group holds the observations at one x; where most x were
observed once, neighbours form a group. A gap counts if it is larger than chance explains: than a high
quantile of Student's t times the standard error of the group's median. That error comes from the scatter
within groups, which is independent of the curve. The gap judges the model as an interval of that half-width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.models.constant import judge, worse
from profiles.records import Coefficient, Quality
from profiles.stats import MAD_TO_SD, MEDIAN_ERROR
from profiles.student import t_quantile

Floats = NDArray[np.float64]

SURE, OWN = 0.999, 0.99  # by the scatter within all groups, and by that within the group itself
REPEATED, POOLED = 2, 5  # least observations of a group: of one x; of neighbours


class Gap(NamedTuple):
    """The distance of a group's median from the curve at ``at``, relative to the curve."""

    size: float
    at: float

    @property
    def quality(self) -> Quality:
        """The best quality of the curve's coefficients: that of an interval so wide."""
        return judge(1.0, 1.0 - self.size, 1.0 + self.size)

    @property
    def percent(self) -> str:
        return f"{self.size:.0%}".replace("%", " %")


def largest_gap(x: Floats, residuals: Floats) -> Gap | None:
    """Find the largest gap that chance does not explain, if it makes the model less than good.

    Args:
        residuals: observed less fitted, relative to the fitted value.
    """
    groups = list(_groups(x))
    freedom = len(x) - len(groups)
    if freedom < 1:
        return None
    inside = [_scatters(residuals[group]) for group in groups]
    usual = MAD_TO_SD * float(np.median(np.concatenate(inside)))
    pooled = t_quantile(SURE, freedom)
    gaps = []
    for group, away in zip(groups, inside, strict=True):
        alone = t_quantile(OWN, len(group) - 1) if len(group) > REPEATED else pooled
        chance = max(pooled * usual, alone * MAD_TO_SD * float(np.median(away)))
        size = abs(float(np.median(residuals[group])))
        if size > MEDIAN_ERROR * chance / np.sqrt(len(group)):
            gaps.append(Gap(size, float(np.median(x[group]))))
    worst = max(gaps, default=None)
    return worst if worst and worst.quality is not Quality.GOOD else None


def at_best(coefficients: Sequence[Coefficient], quality: Quality) -> tuple[Coefficient, ...]:
    """Lower the quality of ``coefficients`` to at most ``quality``."""
    return tuple(c.model_copy(update={"quality": worse(c.quality, quality)}) for c in coefficients)


def _scatters(group: Floats) -> Floats:
    """Compute distances from the median without the smallest, corrected to those from the true median."""
    away = np.sort(np.abs(group - np.median(group)))[1:]
    return np.asarray(away * np.sqrt(len(group) / max(len(group) - 1, 1)))


def _groups(x: Floats) -> Iterator[NDArray[np.intp]]:
    """Group the indices of the observations, by ascending x."""
    places = np.unique(x)
    least = REPEATED if 2 * len(places) <= len(x) else POOLED
    group: list[NDArray[np.intp]] = []
    left = len(x)
    for place in places:
        group.append(np.flatnonzero(x == place))
        size = sum(map(len, group))
        if size >= least and left - size >= least:  # what remains is enough for another group
            yield np.concatenate(group)
            left -= size
            group = []
    yield np.concatenate(group)
