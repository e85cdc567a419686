"""The identity of a node: its kind and its fingerprint.

The kind is coarse, for programs that share the node: a new kernel, disk or driver does not change how
programs press on memory, and a job profile is of use on every node alike.

The fingerprint is a short hash of what decides performance: processors, memory, caches, NUMA, devices and
drivers, kernel and its settings, storage, and hypervisor. A profile made under another fingerprint is stale.
It is not of what drifts (free space and memory), what tenbin changes (power caps), what a job's placement
decides (affinity, quotas), or the node's name, because two nodes alike have one fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import socket
from contextlib import suppress

from agent.inventory import read_machine
from probes.topology import cpu_ranges
from profiles.errors import BadInput
from profiles.files.store import Store, load
from profiles.quantities import compare_facts
from profiles.records import Cpu, Inventory, NodeKind, Profile, Settings

# -- kind --------------------------------------------------------------------------------------------------


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


MOST_KIN = 50  # nodes whose profiles are read to tell the place of one


def kin(store: Store, profile: Profile) -> list[Profile]:
    """Load the newest profile of each other node of the same kind; no damaged ones."""
    kind, profiles = node_kind(profile.inventory).key, []
    newest = {path.parents[1].name: path for path in reversed(store.paths())}
    for node, path in list(newest.items())[-MOST_KIN:]:
        with suppress(BadInput):
            if node != profile.node and _is_kin(other := load(path), profile, kind):
                profiles.append(other)
    return profiles


def _is_kin(other: Profile, profile: Profile, kind: str) -> bool:
    return other.emulated == profile.emulated and node_kind(other.inventory).key == kind


# -- fingerprint -------------------------------------------------------------------------------------------


def fingerprint(inventory: Inventory) -> str:
    """Compute twelve hexadecimal digits over all that decides performance."""
    text = json.dumps(deciding_facts(inventory), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def explain(old: Inventory, new: Inventory) -> list[str]:
    """List what changed between two inventories, a phrase each ("kernel 6.1.0 -> 6.8.0").

    Empty exactly where the fingerprints are equal.
    """
    return [str(difference) for difference in compare_facts(deciding_facts(old), deciding_facts(new))]


def changes_since(profile: Profile) -> list[str]:
    """List how this machine has changed since its profile was made; nothing for another node's profile.

    By what files tell: to ask the drivers (``tenbin doctor`` does) takes longer than all the rest.
    """
    if profile.emulated or profile.inventory.hostname != socket.gethostname():
        return []
    of_drivers = {name: getattr(profile.inventory, name) for name in ("opencl", "gpus", "mpi")}
    now = read_machine(profile.settings).model_copy(update=of_drivers)
    return explain(profile.inventory, now)


def deciding_facts(inventory: Inventory) -> dict[str, str]:
    """Describe all that decides performance in words, by name."""
    i = inventory
    facts: dict[str, str | None] = {
        **_cpu(i.cpu),
        # A firmware or a kernel keeps a little more or less for itself.
        "memory": f"{i.memory_mb * 1e6 / 2**30:.0f} GiB",
        "kernel": i.kernel,
        "transparent huge pages": i.tuning.huge_pages,
        "NUMA balancing": None if i.tuning.numa_balancing is None else _on(i.tuning.numa_balancing),
        "virtualisation": i.virtualisation,
        "container": i.container,
        "MPI": i.mpi.library if i.mpi else None,
    }
    for node in i.numa:
        facts[f"NUMA node {node.index}"] = (
            f"CPUs {cpu_ranges(node.cpus) or 'none'}, distances {list(node.distances)}"
        )
    for s in i.storage:
        direct = "with" if s.direct_io else "without"
        words = " ".join(word for word in (s.kind, s.model, s.filesystem) if word)
        facts[f"storage {s.folder}"] = f"{words}, {direct} direct I/O"
    for n in i.network:
        if not n.virtual:
            speed = "unknown speed" if n.speed_mbit is None else f"{n.speed_mbit:.0f} Mbit/s"
            near = "" if n.numa_node is None else f", NUMA node {n.numa_node}"
            facts[f"interface {n.name}"] = f"{n.driver}, {speed}{near}"
    for d in i.opencl:
        facts[f"OpenCL device {d.key}"] = f"{d.name}, driver {d.driver}, {d.compute_units} compute units"
    for g in i.gpus:
        facts[f"GPU {g.index}"] = f"{g.name}, {g.memory_mb * 1e6 / 2**30:.0f} GiB, driver {g.driver}"
    for zone in i.power:
        facts[f"power zone {zone.name}"] = "with a cap" if zone.cap_w is not None else "without a cap"
    return {what: value for what, value in facts.items() if value is not None}


def amounts_of(inventory: Inventory) -> dict[str, float]:
    """Say how much there is, of the deciding facts that are amounts."""
    i = inventory
    amounts: dict[str, float] = {
        "memory": round(i.memory_mb * 1e6 / 2**30),
        "sockets": i.cpu.sockets,
        "logical CPUs": i.cpu.threads,
        **{f"interface {n.name}": n.speed_mbit or 0.0 for n in i.network if not n.virtual},
        **{f"GPU {g.index}": round(g.memory_mb * 1e6 / 2**30) for g in i.gpus},
    }
    for c in i.cpu.caches:
        name = _cache(c.level, c.kind)
        amounts[name] = amounts.get(name, 0.0) + c.instances * c.size_kb
    return amounts


def _cpu(cpu: Cpu) -> dict[str, str | None]:
    facts: dict[str, str | None] = {
        "processor": cpu.model,
        "architecture": cpu.architecture,
        "sockets": str(cpu.sockets),
        "dies": None if cpu.dies is None else str(cpu.dies),
        "cores": ", ".join(f"{n} {kind}" for kind, n in sorted(cpu.core_kinds.items())),
        "logical CPUs": str(cpu.threads),
        "SMT": _on(cpu.smt),
        "governor": cpu.governor,
        "turbo": None if cpu.turbo is None else _on(cpu.turbo),
        "maximum frequency": None if cpu.max_mhz is None else f"{cpu.max_mhz:.0f} MHz",
    }
    for level in sorted({(c.level, c.kind) for c in cpu.caches}):
        sizes = [
            f"{c.instances} x {c.size_kb} KiB for {c.shared_by_cpus} CPUs"
            for c in sorted(cpu.caches, key=lambda c: (c.size_kb, c.shared_by_cpus))
            if (c.level, c.kind) == level
        ]
        facts[_cache(*level)] = ", ".join(sizes)
    return facts


def _cache(level: int, kind: str) -> str:
    return f"L{level} {kind} cache"


def _on(value: bool) -> str:
    return "on" if value else "off"
