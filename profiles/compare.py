"""Differences between two profiles: whether they are real, given the intervals, and which side is better."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import exp, hypot, log
from typing import Any, NamedTuple, Protocol

from pydantic import Field

from profiles.card import CardFigure, main_figures, mean_condition, trust
from profiles.quantities import Better, better
from profiles.records import Coefficient, Model, Profile, Quality, Record


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
    differences = []
    speed = (
        mean_condition(b.conditions, "reference_s") / mean_condition(a.conditions, "reference_s")
        if a.conditions and b.conditions
        else 1.0
    )
    if abs(speed - 1) > 0.03:
        differences.append(
            f"a fixed CPU loop took {speed:.2f} times as long in B: the processor itself ran "
            f"{'slower' if speed > 1 else 'faster'} (frequency, temperature, other guests)"
        )
    for field, words in (
        ("steal_ratio", "of the CPU time went to other guests of the hypervisor"),
        ("others_ratio", "of the CPU time was used by other processes"),
    ):
        share_a, share_b = (mean_condition(profile.conditions, field) for profile in (a, b))
        if max(share_a, share_b) > 0.01 and abs(share_a - share_b) > 0.01:
            differences.append(f"{share_a:.1%} {words} in A, {share_b:.1%} in B")
    return differences


def _coefficients(profile: Profile) -> dict[tuple[str, ...], tuple[Model, Coefficient]]:
    return {(*m.key, c.name): (m, c) for m in profile.models for c in m.coefficients}


def _difference(
    name: str, in_a: tuple[Model, Coefficient] | None, in_b: tuple[Model, Coefficient] | None
) -> Difference:
    model, coefficient = in_a or in_b or (None, None)
    assert model and coefficient
    a, b = in_a and in_a[1], in_b and in_b[1]
    limits = difference_interval(a, b) if a and b else None
    alone = Verdict.ONLY_A if a else Verdict.ONLY_B
    low, high = limits or (None, None)
    return Difference(
        probe=model.probe,
        quantity=model.quantity,
        model=model.title,
        coefficient=name,
        unit=coefficient.unit,
        a=a.value if a else None,
        b=b.value if b else None,
        low=low,
        high=high,
        verdict=verdict(a, b, limits) if a and b else alone,
        intervals_overlap=overlap(a, b) if a and b and (_has_bound(a) or _has_bound(b)) else None,
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


def _has_bound(number: Bounded) -> bool:
    return number.low is not None or number.high is not None


def _low(number: Bounded) -> float:
    return float("-inf") if number.low is None else number.low


def _high(number: Bounded) -> float:
    return float("inf") if number.high is None else number.high


# -- which is better ---------------------------------------------------------------------------------------


FACTOR = 3.0  # from there on a difference is told as a factor and not in per cent
MOST_NAMED = 4  # figures in a sentence


class Certainty(StrEnum):
    """Certainty of a difference between two values with 95 % intervals."""

    SURELY = "surely"  # the 95 % interval of the difference excludes 0
    PERHAPS = "perhaps"  # half as wide an interval (about 67 %) excludes 0
    UNTOLD = "not to tell"


class Advantage(NamedTuple):
    """An advantage of A or B in one quantity.

    Attributes:
        of: "A" or "B", the better one; "" where the values are equal or neither direction is better.
        higher: "A" or "B", the one with the higher value; "" where they are equal.
        ratio, low, high: higher value over lower one, with its 95 % interval; None where a value or a limit
            is unknown or not positive.
    """

    of: str
    higher: str
    ratio: float | None
    low: float | None
    high: float | None
    certainty: Certainty

    def surely_of(self, side: str) -> bool:
        """Tell if that side is surely better."""
        return self.of == side and self.certainty is Certainty.SURELY

    @property
    def size(self) -> float:
        """The distance by which differences are sorted, as a logarithm; 0 where it is not known."""
        return 0.0 if self.ratio is None else log(self.ratio)

    @property
    def words(self) -> str:
        """Words for a cell: ``B better by 25 % (20 to 31 %)``; the interval where nothing can be told."""
        if not self.higher:
            return "equal"
        if self.certainty is Certainty.UNTOLD:
            return f"from {self._ends}" if self._ends else ""
        who = f"{self.of} better" if self.of else f"{self.higher} higher"
        return " ".join(filter(None, (who, self.degree)))

    @property
    def degree(self) -> str:
        """Words for how much: ``by 25 % (20 to 31 %)`` of the worse value, or ``by a factor of 4 (3 to 5)``.

        Where the interval reaches to the other side: ``by 25 % (A by 3 % to B by 60 %)``.
        """
        if self.ratio is None:
            return ""
        factor = "a factor of " if self.ratio >= FACTOR else ""
        text = f"by {factor}{self._amount(self.ratio)}{self._unit}"
        if self.low is None or self.high is None:
            return text
        if self.low >= 1:
            return f"{text} ({self._amount(self.low)} to {self._amount(self.high)}{self._unit})"
        return f"{text} ({self._ends})"

    @property
    def _ends(self) -> str:
        """Both ends of the interval, each with the side that it speaks for."""
        if self.low is None or self.high is None:
            return ""
        ahead = self.of or self.higher
        behind = "A" if ahead == "B" else "B"
        low = (ahead, self.low) if self.low >= 1 else (behind, 1 / self.low)
        ends = (f"{side} by {self._amount(ratio)}{self._unit}" for side, ratio in (low, (ahead, self.high)))
        return " to ".join(ends)

    @property
    def _unit(self) -> str:
        return "" if (self.ratio or 0.0) >= FACTOR else " %"

    def _amount(self, ratio: float) -> str:
        """Write a ratio above 1 as a factor, or as per cent of the worse value: the higher one of a cost."""
        if (self.ratio or 0.0) >= FACTOR:
            return f"{ratio:.3g}"
        cost = self.of not in ("", self.higher)
        per_cent = 100 * (1 - 1 / ratio if cost else ratio - 1)
        return f"{per_cent:.0f}" if per_cent >= 9.95 else f"{per_cent:.1f}"


class Row(NamedTuple):
    """A main figure of both profiles."""

    a: CardFigure
    b: CardFigure
    advantage: Advantage

    @property
    def name(self) -> str:
        """The figure's name as a part of a sentence."""
        return self.a.name


def judge(direction: Better, a: Bounded, b: Bounded) -> Advantage:
    """Judge two values of a quantity, of which ``direction`` is better."""
    limits = difference_interval(a, b)
    certainty = _certainty(verdict(a, b, limits), b.value - a.value, limits)
    if a.value == b.value:
        return Advantage("", "", 1.0, None, None, certainty)
    higher = "B" if b.value > a.value else "A"
    lower = "A" if higher == "B" else "B"
    of = {Better.HIGHER: higher, Better.LOWER: lower, Better.NEITHER: ""}[direction]
    top, bottom = (b, a) if higher == "B" else (a, b)
    return Advantage(of, higher, *_ratio(top, bottom), certainty)


def judge_difference(difference: Difference) -> Advantage | None:
    """Judge a coefficient that both profiles have."""
    if difference.of_a is None or difference.of_b is None:
        return None
    return judge(better(difference.quantity, difference.coefficient), difference.of_a, difference.of_b)


def as_judged(difference: Difference) -> dict[str, Any]:
    """Add to a difference which is better; null in one profile only, or where neither is better (power)."""
    judgement = judge_difference(difference)
    judged = {
        "better": (judgement and judgement.of) or None,
        "certainty": judgement and str(judgement.certainty),
    }
    return {**difference.model_dump(mode="json"), "ratio": difference.ratio, **judged}


def _certainty(said: Verdict, difference: float, limits: tuple[float, float] | None) -> Certainty:
    if said in (Verdict.HIGHER, Verdict.LOWER):
        return Certainty.SURELY
    if said is Verdict.UNKNOWN or limits is None:
        return Certainty.UNTOLD
    low, high = (difference + (limit - difference) / 2 for limit in limits)
    return Certainty.PERHAPS if low > 0 or high < 0 else Certainty.UNTOLD


def _ratio(top: Bounded, bottom: Bounded) -> tuple[float | None, float | None, float | None]:
    """Divide two values, with the interval of the quotient (as of a difference, on logarithms)."""
    if top.value <= 0 or bottom.value <= 0:
        return None, None, None
    ratio = top.value / bottom.value
    ends = top.low, top.high, bottom.low, bottom.high
    if any(end is None or end <= 0 for end in ends):
        return ratio, None, None
    top_low, top_high, bottom_low, bottom_high = (log(end) for end in ends if end)
    middle = log(ratio)
    low = middle - hypot(log(top.value) - top_low, bottom_high - log(bottom.value))
    high = middle + hypot(top_high - log(top.value), log(bottom.value) - bottom_low)
    return ratio, exp(low), exp(high)


def main_rows(a: Profile, b: Profile) -> list[Row]:
    """Compare the main figures that both profiles have, in the order of the card."""
    in_b = {figure.name: figure for figure in main_figures(b)}
    both = [(figure, in_b[figure.name]) for figure in main_figures(a) if figure.name in in_b]
    return [
        Row(of_a, of_b, judge(better(of_a.quantity, of_a.coefficient), of_a, of_b)) for of_a, of_b in both
    ]


def sentences(a: Profile, b: Profile) -> list[str]:
    """Say in three sentences which profile is surely better at what, and what cannot be told.

    Before them stands which of the profiles others disturbed.
    """
    rows, judged = main_rows(a, b), [judge_difference(difference) for difference in compare(a, b)]
    if not rows:
        return ["The two profiles have no main figure in common: measure both with the same probes."]
    names = {"A": f"A ({a.node})", "B": f"B ({b.node})"} if a.node != b.node else {"A": "A", "B": "B"}
    trusts = {"A": trust(a), "B": trust(b)}
    disturbed = [
        f"{side}: {trusted.sentence}" for side, trusted in trusts.items() if trusted.state == "disturbed"
    ]
    lines = [
        f"{name} is surely better at {_best(rows, side, judged)}." for side, name in reversed(names.items())
    ]
    return [*disturbed, *lines, _rest(rows, _in_one(a, b))]


def _best(rows: Sequence[Row], side: str, judged: Sequence[Advantage | None]) -> str:
    """Name the main figures at which one side is surely better, the largest difference first."""
    won = [row for row in rows if row.advantage.surely_of(side)]
    if not won:
        others = sum(advantage is not None and advantage.surely_of(side) for advantage in judged)
        return "none of the main figures" + (f", and at {others} of the other numbers" if others else "")
    won.sort(key=lambda row: -row.advantage.size)
    named = [" ".join((row.name, row.advantage.degree)) for row in won[:MOST_NAMED]]
    return _listed(named, len(won))


def _in_one(a: Profile, b: Profile) -> list[str]:
    """List the main figures that one profile has and the other has not, or only poorly."""
    names = [{figure.name: None for figure in main_figures(profile)} for profile in (a, b)]
    return [name for name in {**names[0], **names[1]} if name not in names[0] or name not in names[1]]


def _rest(rows: Sequence[Row], in_one: Sequence[str]) -> str:
    """Say what is not surely better on either side."""
    sure, perhaps, untold = (
        [row for row in rows if row.advantage.certainty is certainty] for certainty in Certainty
    )
    maybe = [f"{row.advantage.of} at {row.name}" for row in perhaps if row.advantage.of]
    neutral = [f"{row.name} ({row.advantage.words})" for row in [*sure, *perhaps] if not row.advantage.of]
    parts = (
        ("perhaps better is", maybe),
        ("not to tell:", [row.name for row in untold]),
        ("different, and a matter of what one wants:", neutral),
        ("known well enough in one profile only:", in_one),
    )
    text = "; ".join(f"{opening} {_listed(named, len(named))}" for opening, named in parts if named)
    return f"{text[0].upper()}{text[1:]}." if text else "There is no further main figure."


def _listed(named: Sequence[str], whole: int) -> str:
    """Join with commas and "and"; say how many of ``whole`` are left out."""
    words = [*named, *([f"{whole - len(named)} more"] if whole > len(named) else [])]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
