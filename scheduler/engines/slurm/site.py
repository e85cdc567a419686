"""The part of a Slurm cluster that tenbin schedules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.multi_node.lease import LEASE_S
from profiles.checks.check import Fitness
from scheduler.engines.slurm.client.tools import Slurm
from scheduler.engines.slurm.external.sbatch_queue import SbatchQueue
from scheduler.engines.slurm.nodes.devices import Devices
from scheduler.engines.slurm.nodes.node_inventory import NodeInventory


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
    set_down: bool = False
    fitness: Fitness | None = None
    partitions: str = ""
