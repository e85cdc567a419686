"""Differences between two profiles, and whether they are real, given the intervals."""

from __future__ import annotations

from enum import StrEnum
from math import hypot
from typing import Protocol

from pydantic import Field

from profiles.records import Coefficient, Model, Profile, Quality, Record
from profiles.trust import mean


class Bounded(Protocol):
    """A number with its 95 % interval and its quality: a coefficient, or a figure of a card."""

    @property
    def value(self) -> float: ...

    @property
    def low(self) -> float | None: ...

    @property
    def high(self) -> float | None: ...

    @property
    def quality(self) -> str: ...


class Verdict(StrEnum):
    """Verdict on a coefficient in two profiles."""

    SAME = "same"  # the interval of the difference contains 0, and both values are known
    HIGHER = "higher"  # in B, by more than the intervals explain
    LOWER = "lower"
    ONLY_A = "only in A"
    ONLY_B = "only in B"
    UNKNOWN = "unknown"  # a value is poor or bounded on one side only, and the intervals overlap


class Difference(Record):
    """A coefficient in two profiles; ``low``/``high`` bound the difference B - A at 95 %."""

    model: str
    probe: str
    quantity: str
    coefficient: str
    unit: str
    a: float | None
    b: float | None
    low: float | None = None
    high: float | None = None
    verdict: Verdict
    intervals_overlap: bool | None = None
    of_a: Coefficient | None = Field(default=None, exclude=True)
    of_b: Coefficient | None = Field(default=None, exclude=True)

    @property
    def ratio(self) -> float | None:
        """B / A."""
        return self.b / self.a if self.a and self.b is not None else None


def compare(a: Profile, b: Profile) -> list[Difference]:
    """Compare every coefficient of both profiles, in the order of B, then those that only A has."""
    in_a, in_b = _coefficients(a), _coefficients(b)
    return [_difference(key[-1], in_a.get(key), in_b.get(key)) for key in {**in_b, **in_a}]


def overlap(a: Bounded, b: Bounded) -> bool:
    """Tell whether the 95 % intervals share a point; an open side reaches to infinity."""
    return _low(a) <= _high(b) and _low(b) <= _high(a)


def difference_interval(a: Bounded, b: Bounded) -> tuple[float, float] | None:
    """Compute the 95 % interval of the difference b - a; None where a side is open.

    Method of variance estimates recovery (Zou and Donner 2008): asymmetric intervals stay asymmetric.
    """
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None
    difference = b.value - a.value
    low = difference - hypot(b.value - b.low, a.high - a.value)
    high = difference + hypot(b.high - b.value, a.value - a.low)
    return low, high


def explain_drift(a: Profile, b: Profile) -> list[str]:
    """Describe how the machine itself differed while A and B were measured."""
    sentences = []
    speed = mean(b, "reference_s") / mean(a, "reference_s") if a.conditions and b.conditions else 1.0
    if abs(speed - 1) > 0.03:
        sentences.append(
            f"a fixed CPU loop took {speed:.2f} times as long in B: the processor itself ran "
            f"{'slower' if speed > 1 else 'faster'} (frequency, temperature, other guests)"
        )
    for field, words in (
        ("steal_ratio", "of the CPU time went to other guests of the hypervisor"),
        ("others_ratio", "of the CPU time was used by other processes"),
    ):
        share_a, share_b = mean(a, field), mean(b, field)
        if max(share_a, share_b) > 0.01 and abs(share_a - share_b) > 0.01:
            sentences.append(f"{share_a:.1%} {words} in A, {share_b:.1%} in B")
    return sentences


def _coefficients(profile: Profile) -> dict[tuple[str, ...], tuple[Model, Coefficient]]:
    return {(*m.key, c.name): (m, c) for m in profile.models for c in m.coefficients}


def _difference(
    name: str, in_a: tuple[Model, Coefficient] | None, in_b: tuple[Model, Coefficient] | None
) -> Difference:
    model, some = in_a or in_b or (None, None)
    assert model and some
    a, b = in_a and in_a[1], in_b and in_b[1]
    limits = difference_interval(a, b) if a and b else None
    alone = Verdict.ONLY_A if a else Verdict.ONLY_B
    low, high = limits or (None, None)
    return Difference(
        probe=model.probe,
        quantity=model.quantity,
        model=model.title,
        coefficient=name,
        unit=some.unit,
        a=a.value if a else None,
        b=b.value if b else None,
        low=low,
        high=high,
        verdict=verdict(a, b, limits) if a and b else alone,
        intervals_overlap=overlap(a, b) if a and b else None,
        of_a=a,
        of_b=b,
    )


def verdict(a: Bounded, b: Bounded, limits: tuple[float, float] | None) -> Verdict:
    """Judge by the ``limits`` of the difference b - a; without limits, by whether the intervals are apart."""
    low, high = limits or (_low(b) - _high(a), _high(b) - _low(a))
    if low > 0:
        return Verdict.HIGHER
    if high < 0:
        return Verdict.LOWER
    known = limits is not None and Quality.POOR not in (a.quality, b.quality)
    return Verdict.SAME if known else Verdict.UNKNOWN


def _low(number: Bounded) -> float:
    return float("-inf") if number.low is None else number.low


def _high(number: Bounded) -> float:
    return float("inf") if number.high is None else number.high
