"""NodeName lines of slurm.conf, with Feature, Gres and Weight, from the profiles of the nodes.

Addresses, features and generic resources that the site has given a node stay. Features that begin with
``tb_`` are tenbin's and are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from agent.node_profile.node_kind import node_kind
from profiles.inventory import Inventory
from profiles.records import Profile, Quality
from profiles.siblings import Odd
from scheduler.engines.slurm.client import parse
from scheduler.engines.slurm.nodes.devices import gres_type

OURS = "tb_"
MEMORY_KEPT = 0.01  # a kernel may tell a little less after an update, and slurmd then refuses the node
GPU_WEIGHT = 1000  # keeps nodes with GPUs for jobs that ask for GPUs


@dataclass(frozen=True)
class NodeLine:
    """One node in slurm.conf; ``settings`` are in the order in which they are written."""

    name: str
    settings: Mapping[str, str]
    gres: tuple[str, ...] = ()  # lines of gres.conf

    def __str__(self) -> str:
        return " ".join([f"NodeName={self.name}", *(f"{k}={v}" for k, v in self.settings.items())])


def read_nodes(text: str) -> dict[str, Mapping[str, str]]:
    """Read the output of ``scontrol -o show node``: settings by node."""
    found = map(parse.words_of, text.splitlines())
    return {words["NodeName"]: words for words in found if "NodeName" in words}


def node_lines(
    profiles: Mapping[str, Profile], odd: Sequence[Odd], known: Mapping[str, Mapping[str, str]]
) -> list[NodeLine]:
    """Return the lines of all nodes, in the order of ``profiles``.

    Args:
        odd: nodes unlike others of their kind; each gets a weight of its own.
        known: settings of the nodes in Slurm today.
    """
    odd_names = {one.value.node for one in odd}
    speeds = _alike(profiles, {name: _speed(profile) for name, profile in profiles.items()}, odd_names)
    best = max(speeds.values(), default=1.0)
    weights = {name: round(100 * best / speed) for name, speed in speeds.items()}
    memory = _alike(profiles, {name: _bandwidth(profile) for name, profile in profiles.items()}, odd_names)
    return [
        _line(
            profile,
            known.get(name, {}),
            name=name,
            weight=weights.get(name, 100),
            memory_gbs=memory.get(name),
        )
        for name, profile in profiles.items()
    ]


def _line(
    profile: Profile, known: Mapping[str, str], *, name: str, weight: int, memory_gbs: float | None
) -> NodeLine:
    i = profile.inventory
    settings = {}
    for key, written in (("NodeAddr", "NodeAddr"), ("NodeHostName", "NodeHostname"), ("Port", "Port")):
        if known.get(key, name) != name:
            settings[written] = known[key]
    settings |= _processors(i)
    settings["RealMemory"] = str(int(i.memory_mb / parse.MIB * (1 - MEMORY_KEPT)) // 100 * 100)
    words = known.get("AvailableFeatures", "").split(",")
    features = [word for word in words if word and not word.startswith(OURS)] + _features(profile, memory_gbs)
    settings["Feature"] = ",".join(dict.fromkeys(features))
    counted = _gpus(i)
    site_gres = re.sub(r"\([^)]*\)", "", known.get("Gres", ""))  # without sockets, because Slurm adds them
    gres = site_gres or ",".join(f"gpu:{kind}:{number}" for kind, number in counted.items())
    if gres:
        settings["Gres"] = gres
    settings["Weight"] = str(weight + GPU_WEIGHT * bool(gres))
    settings["State"] = "UNKNOWN"
    return NodeLine(name, settings, () if site_gres else tuple(_gres(name, i, counted)))


def _processors(i: Inventory) -> dict[str, str]:
    """Return sockets, cores and threads if they divide evenly, else only the number of CPUs."""
    cpu = i.cpu
    found = {"CPUs": str(cpu.threads)}
    if cpu.cores % cpu.sockets == 0 and cpu.threads % cpu.cores == 0:
        found["Sockets"] = str(cpu.sockets)
        found["CoresPerSocket"] = str(cpu.cores // cpu.sockets)
        found["ThreadsPerCore"] = str(cpu.threads // cpu.cores)
    return found


def _features(profile: Profile, memory_gbs: float | None) -> list[str]:
    """Return features: kind of node, memory bandwidth of all cores in GB/s, kinds of OpenCL devices."""
    found = [f"{OURS}kind_{node_kind(profile.inventory).key}"]
    if memory_gbs:
        found.append(f"{OURS}mem_{float(f'{memory_gbs:.2g}'):g}gbs")
    return found + sorted({f"{OURS}cl_{gres_type(device.kind)}" for device in profile.inventory.opencl})


def _bandwidth(profile: Profile) -> float | None:
    """Return the bandwidth in GB/s at which most cores write local memory together."""
    found = [m for m in profile.models if m.quantity == "memory_bandwidth_gbs"]
    known = [m for m in found if m.coefficients[0].quality is not Quality.POOR]
    most = max(known, key=lambda m: int(m.labels.get("cores", "0")), default=None)
    return most.coefficients[0].value if most else None


def _alike(
    profiles: Mapping[str, Profile], own: Mapping[str, float | None], odd: set[str]
) -> dict[str, float]:
    """Return a value for each node: its own if the node is odd, else the median of its kind."""
    kinds = {name: node_kind(profile.inventory).key for name, profile in profiles.items()}
    of: dict[str, list[float]] = {}
    for name, value in own.items():
        if value is not None and name not in odd:
            of.setdefault(kinds[name], []).append(value)
    return {
        name: value if name in odd else median(of[kinds[name]])
        for name, value in own.items()
        if value is not None
    }


def _speed(profile: Profile) -> float | None:
    """Return the mean speed of one core in computing and in writing memory, without unit."""
    parts = []
    if profile.conditions:
        parts.append(1 / median(condition.reference_s for condition in profile.conditions))
    if bandwidth := _bandwidth(profile):
        parts.append(bandwidth / profile.inventory.cpu.cores)
    return geometric_mean(parts) if parts else None


def _gpus(i: Inventory) -> dict[str, int]:
    """Count GPUs by type, as NVML shows them, else as OpenCL does."""
    names = [gpu.name for gpu in i.gpus] or [device.name for device in i.opencl if device.kind == "gpu"]
    types = [gres_type(name) for name in names]
    return {kind: types.count(kind) for kind in dict.fromkeys(types)}


def _gres(name: str, i: Inventory, counted: Mapping[str, int]) -> list[str]:
    if i.gpus:
        return [
            f"NodeName={name} Name=gpu Type={gres_type(g.name)} File=/dev/nvidia{g.index}" for g in i.gpus
        ]
    return [f"NodeName={name} Name=gpu Type={kind} Count={number}" for kind, number in counted.items()]


def conf_texts(lines: Sequence[NodeLine], title: str) -> tuple[str, str]:
    """Return the text for slurm.conf and for gres.conf, which is empty if no node needs it."""
    gres = [line for node in lines for line in node.gres]
    head = [
        f"# {title}",
        "# In place of the NodeName lines of slurm.conf; then restart slurmctld and all slurmd.",
    ]
    if gres:
        named = (one for node in lines for one in node.settings.get("Gres", "").split(",") if one)
        head.append(f"GresTypes={','.join(dict.fromkeys(one.split(':')[0] for one in named))}")
    return "\n".join([*head, *map(str, lines)]) + "\n", "".join(f"{line}\n" for line in gres)
