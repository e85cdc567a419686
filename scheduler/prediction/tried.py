"""Ratios of the speeds of a program on two classes of devices, from trials of the running program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.opencl_layer.trials import Trial
from profiles.instants import stamp
from scheduler.model.speeds import RunTimeBounds, SpeedBounds

COVERED = 0.9  # least share of the launches of which a trial has to tell


@dataclass(frozen=True)
class TriedRatio:
    """Speed of a program on the class ``pool`` over its speed on ``over``, with an interval.

    Attributes:
        at_s: when it was tried (Unix time). agrees: results were the same on both.
    """

    pool: str
    over: str
    low: float
    value: float
    high: float
    at_s: float
    agrees: bool = True

    @property
    def inverse(self) -> TriedRatio:
        """The same, seen from the other class."""
        low, value, high = 1 / self.high, 1 / self.value, 1 / self.low
        return replace(self, pool=self.over, over=self.pool, low=low, value=value, high=high)


Pair = frozenset[str]  # two classes
TriedRatios = Mapping[Pair, TriedRatio]  # the latest of each pair


def pair(pool: str, other: str) -> Pair:
    """Return the pair of two classes, in whichever order they are named."""
    return frozenset((pool, other))


def ratio_of(trial: Trial) -> TriedRatio | None:
    """Take the ratio of the whole program from a trial; None: too few of its launches could be tried."""
    found = trial.program_ratio
    tried = sum(one.launches for one in trial.kernels if one.there is not None)
    launches = sum(one.launches for one in trial.kernels) + trial.not_kept
    if found is None or tried < COVERED * launches:
        return None
    agrees = trial.agrees is not False
    return TriedRatio(trial.on, trial.device, **found._asdict(), at_s=trial.at_s, agrees=agrees)


def run_time_tried(
    pool: str, known_s: Mapping[str, float], tried: TriedRatios
) -> tuple[RunTimeBounds, TriedRatio] | None:
    """Tell the run time on a class from that on another, by the latest trial of both; None: there is none."""
    found = [tried[pair(pool, of)] for of in known_s if of != pool and pair(pool, of) in tried]
    if not found:
        return None
    one = max(found, key=lambda one: one.at_s)
    one = one if one.pool == pool else one.inverse
    seconds, bounds = known_s[one.over], SpeedBounds(one.low, one.high)
    return RunTimeBounds(seconds / one.high, seconds / one.value, seconds / one.low, one.over, bounds), one


def tried_words(one: TriedRatio) -> str:
    """Write a ratio as a clause."""
    results = "" if one.agrees else "; its results differ there"
    return (
        f"{one.pool} is {one.value:.3g} times ({one.low:.3g} .. {one.high:.3g}) as fast as {one.over} "
        f"by a trial of this program at {stamp(one.at_s)}{results}"
    )
