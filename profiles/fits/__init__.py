"""From a probe's samples to models: ``profiles/fits/<probe>.py`` has ``fit(samples) -> list[Model]``.

Probes of one subject share a file (``SHARED``). Callers use ``fit_samples``.

A full profile visits each probe in several rounds spread over its duration. A coefficient whose rounds
disagree more than its own interval admits gets a wider interval, because the next user will meet the same
drift between minutes (other guests, temperature).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pandas as pd

from profiles.card import ROUNDS_DIFFER
from profiles.models.constant import judge, t_interval, worse
from profiles.records import Coefficient, Model

SHARED = {  # probe -> the file, and the function in it
    "streams": ("memory", "fit_streams"),
    "messages": ("network", "fit_messages"),
    "scaling": ("compute", "fit_scaling"),
}


def fit_samples(probe: str, samples: pd.DataFrame) -> list[Model]:
    """Fit all models that ``samples`` of ``probe`` support; empty where the probe has no fit.

    Raises:
        ValueError: emulated and measured rows are mixed.
    """
    module, function = SHARED.get(probe, (probe, "fit"))
    name = f"profiles.fits.{module}"
    if samples.empty or find_spec(name) is None:
        return []
    if samples["emulated"].nunique() > 1:
        raise ValueError(f"samples of {probe} mix emulated and measured rows")
    fit: Callable[[pd.DataFrame], list[Model]] = getattr(import_module(name), function)
    models = fit(samples)
    rounds = [group for _, group in samples.groupby("round")]
    if len(rounds) < 2:
        return models
    by_round = [{m.key: m for m in fit(group)} for group in rounds]
    return [_widened(m, [r[m.key] for r in by_round if m.key in r]) for m in models]


def _widened(model: Model, rounds: list[Model]) -> Model:
    """Widen every interval of ``model`` to hold the values of its rounds."""
    coefficients = tuple(
        _widen(
            c, np.array([r[c.name].value for r in rounds if any(k.name == c.name for k in r.coefficients)])
        )
        for c in model.coefficients
    )
    return model.model_copy(update={"coefficients": coefficients})


def _widen(coefficient: Coefficient, values: np.ndarray) -> Coefficient:
    """Widen the interval of ``coefficient`` to hold the values of the rounds."""
    low, high = coefficient.low, coefficient.high
    if len(values) < 2 or low is None or high is None:
        return coefficient
    least, most = t_interval(coefficient.value, values)
    if low <= least and most <= high:
        return coefficient
    low, high = min(low, least), max(high, most)
    update = {
        "low": low,
        "high": high,
        "quality": worse(coefficient.quality, judge(coefficient.value, low, high, scale=coefficient.scale)),
        "note": "; ".join(filter(None, (coefficient.note, ROUNDS_DIFFER))),
    }
    return coefficient.model_copy(update=update)
