"""Files for Slurm: NodeName lines of slurm.conf from the profiles of the nodes, and ``job_submit.lua``.

Addresses, features and generic resources that the site has given a node stay. Features that begin with
``tb_`` are tenbin's and are replaced.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from string import Template

from agent.node_profile.identity import node_kind
from profiles.clusters import Odd
from profiles.records import Cpu, Inventory, Profile, Quality
from scheduler.engines.slurm.slurm_commands import MIB, parse_words
from scheduler.jobs.gpus import kind_name

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
    lines = map(parse_words, text.splitlines())
    return {words["NodeName"]: words for words in lines if "NodeName" in words}


def node_lines(
    profiles: Mapping[str, Profile], odd: Sequence[Odd], known: Mapping[str, Mapping[str, str]]
) -> list[NodeLine]:
    """Return the lines of all nodes, in the order of ``profiles``.

    Args:
        odd: nodes unlike others of their kind; each gets a weight of its own.
        known: settings of the nodes in Slurm today.
    """
    odd_names = {finding.value.node for finding in odd}
    speeds = _alike(profiles, _speed, odd_names)
    fastest = max(speeds.values(), default=1.0)
    bandwidths = _alike(profiles, _bandwidth, odd_names)
    return [
        _line(
            profile,
            known.get(name, {}),
            name=name,
            weight=round(100 * fastest / speeds[name]) if name in speeds else 100,
            memory_gbs=bandwidths.get(name),
        )
        for name, profile in profiles.items()
    ]


def _line(
    profile: Profile, known: Mapping[str, str], *, name: str, weight: int, memory_gbs: float | None
) -> NodeLine:
    inventory = profile.inventory
    settings = {}
    for key, written in (("NodeAddr", "NodeAddr"), ("NodeHostName", "NodeHostname"), ("Port", "Port")):
        if known.get(key, name) != name:
            settings[written] = known[key]
    settings |= _processors(inventory.cpu)
    settings["RealMemory"] = str(int(inventory.memory_mb / MIB * (1 - MEMORY_KEPT)) // 100 * 100)
    words = known.get("AvailableFeatures", "").split(",")
    features = [word for word in words if word and not word.startswith(OURS)]
    settings["Feature"] = ",".join(dict.fromkeys(features + _features(inventory, memory_gbs)))
    gres, gres_lines = _gpus(name, inventory)
    if site_gres := re.sub(r"\([^)]*\)", "", known.get("Gres", "")):  # without sockets, which Slurm adds
        gres, gres_lines = site_gres, ()
    if gres:
        settings["Gres"] = gres
    settings["Weight"] = str(weight + GPU_WEIGHT * bool(gres))
    settings["State"] = "UNKNOWN"
    return NodeLine(name, settings, gres_lines)


def _processors(cpu: Cpu) -> dict[str, str]:
    """Return sockets, cores and threads if they divide evenly, else only the number of CPUs."""
    settings = {"CPUs": str(cpu.threads)}
    if cpu.cores % cpu.sockets == 0 and cpu.threads % cpu.cores == 0:
        settings["Sockets"] = str(cpu.sockets)
        settings["CoresPerSocket"] = str(cpu.cores // cpu.sockets)
        settings["ThreadsPerCore"] = str(cpu.threads // cpu.cores)
    return settings


def _features(inventory: Inventory, memory_gbs: float | None) -> list[str]:
    """Return features: kind of node, memory bandwidth of all cores in GB/s, kinds of OpenCL devices."""
    features = [f"{OURS}kind_{node_kind(inventory).key}"]
    if memory_gbs:
        features.append(f"{OURS}mem_{float(f'{memory_gbs:.2g}'):g}gbs")
    return features + sorted({f"{OURS}cl_{kind_name(device.kind)}" for device in inventory.opencl})


def _bandwidth(profile: Profile) -> float | None:
    """Return the bandwidth of local memory in GB/s, written by the largest number of cores measured."""
    models = [m for m in profile.models if m.quantity == "memory_bandwidth_gbs"]
    known = [m for m in models if m.coefficients[0].quality is not Quality.POOR]
    most = max(known, key=lambda m: int(m.labels.get("cores", "0")), default=None)
    return most.coefficients[0].value if most else None


def _alike(
    profiles: Mapping[str, Profile], value_of: Callable[[Profile], float | None], odd: set[str]
) -> dict[str, float]:
    """Return a value for each node: its own if the node is odd, else the median of its kind."""
    own = {name: value for name, profile in profiles.items() if (value := value_of(profile)) is not None}
    kinds = {name: node_kind(profiles[name].inventory).key for name in own}
    of_kind: dict[str, list[float]] = {}
    for name in own.keys() - odd:
        of_kind.setdefault(kinds[name], []).append(own[name])
    return {name: value if name in odd else median(of_kind[kinds[name]]) for name, value in own.items()}


def _speed(profile: Profile) -> float | None:
    """Return the mean speed of one core in computing and in writing memory, without unit."""
    parts = []
    if profile.conditions:
        parts.append(1 / median(condition.reference_s for condition in profile.conditions))
    if bandwidth := _bandwidth(profile):
        parts.append(bandwidth / profile.inventory.cpu.cores)
    return geometric_mean(parts) if parts else None


def _gpus(name: str, inventory: Inventory) -> tuple[str, tuple[str, ...]]:
    """Return Gres and the lines of gres.conf, for the GPUs that NVML shows, else for those of OpenCL."""
    nvml = [kind_name(gpu.name) for gpu in inventory.gpus]
    opencl = [kind_name(device.name) for device in inventory.opencl if device.kind == "gpu"]
    counts = Counter(nvml or opencl)
    files = [f"{kind} File=/dev/nvidia{gpu.index}" for kind, gpu in zip(nvml, inventory.gpus, strict=True)]
    lines = files or [f"{kind} Count={count}" for kind, count in counts.items()]
    gres = ",".join(f"gpu:{kind}:{count}" for kind, count in counts.items())
    return gres, tuple(f"NodeName={name} Name=gpu Type={line}" for line in lines)


def conf_texts(lines: Sequence[NodeLine], title: str) -> tuple[str, str]:
    """Return the text for slurm.conf and for gres.conf, which is empty if no node needs it."""
    gres = [line for node in lines for line in node.gres]
    head = [
        f"# {title}",
        "# In place of the NodeName lines of slurm.conf; then restart slurmctld and all slurmd.",
    ]
    if gres:
        named = (
            gres_text for node in lines for gres_text in node.settings.get("Gres", "").split(",") if gres_text
        )
        head.append(f"GresTypes={','.join(dict.fromkeys(gres_text.split(':')[0] for gres_text in named))}")
    return "\n".join([*head, *map(str, lines)]) + "\n", "".join(f"{line}\n" for line in gres)


# -- job_submit.lua ----------------------------------------------------------------------------------------


TEMPLATE = Path(__file__).with_name("job_submit.lua")  # a dollar sign of Lua is doubled there


def script(lease: Path, partition: str | None) -> str:
    """Return the script for a lease file and a partition (None for Slurm's default one)."""
    names = {"lease": _quoted(str(lease)), "partition": _quoted(partition) if partition else "nil"}
    return Template(TEMPLATE.read_text()).substitute(names)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
