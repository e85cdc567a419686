"""Forms of model, a file each: ``fit(x, y, ...) -> Model`` and ``predict(model, x) -> Prediction``.

A new form is one new file here and one line in ``FORMS``.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from profiles.records import Model

FORMS = {
    "constant": ".constant",
    "linear": ".line",  # without numpy; its ``fit`` is in ``linear``
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
    result: Prediction = import_module(FORMS[model.form], __package__).predict(model, x)
    return result
