"""Costs of stopping, restarting and changing jobs: predicted for policies, actual in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from scheduler.model.jobs import PAUSE, Job, Placement, record


class Costs(Protocol):
    """Seconds during which a job holds its units without progress."""

    def stop_s(self, job: Job, pool: str) -> float:
        """Predict how long it takes to suspend the job on that class, by a checkpoint or a mere pause."""

    def restart_s(self, job: Job, pool: str) -> float:
        """Predict how long the job takes to compute again on that class."""

    def resize_s(self, job: Job, before: Placement, after: Placement) -> float:
        """Predict how long a change of the number of units takes."""

    def cap_s(self, job: Job, placement: Placement) -> float:
        """Predict how long a change of the power cap takes."""


@record
class LinearCost:
    """``slope * memory_mb + offset`` seconds."""

    slope: float
    offset: float


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

    def resize_s(self, job: Job, before: Placement, after: Placement) -> float:
        return self.factor * (self.resize.slope * (job.memory_mb or 0.0) + self.resize.offset)

    def cap_s(self, job: Job, placement: Placement) -> float:
        return self.factor * self.cap_change_s


FREE = LinearCosts()
