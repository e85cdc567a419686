"""The part of a Slurm cluster that tenbin schedules: nodes, cores, devices, and the jobs that have them."""

from __future__ import annotations

import json
import math
from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from agent.multi_node.lease import LEASE_S
from profiles.checks.check import Fitness
from profiles.files.safe_files import write_whole
from scheduler.engines.common.region_placement import StoredRegionPlacement
from scheduler.engines.slurm.sbatch_queue import SbatchQueue
from scheduler.engines.slurm.slurm_commands import Slurm
from scheduler.jobs.entry import Entry
from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Placement, Pool

# -- nodes and cores ---------------------------------------------------------------------------------------


class ClusterNode(NamedTuple):
    """A node as tenbin counts it; ``gpus``: how many of each type of Slurm's (Gres), "" where it has none."""

    name: str
    cores: int
    memory_mb: float
    gpus: Mapping[str, int] = MappingProxyType({})


class NodeInventory:
    """The nodes by their numbers; their cores are numbered through, node after node.

    The free cores of a node are counted here and in the cluster state, not by Slurm, which frees those of
    a suspended job and gives them back unchecked.

    Attributes:
        away: why nodes cannot be used now, by number.
        fences: which units belong to which region, where units are counted; None: they are not.
    """

    def __init__(self, hosts: Sequence[ClusterNode], unit: Unit, whole: bool) -> None:
        """``whole``: a unit is a node with all its cores, however many; else ``unit.cores`` of one node."""
        self.hosts, self.unit, self.whole = tuple(hosts), unit, whole
        starts = list(accumulate((host.cores for host in hosts), initial=0))
        self._cores = [list(range(first, last)) for first, last in pairwise(starts)]
        self._free = [list(cores) for cores in self._cores]
        self.node_of = {core: node for node, cores in enumerate(self._cores) for core in cores}
        self.number = {host.name: number for number, host in enumerate(hosts)}
        self.away: dict[int, str] = {}
        self.fences: StoredRegionPlacement | None = None

    def fence(self, store: Path) -> None:
        """Count units, which may be cut into regions; their placement is kept in the folder."""
        self.fences = StoredRegionPlacement(
            store, [len(cores) // self._unit_cores(n) for n, cores in enumerate(self._cores)]
        )

    def place(self, job: Entry, placement: Placement, pool: Pool) -> tuple[int, ...]:
        """Take cores for the job."""
        if pool.counted:
            cores = self._any(job, placement)
            self._hold(job, placement, cores)
            return cores
        of_unit = int(job.job.way(placement).demand[0])
        return tuple(core for node, units in placement.nodes for core in self.take(node, units * of_unit))

    def _any(self, job: Entry, placement: Placement) -> tuple[int, ...]:
        """Take units where they are best; those of a node out of service last."""
        present = [node for node in range(len(self.hosts)) if node not in self.away]
        anywhere = dict.fromkeys((*present, *self.away), placement.units)
        taken: list[int] = []
        left = placement.units
        best = self._best(job, placement) or self._alike(placement.units, present)
        for node, most in (*best.items(), *anywhere.items()):
            units = min(left, most, self.free_units(node))
            taken += self.take(node, units * self._unit_cores(node))
            left -= units
        return tuple(taken)

    def _best(self, job: Entry, placement: Placement) -> dict[int, int]:
        """Choose units of nodes: where a paused job still is, on the named nodes, or in its region."""
        if job.alive and job.cores:
            where = self._units_of(job.cores)
            if all(self.free_units(node) >= units for node, units in where.items()):
                return where
        if placement.nodes or self.fences is None:
            return {node: placement.units for node, _ in placement.nodes}
        return self.fences.place(placement.region, placement.units, self.away)

    def _alike(self, units: int, nodes: Iterable[int]) -> dict[int, int]:
        """Choose equally many units of few nodes, the fullest that will do; {}: Slurm would let the job wait.

        Slurm holds as many cores of each node for a job as of the one that gives most.
        """
        free = {node: self.free_units(node) for node in nodes}
        most = max(free.values(), default=0)
        held, chosen = math.inf, dict[int, int]()
        for count in range(-(-units // most), len(free) + 1) if most else ():
            share = -(-units // count)
            able = sorted((node for node in free if free[node] >= share), key=free.__getitem__)
            if len(able) >= count and share * count < held:
                held, chosen = share * count, dict.fromkeys(able[:count], share)
            if held == units or share == 1:
                break
        return chosen

    def _units_of(self, cores: Iterable[int]) -> dict[int, int]:
        """Count the units of a counted pool, by node."""
        cores_of_node = Counter(self.node_of[core] for core in cores if core in self.node_of)
        return {node: -(-count // self._unit_cores(node)) for node, count in cores_of_node.items()}

    def hold(self, job: Entry) -> None:
        """Give the job its cores again after a restart."""
        self.occupy(job.cores)
        if job.placement is not None:
            self._hold(job, job.placement, job.cores)

    def _hold(self, job: Entry, placement: Placement, cores: Iterable[int]) -> None:
        if self.fences is not None:
            self.fences.hold(job.id, placement.region, self._units_of(cores))

    def release(self, job: Entry) -> None:
        """Take the job's cores back."""
        self.free(job.cores)
        if self.fences is not None:
            self.fences.release(job.id)

    def regions(self) -> dict[str, dict[str, int]]:
        """Count the units of each node that belong to each region; {} without regions."""
        fences = self.fences
        if fences is None or not fences.regions:
            return {}
        return {host.name: fences.of(number) for number, host in enumerate(self.hosts)}

    def free_units(self, node: int) -> int:
        """Count the free units of a node."""
        return len(self._free[node]) // self._unit_cores(node)

    def have_room(self, cores: Iterable[int]) -> bool:
        """Tell if as many cores are free on each of their nodes."""
        counts = Counter(self.node_of[core] for core in cores if core in self.node_of)
        return all(len(self._free[node]) >= count for node, count in counts.items())

    def units(self) -> int:
        """Count all units."""
        return sum(len(cores) // self._unit_cores(node) for node, cores in enumerate(self._cores))

    def out_of_service(self) -> int:
        """Count free units that cannot be used; those of jobs follow when they are freed."""
        return sum(self.free_units(node) for node in self.away)

    def _unit_cores(self, node: int) -> int:
        return len(self._cores[node]) if self.whole else self.unit.cores

    def occupy(self, cores: Iterable[int]) -> None:
        for core in cores:
            if core in self.node_of and core in self._free[self.node_of[core]]:
                self._free[self.node_of[core]].remove(core)

    def free(self, cores: Iterable[int]) -> None:
        for core in cores:
            if core in self.node_of and core not in self._free[self.node_of[core]]:
                insort(self._free[self.node_of[core]], core)

    def shares(self, cores: Iterable[int]) -> dict[str, int]:
        """Count the cores on each node."""
        shares: dict[str, int] = {}
        for core in cores:
            name = self.hosts[self.node_of[core]].name
            shares[name] = shares.get(name, 0) + 1
        return shares

    def places(self, cores: Iterable[int]) -> tuple[int, ...]:
        """Count the same cores on their node from 0."""
        return tuple(core - self._cores[self.node_of[core]][0] for core in cores)

    def take(self, node: int, count: int) -> list[int]:
        """Take free cores of a node, as far as there are any."""
        taken = self._free[node][:count]
        del self._free[node][:count]
        return taken


def remember(file: Path, present: Sequence[ClusterNode]) -> list[ClusterNode]:
    """Give the nodes their earlier numbers, then number the new ones, and write that down.

    A node that is gone keeps its number, because jobs may be there. Memory and GPUs are those of now.
    """
    try:
        known = [ClusterNode(*row) for row in json.loads(file.read_text())]
    except (OSError, ValueError, TypeError):
        known = []
    now = {host.name: host for host in present}
    known = [now.get(host.name, host)._replace(cores=host.cores) for host in known]
    hosts = known + [host for host in present if host.name not in {row.name for row in known}]
    if not any(host.name in now for host in known):
        hosts = list(present)  # nothing is left of it: another cluster, or another partition
    write_whole(file, json.dumps([host._replace(gpus=dict(host.gpus)) for host in hosts]))
    return hosts


# -- devices -----------------------------------------------------------------------------------------------
#
# The OpenCL devices of the nodes, in classes, and those that jobs have.
#
# Devices of one class are alike, and so are their nodes; one unit is one device of a node. With it comes
# its share of the node's cores.


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
        self._left = {key: other for key, other in self._left.items() if other.alive}
        awaited = {number for other in self._left.values() for number in other.devices}
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


# -- the whole ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SitePower:
    """The power caps of the nodes.

    Attributes:
        sysfs: root of a node's tree with its zones, ``%N`` in it is the node's name.
        states: where each node keeps the settings to be restored.
        rest_w: what all nodes draw at rest, which the budget of the cluster is without.
        emulated: the machine that each node emulates; empty: they are real.
    """

    sysfs: str
    states: Path
    rest_w: float
    emulated: str = ""


@dataclass(frozen=True)
class Site:
    """The part of a Slurm cluster that tenbin schedules.

    Attributes:
        partition: where jobs are submitted.
        shared: jobs share nodes, each on whole cores of its own.
        threads: CPUs of a core if nodes are shared, else 1.
        lease_s: a job that cannot see its folder for so long ends itself; jobs of a lost node wait for it.
        power: of nodes under caps and one budget; None without.
        sbatch: the external jobs that are taken over; None: none are.
        devices: the devices that jobs get; None: jobs get nodes and cores.
        gres: what Slurm is asked for with a GPU, by the resource of the nodes; {}: GPUs are not scheduled.
        set_down: Slurm is told at once of dead nodes, which takes an administrator.
        fitness: by which unfit nodes are drained; None: none are.
        partitions: prefix of the partitions of regions; "" for no partitions.
    """

    slurm: Slurm
    partition: str
    inventory: NodeInventory
    lease_s: float = LEASE_S
    shared: bool = False
    threads: int = 1
    power: SitePower | None = None
    sbatch: SbatchQueue | None = None
    devices: Devices | None = None
    gres: Mapping[str, str] = field(default_factory=dict)
    set_down: bool = False
    fitness: Fitness | None = None
    partitions: str = ""
