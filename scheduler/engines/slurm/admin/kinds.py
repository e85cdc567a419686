"""Which kind of node those of a partition are: job profiles hold for one kind.

Found out by a job of a second on each node that has a CPU free, and remembered.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from profiles.errors import BadInput, Unavailable
from profiles.files import write_whole
from profiles.jobs import NodeKind
from scheduler.engines.slurm.admin.asking import ask
from scheduler.engines.slurm.client.parse import SlurmNode

SIDE_BY_SIDE = 8
LIMIT_S = 60.0
ASK = (
    "from agent.node_profile.node_kind import node_kind; print('tenbin-kind', node_kind().model_dump_json())"
)
MEASURE = "see: tenbin doctor --engine slurm; or start it when nodes are free"


def kind_of(nodes: Sequence[SlurmNode], file: Path) -> NodeKind:
    """The kind that all of the nodes are of; ``file`` is what is known from before.

    Raises:
        Unavailable: none can be asked now.
        BadInput: they are of several kinds.
    """
    try:
        known = {name: NodeKind(**one) for name, one in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        known = {}
    free = [node for node in nodes if node.usable and node.cpus_used < node.cpus]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for node, kind in zip(free, pool.map(_ask, free), strict=True):
            if kind is not None:
                known[node.name] = kind
    write_whole(file, json.dumps({name: kind.model_dump() for name, kind in known.items()}))
    found = {node.name: known[node.name] for node in nodes if node.name in known}
    if not found:
        raise Unavailable("no node says which kind it is", MEASURE)
    kinds = {kind.key: kind for kind in found.values()}
    if len(kinds) > 1:
        each = "; ".join(
            f"{', '.join(name for name, one in found.items() if one.key == key)}: {kind.title}"
            for key, kind in kinds.items()
        )
        remedy = "name a partition of nodes alike: job profiles hold for one kind of node"
        raise BadInput(f"the nodes are of several kinds ({each})", remedy)
    return next(iter(kinds.values()))


def _ask(node: SlurmNode) -> NodeKind | None:
    done = ask(node, [sys.executable, "-P", "-c", ASK], LIMIT_S)
    if done is None:
        return None
    for line in done.stdout.splitlines():
        if line.startswith("tenbin-kind "):
            return NodeKind(**json.loads(line.removeprefix("tenbin-kind ")))
    return None
