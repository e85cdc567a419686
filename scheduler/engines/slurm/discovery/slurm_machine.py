"""A partition of a Slurm cluster as a machine that makes its engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.engines.common.machine import Machine
from scheduler.engines.slurm.site import Site

if TYPE_CHECKING:
    from scheduler.engines.slurm.engine import SlurmEngine


@dataclass(frozen=True, kw_only=True)
class SlurmMachine(Machine):
    """A partition of a Slurm cluster."""

    site: Site

    def engine(self, store: Path, reports: Path) -> SlurmEngine:
        from scheduler.engines.slurm.engine import SlurmEngine

        return SlurmEngine(store, self.cluster, self.site, self.unit)

    @property
    def emulated(self) -> str:
        return self.site.power.emulated if self.site.power is not None else ""

    @property
    def rest_w(self) -> float:
        return self.site.power.rest_w if self.site.power is not None else 0.0
