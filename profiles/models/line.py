"""Prediction of a straight line, in plain Python: a profile is shown without numpy (the fit: ``linear``)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from profiles.models import Prediction
from profiles.records import Coefficient, Model
from profiles.student import t_quantile


def predict(model: Model, x: float) -> Prediction:
    """Predict the line at ``x`` with the 95 % interval of new observations, also beyond the sizes measured.

    The interval holds the uncertainty of the line (as wide as the coefficients' intervals, which may have
    been widened because rounds differ) and the spread of single observations at ``x``.
    """
    assert model.covariance is not None
    slope, intercept = model.coefficients[:2]
    value = slope.value * x + intercept.value
    quantile = quantile_of_line(slope.n)
    (of_slope, of_both), (_, of_intercept) = model.covariance
    widening = _widening((slope, intercept), (of_slope, of_intercept), quantile)
    of_line = (of_slope * x**2 + 2 * of_both * x + of_intercept) * widening**2
    sd_0, sd_x = model.residual_sd_line or (model.residual_sd or 0.0, 0.0)
    half = quantile * math.sqrt(max(of_line, 0.0) + (sd_0 + sd_x * x) ** 2)
    return Prediction(value, value - half, value + half)


def quantile_of_line(n: int) -> float:
    """Compute Student's quantile; four parameters are fitted, two of the line and two of the spread."""
    return t_quantile(0.975, max(n - 4, 1))


def _widening(coefficients: Sequence[Coefficient], variances: Sequence[float], quantile: float) -> float:
    """Compare the width of the coefficients' intervals with their variances."""
    widest = 1.0
    for coefficient, variance in zip(coefficients, variances, strict=True):
        if coefficient.low is not None and coefficient.high is not None and variance > 0:
            widest = max(widest, (coefficient.high - coefficient.low) / 2 / (quantile * math.sqrt(variance)))
    return widest
