"""Topology of the CPUs (core, last-level cache, socket, NUMA node), and the free memory.

``sysfs`` and ``procfs`` are read under given roots, so that another machine's tree can be read here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

DEFAULT_LINE_BYTES = 64
MOST_COUNTS = 8
POWERS = {"": 0, "K": 1, "M": 2, "G": 3}


@dataclass(frozen=True)
class LogicalCpu:
    """A hardware thread, with the smallest index of the threads that share each part of the machine."""

    index: int
    core: int  # lowest thread of the physical core
    llc: int | None  # lowest CPU sharing the last-level cache; None where sysfs shows no cache
    package: int
    node: int


@dataclass(frozen=True)
class Topology:
    """CPUs that this process may use, ordered by node, socket, cache and core."""

    cpus: tuple[LogicalCpu, ...]
    memory_nodes: tuple[int, ...]
    llc_mb: float | None
    line_bytes: int

    @property
    def cores(self) -> tuple[LogicalCpu, ...]:
        """The first usable thread of every physical core."""
        first: dict[int, LogicalCpu] = {}
        for cpu in self.cpus:
            first.setdefault(cpu.core, cpu)
        return tuple(first.values())

    def cores_of(self, node: int) -> tuple[LogicalCpu, ...]:
        return tuple(cpu for cpu in self.cores if cpu.node == node)


def cpu_list(text: str | None) -> tuple[int, ...]:
    """Parse the kernel's lists of CPUs and nodes: ``"0-2,8"`` -> (0, 1, 2, 8); nothing from nothing."""
    cpus: list[int] = []
    for part in (text or "").split(","):
        if match := re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part):
            cpus += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(cpus)


def kernel_bytes(text: str | None) -> int:
    """Read a size as the kernel writes it: ``32K``, ``1m``, ``4096``; 0 where it tells none."""
    size = re.fullmatch(r"(\d+)([KMG]?)", (text or "").upper())
    return int(size[1]) * 1024 ** POWERS[size[2]] if size else 0


def cpu_ranges(cpus: Iterable[int]) -> str:
    """Write numbers of CPUs as the kernel does: ``{0, 1, 2, 8}`` -> ``"0-2,8"``."""
    parts = []
    for _, group in groupby(enumerate(sorted(cpus)), key=lambda pair: pair[1] - pair[0]):
        run = [cpu for _, cpu in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)


def read_topology(sysfs: Path, allowed: Set[int]) -> Topology:
    """Read the topology under ``sysfs``, restricted to the CPUs in ``allowed``.

    A virtual machine or container may hide parts. They get the plainest reading: every CPU a core of its
    own, one socket, one NUMA node, cache unknown.
    """
    system = sysfs / "devices/system"
    online = cpu_list(read_text(system / "cpu/online")) or tuple(sorted(allowed))
    nodes = {int(path.name[4:]): path for path in (system / "node").glob("node[0-9]*")}
    node_of = {cpu: n for n, path in nodes.items() for cpu in cpu_list(read_text(path / "cpulist"))}
    cpus: list[LogicalCpu] = []
    size_mb, line = 0.0, 0
    for index in online:
        if index not in allowed:
            continue
        folder = system / f"cpu/cpu{index}"
        llc = _last_level(folder / "cache")
        siblings = cpu_list(read_text(folder / "topology/thread_siblings_list")) or (index,)
        package = int(read_text(folder / "topology/physical_package_id") or 0)
        shared = None
        if llc is not None:
            shared = min(cpu_list(read_text(llc / "shared_cpu_list")) or (index,))
            size_mb = max(size_mb, kernel_bytes(read_text(llc / "size")) / 2**20)
            line = max(line, int(read_text(llc / "coherency_line_size") or 0))
        cpus.append(LogicalCpu(index, min(siblings), shared, max(package, 0), node_of.get(index, 0)))
    cpus.sort(key=lambda c: (c.node, c.package, -1 if c.llc is None else c.llc, c.core, c.index))
    with_memory = cpu_list(read_text(system / "node/has_memory")) or tuple(sorted(nodes)) or (0,)
    return Topology(tuple(cpus), with_memory, size_mb or None, line or DEFAULT_LINE_BYTES)


def usable_cores() -> tuple[int, ...]:
    """List a logical CPU of each core that this process may use."""
    topology = read_topology(Path("/sys"), os.sched_getaffinity(0))
    return tuple(cpu.index for cpu in topology.cores)


def core_counts(n: int) -> list[int]:
    """Count 1, 2, 4, ... and n; at most 8 counts."""
    counts = [2**i for i in range(n.bit_length()) if 2**i < n] + [n]
    while len(counts) > MOST_COUNTS:
        del counts[-2]
    return counts


def core_pairs(topology: Topology) -> Iterator[tuple[str, LogicalCpu, LogicalCpu]]:
    """Pair the first CPU with the nearest one of each kind, and name the kind."""
    first, *others = topology.cpus
    kinds = set()
    for other in others:
        kind = pair_kind(first, other)
        if kind not in kinds:
            kinds.add(kind)
            yield kind, first, other


def pair_kind(a: LogicalCpu, b: LogicalCpu) -> str:
    """Name what two CPUs share.

    ``smt``: a core; ``same-cache``, ``other-cache`` or ``same-socket`` (cache unknown): a socket;
    ``other-socket``: the machine.
    """
    if a.core == b.core:
        return "smt"
    if a.package != b.package:
        return "other-socket"
    if a.llc is None or b.llc is None:
        return "same-socket"
    return "same-cache" if a.llc == b.llc else "other-cache"


def _last_level(cache: Path) -> Path | None:
    """Find the folder of the highest level of data or unified cache that states its size."""
    levels = [
        (int(read_text(index / "level") or 0), index)
        for index in cache.glob("index[0-9]*")
        if read_text(index / "type") in ("Data", "Unified") and kernel_bytes(read_text(index / "size"))
    ]
    return max(levels)[1] if levels else None


def data_caches_kib(sysfs: Path, cpu: int) -> dict[int, float]:
    """Read the size in KiB of each level of data cache of ``cpu``; empty where sysfs names none."""
    sizes: dict[int, float] = {}
    for index in (sysfs / f"devices/system/cpu/cpu{cpu}/cache").glob("index[0-9]*"):
        size = kernel_bytes(read_text(index / "size"))
        if size and read_text(index / "type") in ("Data", "Unified"):
            sizes[int(read_text(index / "level") or 0)] = size / 1024
    return dict(sorted(sizes.items()))


def free_memory_mb(sysfs: Path, procfs: Path) -> float:
    """Compute the memory that this process can still take: MemAvailable, or less under a memory cgroup.

    To take more than a cgroup allows (a job under Slurm, a container) would not fail but kill.
    """
    kb = next(
        (float(line.split()[1]) for line in _lines(procfs / "meminfo") if line.startswith("MemAvailable:")),
        0.0,
    )
    return min([kb / 1024, *_cgroup_rooms_mb(sysfs / "fs/cgroup", procfs / "self/cgroup")])


def _cgroup_rooms_mb(root: Path, membership: Path) -> Iterator[float]:
    """Compute the room below the limit of our memory cgroup and of its parents (versions 1 and 2)."""
    for line in _lines(membership):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, usage, cache = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, limit, usage, cache = (
                root / "memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(base):
                break
            most = read_text(folder / limit)
            if most.isdigit():
                stat = dict(entry.split() for entry in _lines(folder / "memory.stat"))
                taken = int(read_text(folder / usage) or 0) - int(stat.get(cache, 0))
                yield (int(most) - taken) / 2**20


def read_text(path: Path) -> str:
    """Read a file's text, stripped; empty where the kernel does not offer the file."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _lines(path: Path) -> list[str]:
    return read_text(path).splitlines()
