"""Ratios of the speeds of a program on two classes of devices, from trials of the running program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.opencl_layer.trials import Trial
from scheduler.jobs.instants import clock
from scheduler.model.speed_bounds import RunTimeBounds, SpeedBounds


@dataclass(frozen=True)
class TriedRatio:
    """Speed of a program on the class ``pool`` over its speed on ``over``, with an interval.

    Attributes:
        at_s: when it was tried (Unix time). agrees: results were the same on both.
        source: how the ratio became known.
    """

    pool: str
    over: str
    low: float
    value: float
    high: float
    at_s: float
    agrees: bool = True
    source: Literal["tried"] = "tried"

    @property
    def inverse(self) -> TriedRatio:
        """The same, seen from the other class."""
        return TriedRatio(
            self.over, self.pool, 1 / self.high, 1 / self.value, 1 / self.low, self.at_s, self.agrees
        )


def ratio_of(trial: Trial) -> TriedRatio | None:
    """Take the ratio of the whole program from a trial; None: no kernel could be tried."""
    found = trial.program_ratio
    if found is None:
        return None
    return TriedRatio(trial.on, trial.device, *found, trial.at_s, trial.agrees is not False)


def latest(tried: Sequence[TriedRatio], pool: str, over: str) -> TriedRatio | None:
    """Find the latest ratio of two classes, whichever of them the program was on."""
    both = (one if one.pool == pool else one.inverse for one in tried if {one.pool, one.over} == {pool, over})
    return max(both, key=lambda one: one.at_s, default=None)


def run_time_tried(
    pool: str, known_s: Mapping[str, float], tried: Sequence[TriedRatio]
) -> tuple[RunTimeBounds, TriedRatio] | None:
    """Tell the run time on a class from that on another, by the latest trial of both; None: there is none."""
    found = [one for of in known_s if of != pool and (one := latest(tried, pool, of)) is not None]
    if not found:
        return None
    one = max(found, key=lambda one: one.at_s)
    seconds = known_s[one.over]
    bounds = SpeedBounds(one.low, one.high)
    return RunTimeBounds(seconds / one.high, seconds / one.value, seconds / one.low, one.over, bounds), one


def tried_words(one: TriedRatio) -> str:
    """Write a ratio as a clause."""
    results = "" if one.agrees else "; its results differ there"
    return (
        f"{one.pool} is {one.value:.3g} times ({one.low:.3g} .. {one.high:.3g}) as fast as {one.over} "
        f"by a trial of this program at {clock(one.at_s)}{results}"
    )
