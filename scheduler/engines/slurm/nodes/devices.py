"""The OpenCL devices of the nodes, in classes, and those that jobs have.

Devices of one class are alike, and so are their nodes; one unit is one device of a node. With it comes its
share of the node's cores.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.engines.slurm.nodes.node_inventory import NodeInventory
from scheduler.model.jobs import Placement


def gres_type(device: str) -> str:
    """Turn the name of a device into a type of generic resource: ``nvidia_h100_80gb``."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


@dataclass(frozen=True)
class Slot:
    """One device.

    Attributes:
        node: by its number. index: by which a job that has it opens it there (``TENBIN_DEVICE``).
        cores: how many of its node's come with it.
        gres: what Slurm is asked for with it; empty: nothing.
    """

    pool: str
    node: int
    index: int
    cores: int
    gres: str = ""


class Devices:
    """The devices by their numbers."""

    def __init__(self, slots: Sequence[Slot], inventory: NodeInventory) -> None:
        self.slots, self.inventory = tuple(slots), inventory
        self._free = list(range(len(slots)))

    def of(self, pool: str) -> list[int]:
        """List the numbers of a class's devices, in the order of its units."""
        return [number for number, slot in enumerate(self.slots) if slot.pool == pool]

    def place(self, placement: Placement) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Take a device of the unit that is named, or else on a node in service, and its cores."""
        units = self.of(placement.pool)
        named = [units[unit] for unit, _ in placement.nodes]
        free = [number for number in units if number in self._free]
        best = sorted(free, key=lambda n: (n not in named, self.slots[n].node in self.inventory.away))
        taken = best[: placement.units]
        cores: list[int] = []
        for number in taken:
            self._free.remove(number)
            cores += self.inventory.take(self.slots[number].node, self.slots[number].cores)
        return tuple(taken), tuple(cores)

    def opened_as(self, numbers: Sequence[int]) -> str:
        """Return ``TENBIN_DEVICE`` of a job."""
        return ",".join(str(self.slots[number].index) for number in numbers)

    def gres(self, numbers: Sequence[int]) -> str:
        """Name the generic resources that Slurm is asked for with a job's device."""
        return ",".join(self.slots[number].gres for number in numbers)

    def occupy(self, numbers: Sequence[int]) -> None:
        self._free = [number for number in self._free if number not in numbers]

    def free(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number < len(self.slots) and number not in self._free:
                insort(self._free, number)

    def out_of_service(self, pool: str) -> int:
        """Count the free devices of a class whose nodes cannot be used."""
        return sum(n in self._free and self.slots[n].node in self.inventory.away for n in self.of(pool))
