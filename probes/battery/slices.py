"""The unit of a check: a slice of some milliseconds that gives one value of a quantity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Reading(NamedTuple):
    """A value that a slice gave.

    Attributes:
        labels: the subject, as in the models of a profile.
        value: by the time that passed.
        cpu_ratio: share of its time in which the slice had its processors; None: it sleeps while it waits.
        cpu_value: by the time in which it had its processors; None: as ``value``.
    """

    quantity: str
    labels: Mapping[str, str]
    value: float
    unit: str
    cpu_ratio: float | None = None
    cpu_value: float | None = None


@dataclass
class Slice:
    """A piece of work to repeat.

    Attributes:
        take: does the work once; raises OSError or UserError if it cannot be done any more.
        each_round: repetitions in a round at most; None: as many as fit.
    """

    title: str
    take: Callable[[], Iterator[Reading]]
    each_round: int | None = None
