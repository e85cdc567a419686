"""Nodes of the last snapshot: those that can be used, and those that are lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from profiles.checks.check import UNFIT, Fitness
from scheduler.engines.slurm.client.heartbeats import NOBODY, SET_DOWN, Answers
from scheduler.engines.slurm.client.parse import SlurmNode
from scheduler.engines.slurm.client.poller import ClusterSnapshot, SlurmPoller
from scheduler.engines.slurm.nodes.node_inventory import NodeInventory


class NodeStates:
    """The nodes of the inventory in the last snapshot.

    Args:
        set_down: have Slurm set dead nodes down, and resume those that are back.
        fitness: have Slurm drain nodes that failed their last check, and resume those that pass again.

    Attributes:
        away: why nodes cannot be used, by name.
        lost: why nodes are given up by Slurm.
        mute: nodes that do not answer.
    """

    def __init__(
        self,
        inventory: NodeInventory,
        poller: SlurmPoller,
        *,
        set_down: bool,
        fitness: Fitness | None = None,
    ) -> None:
        self.inventory, self.poller, self.set_down, self.fitness = inventory, poller, set_down, fitness
        self.away: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self.mute: frozenset[str] = frozenset()

    def see(self, snapshot: ClusterSnapshot) -> None:
        """Take a snapshot into account; the inventory knows then which nodes are away."""
        nodes = {node.name: node for node in snapshot.nodes}
        self.mute, self.away, self.lost = snapshot.answers.mute, {}, {}
        for host in self.inventory.hosts:
            node = nodes.get(host.name)
            if node is None:
                self.away[host.name] = self.lost[host.name] = "not in Slurm any more"
            elif not node.usable:
                self.away[host.name] = f"{node.state.replace('+', ' ')}: {node.reason}".rstrip(": ")
                if node.lost:
                    self.lost[host.name] = self.away[host.name]
            elif host.name in self.mute:
                self.away[host.name] = "no sign of life; its slurmd does not answer"
            elif node.cpus < host.cores:
                had = f"has {node.cpus} CPUs, had {host.cores}"
                self.away[host.name] = f"{had}; start tenbin up again when it is idle"
        self.inventory.away = {self.inventory.number[name]: why for name, why in self.away.items()}
        if self.set_down:
            self._set_down(snapshot.nodes, snapshot.answers)
        if self.fitness is not None:
            self._drain(snapshot.nodes, self.fitness)

    def _set_down(self, nodes: Sequence[SlurmNode], answers: Answers) -> None:
        slurm, heartbeats = self.poller.slurm, self.poller.heartbeats
        for node in nodes:
            name = node.name
            if name not in self.inventory.number:
                continue
            if name in answers.mute and not node.lost and heartbeats.still(name):
                down = partial(slurm.set_node, name, "DOWN", SET_DOWN)
                self.poller.do(NOBODY, f"set {name} down", down)
            elif name in answers.back:
                self.poller.do(NOBODY, f"resume {name}", partial(slurm.set_node, name, "RESUME"))

    def _drain(self, nodes: Sequence[SlurmNode], fitness: Fitness) -> None:
        """Drain nodes that failed their last check; resume those that passed and were drained for that."""
        slurm = self.poller.slurm
        for node in nodes:
            if node.name not in self.inventory.number:
                continue
            why = fitness.why_unfit(node.name)
            if why and node.usable:
                drain = partial(slurm.set_node, node.name, "DRAIN", why)
                self.poller.do(NOBODY, f"drain {node.name}", drain)
            elif why == "" and "DRAIN" in node.states and node.reason.startswith(UNFIT.strip()):
                self.poller.do(NOBODY, f"resume {node.name}", partial(slurm.set_node, node.name, "RESUME"))
