"""Costs of stopping, restarting and changing jobs: predicted for policies, actual in the simulator."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from scheduler.model.jobs import PAUSE, Job, Placement, record
from scheduler.model.quantiles import Quantiles, exactly


class Costs(Protocol):
    """Seconds during which a job holds its units without progress."""

    def stop_s(self, job: Job, pool: str) -> float:
        """Predict how long it takes to suspend the job on that class, by a checkpoint or a mere pause."""

    def restart_s(self, job: Job, pool: str) -> float:
        """Predict how long the job takes to compute again on that class."""

    def move_s(self, job: Job, here: str, there: str) -> Quantiles:
        """Predict quantiles of both together: a stop on one class, and a restart on another or the same.

        The middle one is ``stop_s`` + ``restart_s``.
        """

    def resize_s(self, job: Job, before: Placement, after: Placement) -> float:
        """Predict how long a change of the number of units takes."""

    def cap_s(self, job: Job, placement: Placement) -> float:
        """Predict how long a change of the power cap takes."""


@record
class LinearCost:
    """``slope * memory_mb + offset`` seconds.

    Attributes:
        half_slope, half_offset: likewise, how far the 10 and 90 % quantiles are off.
    """

    slope: float
    offset: float
    half_slope: float = 0.0
    half_offset: float = 0.0


NOTHING = LinearCost(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class LinearCosts:
    """Costs linear in the job's memory, per class of resource (paper A, equations 2-5).

    A class without an entry costs nothing. A job of unknown memory pays the offset alone.

    Attributes:
        checkpoint: per class; paper A's alpha_C (s/MB) and beta_C (s).
        restart: per class; alpha_R and beta_R.
        compile_s: per program, the time K to compile its device code at a restart.
        drain_s: per program, the time in which its queued kernels end before a checkpoint can begin (the
            paper's exception, which its model leaves out).
        resize: of a malleable job. cap_change_s: of a changed power cap.
        pause_s, go_on_s: to pause a job that stays where it is, and to let it go on.
        factor: multiplies all costs; 2 is an estimate of twice the truth.
        begin_s: per class, the share of a restart's offset that context and kernels of the measured program
            take, because those of another program may be known better.
    """

    checkpoint: Mapping[str, LinearCost] = field(default_factory=dict)
    restart: Mapping[str, LinearCost] = field(default_factory=dict)
    compile_s: Mapping[str, float] = field(default_factory=dict)
    drain_s: Mapping[str, float] = field(default_factory=dict)
    resize: LinearCost = NOTHING
    cap_change_s: float = 0.0
    pause_s: float = 0.0
    go_on_s: float = 0.0
    factor: float = 1.0
    begin_s: Mapping[str, float] = field(default_factory=dict)

    def stop_s(self, job: Job, pool: str) -> float:
        if job.stop is PAUSE:
            return self.factor * self.pause_s
        line = self.checkpoint.get(pool, NOTHING)
        cost = self.factor * (line.slope * (job.memory_mb or 0.0) + line.offset)
        return cost + self.factor * self.drain_s.get(job.program, 0.0) if self.drain_s else cost

    def restart_s(self, job: Job, pool: str) -> float:
        if job.stop is PAUSE:
            return self.factor * self.go_on_s
        line = self.restart.get(pool, NOTHING)
        cost = self.factor * (line.slope * (job.memory_mb or 0.0) + line.offset)
        return cost + self.factor * self.compile_s.get(job.program, 0.0) if self.compile_s else cost

    def move_s(self, job: Job, here: str, there: str) -> Quantiles:
        middle = self.stop_s(job, here) + self.restart_s(job, there)
        if job.stop is PAUSE:
            return exactly(middle)
        lines, memory_mb = (self.checkpoint.get(here), self.restart.get(there)), job.memory_mb or 0.0
        halves = [line.half_slope * memory_mb + line.half_offset for line in lines if line is not None]
        half = self.factor * math.hypot(*halves)  # they are independent
        return Quantiles(max(middle - half, 0.0), middle, middle + half)

    def resize_s(self, job: Job, before: Placement, after: Placement) -> float:
        return self.factor * (self.resize.slope * (job.memory_mb or 0.0) + self.resize.offset)

    def cap_s(self, job: Job, placement: Placement) -> float:
        return self.factor * self.cap_change_s


FREE = LinearCosts()


@dataclass(frozen=True, slots=True)
class ScatteredCosts:
    """True stops and restarts that differ from a prediction, by a log-normal factor of each job and class.

    Attributes:
        sigma: standard deviation of the factor's logarithm.
    """

    predicted: Costs
    sigma: float
    seed: int = 0

    def stop_s(self, job: Job, pool: str) -> float:
        return self.predicted.stop_s(job, pool) * self._factor(f"stop {job.id} {pool}")

    def restart_s(self, job: Job, pool: str) -> float:
        return self.predicted.restart_s(job, pool) * self._factor(f"restart {job.id} {pool}")

    def move_s(self, job: Job, here: str, there: str) -> Quantiles:
        return exactly(self.stop_s(job, here) + self.restart_s(job, there))

    def resize_s(self, job: Job, before: Placement, after: Placement) -> float:
        return self.predicted.resize_s(job, before, after)

    def cap_s(self, job: Job, placement: Placement) -> float:
        return self.predicted.cap_s(job, placement)

    def _factor(self, what: str) -> float:
        return random.Random(f"{self.seed} {what}").lognormvariate(0.0, self.sigma)
