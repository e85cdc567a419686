"""Sizes of jobs: the tasks that fit on so many units, and the speed that they give."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from profiles.errors import BadInput
from profiles.quantities import counted
from scheduler.jobs.gpus import GpuKind, kinds_for
from scheduler.jobs.literals import LEAST_MEMORY_MB, memory_text
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Pool
from scheduler.model.speeds import CapLine, TabulatedSpeed, scaling

POINTS = 256  # of a measured speed-up, before the largest size
SLOWEST = 0.01  # speed at the lowest cap, where a line that was measured above it would go below
SERIAL = 0.05  # share of a job that no further task shortens, where nothing better is known (Amdahl)


class TooLarge(BadInput):
    """A job asks for more than there is."""


@dataclass(frozen=True)
class Unit:
    """One unit of the pool, and what was measured of this machine.

    Attributes:
        node: whether it is a whole node, across which no task lies; else it is a core.
        cores: of one unit.
        scaling: Downey's A and sigma over cores, by load (compute, memory).
        caps: speed under a power cap, by load.
        package: it is one package of a processor, under a cap of its own; emulated: of that emulated machine.
        hosts: each kind of node that a counted pool's units lie on: how many of them, and memory (MB).
        gpus: the kinds of GPU. A job with some takes its resources of each node as a whole: of one, or of
            as many as it names; where there is only one, so does every job.
    """

    node: bool = False
    cores: int = 1
    scaling: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    caps: Mapping[str, CapLine] = field(default_factory=dict)
    package: bool = False
    emulated: str = ""
    hosts: tuple[tuple[int, float], ...] = ()
    gpus: tuple[GpuKind, ...] = ()


CORE = Unit()
NODES = "nodes"  # a resource: nodes have one each, where some hold several parts of a job of whole nodes


def tasks_on(spec: JobSpec, units: int, unit: Unit) -> int:
    """Count the job's tasks on so many units: as many as it may have of those that fit."""
    if unit.gpus and not spec.nodes:
        return spec.tasks
    there = units * (unit.cores // spec.cores) if unit.node else units // spec.cores
    return there if spec.nodes else min(there, spec.max_tasks or spec.tasks)


def memory_mb(spec: JobSpec, pool: Pool, unit: Unit) -> float:
    """Return the memory of the most tasks that the job can have here, in MB; 0: none is asked for."""
    if spec.memory_mb is None:
        return 0.0
    units = min(spec.max_nodes or spec.nodes or pool.units, pool.units)
    return spec.memory_mb * (spec.max_tasks or spec.tasks if pool.kind else tasks_on(spec, units, unit))


def within_memory(spec: JobSpec, unit: Unit, total_mb: float, *, by: str = "") -> JobSpec:
    """Cut the job's range of sizes to what the memory holds, of all together and of each node.

    Args:
        by: which of its alternatives this is, for people.

    Raises:
        BadInput: its fewest tasks ask for more than there is, or for so little that no program starts.
    """
    per_unit = unit.cores // spec.cores if unit.node else 1
    if not spec.memory_mb or not per_unit:
        return spec
    if spec.memory_mb < LEAST_MEMORY_MB:
        raise BadInput(f"memory_mb: must be at least {LEAST_MEMORY_MB:g}", "no program starts in less")
    fewest, most = spec.nodes * per_unit if spec.nodes else spec.tasks, math.inf
    for units, there_mb in ((math.inf, total_mb), *unit.hosts):
        where = "" if math.isinf(units) else " on one node"
        if why := beyond(min(fewest, units * per_unit) * spec.memory_mb, there_mb, where):
            raise TooLarge(f"the job can never run here{by}: {why}", "ask for less")
        if units * per_unit * spec.memory_mb > there_mb:
            most = min(most, there_mb // spec.memory_mb)
    if spec.max_nodes and not math.isinf(most):
        return spec.model_copy(update={"max_nodes": min(spec.max_nodes, int(most // per_unit))})
    if spec.max_tasks and not math.isinf(most):
        return spec.model_copy(update={"max_tasks": min(spec.max_tasks, int(most))})
    return spec


def beyond(needed_mb: float, total_mb: float, where: str = "") -> str:
    """Say as a clause why a job can never have so much memory; "": it can."""
    if needed_mb <= total_mb:
        return ""
    return f"it asks for {memory_text(needed_mb)} of memory{where}, jobs may have {memory_text(total_mb)}"


def units_for(spec: JobSpec, tasks: int, unit: Unit) -> int:
    """Count the units that hold these tasks.

    Raises:
        BadInput: not one fits on a unit.
    """
    if not unit.node:
        return tasks * spec.cores
    tasks_a_unit = unit.cores // spec.cores
    if not tasks_a_unit:
        raise TooLarge(f"a task of {spec.cores} cores: a node has {unit.cores}", "ask for fewer")
    return math.ceil(tasks / tasks_a_unit)


def range_of(spec: JobSpec, pool: Pool, unit: Unit) -> tuple[int, int | None]:
    """Return the fewest units that the job runs on, and the most it can use (None: exactly so many).

    Raises:
        BadInput: it asks for nodes where cores are scheduled, or there are not so many.
    """
    if spec.nodes:
        if not unit.node:
            raise BadInput(
                f"{spec.nodes} nodes: this coordinator schedules cores, not nodes",
                "ask for tasks (-n), or start tenbin up with a policy that places on nodes or caps power",
            )
        units_for(spec, 1, unit)
        least, most = spec.nodes, spec.max_nodes
    else:
        least = units_for(spec, spec.tasks, unit)
        most = units_for(spec, spec.max_tasks, unit) if spec.max_tasks else None
    if least > pool.units:
        there = ("there is " if pool.units == 1 else "there are ") + counted(pool.units, pool.name)
        size = counted(least, pool.name) + (f" ({spec.tasks} x {spec.cores})" if not spec.nodes else "")
        raise TooLarge(f"the job needs {size}, {there}", "ask for fewer")
    most = None if most is None else min(most, pool.units)
    return least, most if most != least else None


def why_fewest(spec: JobSpec, pool: Pool) -> str:
    """Say why a job with a range of sizes gets the fewest whatever the policy; "": it need not."""
    if not spec.max_tasks or spec.max_tasks == spec.tasks or pool.counted:
        return ""
    what = f"-n {spec.tasks}-{spec.max_tasks}: the job gets {counted(spec.tasks, 'task')}"
    return f"{what}: where cores are scheduled beside GPUs or by nodes, no policy chooses the number"


def demand_with_gpus(
    spec: JobSpec,
    pool: Pool,
    unit: Unit,
    *,
    runs: bool = False,
    has: Collection[int] = (),
    gone: bool = False,
) -> tuple[float, ...]:
    """Return what the job takes of each of its nodes: cores, memory, GPUs of each kind.

    Args:
        runs: it does already, whatever the nodes have.
        has: the GPUs that it has already, by number: they may be of another kind than it would get now.
        gone: these are not there any more, so that it takes none.

    Raises:
        BadInput: no node has so much, or the GPUs are not as many on each node.
    """
    # The nodes of a cluster may have more cores than ``unit``, which a placement minds.
    checks = not (runs or pool.names)
    if checks or (spec.nodes and not runs):
        range_of(spec, pool, unit)
    if spec.gpus_asked and spec.nodes != (spec.max_nodes or spec.nodes):
        what = f"--gpus with --nodes {spec.nodes}-{spec.max_nodes}: GPUs are of a fixed number of nodes"
        raise BadInput(what, f"write --nodes {spec.nodes}")
    if spec.nodes and spec.gpus_asked % spec.nodes:
        what = f"--gpus {spec.gpus_asked} with --nodes {spec.nodes}: each node has as many of them"
        raise BadInput(what, f"ask for a multiple of {spec.nodes}")
    tasks = tasks_on(spec, 1, unit)
    cores = unit.cores if spec.nodes else tasks * spec.cores
    if cores > unit.cores and checks:
        raise TooLarge(
            f"the job needs {cores} cores ({tasks} x {spec.cores}), there are {unit.cores}", "ask for fewer"
        )
    kind = next((kind for kind in unit.gpus if {*kind.numbers} & {*has}), None)
    if spec.gpus_asked and kind is None and not gone:
        if has and any(kind.numbers for kind in unit.gpus):
            raise BadInput("its GPUs are not there any more", "see: tenbin nodes")
        kind = kinds_for(spec, unit.gpus)[0]
    gpus = (float(spec.gpus_on_node) if other == kind else 0.0 for other in unit.gpus)
    return float(cores), (spec.memory_mb or 0.0) * tasks, *gpus


def speed_of(spec: JobSpec, pool: Pool, unit: Unit, least: int, *, most: int | None) -> TabulatedSpeed | None:
    """Return the job's speed against its fewest units under the lowest cap; None where it is always 1.

    Over units: as its owner or its job profile says (``speedup``), else as the machine was measured to scale,
    else by Amdahl's law with a serial share of 5 %. Under caps: as its job profile says (``cap_curve``), else
    as its load was measured, else in proportion to the cap.
    """
    caps = (_own_caps(spec, pool, unit) or unit.caps.get(spec.load)) if pool.caps_w else None
    if caps is None and pool.caps_w:
        caps = CapLine(1.0 / pool.caps_w[0], pool.caps_w[0], pool.caps_w[-1])
    if most is None and caps is None:
        return None
    sizes = range(least, (most or least) + 1)
    gains = [_gain(spec, tasks_on(spec, units, unit), units, unit) for units in sizes]
    return TabulatedSpeed(least, tuple(gain / gains[0] for gain in gains), caps)


def speed_on_devices(spec: JobSpec, most: int | None) -> TabulatedSpeed | None:
    """Return the job's speed by devices, one a task, as ``speedup`` says; None: nobody has said it."""
    if most is None or not spec.speedup:
        return None
    gains = [_between(spec.speedup, tasks) for tasks in range(spec.tasks, most + 1)]
    return TabulatedSpeed(spec.tasks, tuple(gain / gains[0] for gain in gains))


def sized(spec: JobSpec, measured: Callable[[str], tuple[float, float] | None], unit: Unit) -> JobSpec:
    """Add the speed-up that the job profile has measured, if the job has a range of sizes and states none.

    The speed-up belongs to the job from then on, whatever is measured later.

    Args:
        measured: Downey's A and sigma over cores, by name of a job profile.
    """
    least, most = (spec.nodes, spec.max_nodes) if spec.nodes else (spec.tasks, spec.max_tasks)
    if spec.speedup or not spec.job_profile or least is None or most is None:
        return spec
    curve = measured(spec.job_profile)
    if curve is None:
        return spec
    cores = unit.cores if spec.nodes else spec.cores
    points = {*range(least, min(most, least + POINTS) + 1), most}
    gains = {n: float(scaling(*curve, n * cores) / scaling(*curve, cores)) for n in sorted(points)}
    return spec.model_copy(update={"speedup": gains})


def under_caps(
    spec: JobSpec, measured: Callable[[str, str], tuple[float, float] | None], unit: Unit
) -> JobSpec:
    """Add the speed under power caps that the job profile has measured, if packages are capped.

    The speed belongs to the job from then on, as does its speed-up (``sized``).

    Args:
        measured: knee and slope, by name of a job profile and of the emulated machine.
    """
    if spec.cap_curve is not None or not spec.job_profile or not unit.package:
        return spec
    curve = measured(spec.job_profile, unit.emulated)
    return spec if curve is None else spec.model_copy(update={"cap_curve": curve})


def _own_caps(spec: JobSpec, pool: Pool, unit: Unit) -> CapLine | None:
    """Return the job's own line, against its speed at the pool's lowest cap (paper C, equation 4.5)."""
    if spec.cap_curve is None or not unit.package:
        return None
    lowest_w = pool.caps_w[0]
    knee_w, slope = max(spec.cap_curve[0], lowest_w), spec.cap_curve[1]
    slowest = max(1.0 - slope * (knee_w - lowest_w), SLOWEST)
    slope_from_1 = (1.0 / slowest - 1.0) / (knee_w - lowest_w) if knee_w > lowest_w else 0.0
    return CapLine(slope_from_1, lowest_w, knee_w)


def _gain(spec: JobSpec, tasks: int, units: int, unit: Unit) -> float:
    """Return the speed-up of so many tasks over one."""
    if spec.speedup:
        return _between(spec.speedup, units if spec.nodes else tasks)
    if spec.load in unit.scaling:
        return float(scaling(*unit.scaling[spec.load], tasks * spec.cores))
    return 1.0 / (SERIAL + (1.0 - SERIAL) / tasks)


def _between(points: Mapping[int, float], x: float) -> float:
    """Interpolate on straight lines between points; outside them the nearest point counts."""
    import numpy as np

    at = sorted(points)
    return float(np.interp(x, at, [points[place] for place in at]))
