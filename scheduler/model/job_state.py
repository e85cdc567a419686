"""The state of one job in the system."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.model.jobs import Job, Placement


class Stage(StrEnum):
    """The stage of a job; the last four are final."""

    # A cluster state has only jobs that wait, run, stop or are suspended.
    HELD = "held"  # waits for others, or for a time; in the journal also: suspended by its owner
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"  # holds its units until it has left them, or goes on
    SUSPENDED = "suspended"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    KILLED = "killed"  # at its limit of time or memory

    @property
    def final(self) -> bool:
        return self in FINAL

    @property
    def begun(self) -> bool:
        """Return true if a job of this stage has begun to run and has not ended."""
        return self in (RUNNING, STOPPING, SUSPENDED)


HELD, WAITING, RUNNING, STOPPING, SUSPENDED, *_ENDS = Stage  # looked up in a tenth of the time
FINAL = tuple(_ENDS)


@dataclass(slots=True, kw_only=True)
class JobState:
    """State of one job in the system, for policies to read.

    Attributes:
        placement: current or last place; None: it never ran.
        start_s: first start; None: it never started.
        since_s: begin of the current stage.
        works_from_s: begin of progress in the current run (after its restart).
        served_s: attained service up to ``since_s``: seconds of progress, on whatever class.
        done: believed share of its work that was done by ``works_from_s`` (estimates, not the truth).
        whole_s: believed run time of the whole job at ``placement``.
        expected_end_s: believed end of the current run; infinite: unknown; in the past: it is late.
        preemptions, migrations, failures: their numbers.
        moves_to: a second place that it holds while it is moved there and works on where it is; its stage is
            ``STOPPING`` meanwhile. None: it is not moved so.
    """

    job: Job
    since_s: float
    stage: Stage = WAITING
    placement: Placement | None = None
    start_s: float | None = None
    works_from_s: float = field(default=0.0, compare=False)
    served_s: float = 0.0
    done: float = 0.0
    whole_s: float = field(default=math.inf, compare=False)
    expected_end_s: float = field(default=math.inf, compare=False)
    preemptions: int = 0
    migrations: int = 0
    failures: int = 0
    moves_to: Placement | None = field(default=None, compare=False)

    @property
    def places(self) -> tuple[Placement, ...]:
        """The places that a running job holds."""
        return (self.place,) if self.moves_to is None else (self.place, self.moves_to)

    @property
    def works(self) -> bool:
        """Return true if the job makes progress."""
        return self.stage is RUNNING or self.moves_to is not None

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
        if (self.stage is not RUNNING and self.moves_to is None) or now <= self.works_from_s:
            return self.done
        done = self.done + (now - self.works_from_s) / self.whole_s if self.whole_s > 0 else 1.0
        return done if done < 1.0 else 1.0

    def remaining_s(self, now: float, pool: str | None = None) -> float:
        """Return the believed time left at speed 1 on ``pool`` (default: the job's own), or infinity."""
        where = pool or (self.placement.pool if self.placement else "")
        return (1.0 - self.done_by(now)) * self.job.reference_s(where)
