"""The ``Job`` that a policy sees of a specification."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from profiles.errors import BadInput
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.sizes import CORE, NODES, Unit, demand_with_gpus, range_of, speed_of, speed_on_devices
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import EPSILON, Cluster, EstimateKind, Job, Placement, Pool, Speed, Stop
from scheduler.model.quantiles import Quantiles

NO_GPUS = "see: tenbin nodes; policies fcfs, first-fit, easy, conservative, weigh schedule GPUs; also all las"


def as_job(
    job_id: int,
    submit_s: float,
    spec: JobSpec,
    cluster: Cluster,
    *,
    unit: Unit = CORE,
    predicted: Mapping[str, Any] | None = None,
    way: int | None = None,
    **more: Any,
) -> Job:
    """Make the job that policies see, in the cluster's terms: cores, devices, or nodes with cores and memory.

    Of alternatives it has those that can run here.

    Args:
        predicted: what earlier runs say of it; counts where its owner gives no estimate.
        way: the alternative in which it must go on; None: any.
        more: ``user``, ``label``. ``priority``: the one that it was given since; None: as it was submitted.
            ``moves``: the engine can park it and move it. ``only``: the classes of device on which it must go
            on; (): any that will do. ``stays``: where its paused processes must go on; None: anywhere.
            ``runs_at``: where it runs, although it could not begin here any more.
            ``together``: it has several of its nodes' parts on one, from before these were kept apart.

    Raises:
        BadInput: it can never run on this cluster.
    """
    if not spec.alternatives:
        return _one_way(job_id, submit_s, spec, cluster, unit=unit, predicted=predicted, **more)
    ways, errors = list[Job](), list[BadInput]()
    for number in range(len(spec.alternatives) + 1) if way is None else (way,):
        known = None if number else predicted
        try:
            job = _one_way(job_id, submit_s, spec.way(number), cluster, unit=unit, predicted=known, **more)
            ways.append(replace(job, alternative=number))
        except BadInput as error:
            errors.append(error)
    if not ways:
        raise errors[0]
    return replace(ways[0], alternatives=tuple(ways[1:]))


def _one_way(
    job_id: int,
    submit_s: float,
    spec: JobSpec,
    cluster: Cluster,
    *,
    user: str,
    unit: Unit = CORE,
    predicted: Mapping[str, Any] | None = None,
    priority: int | None = None,
    moves: bool = False,
    only: Collection[str] = (),
    stays: Placement | None = None,
    runs_at: Placement | None = None,
    together: bool = False,
    label: str = "",
) -> Job:
    """Make the job of one of its ways.

    Raises:
        BadInput: it can never run so on this cluster.
    """
    pool, place = cluster.pools[0], stays or runs_at
    units, most, speed = spec.tasks, spec.max_tasks, None
    demand: tuple[float, ...] = ()
    estimates: dict[str, float] = {}
    if spec.device != "any" and not pool.kind:
        raise BadInput(f"device {spec.device!r}: no devices are scheduled", "start: tenbin up --devices")
    if spec.gpus_asked and not (unit.gpus or pool.kind or runs_at):
        raise BadInput(f"--gpus {spec.gpus_asked}: no GPUs are scheduled", NO_GPUS)
    if pool.kind:
        spec = _on_devices(spec)
        estimates = _by_device(spec, cluster, predicted)
        estimates = {name: seconds for name, seconds in estimates.items() if name in only} or estimates
        most = None if moves else most  # a parked program keeps its tasks
        speed = speed_on_devices(spec, most)
    elif pool.counted:
        units, most = range_of(spec, pool, unit) if place is None else (place.units, None)
        speed = None if runs_at else speed_of(spec, pool, unit, units, most=most)
    elif unit.gpus and (spec.gpus_asked or not pool.names):
        runs = runs_at is not None
        units, most, demand = spec.nodes or 1, None, demand_with_gpus(spec, pool, unit, runs=runs)
    elif spec.nodes:
        units, most = range_of(spec, pool, unit) if place is None else (place.units, None)
        tasks_a_node = unit.cores // spec.cores
        demand = (float(unit.cores), (spec.memory_mb or 0.0) * tasks_a_node)
    else:
        demand = (float(spec.cores), spec.memory_mb or 0.0)
    if demand:
        demand += (0.0,) * (len(unit.gpus) + 2 - len(demand))
        demand += (float(bool(spec.nodes) and not together),) * (NODES in pool.resources)
    estimate_s = None
    if not estimates:
        estimate_s = _estimate_s(spec, units, speed) or _from_history(predicted, "", "high")
    return Job(
        job_id,
        submit_s,
        units,
        estimate_s,
        user=spec.owner(user),
        memory_mb=spec.memory_mb or _registered_mb(predicted),
        estimate_kind=EstimateKind.PREDICTED
        if spec.expect_s or (predicted and predicted["run_s"] and spec.time_s is None)
        else EstimateKind.LIMIT,
        stop=Stop.NEVER
        if runs_at is not None or (spec.gpus_asked and unit.gpus and spec.checkpoint_signal is None)
        else Stop.CHECKPOINT
        if moves or spec.checkpoint_signal is not None
        else Stop.PAUSE,
        max_units=most,
        malleable=bool(pool.caps_w) and most is None and runs_at is None,  # only its cap may change
        demand=demand,
        speed=speed,
        estimates_s=estimates,
        priority=spec.priority if priority is None else priority,
        share=spec.share,
        program=spec.job_profile or spec.name or spec.command[0],
        stays=stays if stays is not None and _is_there(stays, pool) else None,
        label=label,
        quantiles_s=_quantiles(predicted, {**estimates, "": estimate_s}),
    )


def outgrown(job: Job, placement: Placement, cluster: Cluster) -> bool:
    """Tell if a job has more than there is of its pool: it began when the machine was larger."""
    pool = next((pool for pool in cluster.pools if pool.name == placement.pool), None)
    if pool is None:
        return False
    if pool.counted:
        return placement.units > pool.units
    demand = job.way(placement).demand
    return any(
        units * d > there + EPSILON * max(1.0, d)
        for node, units in placement.nodes
        if node < pool.units
        for d, there in zip(demand, pool.capacity_of(node), strict=False)
    )


def _is_there(placement: Placement, pool: Pool) -> bool:
    """Tell if the placement is on nodes of the pool, as it is now."""
    nodes = [node for node, _ in placement.nodes]
    return placement.pool == pool.name and bool(nodes) and max(nodes) < pool.units


def _on_devices(spec: JobSpec) -> JobSpec:
    """Read a wish for GPUs where devices are scheduled, of which each task gets one.

    Raises:
        BadInput: it wishes for another number, or a kind.
    """
    if not spec.gpus_asked:
        return spec
    if spec.gpus_asked != spec.tasks or spec.gpu_kind or spec.gpu_memory_mb:
        what = f"--gpus {spec.gpus_asked} for {spec.tasks} tasks: with --devices each task gets one device"
        raise BadInput(what, "write --device gpu, or the name of a device")
    return spec.model_copy(update={"device": "gpu"}) if spec.device == "any" else spec


def moves(entry: Entry, why_not: Callable[[JobSpec], str] | None) -> bool:
    """Return whether the engine can park and move the job's attempt, or else its next one."""
    if why_not is None or entry.spec.checkpoint_signal is not None:
        return False
    return entry.parks if entry.alive else why_not(entry.spec) == ""


def stays_on(entry: Entry, cluster: Cluster) -> tuple[str, ...]:
    """Return the classes of device on which a job must go on; (): any will do.

    A job that is paused goes on there, and so does an attempt that has a node of a cluster. Policies do not
    move a job to where its results would be others.
    """
    if not entry.alive or entry.placement is None:
        return ()
    if bound_to_node(entry):
        return (entry.placement.pool,)
    if entry.fixed:
        paused = entry.stage in (Stage.HELD, Stage.WAITING, Stage.SUSPENDED)
        return (entry.placement.pool,) if paused else ()
    differing = results_differ(entry)
    return tuple(pool.name for pool in cluster.pools if pool.name not in differing) if differing else ()


def stays_at(entry: Entry) -> Placement | None:
    """Return where a job must go on, because it is paused on nodes; None: anywhere."""
    return entry.place if entry.paused_on_nodes else None


def is_together(entry: Entry) -> bool:
    """Tell if a job's present attempt has several units of one node."""
    return entry.alive and entry.placement is not None and any(n > 1 for _, n in entry.placement.nodes)


def bound_to_node(entry: Entry) -> bool:
    """Tell if a job's present attempt goes on only on the node that it has, because it is no checkpoint."""
    return entry.alive and entry.may_park and bool(entry.hosts)


def results_differ(entry: Entry) -> set[str]:
    """Return the classes of device to which no policy moves the job, because a trial had other results."""
    predicted = entry.predicted or {}
    if not entry.parks or entry.placement is None or predicted.get("moved_by_hand"):
        return set()
    here = entry.placement.pool
    pairs = [{ratio["pool"], ratio["over"]} for ratio in predicted.get("tried", ()) if not ratio["agrees"]]
    return {name for classes in pairs if here in classes for name in classes - {here}}


def _estimate_s(spec: JobSpec, units: int, speed: Speed | None) -> float | None:
    """Return the owner's estimate at speed 1; an expected run time is one without a cap."""
    expected = spec.expect_s.get("")
    if expected is None or speed is None:
        return expected or spec.time_s
    return expected * speed(units, None)


def _by_device(spec: JobSpec, cluster: Cluster, predicted: Mapping[str, Any] | None) -> dict[str, float]:
    """Estimate the run time on each class of device that will do; infinite where it is not known.

    A class on which the job has never run: ``predicted`` has what the figures of the devices tell. Without
    figures the class is taken to be as fast as the best on which the job has run, so that it is tried.
    """
    estimates = {}
    known = {pool.name: _from_history(predicted, pool.name, "middle") for pool in cluster.pools}
    best = min((seconds for seconds in known.values() if seconds is not None), default=math.inf)
    for pool in cluster.pools:
        if spec.device in ("any", pool.kind, pool.name):
            elsewhere = known[pool.name] if spec.expect_s else None  # by what it takes on another
            default = spec.expect_s.get("") or elsewhere or spec.time_s or known[pool.name] or best
            estimates[pool.name] = spec.expect_s.get(pool.name, spec.expect_s.get(pool.kind, default))
    if not estimates:
        names = ", ".join(f"{pool.name} ({pool.kind})" for pool in cluster.pools)
        raise BadInput(f"device {spec.device!r}: there is none", f"choose any, or one of {names}")
    return estimates


def _from_history(predicted: Mapping[str, Any] | None, pool: str, quantile: str) -> float | None:
    """Return a quantile of earlier runs: the middle to compare devices, the high one to plan with.

    Planning by the middle EASY makes jobs wait far longer: half of them are then believed to end any moment
    (``tenbin reproduce prediction``).
    """
    estimate = predicted["run_s"].get(pool) if predicted else None
    return None if estimate is None else float(estimate[quantile])


def _quantiles(
    predicted: Mapping[str, Any] | None, believed: Mapping[str, float | None]
) -> Mapping[str, Quantiles]:
    """Return quantiles of the run times that are believed as predicted, not as stated."""
    run_s = predicted["run_s"] if predicted else {}
    return {
        pool: Quantiles(estimate["low"], estimate["middle"], estimate["high"])
        for pool, estimate in run_s.items()
        if believed.get(pool) == estimate["middle" if pool else "high"]
    }


def _registered_mb(predicted: Mapping[str, Any] | None) -> float | None:
    """Return the size of its checkpoints (paper A's M_max), which tells what moving it costs."""
    estimate = predicted.get("registered_mb") if predicted else None
    return None if estimate is None else float(estimate["middle"])
