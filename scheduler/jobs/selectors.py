"""Selectors, the words by which users name jobs: ``7``, ``7[3]``, ``7[1,5-9]``, ``3-9``; those left out."""

from __future__ import annotations

import re
from typing import NamedTuple

from profiles.errors import BadInput

MOST_DIGITS = 18  # of a number of a job, or of an index
NUMBER = rf"\d{{1,{MOST_DIGITS}}}"
SPAN = rf"{NUMBER}(?:-{NUMBER})?"
PART = re.compile(rf"({NUMBER})\[({SPAN}(?:,{SPAN})*)\]")
REMEDY = "give a number, 3-9, 7[3] or 7[1,5-9] of array 7, last or all"


class Span(NamedTuple):
    """Numbers, or indices, from ``low`` to ``high``; ``single`` if it was written as one number."""

    low: int
    high: int
    single: bool


class Selector(NamedTuple):
    """One word, read.

    Attributes:
        word: "all" or "last"; "": numbers.
        array: the array whose indices ``spans`` are; None: they are numbers.
    """

    word: str = ""
    array: int | None = None
    spans: tuple[Span, ...] = ()


def read_selector(word: str) -> Selector:
    """Read one word.

    Raises:
        BadInput: it selects nothing.
    """
    if word in ("all", "last"):
        return Selector(word)
    part = PART.fullmatch(word)
    if part:
        return Selector(array=int(part[1]), spans=tuple(map(_span, part[2].split(","))))
    if not re.fullmatch(SPAN, word):
        raise BadInput(f"{word[:100]!r} is no job", REMEDY)
    return Selector(spans=(_span(word),))


def _span(text: str) -> Span:
    low, dash, high = text.partition("-")
    span = Span(int(low), int(high or low), not dash)
    if span.low > span.high:
        raise BadInput(f"{text} has no jobs", f"write {high}-{low}")
    return span


class LeftOut(NamedTuple):
    """A job, or an array, to which a change does not apply, and on which its user did not insist.

    Attributes:
        label: what users call it. reason: why, as a clause or a sentence without the label.
        sentence: all of it.
    """

    label: str
    reason: str
    sentence: str
