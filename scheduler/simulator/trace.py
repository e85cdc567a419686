"""Input of a simulation (jobs with their true run times, settings) and its output (outcomes, summary)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from scheduler.model.costs import FREE, Costs
from scheduler.model.events import BudgetChanged, NodeDown, NodeUp
from scheduler.model.interference import NOTHING_KNOWN, Slowdowns
from scheduler.model.jobs import EMPTY, Job, Placement, Speed

if TYPE_CHECKING:
    from profiles.records import Profile
    from scheduler.prediction.profiles import MeasuredCluster


class Arrival(NamedTuple):
    """A job and the truth about it, which no policy sees.

    Attributes:
        run_s: true run time on ``job.units`` units. runs_s: the same for each class, where classes differ.
        speed: true ``jobs.Speed``; None: the speed that the job states.
        others_s: true run times in the other ways of the job, in the order of ``Job.alternatives``.
    """

    job: Job
    run_s: float
    runs_s: Mapping[str, float] = EMPTY
    speed: Speed | None = None
    others_s: tuple[float, ...] = ()


class ClosedLoop(Protocol):
    """A source whose submissions depend on ended jobs (a user who waits for results)."""

    def due(self, now: float, ended: Sequence[Job]) -> Iterable[Arrival]:
        """Return what is submitted at ``now``, after the jobs ``ended`` left; called first at 0 s.

        The jobs' ``submit_s`` must be ``now``. Nothing due and nothing in the system ends the simulation.
        """


class Segment(NamedTuple):
    """A time during which a job held units. ``kind``: "run", "checkpoint", "restart".

    "reserved": the place to which it moves, beside that on which its checkpoint is written.
    """

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

    @property
    def wait_s(self) -> float:
        """Time without units, before its first start and between its runs."""
        return max(0.0, self.end_s - self.job.submit_s - self.run_s - self.overhead_s)


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


# -- settings and summary ----------------------------------------------------------------------------------


Disturbance = tuple[float, NodeDown | NodeUp | BudgetChanged]
# factor on the run time of a job (1: undisturbed), from its placement and those of the jobs on its nodes
Interference = Callable[[Job, Placement, Sequence[tuple[Job, Placement]]], float]


@dataclass(frozen=True)
class SimulationSettings:
    """Behaviour of the simulated cluster.

    Attributes:
        costs: true costs of stops, restarts and changes.
        planned_costs: the same as the policy believes; None: the truth.
        kill_at_limit: kill jobs at their limit.
        interference: slow-down of jobs on one node by each other; None: none.
        slowdowns: the same as the policy believes.
        disturbances: (time, NodeDown | NodeUp | BudgetChanged), by time; may be endless.
        profiles: measured profiles of the machine, by name of pool.
        seed: chooses the job that a failing unit of a counted pool hits.
    """

    costs: Costs = FREE
    planned_costs: Costs | None = None
    kill_at_limit: bool = True
    interference: Interference | None = None
    slowdowns: Slowdowns = NOTHING_KNOWN
    disturbances: Iterable[Disturbance] = ()
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    seed: int = 0

    def with_measured(self, measured: MeasuredCluster) -> SimulationSettings:
        """Take costs (known to policies) and profiles from a measured cluster."""
        if not measured.costs.checkpoint:
            return replace(self, profiles=measured.profiles)
        return replace(self, costs=measured.costs, planned_costs=None, profiles=measured.profiles)


@dataclass(frozen=True)
class SimulationSummary:
    """Extent of a simulation, refused jobs (by reason), and the cost of computing it."""

    jobs: int
    refused: dict[str, int]
    end_s: float
    events: int
    decisions: int
    wall_s: float
    most_in_system: int
