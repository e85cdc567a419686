"""Input of a simulation (jobs with their true run times) and its output (the outcome of each job)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from scheduler.model.jobs import EMPTY, Job, Placement, Speed


class Arrival(NamedTuple):
    """A job and the truth about it, which no policy sees.

    Attributes:
        run_s: true run time on ``job.units`` units. runs_s: the same for each class, where classes differ.
        speed: true ``jobs.Speed``; None: the speed that the job states.
    """

    job: Job
    run_s: float
    runs_s: Mapping[str, float] = EMPTY
    speed: Speed | None = None


class ClosedLoop(Protocol):
    """A source whose submissions depend on ended jobs (a user who waits for results)."""

    def due(self, now: float, ended: Sequence[Job]) -> Iterable[Arrival]:
        """Return what is submitted at ``now``, after the jobs ``ended`` left; called first at 0 s.

        The jobs' ``submit_s`` must be ``now``. Nothing due and nothing in the system ends the simulation.
        """


class Segment(NamedTuple):
    """A time during which a job held units. ``kind``: "run", "checkpoint", "restart"."""

    kind: str
    placement: Placement
    start_s: float
    end_s: float


class Outcome(NamedTuple):
    """Outcome of one job.

    Attributes:
        how: "done" or "killed" (at its limit).
        run_s: time of progress. overhead_s: time it held units for checkpoints, restarts, changes.
        lost_s: part of ``run_s`` lost with failed nodes.
        energy_j: of its units, while it held them.
    """

    job: Job
    start_s: float
    end_s: float
    how: str
    run_s: float
    overhead_s: float
    lost_s: float
    preemptions: int
    migrations: int
    failures: int
    energy_j: float
    segments: tuple[Segment, ...]


class Sink(Protocol):
    """Takes the outcome of each job, in the order of their ends."""

    def add(self, outcome: Outcome) -> None: ...


class OutcomeRecorder:
    """Keeps the first ``limit`` outcomes whole, for pictures and tests."""

    def __init__(self, limit: int | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self.limit = limit

    def add(self, outcome: Outcome) -> None:
        if self.limit is None or len(self.outcomes) < self.limit:
            self.outcomes.append(outcome)
