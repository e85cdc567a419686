"""Speeds of two programs that share a device, from their speeds alone and some measured pairs.

The speed of a program beside another, over its speed alone, is

    error / (1 + sensitivity x pressure of the other) x that of such pairs

All factors are fitted at once to the logarithms of the speeds (Gauss-Newton, from normal priors): a
sensitivity and a pressure for each program, around those of its *family* (the same program at other settings,
or at other numbers of devices); the error of the speed alone, which all pairs of a program share; and what
pairs of two families have in common. So a program of which no pair is known gets the pressure of its family,
or of the mean program, with an interval as wide as programs differ.

Products of single figures are the same model as ``scheduler.model.interference.PressureModel``; there
probes measure the figures, here pairs do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import Prediction, t_quantile

Floats = NDArray[np.float64]
Effect = tuple[str, ...]

SPREAD = 10.0  # standard deviations of logarithms: of the mean sensitivity and pressure (unknown),
OF_FAMILY = 1.0  # of families about them,
OF_PROGRAM = 0.5  # of programs about their family,
OF_ALONE = 0.1  # of the measured speed alone,
OF_KINDS = 0.2  # of what pairs of two families have in common,
NOISE, WEIGHT = 0.05, 10  # of a measured speed, believed like that many residuals
STEPS, CLOSE = 50, 1e-5  # of Gauss-Newton: the most, and the last one's size


class PairSpeed(NamedTuple):
    """Speed of a program beside another on the same device, over its speed alone."""

    program: str
    beside: str
    speed: float


@dataclass(frozen=True)
class PairModel:
    """Fitted effects, in logarithms.

    Attributes:
        families: of programs; others are a family of their own.
        places: of the effects in ``effects`` and in ``covariance``.
        noise: standard deviation of a measured speed, and the degrees of freedom that it rests on.
    """

    families: Mapping[str, str]
    places: Mapping[Effect, int]
    effects: Floats
    covariance: Floats
    noise: float
    freedom: int

    @classmethod
    def fit(cls, speeds: Iterable[PairSpeed], families: Mapping[str, str] | None = None) -> PairModel:
        """Fit the effects to measured speeds; a pair of two programs has two.

        Raises:
            ValueError: there is no speed, or one is not above 0 (programs that cannot share have none).
        """
        rows = list(speeds)
        if not rows or not all(0 < row.speed < math.inf for row in rows):
            raise ValueError("a model of pairs needs measured speeds above 0")
        of = families or {}
        priors: dict[Effect, float] = {}
        for row in rows:
            for effects in _effects(row.program, row.beside, of):
                priors |= effects
        places = {effect: place for place, effect in enumerate(priors)}
        inside, outside = (
            np.array([_row(effects, places) for effects in parts])
            for parts in zip(*(_effects(row.program, row.beside, of) for row in rows), strict=True)
        )
        logs = np.log([row.speed for row in rows])
        precision = np.diag(np.array(list(priors.values())) ** -2)
        values = np.zeros(len(places))
        for _ in range(STEPS):
            product = np.exp(np.clip(inside @ values, -20, 20))
            rest = logs - outside @ values + np.log1p(product)
            slopes = outside - (product / (1 + product))[:, None] * inside
            curvature = slopes.T @ slopes / NOISE**2 + precision
            step = np.linalg.solve(curvature, slopes.T @ rest / NOISE**2 - precision @ values)
            values = values + step / max(1.0, float(np.abs(step).max()))
            if np.abs(step).max() < CLOSE:
                break
        covariance = np.linalg.inv(curvature)
        freedom = WEIGHT + len(rows) - float(np.trace(covariance @ slopes.T @ slopes)) / NOISE**2
        noise = math.sqrt((WEIGHT * NOISE**2 + float(rest @ rest)) / freedom)
        return cls(of, places, values, covariance * (noise / NOISE) ** 2, noise, round(freedom))

    def predict(self, program: str, beside: str) -> Prediction:
        """Predict the speed beside another over that alone, with the 95 % interval of a new measurement."""
        effects = _effects(program, beside, self.families)
        inside, outside = (_row(part, self.places) for part in effects)
        product = math.exp(min(max(float(inside @ self.effects), -20.0), 20.0))
        fall = product / (1 + product)
        slopes = outside - fall * inside
        unknown = [
            sum(spread**2 for effect, spread in part.items() if effect not in self.places) for part in effects
        ]
        variance = float(slopes @ self.covariance @ slopes) + fall**2 * unknown[0] + unknown[1]
        half = t_quantile(0.975, self.freedom) * math.sqrt(variance + self.noise**2)
        value = float(outside @ self.effects) - math.log1p(product)
        return Prediction(math.exp(value), math.exp(value - half), math.exp(value + half))


def _effects(
    program: str, beside: str, families: Mapping[str, str]
) -> tuple[dict[Effect, float], dict[Effect, float]]:
    """List the effects in the product and those outside it, each with the spread of its prior."""
    own, other = families.get(program, program), families.get(beside, beside)
    inside = {
        ("sensitivity",): SPREAD,
        ("sensitivity of family", own): OF_FAMILY,
        ("sensitivity", program): OF_PROGRAM,
        ("pressure of family", other): OF_FAMILY,
        ("pressure", beside): OF_PROGRAM,
    }
    return inside, {("alone", program): OF_ALONE, ("families", own, other): OF_KINDS}


def _row(effects: Iterable[Effect], places: Mapping[Effect, int]) -> Floats:
    row = np.zeros(len(places))
    row[[places[effect] for effect in effects if effect in places]] = 1.0
    return row
