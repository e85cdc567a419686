"""What of a Slurm cluster is scheduled, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.multi_node.lease import LEASE_S
from scheduler.engines.slurm.client.tools import Slurm
from scheduler.engines.slurm.external.sbatch_queue import SbatchQueue
from scheduler.engines.slurm.nodes.devices import Devices
from scheduler.engines.slurm.nodes.node_inventory import NodeInventory


@dataclass(frozen=True)
class SitePower:
    """What of the nodes' power caps is known.

    Attributes:
        sysfs: root of a node's tree with its zones, ``%N`` in it is the node's name.
        states: where each node keeps what is to be put back.
        rest_w: what all nodes draw at rest, which the budget of the cluster is without.
        emulated: the machine that each node emulates; empty: they are real.
    """

    sysfs: str
    states: Path
    rest_w: float
    emulated: str = ""


@dataclass(frozen=True)
class Site:
    """What of a Slurm cluster tenbin schedules.

    Attributes:
        partition: its jobs go there.
        shared: jobs share nodes, each on whole cores of its own. threads: CPUs of such a core, else 1.
        lease_s: a job that cannot see its folder for so long ends itself; a lost node's jobs wait for that.
        power: of its nodes, where they are under caps and one budget.
        sbatch: where jobs of plain sbatch are taken over.
        devices: what jobs get, where classes of devices are scheduled; else nodes and cores.
        set_down: have Slurm know at once of nodes that are dead; it takes an administrator.
        partitions: regions are made partitions of such names; "": they are not.
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
    partitions: str = ""
