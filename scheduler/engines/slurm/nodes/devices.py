"""The OpenCL devices of the nodes, in classes, and those that jobs have.

Devices of one class are alike, and so are their nodes; one unit is one device of a node. With it comes its
share of the node's cores.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from scheduler.engines.slurm.nodes.node_inventory import NodeInventory
from scheduler.jobs.entry import Entry
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
        key: of the device, as a job sees it there that has it.
    """

    pool: str
    node: int
    index: int
    cores: int
    gres: str = ""
    key: str = ""


class Devices:
    """The devices by their numbers.

    A job that is paused or parked goes on on its own device, which new jobs therefore get last. If that has
    another job, both are users of it; the one that goes on waits (``shared``).
    """

    def __init__(self, slots: Sequence[Slot], inventory: NodeInventory) -> None:
        self.slots, self.inventory = tuple(slots), inventory
        self._users: list[set[int]] = [set() for _ in slots]
        self._left: dict[int, Entry] = {}  # jobs that have left their device, and may go on there

    def of(self, pool: str) -> list[int]:
        """List the numbers of a class's devices, in the order of its units."""
        return [number for number, slot in enumerate(self.slots) if slot.pool == pool]

    def place(self, job: Entry, placement: Placement) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Take a device and its cores: its own, the unit that is named, or else on a node in service."""
        self._left.pop(job.id, None)
        if job.alive and job.devices:
            self.inventory.occupy(job.cores)
            self.occupy(job)
            return job.devices, job.cores
        units = self.of(placement.pool)
        named = [units[unit] for unit, _ in placement.nodes]
        free = [number for number in units if not self._users[number]]
        self._left = {key: one for key, one in self._left.items() if one.alive}
        awaited = {number for one in self._left.values() for number in one.devices}
        away = self.inventory.away
        best = sorted(free, key=lambda n: (n not in named, self.slots[n].node in away, n in awaited))
        taken = best[: placement.units]
        cores: list[int] = []
        for number in taken:
            self._users[number].add(job.id)
            cores += self.inventory.take(self.slots[number].node, self.slots[number].cores)
        return tuple(taken), tuple(cores)

    def shared(self, job: Entry, waiting: Collection[int] = ()) -> bool:
        """Tell if a device of the job has another job as well; ``waiting``: jobs that do not run there."""
        return any(self._users[number] - {job.id, *waiting} for number in self._known(job))

    def opened_as(self, numbers: Sequence[int]) -> str:
        """Return ``TENBIN_DEVICE`` of a job."""
        return ",".join(str(self.slots[number].index) for number in numbers)

    def gres(self, numbers: Sequence[int]) -> str:
        """Name the generic resources that Slurm is asked for with a job's device."""
        return ",".join(self.slots[number].gres for number in numbers)

    def occupy(self, job: Entry) -> None:
        """Give the job its devices again."""
        for number in self._known(job):
            self._users[number].add(job.id)

    def free(self, job: Entry) -> None:
        """Take the job's devices back."""
        for number in self._known(job):
            self._users[number].discard(job.id)
        if job.alive:
            self._left[job.id] = job

    def out_of_service(self, pool: str) -> int:
        """Count the free devices of a class whose nodes cannot be used."""
        units = self.of(pool)
        away = sum(not self._users[n] and self.slots[n].node in self.inventory.away for n in units)
        return min(away, len(units) - sum(len(self._users[n]) for n in units))

    def _known(self, job: Entry) -> list[int]:
        """List the job's devices; a device may be gone since."""
        return [number for number in job.devices if number < len(self.slots)]
