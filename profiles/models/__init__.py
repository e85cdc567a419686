"""Forms of model, and their predictions: ``predict(model, x) -> Prediction``.

The fits are in a file each: ``fit(x, y, ...) -> Model``. A new form is one new file here, with ``fit`` and
``predict``, and one line in ``FORMS``.

Lines and Student's t are predicted here, in plain Python: cards and reports predict checkpoints, the
coordinator run times, and importing numpy or scipy takes longer than most commands run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple

from ..records import Coefficient, Model, Quality

FORMS = {
    "constant": ".constant",
    "linear": ".linear",
    "knee": ".knee",
    "downey": ".downey",
}


class Prediction(NamedTuple):
    """A predicted value and the 95 % interval of one new observation."""

    value: float
    low: float
    high: float


def predict(model: Model, x: float = 0.0) -> Prediction:
    """Predict an observation at ``x`` (in the unit of ``model.x``)."""
    if model.form == "linear":
        return _predict_line(model, x)
    result: Prediction = import_module(FORMS[model.form], __package__).predict(model, x)
    return result


def predict_time(model: Model, x: float) -> Prediction | None:
    """Predict a time, which is never below 0; None: not known.

    It is not known where the value is not above 0, or where the interval of a poor model is not.
    """
    value, low, high = predict(model, x)
    poor = any(coefficient.quality is Quality.POOR for coefficient in model.coefficients)
    if value <= 0 or (poor and low <= 0):
        return None
    return Prediction(value, max(low, 0.0), high)


def _predict_line(model: Model, x: float) -> Prediction:
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


@lru_cache(maxsize=1024)
def t_quantile(p: float, freedom: int) -> float:
    """Compute a quantile of Student's t above the median, by bisection of the angle of t / sqrt(freedom)."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        if _probability_within(angle, freedom) < 2 * p - 1:
            low = angle
        else:
            high = angle
    return math.sqrt(freedom) * math.tan(low)


def _probability_within(angle: float, freedom: int) -> float:
    """Compute the probability that |t| < sqrt(freedom) tan(angle) (Abramowitz and Stegun, 26.7.3, 26.7.4)."""
    odd, squared = freedom % 2, math.cos(angle) ** 2
    term, series = math.cos(angle) ** odd, 0.0
    for power in range(odd, freedom - 1, 2):
        series += term
        term *= squared * (power + 1) / (power + 2)
    series *= math.sin(angle)
    return (angle + series) * 2 / math.pi if odd else series
