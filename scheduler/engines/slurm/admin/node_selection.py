"""The nodes that ``--nodes`` means: those that can be measured now, by partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiles.clusters import Refused
from profiles.errors import BadInput
from scheduler.engines.slurm.client import parse
from scheduler.engines.slurm.client.parse import SlurmNode

Partitions = Mapping[str, Mapping[str, str]]


def named(text: str, nodes: Sequence[SlurmNode], partitions: Partitions) -> list[SlurmNode]:
    """Find the nodes that ``all``, a list (``node[1-3],x``) or a partition's name stands for, each once.

    Raises:
        BadInput: a name is neither a node nor a partition.
    """
    known = {node.name: node for node in nodes}
    if text == "all":
        return list(known.values())
    found: dict[str, SlurmNode] = {}
    for name in parse.hosts(text):
        if name in known:
            found[name] = known[name]
        elif name in partitions:
            found |= {node.name: node for node in nodes if name in node.partitions}
        else:
            remedy = f"see: sinfo -N; partitions: {', '.join(partitions) or 'none'}"
            raise BadInput(f"--nodes: there is no node or partition '{name}'", remedy)
    if not found:
        raise BadInput(f"--nodes: {text!r} names no node", "write all, a list as node[1-3], or a partition")
    return list(found.values())


def sorted_out(nodes: Sequence[SlurmNode]) -> tuple[list[SlurmNode], list[Refused]]:
    """Sort the nodes that are free from the others, with the reason."""
    free, refused = [], []
    for node in nodes:
        if not node.usable:
            why = f"it is {node.state}" + (f" ({node.reason})" if node.reason else "")
            refused.append(Refused(node=node.name, reason=why, remedy=f"see: scontrol show node {node.name}"))
        elif node.cpus_used:
            why = f"it runs jobs ({node.cpus_used} of {node.cpus} CPUs)"
            remedy = f"measure it when it is quiet: tenbin profile --nodes {node.name}"
            refused.append(Refused(node=node.name, reason=why, remedy=remedy))
        elif not node.partitions:
            refused.append(Refused(node=node.name, reason="it is in no partition", remedy="add it to one"))
        else:
            free.append(node)
    return free, refused


def groups(nodes: Sequence[SlurmNode], partitions: Partitions) -> list[tuple[str, list[SlurmNode]]]:
    """Choose as few partitions as reach all the nodes; among equals the default one first."""
    left, found = list(nodes), []
    usable = {name: words for name, words in partitions.items() if words.get("State", "UP") == "UP"}
    while left:
        sizes = {
            name: (sum(name in node.partitions for node in left), words.get("Default") == "YES")
            for name, words in usable.items()
        }
        best = max(sizes, key=lambda name: sizes[name], default=None)
        if best is None or not sizes[best][0]:
            break
        found.append((best, [node for node in left if best in node.partitions]))
        left = [node for node in left if best not in node.partitions]
    return found
