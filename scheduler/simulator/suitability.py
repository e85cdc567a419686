"""The policies that can schedule a cluster."""

from __future__ import annotations

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster
from scheduler.model.state import ClusterState
from scheduler.policies.base import Policy
from scheduler.policies.registry import POLICIES, create
from scheduler.simulator.settings import SimulationSettings


def objection(policy: Policy, cluster: Cluster, settings: SimulationSettings) -> BadInput | None:
    """Return why the policy cannot schedule this cluster, with the remedy; None if it can."""
    costs = settings.planned_costs or settings.costs
    try:
        policy.begin(ClusterState(cluster, costs, settings.profiles, settings.slowdowns))
    except BadInput as error:
        return error
    return None


def suitable(cluster: Cluster, settings: SimulationSettings) -> list[str]:
    """List the names of all policies that can schedule this cluster, with their default parameters."""
    return [name for name in POLICIES if _can(name, cluster, settings)]


def _can(name: str, cluster: Cluster, settings: SimulationSettings) -> bool:
    try:
        return objection(create(name), cluster, settings) is None
    except BadInput:  # a library that it needs is not installed
        return False
