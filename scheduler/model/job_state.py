"""The state of one job in the system."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from scheduler.model.jobs import Job, Placement


class JobPhase(StrEnum):
    """Phase of a job in the system."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"  # holds its units while its checkpoint is written
    SUSPENDED = "suspended"


WAITING, RUNNING, STOPPING, SUSPENDED = JobPhase  # looked up in a tenth of the time


@dataclass(slots=True)
class JobState:
    """State of one job in the system, for policies to read.

    Attributes:
        placement: current or last place; None: it never ran.
        start_s: first start; None: it never started.
        since_s: begin of the current phase.
        works_from_s: begin of progress in the current run (after its restart).
        served_s: attained service up to ``since_s``: seconds of progress, on whatever class.
        done: believed share of its work that was done by ``works_from_s`` (estimates, not the truth).
        whole_s: believed run time of the whole job at ``placement``.
        expected_end_s: believed end of the current run; infinite: unknown; in the past: it is late.
        preemptions, migrations, failures: their numbers.
        moves_to: a second place that it holds while it is moved there and works on where it is; its phase is
            ``STOPPING`` meanwhile. None: it is not moved so.
    """

    job: Job
    since_s: float
    phase: JobPhase = WAITING
    placement: Placement | None = None
    start_s: float | None = None
    works_from_s: float = 0.0
    served_s: float = 0.0
    done: float = 0.0
    whole_s: float = math.inf
    expected_end_s: float = math.inf
    preemptions: int = 0
    migrations: int = 0
    failures: int = 0
    moves_to: Placement | None = None

    @property
    def places(self) -> tuple[Placement, ...]:
        """The places that a running job holds."""
        return (self.place,) if self.moves_to is None else (self.place, self.moves_to)

    @property
    def works(self) -> bool:
        """Return true if the job makes progress."""
        return self.phase is RUNNING or self.moves_to is not None

    @property
    def place(self) -> Placement:
        """The placement of a job that has started."""
        assert self.placement is not None
        return self.placement

    def shift(self, step_s: float) -> None:
        """Move all instants with a clock that was set, so that durations stay as they are."""
        self.since_s += step_s
        self.works_from_s += step_s
        self.expected_end_s += step_s
        if self.start_s is not None:
            self.start_s += step_s

    def attained_s(self, now: float) -> float:
        """Return the attained service in seconds, the time in which the job made progress."""
        if self.works and now > self.works_from_s:
            return self.served_s + now - self.works_from_s
        return self.served_s

    def done_by(self, now: float) -> float:
        """Return the believed share of the work done, 0 to 1; ``done`` for a job of unknown run time."""
        if (self.phase is not RUNNING and self.moves_to is None) or now <= self.works_from_s:
            return self.done
        done = self.done + (now - self.works_from_s) / self.whole_s if self.whole_s > 0 else 1.0
        return done if done < 1.0 else 1.0

    def remaining_s(self, now: float, pool: str | None = None) -> float:
        """Return the believed time left at speed 1 on ``pool`` (default: the job's own), or infinity."""
        where = pool or (self.placement.pool if self.placement else "")
        return (1.0 - self.done_by(now)) * self.job.reference_s(where)
