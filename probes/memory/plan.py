"""Plan of memprobe for a given machine: the cores that write, and where, alone and side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from probes.topology import LogicalCpu, Topology, core_counts, core_pairs

AREA_IN_CACHES = 4
LEAST_AREA_MB = 64.0
ASSUMED_CACHE_MB = 64.0


class NotMeasured(NamedTuple):
    """Something that will not be measured; the arguments of ``Run.absent``."""

    what: str
    reason: str
    remedy: str = ""


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


def plan(topology: Topology, most_areas: int) -> tuple[list[Writing], list[NotMeasured]]:
    """Plan the points possible with ``most_areas`` areas, most important first, and name the others."""
    missing = []
    if len(topology.cores) < 2:
        missing.append(NotMeasured("memory interference between cores", "one core only"))
    if len(topology.memory_nodes) < 2:
        missing.append(NotMeasured("remote memory bandwidth", "one NUMA node: no remote access"))
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
