"""A quantity that depends on nothing we vary: the median, with its order-statistic interval.

Below 6 values order statistics say nothing at 95 %; then the interval is Student's, of the logarithm where
all values are positive (times are skewed).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..records import Coefficient, Model, Quality
from ..stats import median_interval
from . import Prediction


def judge(
    value: float,
    low: float | None,
    high: float | None,
    *,
    scale: float | None = None,
    tolerance: float = 0.10,
) -> Quality:
    """Quality by the interval's half-width over ``scale``: up to ``tolerance`` good, 3x noisy, else poor.

    ``scale`` is the value itself where none is given; a number that is often near 0 needs another.
    """
    if low is None or high is None or not np.isfinite([value, low, high]).all():
        return Quality.POOR
    half_width = (high - low) / 2
    scale = scale or abs(value) or 1e-300
    if half_width <= tolerance * scale:
        return Quality.GOOD
    return Quality.NOISY if half_width <= 3 * tolerance * scale else Quality.POOR


def worse(a: Quality, b: Quality) -> Quality:
    """The worse of two qualities."""
    return max(a, b, key=list(Quality).index)


def t_interval(centre: float, values: NDArray[np.float64]) -> tuple[float, float]:
    """Student's 95 % interval around ``centre`` from at least 2 values; positive quantities stay positive."""
    from scipy import stats  # half a second: not for those who only want a fit's constants

    factor = float(stats.t.ppf(0.975, len(values) - 1) / np.sqrt(len(values)))
    if centre > 0 and (values > 0).all():
        ratio = float(np.exp(factor * np.log(values).std(ddof=1)))
        return centre / ratio, centre * ratio
    half = factor * float(values.std(ddof=1))
    return centre - half, centre + half


def fit(
    y: Sequence[float],
    *,
    probe: str,
    quantity: str,
    name: str,
    unit: str,
    labels: dict[str, str] | None = None,
    emulated: bool = False,
    note: str = "",
    scale: float | None = None,
) -> Model:
    """The median of ``y`` as a model of one coefficient; ``scale`` as in ``judge``.

    Raises:
        ValueError: ``y`` holds no finite value.
    """
    values = np.asarray(y, dtype=float)
    values = values[np.isfinite(values)]
    if not len(values):
        raise ValueError(f"no finite value of {quantity}")
    value, low, high = median_interval(values)
    method = "median, order-statistic interval"
    if low is None and len(values) > 1:
        low, high = t_interval(value, values)
        method = "median, Student's interval"
    coefficient = Coefficient(
        name=name,
        value=value,
        unit=unit,
        low=low,
        high=high,
        n=len(values),
        quality=judge(value, low, high, scale=scale),
        scale=scale,
    )
    deviation = float(np.median(np.abs(values - value))) * 1.4826
    return Model(
        probe=probe,
        quantity=quantity,
        form="constant",
        labels=labels or {},
        method=method,
        coefficients=(coefficient,),
        residual_sd=deviation,
        emulated=emulated,
        note=note,
    )


def predict(model: Model, x: float = 0.0) -> Prediction:
    """The median, plus and minus 1.96 robust standard deviations."""
    value = model.coefficients[0].value
    spread = 1.96 * (model.residual_sd or 0.0)
    return Prediction(value, value - spread, value + spread)
