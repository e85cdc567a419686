"""Cores of jobs that share a node: spread over its sockets, or near to and far from the network card.

The words follow Konishi et al. (2008): ``4x2`` alone on whole nodes, ``2x4`` spread over the sockets of
twice as many, ``2x4F`` on the socket next to the network card, ``2x4B`` on the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from probes.topology import Topology
from profiles.records import NetworkInterface
from scheduler.model.interference import FAR, NEAR, PACKED, SPREAD

WORDS = {PACKED: "4x2", SPREAD: "2x4", NEAR: "2x4F", FAR: "2x4B"}


@dataclass(frozen=True)
class Sockets:
    """The cores of each NUMA node, one logical CPU a core; the one next to the network card first.

    Attributes:
        card: True if the place of the network card is known.
    """

    cores: tuple[tuple[int, ...], ...]
    card: bool

    @property
    def why_not(self) -> str:
        """Say why there is nothing to choose; "" if there is."""
        if len(self.cores) > 1:
            return ""
        return "the cores that this process may use are of one socket and one NUMA node"

    def lay(self, bindings: Sequence[str], cores: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Choose the CPUs of jobs with these bindings and core counts on one node; None: no room."""
        free = [list(of_node) for of_node in self.cores]
        laid = []
        for binding, count in zip(bindings, cores, strict=True):
            where = {NEAR: free[:1], FAR: free[1:], PACKED: free}.get(binding)
            order = list(chain.from_iterable(where)) if where is not None else _in_turns(free)
            if len(order) < count:
                return None
            mine = order[:count]
            laid.append(tuple(sorted(mine)))
            free = [[core for core in of_node if core not in mine] for of_node in free]
        return laid


def sockets_of(topology: Topology, cards: Iterable[NetworkInterface]) -> Sockets:
    """List the NUMA nodes that have cores, first the node of the fastest network card."""
    known = [one for one in cards if one.numa_node is not None]
    card = max(known, key=lambda one: one.speed_mbit or 0.0).numa_node if known else None
    nodes = sorted({cpu.node for cpu in topology.cores}, key=lambda node: (node != card, node))
    cores = tuple(tuple(cpu.index for cpu in topology.cores_of(node)) for node in nodes)
    return Sockets(cores, card in nodes)


def _in_turns(free: Sequence[Sequence[int]]) -> list[int]:
    """Take a core of each socket in turn."""
    longest = max((len(cores) for cores in free), default=0)
    return [cores[i] for i in range(longest) for cores in free if i < len(cores)]
