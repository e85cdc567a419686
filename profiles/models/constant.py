"""A quantity that depends on nothing we vary: the median, with its order-statistic interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiles.models import Prediction
from profiles.records import Coefficient, Model, Quality
from profiles.stats import median_interval


def judge(value: float, low: float | None, high: float | None, *, tolerance: float = 0.10) -> Quality:
    """Quality by the interval's relative half-width: up to ``tolerance`` good, 3x noisy, else poor."""
    if low is None or high is None or not np.isfinite([value, low, high]).all():
        return Quality.POOR
    half_width = (high - low) / 2
    scale = abs(value) or 1e-300
    if half_width <= tolerance * scale:
        return Quality.GOOD
    return Quality.NOISY if half_width <= 3 * tolerance * scale else Quality.POOR


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
) -> Model:
    """The median of ``y`` as a model of one coefficient.

    Raises:
        ValueError: ``y`` holds no finite value.
    """
    values = np.asarray(y, dtype=float)
    values = values[np.isfinite(values)]
    if not len(values):
        raise ValueError(f"no finite value of {quantity}")
    value, low, high = median_interval(values)
    coefficient = Coefficient(
        name=name, value=value, unit=unit, low=low, high=high, n=len(values), quality=judge(value, low, high)
    )
    deviation = float(np.median(np.abs(values - value))) * 1.4826
    return Model(
        probe=probe,
        quantity=quantity,
        form="constant",
        labels=labels or {},
        method="median, order-statistic interval",
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
