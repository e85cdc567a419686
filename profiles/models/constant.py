"""A quantity that depends on nothing we vary: the median with its interval. The quality of coefficients.

Below 6 values order statistics say nothing at 95 %. Then the interval is Student's, of the logarithm where
all values are positive, because times are skewed. The quality of a coefficient is that of its interval, or of
the largest gap between the samples and the curve that was fitted to them, whichever is worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..records import Coefficient, Model, Quality
from ..stats import MAD_TO_SD, MEDIAN_ERROR, binomial_ranks, finite, median_interval
from . import Prediction, t_quantile


def judge(
    value: float,
    low: float | None,
    high: float | None,
    *,
    scale: float | None = None,
    tolerance: float = 0.10,
) -> Quality:
    """Judge by the interval's half-width over ``scale``: up to ``tolerance`` good, 3x noisy, else poor.

    ``scale`` is by default the value itself; a number that is often near 0 needs another.
    """
    if low is None or high is None or not np.isfinite([value, low, high]).all():
        return Quality.POOR
    half_width = (high - low) / 2
    scale = scale or abs(value) or 1e-300
    if half_width <= tolerance * scale:
        return Quality.GOOD
    return Quality.NOISY if half_width <= 3 * tolerance * scale else Quality.POOR


def worse(a: Quality, b: Quality) -> Quality:
    """Take the worse of two qualities."""
    return max(a, b, key=list(Quality).index)


def t_interval(centre: float, values: NDArray[np.float64]) -> tuple[float, float]:
    """Compute Student's 95 % interval around ``centre``, of 2 values or more; positive ones stay positive."""
    factor = float(t_quantile(0.975, len(values) - 1) / np.sqrt(len(values)))
    if centre > 0 and (values > 0).all():
        ratio = float(np.exp(factor * np.log(values).std(ddof=1)))
        return centre / ratio, centre * ratio
    half = factor * float(values.std(ddof=1))
    return centre - half, centre + half


def judged(
    name: str,
    value: float,
    unit: str,
    bounds: tuple[float | None, float | None],
    *,
    n: int,
    scale: float | None = None,
    note: str = "",
) -> Coefficient:
    """Make a coefficient whose quality is judged by its bounds; ``scale`` as in ``judge``."""
    low, high = bounds
    quality = judge(value, low, high, scale=scale)
    return Coefficient(
        name=name, value=value, unit=unit, low=low, high=high, n=n, quality=quality, scale=scale, note=note
    )


def median(y: Sequence[float], *, name: str, unit: str, scale: float | None = None) -> Coefficient:
    """Compute the median of the finite values of ``y`` as a coefficient; ``scale`` as in ``judge``.

    Raises:
        ValueError: ``y`` holds no finite value.
    """
    values = finite(y)[0]
    if not len(values):
        raise ValueError(f"no finite value of {name}")
    value, low, high = median_interval(values)
    if low is None and len(values) > 1:
        low, high = t_interval(value, values)
    return judged(name, value, unit, (low, high), n=len(values), scale=scale)


def fit(
    y: Sequence[float],
    *,
    probe: str,
    quantity: str,
    name: str,
    unit: str,
    labels: dict[str, str] | None = None,
    note: str = "",
    scale: float | None = None,
) -> Model:
    """Fit the median of ``y`` as a model of one coefficient; arguments and errors as for ``median``."""
    coefficient = median(y, name=name, unit=unit, scale=scale)
    students = coefficient.n > 1 and binomial_ranks(coefficient.n) is None
    deviation = float(np.median(np.abs(finite(y)[0] - coefficient.value))) * MAD_TO_SD
    return Model(
        probe=probe,
        quantity=quantity,
        form="constant",
        labels=labels or {},
        method="median, Student's interval" if students else "median, order-statistic interval",
        coefficients=(coefficient,),
        residual_sd=deviation,
        note=note,
    )


def predict(model: Model, x: float = 0.0) -> Prediction:
    """Predict the median, plus and minus 1.96 robust standard deviations."""
    value = model.coefficients[0].value
    spread = 1.96 * (model.residual_sd or 0.0)
    return Prediction(value, value - spread, value + spread)


# -- lack of fit: samples that do not have the form of the curve -------------------------------------------
#
# The medians of groups are compared with the curve. A group holds the observations at one x; where most x
# were observed once, neighbours form a group. A gap counts if it is larger than chance explains: than a
# high quantile of Student's t times the standard error of the group's median. That error comes from the
# scatter within groups, which is independent of the curve. The gap judges the model as an interval of that
# half-width.


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
