"""The resources that an engine has found, in the terms that a policy schedules in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import BadInput
from profiles.records import Profile
from scheduler.engines.protocol import Engine
from scheduler.jobs.sizes import CORE, Unit
from scheduler.model.costs import FREE, LinearCosts
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.speeds import CapLine
from scheduler.prediction.profiles import ProfiledSlowdowns

SCALES_LIKE = {"compute": "ep", "memory": "mg"}  # the built-in load whose measured scaling stands for a job's


class Taken(BadInput):
    """Cores or devices belong to another coordinator of this machine."""


@dataclass(frozen=True)
class Machine(ABC):
    """The resources of one engine; each engine has a subclass with what it needs to know of its own.

    Attributes:
        costs: measured costs of moving jobs.
        unit: what one unit of the first pool is.
        job_profiles: slow-downs of jobs by each other, where jobs share nodes.
    """

    cluster: Cluster
    costs: LinearCosts = FREE
    unit: Unit = CORE
    job_profiles: ProfiledSlowdowns | None = None

    @abstractmethod
    def engine(self, store: Path, reports: Path) -> Engine:
        """Make the engine; ``reports`` is where supervisors on this machine report."""

    @property
    def emulated(self) -> str:
        """Name of the emulated machine whose power is capped; empty: it is real."""
        return ""

    @property
    def notes(self) -> Sequence[str]:
        """Say, sentence by sentence, what whoever starts a coordinator is to know of its resources."""
        return ()

    @property
    def rest_w(self) -> float:
        """Power of all nodes at rest, where the cluster's budget does not contain it."""
        return 0.0


def scaling_of(profile: Profile) -> dict[str, tuple[float, float]]:
    """Downey's A and sigma by what bounds a job, as far as they were measured."""
    scaling = {}
    for load, probe in SCALES_LIKE.items():
        model = profile.find("run_s", load=probe)
        if model is not None:
            scaling[load] = (model["A"].value, model["sigma"].value)
    return scaling


def cap_lines(profile: Profile, pool: Pool, packages: int) -> dict[str, CapLine]:
    """Speed under a cap, by load, against the lowest cap (paper C, equation 4.5)."""
    lines = {}
    for model in profile.models:
        if model.quantity != "power_speed_ratio":
            continue
        knee_w = max(model["knee_w"].value / packages, pool.caps_w[0])
        slope = model["slope_per_w"].value * packages
        slowest = model["speed_flat"].value - slope * (knee_w - pool.caps_w[0])
        if slowest > 0:
            lines[model.labels["load"]] = CapLine(slope / slowest, pool.caps_w[0], knee_w)
    return lines
