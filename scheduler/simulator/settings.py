"""Settings of a simulation, and its summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scheduler.model.costs import FREE, Costs
from scheduler.model.events import BudgetChanged, NodeDown, NodeUp
from scheduler.model.interference import NOTHING_KNOWN, Slowdowns
from scheduler.model.jobs import Job, Placement

if TYPE_CHECKING:
    from profiles.records import Profile
    from scheduler.prediction.profiles import MeasuredCluster

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
