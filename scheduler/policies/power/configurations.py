"""Configurations (units, power cap) of a moldable job, and those that are worth considering."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.model.jobs import Job, Pool

Floats = NDArray[np.float64]
MANY = 2**15  # tables of some 2 KB, each made in some ms; more than there are different jobs in a queue


@dataclass(frozen=True)
class Configurations:
    """Some (units, cap) of one job, in the order of preference between equals: lower cap, then fewer units.

    Attributes:
        caps_w: None: uncapped.
        watts: of all units together.
        merit: value of the objective, before the job's weight.
    """

    units: NDArray[np.int64]
    caps_w: tuple[float | None, ...]
    watts: Floats
    merit: Floats

    @cached_property
    def hottest_w(self) -> float:
        """The most that one unit draws under any of them."""
        return float((self.watts / self.units).max())

    def __len__(self) -> int:
        return len(self.units)

    def subset(self, kept: NDArray[np.bool_]) -> Configurations:
        """Leave out those that are not kept."""
        caps = tuple(cap for cap, keep in zip(self.caps_w, kept, strict=True) if keep)
        return Configurations(self.units[kept], caps, self.watts[kept], self.merit[kept])


def every(job: Job, pool: Pool, beta: float, counts: int) -> Configurations:
    """List all configurations, under all caps.

    ``counts``: of a job that can take more different numbers of units than this, so many are considered,
    evenly spaced on a logarithmic scale, with both ends.
    """
    speed: Any = job.speed  # a key: it must have a hash, as frozen dataclasses have
    return _every(speed, _range(job, pool), pool, beta=beta, counts=counts)


def considered(job: Job, pool: Pool, beta: float, counts: int, *, watts_matter: bool) -> Configurations:
    """Return those of ``every`` that can be part of a best choice."""
    speed: Any = job.speed
    return _considered(speed, _range(job, pool), pool, beta=beta, counts=counts, watts_matter=watts_matter)


def _range(job: Job, pool: Pool) -> tuple[int, int]:
    most = min(job.units if job.max_units is None else job.max_units, pool.units)
    return job.units, max(most, job.units)


@lru_cache(maxsize=MANY)
def _considered(
    speed: Any, least_most: tuple[int, int], pool: Pool, *, beta: float, counts: int, watts_matter: bool
) -> Configurations:
    if not watts_matter:
        some = _considered(speed, least_most, pool, beta=beta, counts=counts, watts_matter=True)
        return some.subset(_undominated(some.units, np.zeros(len(some)), some.merit))
    some = _every(speed, least_most, pool, beta=beta, counts=counts)
    # For each number of units, higher caps of no more merit are left out first, because it is a quick test.
    merit = some.merit.reshape(-1, len(numbers(*least_most, counts)))
    rising = np.vstack((np.ones(merit.shape[1], bool), merit[1:] > np.maximum.accumulate(merit)[:-1]))
    some = some.subset(rising.ravel())
    return some.subset(_undominated(some.units, some.watts, some.merit))


@lru_cache(maxsize=4096)
def _every(
    speed: Any, least_most: tuple[int, int], pool: Pool, *, beta: float, counts: int
) -> Configurations:
    units = numbers(*least_most, counts)
    caps: tuple[float | None, ...] = pool.caps_w or (None,)
    fast = np.array([[1.0 if speed is None else speed(n, cap) for n in units.tolist()] for cap in caps])
    watts = np.array([[pool.power_w(n, cap) for n in units.tolist()] for cap in caps])
    energy_ratio = fast * watts[0, 0] / watts if watts[0, 0] > 0 else fast  # equation 4.2
    return Configurations(
        np.tile(units, len(caps)),
        tuple(cap for cap in caps for _ in units),
        watts.ravel(),
        (beta * fast + (1.0 - beta) * energy_ratio).ravel(),
    )


def numbers(least: int, most: int, counts: int) -> NDArray[np.int64]:
    """List all whole numbers from ``least`` to ``most``, or ``counts`` of them."""
    if most - least < counts:
        return np.arange(least, most + 1)
    return np.unique(np.round(np.geomspace(least, most, counts)).astype(np.int64))


def _undominated(units: NDArray[np.int64], watts: Floats, merit: Floats) -> NDArray[np.bool_]:
    """Tell which configurations no other one makes superfluous.

    A configuration dominates another if it needs no more units and watts and has at least its merit (the
    first of equals dominates). No optimum is lost: in any choice that fits, put the dominating configuration
    in the place of the dominated. The choice still fits, and the objective is no less, because a job's weight
    is not negative and equal for all its configurations. The relation is transitive and the first of equals
    stays, so that each superfluous configuration is dominated by one that stays.
    """
    no_worse = (
        (units <= units[:, None]) & (watts <= watts[:, None]) & (merit >= merit[:, None])
    )  # [i, k]: k is no worse than i
    equal = no_worse & no_worse.T
    earlier = np.tri(len(units), k=-1, dtype=bool)  # [i, k]: k comes before i
    kept: NDArray[np.bool_] = ~(no_worse & (~equal | earlier)).any(axis=1)
    return kept
