"""Plan of the streams for a given machine: which cores stream together, and over how much memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probes.memory.plan import AREA_IN_CACHES, NotMeasured, choose_area
from probes.topology import LogicalCpu, Topology, core_counts

CHUNK = 32768  # elements between two looks at the clock: 256 KiB of each array
ELEMENT = 8  # bytes
LINE = 64
WHAT = "memory streams and latency"
ARRAYS = 3
ASSUMED_OWN_CACHE_MB = 2.0
LEAST_SET = 4096  # bytes of the smallest working set
DENSE_BELOW = 64 * 2**20  # larger working sets take long, and get fewer points an octave


@dataclass(frozen=True)
class CoreGroup:
    """Cores that stream together, each over its part of the arrays in the memory nearest to it."""

    cpus: tuple[LogicalCpu, ...]
    numa: str  # local, or "0->0": all cores of NUMA node 0 alone

    @property
    def title(self) -> str:
        plural = "core" if len(self.cpus) == 1 else "cores"
        where = "" if self.numa == "local" else f" of NUMA node {self.cpus[0].node}"
        return f"on {len(self.cpus)} {plural}{where}"

    @property
    def labels(self) -> dict[str, Any]:
        cpus = ",".join(str(cpu.index) for cpu in self.cpus)
        return {"kind": "bandwidth", "cores": len(self.cpus), "cpus": cpus, "numa": self.numa}


def plan(topology: Topology) -> list[CoreGroup]:
    """List the cores of each point: 1, 2, 4, ... all, and those of each NUMA node where there are several."""
    cores = topology.cores
    points = [CoreGroup(cores[:count], "local") for count in (core_counts(len(cores)) if cores else [])]
    if len(topology.memory_nodes) > 1:
        with_cores = [node for node in topology.memory_nodes if topology.cores_of(node)]
        points += [CoreGroup(topology.cores_of(node), f"{node}->{node}") for node in with_cores]
    return points


def choose_arrays(
    topology: Topology, free_mb: float, caches_kib: Mapping[int, float]
) -> tuple[dict[int, int], list[NotMeasured]]:
    """Choose the elements of an array on each NUMA node (none: too little memory), and say what is amiss.

    STREAM's rule: an array is at least four times the sum of the caches in use. The cores of a node share its
    arrays. They are four times as large as its last-level caches and, of each core, the largest cache below
    these together. Where ``free_mb`` (MiB) do not suffice for this, they are smaller.

    Args:
        caches_kib: size of each level of cache; empty where sysfs names none.
    """
    own_mb = AREA_IN_CACHES * _own_cache_mb(caches_kib)
    shared: dict[int, set[int]] = {}
    for cpu in topology.cores:
        shared.setdefault(cpu.node, set()).add(cpu.package if cpu.llc is None else cpu.llc)
    areas = ARRAYS * sum(map(len, shared.values()))
    left_mb = max(free_mb - ARRAYS * own_mb * len(topology.cores), 0.0)
    area_mb, amiss = choose_area(topology, left_mb / areas)
    if not area_mb:
        return {}, [*amiss[:-1], amiss[-1]._replace(what=WHAT)]
    sizes_mb = {n: area_mb * len(caches) + own_mb * len(topology.cores_of(n)) for n, caches in shared.items()}
    return {node: _elements(mb) for node, mb in sizes_mb.items()}, amiss


def working_sets(largest_bytes: int, per_octave: int) -> list[int]:
    """List working sets in lines of 64 bytes, from 4 KiB to ``largest_bytes``, ``per_octave`` in each octave.

    Above 64 MiB there is one point an octave less.
    """
    sizes: list[int] = []
    size = float(LEAST_SET)
    while size < largest_bytes * 0.85:
        sizes.append(round(size / LINE))
        size *= 2 ** (1 / (per_octave if size < DENSE_BELOW else max(per_octave - 1, 1)))
    return [*sizes, largest_bytes // LINE]


def _own_cache_mb(caches_kib: Mapping[int, float]) -> float:
    """Find the largest cache below the last level, in MiB."""
    below = [size for level, size in caches_kib.items() if level < max(caches_kib)]
    return max(below) / 1024 if below else ASSUMED_OWN_CACHE_MB


def _elements(mb: float) -> int:
    """Round ``mb`` MiB up to whole chunks of elements."""
    return -(-int(mb * 2**20 / ELEMENT) // CHUNK) * CHUNK
