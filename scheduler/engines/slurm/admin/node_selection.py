"""Selection of the nodes to measure: named by ``--nodes``, free now, and grouped by partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiles.clusters import Refused
from profiles.errors import BadInput
from scheduler.engines.slurm.client import parse
from scheduler.engines.slurm.client.parse import SlurmNode

Partitions = Mapping[str, Mapping[str, str]]


def select_nodes(text: str, nodes: Sequence[SlurmNode], partitions: Partitions) -> list[SlurmNode]:
    """Return the nodes that ``all``, a list (``node[1-3],x``) or a partition's name stands for, each once.

    Raises:
        BadInput: a name is neither a node nor a partition.
    """
    known = {node.name: node for node in nodes}
    if text == "all":
        return list(known.values())
    selected: dict[str, SlurmNode] = {}
    for name in parse.hosts(text):
        if name in known:
            selected[name] = known[name]
        elif name in partitions:
            selected |= {node.name: node for node in nodes if name in node.partitions}
        else:
            remedy = f"see: sinfo -N; partitions: {', '.join(partitions) or 'none'}"
            raise BadInput(f"--nodes: there is no node or partition '{name}'", remedy)
    if not selected:
        raise BadInput(f"--nodes: {text!r} names no node", "write all, a list as node[1-3], or a partition")
    return list(selected.values())


def split_free(nodes: Sequence[SlurmNode]) -> tuple[list[SlurmNode], list[Refused]]:
    """Split nodes into those that are free, and the others with the reason."""
    free, refused = [], []
    for node in nodes:
        if not node.usable:
            why = f"it is {node.state}" + (f" ({node.reason})" if node.reason else "")
            remedy = f"see: scontrol show node {node.name}"
        elif node.cpus_used:
            why = f"it runs jobs ({node.cpus_used} of {node.cpus} CPUs)"
            remedy = f"measure it when it is quiet: tenbin profile --nodes {node.name}"
        elif not node.partitions:
            why, remedy = "it is in no partition", "add it to one"
        else:
            free.append(node)
            continue
        refused.append(Refused(node=node.name, reason=why, remedy=remedy))
    return free, refused


def group_by_partition(
    nodes: Sequence[SlurmNode], partitions: Partitions
) -> list[tuple[str, list[SlurmNode]]]:
    """Return as few partitions as have all the nodes, with the nodes of each.

    Each time the partition with most of the nodes left is taken; the default one wins a tie.
    """
    left, groups = list(nodes), []
    usable = {name: words for name, words in partitions.items() if words.get("State", "UP") == "UP"}

    def worth(name: str) -> tuple[int, bool]:
        return sum(name in node.partitions for node in left), usable[name].get("Default") == "YES"

    while left and usable:
        best = max(usable, key=worth)
        group = [node for node in left if best in node.partitions]
        if not group:
            break
        groups.append((best, group))
        left = [node for node in left if best not in node.partitions]
    return groups
