"""This machine, as its discovery has found it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.engines.common.machine import Machine
from scheduler.engines.local.packages import Packages
from scheduler.engines.local.supply import Supply

if TYPE_CHECKING:
    from scheduler.engines.local.engine import LocalEngine


@dataclass(frozen=True)
class LocalMachine(Machine):
    """This machine: the cores of each node, the devices of each pool, and the packages under power caps.

    Attributes:
        tries: running programs are tried on idle devices.
        supply: where cores and devices come from; None: they are not claimed.
    """

    cores: list[list[int]] = field(default_factory=list)
    devices: dict[str, list[int]] = field(default_factory=dict)
    packages: Packages | None = None
    tries: bool = True
    supply: Supply | None = None

    def engine(self, store: Path, reports: Path) -> LocalEngine:
        from scheduler.engines.local.engine import LocalEngine

        return LocalEngine(
            store,
            reports,
            self.cluster,
            self.cores,
            devices=self.devices,
            unit=self.unit,
            packages=self.packages,
            tries=self.tries,
            supply=self.supply,
        )

    @property
    def emulated(self) -> str:
        return self.packages.emulated if self.packages is not None else ""

    @property
    def notes(self) -> Sequence[str]:
        return self.supply.notes() if self.supply is not None else ()
