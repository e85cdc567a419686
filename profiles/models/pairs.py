"""Speeds of two programs that share a device, from their speeds alone and some measured pairs.

The speed of a program beside another, over its speed alone, is

    error / (1 + sensitivity x pressure of the other) x that of such pairs

The logarithms of all factors are Gaussian processes over pairs, fitted at once to the logarithms of the
speeds (Gauss-Newton). Programs of a *family* (one program with several batch sizes, or on several numbers of
devices) are as alike as their *settings* are near. Alike programs have like sensitivities and pressures, and
a family has some in common; pairs of alike programs, and of the same families, have like errors. So a program
of which no pair is known gets the pressure of its neighbours, of its family, or of the mean program, with an
interval as wide as programs differ.

Products of single figures are the same model as ``scheduler.model.interference.PressureModel``; there
probes measure the figures, here pairs do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import Prediction, t_quantile

Floats = NDArray[np.float64]

SPREAD = 10.0  # standard deviations of logarithms: of the mean sensitivity and pressure (unknown),
OF_FAMILY = 1.0  # of families about them,
OF_PROGRAM = 0.5  # of programs about their family,
OF_ALONE = 0.1  # of the measured speed alone,
OF_KINDS = 0.1  # of what pairs of two families have in common,
OF_PAIR = 0.07  # of what one pair has beside that
NEAR = 5.0  # settings so far apart are alike by 1 / e
NOISE, WEIGHT = 0.04, 10  # of a measured speed; all of these are believed like so many speeds
STEPS, CLOSE = 50, 1e-5  # of Gauss-Newton: the most, and the last one's size


class PairSpeed(NamedTuple):
    """Speed of a program beside another on the same device, over its speed alone."""

    program: str
    beside: str
    speed: float


@dataclass(frozen=True)
class Programs:
    """Families of programs, and their places in these.

    Attributes:
        families: others are a family of their own.
        settings: position within the family, such as the logarithm of the batch size to base 2.
    """

    families: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, float] = field(default_factory=dict)

    def likeness(self, programs: Sequence[str], others: Sequence[str]) -> tuple[Floats, Floats]:
        """Return whether the families are the same, and how alike the programs are, 0 to 1."""
        names, families, settings = (
            (np.array(mine)[:, None], np.array(theirs)[None])
            for mine, theirs in zip(self._facts(programs), self._facts(others), strict=True)
        )
        same = families[0] == families[1]
        near = np.exp(-np.abs(settings[0] - settings[1]) / NEAR)
        alike = np.where(names[0] == names[1], 1.0, np.where(same, np.nan_to_num(near), 0.0))
        return same.astype(np.float64), alike

    def _facts(self, programs: Sequence[str]) -> tuple[Any, ...]:
        families = [self.families.get(program, program) for program in programs]
        return programs, families, [self.settings.get(program, math.nan) for program in programs]

    def covariances(
        self, pairs: Sequence[tuple[str, str]], others: Sequence[tuple[str, str]]
    ) -> tuple[Floats, Floats]:
        """Return those of the logarithms of sensitivity x pressure, and of all outside the sum."""
        (own_family, own), (other_family, other) = (
            self.likeness([pair[place] for pair in pairs], [pair[place] for pair in others])
            for place in range(2)
        )
        product = SPREAD**2 + OF_FAMILY**2 * (own_family + other_family) + OF_PROGRAM**2 * (own + other)
        of_pairs = OF_KINDS**2 * own_family * other_family + OF_PAIR**2 * own * other
        return product, OF_ALONE**2 * own + of_pairs


@dataclass(frozen=True)
class PairModel:
    """The measured pairs, and what follows from them.

    Attributes:
        slopes: of the logarithm of each speed by that of sensitivity x pressure.
        precision: inverse of the covariance of the speeds' logarithms, times ``scale``.
        weights: of the pairs in a prediction.
        scale: variances over those of the priors. freedom: degrees of freedom that it rests on.
    """

    programs: Programs
    pairs: Sequence[tuple[str, str]]
    slopes: Floats
    precision: Floats
    weights: Floats
    scale: float
    freedom: int

    @classmethod
    def fit(cls, speeds: Iterable[PairSpeed], programs: Programs | None = None) -> PairModel:
        """Fit the model to measured speeds; a pair of two programs has two.

        Raises:
            ValueError: there is no speed, or one is not above 0 (programs that cannot share have none).
        """
        rows = list(speeds)
        if not rows or not all(0 < row.speed < math.inf for row in rows):
            raise ValueError("a model of pairs needs measured speeds above 0")
        known, pairs = programs or Programs(), [row[:2] for row in rows]
        inside, outside = known.covariances(pairs, pairs)
        outside[np.diag_indices_from(outside)] += NOISE**2
        logs = np.log([row.speed for row in rows])
        product = np.zeros(len(rows))  # logarithms of sensitivity x pressure
        for _ in range(STEPS):
            slopes = -1.0 / (1.0 + np.exp(-product))
            rest = logs + np.logaddexp(0.0, product) + slopes * product
            covariance = slopes[:, None] * inside * slopes + outside
            precision = np.asarray(np.linalg.inv(covariance), np.float64)
            weights = precision @ rest
            step = inside @ (slopes * weights) - product
            product = product + step / max(1.0, float(np.abs(step).max()))
            if np.abs(step).max() < CLOSE:
                break
        freedom = WEIGHT + len(rows)
        scale = (WEIGHT + float(rest @ weights)) / freedom
        return cls(known, pairs, slopes, precision, weights, scale=scale, freedom=freedom)

    def predict(self, program: str, beside: str) -> Prediction:
        """Predict the speed beside another over that alone, with the 95 % interval of a new measurement."""
        pair = [(program, beside)]
        inside, outside = (row[0] for row in self.programs.covariances(pair, self.pairs))
        product = float(inside @ (self.slopes * self.weights))
        slope = -1.0 / (1.0 + math.exp(-product))
        towards = slope * inside * self.slopes + outside
        of_product, of_others = (float(prior[0, 0]) for prior in self.programs.covariances(pair, pair))
        prior = slope**2 * of_product + of_others + NOISE**2
        variance = self.scale * (prior - float(towards @ self.precision @ towards))
        half = t_quantile(0.975, self.freedom) * math.sqrt(variance)
        value = float(outside @ self.weights) - math.log1p(math.exp(product))
        return Prediction(math.exp(value), math.exp(value - half), math.exp(value + half))
