"""From a probe's samples to models: ``profiles/fits/<probe>.py`` has ``fit(samples) -> list[Model]``.

Probes of one subject share a file (``SHARED``). Callers use ``fit_samples``.

A full profile visits each probe in several rounds spread over its duration, because the samples of one visit
are of the same minute. They agree with each other better than with those of the next minute (other guests,
temperature), so the interval of many samples of few minutes is too narrow: it says how well that minute is
known. The next user meets another minute, and needs an interval that holds it.

Neither averaging the rounds would do, because an interval of four values is wide even where they agree, nor
taking a coefficient of each round for the result, because a round alone may have too few samples for a fit.
So all samples are fitted together, and each round by itself. Where the rounds spread further than the
interval of all samples admits (Student's interval round the same value), the interval is widened to hold that
too, the quality is judged anew, and the coefficient says so (``rounds_differ``). With few rounds that is
often chance; an interval that is too wide costs less than one that is too narrow.

Where samples are the same for all rounds, or a round has no fit, nothing is widened. An open side of an
interval stays open.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pandas as pd

from profiles.models.constant import judge, t_interval, worse
from profiles.records import ROUNDS_DIFFER, Coefficient, Model

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
    emulated = bool((samples["emulated"] == True).any())  # noqa: E712 - the column may hold None
    models = [model.model_copy(update={"emulated": emulated}) for model in fit(samples)]
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
        "rounds_differ": True,
        "note": "; ".join(filter(None, (coefficient.note, ROUNDS_DIFFER))),
    }
    return coefficient.model_copy(update=update)
