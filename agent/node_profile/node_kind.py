"""The kind of a node, as far as programs that share the node are concerned.

Coarser than a profile's fingerprint: a new kernel, disk or driver does not change how programs press on
memory, and a job profile is of use on every node alike.
"""

from __future__ import annotations

import hashlib
import json

from agent.inventory import read_machine
from profiles.inventory import Inventory
from profiles.jobs import NodeKind
from profiles.records import Settings

LENGTH = 12  # hexadecimal digits


def node_kind(inventory: Inventory | None = None) -> NodeKind:
    """Return the kind of this node, or of the node that the inventory describes."""
    i = inventory or read_machine(Settings())
    cpu, memory_gib = i.cpu, round(i.memory_mb * 1e6 / 2**30)
    facts = {
        "processor": [cpu.model, cpu.architecture, cpu.sockets, cpu.cores, cpu.threads],
        "caches": [[c.level, c.kind, c.size_kb, c.instances, c.shared_by_cpus] for c in cpu.caches],
        "memory_gib": memory_gib,
        "numa": [list(node.cpus) for node in i.numa],
        "huge_pages": i.tuning.huge_pages,
        "virtualisation": i.virtualisation,
    }
    text = json.dumps(facts, sort_keys=True)
    cores = f"{cpu.cores} core{'s' * (cpu.cores != 1)}"
    return NodeKind(
        key=hashlib.sha256(text.encode()).hexdigest()[:LENGTH],
        title=f"{cpu.model}, {cores}, {memory_gib} GiB",
    )
