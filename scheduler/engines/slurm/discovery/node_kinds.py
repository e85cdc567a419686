"""The kind of node of a partition, because job profiles hold for one kind.

Each node with a free CPU is asked by a job of a second. Answers are remembered for nodes that are not free.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from profiles.errors import BadInput, Unavailable
from profiles.files.whole_files import write_whole
from profiles.jobs import NodeKind
from scheduler.engines.slurm.client.node_programs import ask_nodes
from scheduler.engines.slurm.client.parse import SlurmNode

LIMIT_S = 60.0
PREFIX = "tenbin-kind "
PRINT_KIND = (
    f"from agent.node_profile.node_kind import node_kind; print('{PREFIX}' + node_kind().model_dump_json())"
)


def node_kind_of(nodes: Sequence[SlurmNode], file: Path) -> NodeKind:
    """Return the kind that all of the nodes are of; ``file`` keeps the answers.

    Raises:
        Unavailable: the kind of no node is known.
        BadInput: the nodes are of several kinds.
    """
    try:
        known = {name: NodeKind(**kind) for name, kind in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        known = {}
    free = [node for node in nodes if node.usable and node.cpus_used < node.cpus]
    for node, answer in zip(free, ask_nodes(free, ["-c", PRINT_KIND], PREFIX, limit_s=LIMIT_S), strict=True):
        if isinstance(answer, str):
            known[node.name] = NodeKind(**json.loads(answer.removeprefix(PREFIX)))
    write_whole(file, json.dumps({name: kind.model_dump() for name, kind in known.items()}))
    found = {node.name: known[node.name] for node in nodes if node.name in known}
    if not found:
        remedy = "see: tenbin doctor --engine slurm; or start it when nodes are free"
        raise Unavailable("no node says which kind it is", remedy)
    kinds = {kind.key: kind for kind in found.values()}
    if len(kinds) > 1:
        each = "; ".join(
            f"{', '.join(name for name, one in found.items() if one.key == key)}: {kind.title}"
            for key, kind in kinds.items()
        )
        remedy = "name a partition of nodes alike: job profiles hold for one kind of node"
        raise BadInput(f"the nodes are of several kinds ({each})", remedy)
    return next(iter(kinds.values()))
