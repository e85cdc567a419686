"""A quantity that depends on nothing we vary: the median, with its order-statistic interval.

Below 6 values order statistics say nothing at 95 %. Then the interval is Student's, of the logarithm where
all values are positive, because times are skewed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from profiles.models import Prediction
from profiles.records import Coefficient, Model, Quality
from profiles.stats import MAD_TO_SD, binomial_ranks, finite, median_interval
from profiles.student import t_quantile


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
    emulated: bool = False,
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
        emulated=emulated,
        note=note,
    )


def predict(model: Model, x: float = 0.0) -> Prediction:
    """Predict the median, plus and minus 1.96 robust standard deviations."""
    value = model.coefficients[0].value
    spread = 1.96 * (model.residual_sd or 0.0)
    return Prediction(value, value - spread, value + spread)
