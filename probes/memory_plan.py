"""Plans of memory: the cores that write or stream, alone and side by side, and over how much of it.

Nothing here needs numpy, because the doctor plans too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from probes.topology import LogicalCpu, Topology, core_counts, core_pairs

# -- memprobe: the cores that write, and where, alone and side by side -------------------------------------


AREA_IN_CACHES = 4
LEAST_AREA_MB = 64.0
ASSUMED_CACHE_MB = 64.0


class NotMeasured(NamedTuple):
    """Something that will not be measured; the arguments of ``Run.absent``."""

    what: str
    reason: str
    remedy: str = ""


ONE_NODE = NotMeasured("remote memory bandwidth", "one NUMA node: no remote access")


@dataclass(frozen=True)
class Spot:
    """CPU ``core`` writing to memory of NUMA node ``node``, placed there by first touch on ``touch_core``.

    ``check``: count after every window the pages that still are on that node.
    """

    core: int
    node: int
    touch_core: int
    check: bool = False


@dataclass(frozen=True)
class WriteWindow:
    """``spots`` write together and are measured, while ``beside`` writes all the while."""

    spots: tuple[Spot, ...]
    beside: Spot | None = None
    labels: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Writing:
    """A measurement: the windows of one repetition, and the columns that all of them share."""

    title: str
    windows: tuple[WriteWindow, ...]
    labels: dict[str, Any]

    @property
    def spots(self) -> set[Spot]:
        needed = {spot for window in self.windows for spot in window.spots}
        return needed | {window.beside for window in self.windows if window.beside}


def choose_area(topology: Topology, free_mb: float) -> tuple[float, list[NotMeasured]]:
    """Choose the size in MB of each writer's area (0: too little memory), and say what is amiss with it."""
    missing = []
    cache_mb = topology.llc_mb
    if cache_mb is None:
        cache_mb = ASSUMED_CACHE_MB
        missing.append(
            NotMeasured(
                "size of the last-level cache",
                f"not shown by sysfs (usual in virtual machines); {ASSUMED_CACHE_MB:.0f} MB assumed",
            )
        )
    wanted_mb = max(AREA_IN_CACHES * cache_mb, LEAST_AREA_MB)
    if wanted_mb <= free_mb:
        return wanted_mb, missing
    need = f"{AREA_IN_CACHES} x {cache_mb:.0f} MB of cache wanted for one area, {free_mb:.0f} MB can be taken"
    if free_mb >= 2 * cache_mb:
        shrunk = f"{need}; measured with {free_mb:.0f} MB, so the cache holds part of it and flatters"
        return free_mb, [*missing, NotMeasured("memory beyond the cache", shrunk, "free some memory")]
    return 0.0, [*missing, NotMeasured("memory bandwidth and interference", need, "free some memory")]


def plan_writings(topology: Topology, most_areas: int) -> tuple[list[Writing], list[NotMeasured]]:
    """Plan the points possible with ``most_areas`` areas, most important first, and name the others."""
    missing = []
    if len(topology.cores) < 2:
        missing.append(NotMeasured("memory interference between cores", "one core only"))
    if len(topology.memory_nodes) < 2:
        missing.append(ONE_NODE)
    for node in topology.memory_nodes:
        if not topology.cores_of(node):
            missing.append(
                NotMeasured(
                    f"memory bandwidth to NUMA node {node}",
                    "this process may use none of its CPUs, so cannot place memory there by first touch",
                )
            )
    points: list[Writing] = []
    refused: list[Writing] = []
    spots: set[Spot] = set()
    for point in [*_local(topology), *_pairs(topology), *_between_nodes(topology)]:
        if len(spots | point.spots) <= most_areas:
            points.append(point)
            spots |= point.spots
        else:
            refused.append(point)
    if most_areas and refused:
        need = f"memory for {most_areas} areas can be taken, {len(refused[-1].spots | spots)} are needed"
        missing.append(NotMeasured("; ".join(p.title for p in refused), need, "free some memory"))
    return points, missing


def _local(topology: Topology) -> Iterator[Writing]:
    """Fill up cores node by node and cache by cache, each writing to its own node."""
    cores = topology.cores
    for count in core_counts(len(cores)) if cores else []:
        spots = tuple(_spot(topology, cpu, cpu) for cpu in cores[:count])
        yield _bandwidth(spots, "local")


def _between_nodes(topology: Topology) -> Iterator[Writing]:
    """Take every ordered pair of NUMA nodes, first by one core and then by all cores of the first node."""
    nodes = [node for node in topology.memory_nodes if topology.cores_of(node)]
    if len(nodes) < 2:
        return
    for alone in (True, False):
        for source in sorted({cpu.node for cpu in topology.cores}):
            cores = topology.cores_of(source)
            if not alone and len(cores) == 1:
                continue
            for target in nodes:
                touch = topology.cores_of(target)[0]
                spots = tuple(_spot(topology, cpu, touch) for cpu in (cores[:1] if alone else cores))
                yield _bandwidth(spots, f"{source}->{target}")


def _pairs(topology: Topology) -> Iterator[Writing]:
    """Put the first core beside the nearest CPU of each kind."""
    for kind, first, other in core_pairs(topology):
        spot, beside = _spot(topology, first, first), _spot(topology, other, other)
        yield Writing(
            title=f"CPU {first.index} beside CPU {other.index} ({kind})",
            windows=(
                WriteWindow((spot,), None, {"condition": "alone"}),
                WriteWindow((spot,), beside, {"condition": "beside"}),
            ),
            labels={
                "kind": "pair",
                "pair_kind": kind,
                "cores": 1,
                "cpus": f"{first.index},{other.index}",
                "other_core": other.index,
            },
        )


def _spot(topology: Topology, cpu: LogicalCpu, touch: LogicalCpu) -> Spot:
    """Place ``cpu`` to write to memory of the node of ``touch``, by first touch.

    The placement is checked where it could be wrong, on a node with memory of its own among several.
    """
    check = len(topology.memory_nodes) > 1 and touch.node in topology.memory_nodes
    touch = cpu if cpu.node == touch.node else touch
    return Spot(cpu.index, touch.node, touch.index, check)


def _bandwidth(spots: tuple[Spot, ...], numa: str) -> Writing:
    cpus = ",".join(str(spot.core) for spot in spots)
    plural = "core" if len(spots) == 1 else "cores"
    where = "local memory" if numa == "local" else f"memory of NUMA node {numa.replace('->', ' -> ')}"
    return Writing(
        title=f"bandwidth of {len(spots)} {plural}, {where}",
        windows=(WriteWindow(spots),),
        labels={"kind": "bandwidth", "cores": len(spots), "cpus": cpus, "numa": numa},
    )


# -- streams: the cores that stream together, and over how much memory -------------------------------------


CHUNK = 32768  # elements between two looks at the clock: 256 KiB of each array
ELEMENT = 8  # bytes
LINE = 64
STREAMS = "memory streams and latency"
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


def plan_streams(topology: Topology) -> list[CoreGroup]:
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
        return {}, [*amiss[:-1], amiss[-1]._replace(what=STREAMS)]
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
