"""Jobs over hosts that share a network: the share of each, and the slow-down of the others.

A job's *share* is the part of its run time in which the job has the network as comprobe has when at work.

- Beside a share x a job's speed is the mean of its speed alone and beside comprobe at work, weighted 1 - x
  and x. The curve over comprobe's intensity measures that speed; between its levels speeds are straight.
- Beside comprobe a job has the share (1 - 1 / s) / (1 - 1 / r): s is comprobe's slow-down beside the job, r
  beside comprobe.
- The job itself is slowed down there S times, and sends as much as alone in S times the time. Alone its share
  is therefore S times as large, but not larger than the share of its time inside MPI.
- The time for which a job has the network is a line in its run time through these two points, so its share is
  a + b / S. A job that waits for small messages has a = 0, because it always sends the same. A job that fills
  the link has a near 1, because all its lost time goes to the network.

The slow-downs of jobs beside each other solve these equations together. The model is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from profiles.jobs import JobProfile, NetworkHalf
from profiles.models import Prediction
from profiles.models.constant import judge
from profiles.models.curve import Floats, bounded, lines_of, suffers, three
from profiles.records import Coefficient

ROUNDS = 200  # until the slow-downs of jobs beside each other fit together
CLOSE = 1e-9


class NetworkShare(NamedTuple):
    """Part of its time in which a job has the network: alone, and ``slowed`` times slower by comprobe."""

    alone: float
    beside: float
    slowed: float

    def at(self, slowdown: float) -> float:
        """Compute the share at this slow-down by others, up to that by comprobe."""
        if self.slowed <= 1:
            return self.alone
        weight = (1 - 1 / max(slowdown, 1.0)) / (1 - 1 / self.slowed)
        return self.alone + (self.beside - self.alone) * min(weight, 1.0)


class _Job(NamedTuple):
    """An estimate of a job: its speed beside comprobe at work for these shares of time, and its share."""

    shares: Floats
    speeds: Floats
    share: NetworkShare

    def slowdown(self, share: float) -> float:
        """Compute the slow-down beside others that have the network for this share of the time."""
        return 1 / float(np.interp(share, self.shares, self.speeds))


def share_alone(half: NetworkHalf, inside_mpi: Coefficient | None) -> Coefficient | None:
    """Compute the part of its run time in which the job alone has the network; None if unknown.

    Args:
        inside_mpi: share of its time; None: unknown.
    """
    found = _estimates(half, inside_mpi)
    if found is None:
        return None
    value, low, high = (job.share.alone for job in found)
    known = _known(half, inside_mpi)
    return Coefficient(
        name="share",
        value=value,
        unit="ratio",
        low=min(low, value) if known else None,
        high=max(high, value) if known else None,
        n=half.pressure.slowdown.n if half.pressure else 0,
        quality=judge(value, low, high, scale=1.0) if known else judge(value, None, None),
        scale=1.0,
    )


def beside(job: JobProfile, others: Sequence[JobProfile]) -> Prediction | None:
    """Predict the slow-down of a job beside others on the network; None if not measured, or unknown."""
    found, known = [], True
    for one in (job, *others):
        inside = one.need("mpi_share")
        estimates = _estimates(one.network, inside) if one.network else None
        if one.network is None or estimates is None:
            return None
        found.append(estimates)
        known = known and _known(one.network, inside)
    value, low, high = (_together(jobs)[0] for jobs in zip(*found, strict=True))
    return Prediction(value, min(low, value), max(high, value)) if known else Prediction(value, 0.0, math.inf)


def _together(jobs: Sequence[_Job]) -> list[float]:
    """Solve for the slow-downs of jobs beside each other."""
    slowed = [1.0] * len(jobs)
    for _ in range(ROUNDS):
        has = [job.share.at(s) for job, s in zip(jobs, slowed, strict=True)]
        after = [job.slowdown(min(sum(has) - own, 1.0)) for job, own in zip(jobs, has, strict=True)]
        moved = max(abs(a - b) for a, b in zip(after, slowed, strict=True))
        slowed = [(a + b) / 2 for a, b in zip(after, slowed, strict=True)]
        if moved < CLOSE:
            break
    return slowed


def _estimates(half: NetworkHalf, inside_mpi: Coefficient | None) -> tuple[_Job, _Job, _Job] | None:
    """Estimate the job from values, low bounds and high bounds."""
    curve, reference, pressure = half.sensitivity, half.reference, half.pressure
    if curve is None or reference is None or pressure is None or not suffers(reference):
        return None
    insides = (1.0, 1.0, 1.0) if inside_mpi is None else three(inside_mpi)
    lost_to_probe = 1 - 1 / reference.levels[-1].slowdown.value
    shares, *lines = lines_of(curve)

    def one(pressed: float, suffered: Floats, inside: float) -> _Job:
        share = min((1 - 1 / max(pressed, 1.0)) / lost_to_probe, 1.0)
        slowed = max(float(suffered[-1]), 1.0)
        return _Job(
            shares / shares[-1],
            1 / np.maximum(suffered, 1e-9),
            NetworkShare(min(share * slowed, inside, 1.0), share, slowed),
        )

    value, low, high = map(one, three(pressure.slowdown), lines, insides)
    return value, low, high


def _known(half: NetworkHalf, inside_mpi: Coefficient | None) -> bool:
    """Tell whether the intervals are known (a single repetition has none)."""
    levels = half.sensitivity.levels if half.sensitivity else ()
    pressed = [half.pressure.slowdown] if half.pressure else []
    inside = [inside_mpi] if inside_mpi else []
    return bounded([*pressed, *inside, *(level.slowdown for level in levels)])
