"""Nodes, jobs, and the coordinator itself, as the API describes them."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client import Counter as PrometheusCounter

from scheduler.coordinator.coordinator import Coordinator
from scheduler.engines.protocol import GpuTable, Nodes
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.job_list import as_json, row_of
from scheduler.jobs.sizes import NODES
from scheduler.model.jobs import EPSILON, Pool
from scheduler.policies.base import Reason

# -- nodes: what each has, and what is free ----------------------------------------------------------------


def node_table(coordinator: Coordinator) -> list[dict[str, Any]]:
    """List each node, or each pool of counted units and the nodes under it, with what is free.

    Paused jobs keep their memory. ``others``: cores of a node that jobs outside tenbin hold. ``beyond``: what
    jobs keep besides, of a time when there was more. ``prices``: see ``Policy.prices``.
    """
    table: list[dict[str, Any]] = []
    engine, gpus = coordinator.engine, _gpus(coordinator)
    absent, others = engine.nodes.absent(), engine.nodes.others()
    places = engine.regions.places() if coordinator.policy.fences else {}
    prices, state = coordinator.prices(), coordinator.cluster
    for pool in coordinator.cluster.cluster.pools:
        if pool.counted:
            regions = _regions(coordinator, pool, places)
            row = {"name": pool.name, "units": pool.units, "free": state.free[pool.name], "regions": regions}
            row |= _beyond({pool.name: state.in_service[pool.name] - pool.units})
            own = [gpu for gpu in gpus if pool.kind and gpu["name"] == pool.name]
            table.append(row | _if_any("gpus", own) | _if_any("prices", prices.get(pool.name)))
            continue
        nodes, paused = state.nodes[pool.name], _of_paused(coordinator, pool)
        shown = [name for name in pool.resources if name != NODES]
        for number in range(pool.units):
            left = dict(zip(shown, nodes.free[number].tolist(), strict=False))
            if number in paused:
                left["memory_mb"] = max(0.0, left["memory_mb"] - paused[number])
            whole = pool.capacity_of(number)
            more = [there - own for there, own in zip(nodes.capacity[number].tolist(), whole, strict=True)]
            table.append(
                {
                    "name": pool.name_of(number),
                    "capacity": dict(zip(shown, whole, strict=False)),
                    "free": left,
                    "up": bool(nodes.up[number]),
                    "trouble": absent.get(number, ""),
                    "jobs": sorted(nodes.jobs[number]),
                    "others": others.get(number, 0),
                    **_if_any("gpus", gpus),
                    **_if_any("prices", prices.get(pool.name)),
                    **_beyond(dict(zip(shown, more, strict=False))),
                }
            )
    if all(pool.counted for pool in coordinator.cluster.cluster.pools):
        table += _hosts(coordinator, engine.nodes, places)
    return table


def _of_paused(coordinator: Coordinator, pool: Pool) -> Counter[int]:
    """Sum up the memory, in MB, that paused jobs keep on each node where they keep any."""
    kept = Counter[int]()
    for entry in coordinator.job_table.entries.values():
        place = entry.placement
        if entry.paused and place is not None and place.pool == pool.name and entry.job.demand:
            task_mb = dict(zip(pool.resources, entry.job.demand, strict=False)).get("memory_mb", 0.0)
            kept += Counter({node: task_mb * tasks for node, tasks in place.nodes})
    return kept


def _if_any(name: str, value: object) -> dict[str, object]:
    return {name: value} if value else {}


def _beyond(more: Mapping[str, float]) -> dict[str, object]:
    return _if_any("beyond", {name: amount for name, amount in more.items() if amount > EPSILON})


def _gpus(coordinator: Coordinator) -> list[dict[str, Any]]:
    """List the GPUs that jobs get, and the job that has each."""
    entries = coordinator.job_table.entries
    owners = {number: job for job in coordinator.cluster.running for number in entries[job].devices}
    return [{**row._asdict(), "job": owners.get(row.number)} for row in coordinator.engine.gpus.rows()]


def in_use(coordinator: Coordinator) -> list[dict[str, Any]]:
    """Sum up the units of each pool, and each resource of nodes that are up: used, and in all."""
    sums: dict[str, list[float]] = {}

    def add(name: str, free: float, total: float) -> None:
        totals = sums.setdefault(name, [0.0, 0.0])
        totals[0] += total - free
        totals[1] += total

    state = coordinator.cluster
    for pool in state.cluster.pools:
        if pool.counted:
            add(pool.name, state.free[pool.name], state.in_service[pool.name])
            continue
        nodes = state.nodes[pool.name]
        free, total = nodes.free[nodes.up].sum(axis=0).tolist(), nodes.capacity[nodes.up].sum(axis=0).tolist()
        for place, resource in enumerate(pool.resources):
            if resource != NODES:
                add(resource, free[place], total[place])
    return [{"name": name, "used": used, "total": total} for name, (used, total) in sums.items()]


def _regions(
    coordinator: Coordinator, pool: Pool, places: Mapping[str, Mapping[str, int]]
) -> list[dict[str, Any]]:
    """List the regions of a pool, and their nodes."""
    used, least, rows = coordinator.cluster.region_used, 1, []
    for region in coordinator.cluster.regions.get(pool.name, ()) if places else ():
        where = {name: shares[region.name] for name, shares in places.items() if region.name in shares}
        rows.append(
            {
                "name": region.name,
                "units": region.units,
                "used": used.get((pool.name, region.name), 0),
                "job_units": [least, region.max_units],
                "places": where,
            }
        )
        least = region.max_units + 1
    return rows


def _hosts(
    coordinator: Coordinator, nodes: Nodes, places: Mapping[str, Mapping[str, int]]
) -> list[dict[str, Any]]:
    """Return the nodes that lie under units without identity."""
    names, absent, others = nodes.names(), nodes.absent(), nodes.others()
    jobs: dict[str, list[int]] = {name: [] for name in names}
    for entry in coordinator.job_table.entries.values():
        if entry.alive and entry.stage.placed:
            for name in nodes.where(entry):
                jobs[name].append(entry.id)
    return [
        {
            "name": name,
            "up": number not in absent,
            "trouble": absent.get(number, ""),
            "jobs": jobs[name],
            "others": others.get(number, 0),
            "regions": dict(places.get(name, {})),
        }
        for number, name in enumerate(names)
    ]


# -- jobs --------------------------------------------------------------------------------------------------


def brief(coordinator: Coordinator, entry: Entry) -> dict[str, Any]:
    """Describe a job as lists show it."""
    return as_json(row_of(entry, coordinator.job_table.user))


def why_fields(reason: Reason) -> dict[str, Any]:
    """Describe why a job waits, and when it should start."""
    fields = reason._asdict()
    return {"why": fields.pop("sentence"), **fields}


def known(coordinator: Coordinator, job_id: int) -> Entry:
    """Find a job, ended or not; 404 if there is none."""
    if job_id in coordinator.job_table.arrays:
        first = coordinator.journal.index_range(job_id)[0]
        raise HTTPException(
            422, f"{job_id} is an array; name one of its jobs, for instance {job_id}[{first}]"
        )
    entry = coordinator.job_table.entry(job_id)
    if entry is None:
        raise HTTPException(404, f"there is no job {job_id}; see: tenbin jobs")
    return entry


def describe(coordinator: Coordinator, job_id: int) -> dict[str, Any]:
    """Describe one job with everything that is known; 404 if there is none."""
    entry = known(coordinator, job_id)
    of_devices = bool(coordinator.cluster.cluster.pools[0].kind)
    return {
        **brief(coordinator, entry),
        "spec": entry.spec.model_dump(mode="json"),
        "stdout": str(coordinator.folders.output(entry, "stdout")),
        "stderr": str(coordinator.folders.output(entry, "stderr")),
        "packed": bool(entry.stage.final and entry.attempt)
        and not coordinator.folders.attempt(entry).path.exists(),
        **why_fields(Reason("") if entry.stage.final else coordinator.why(job_id)),
        "attempt": entry.attempt,
        "placement": None if entry.placement is None else entry.placement.pool,
        "region": entry.placement.region or None if entry.placement else None,
        "nodes": [] if entry.placement is None else [node for node, _ in entry.placement.nodes],
        "hosts": hosts(coordinator, entry),
        "cpus": list(entry.cores),
        "devices": list(entry.devices) if of_devices else [],
        "gpus": [] if of_devices else list(entry.devices),
        "tasks": coordinator.job_table.tasks(entry),
        "alternative": entry.placement.alternative if entry.placement and entry.spec.alternatives else None,
        "cap_w": entry.placement.cap_w if entry.placement else None,
        "signal": entry.signal,
        "preemptions": entry.preemptions,
        "migrations": entry.migrations,
        "failures": entry.failures,
        "usage": entry.usage,
        "gpu_use": gpu_use(coordinator.engine.gpus, entry) if entry.way.gpus_asked else None,
        "predicted": entry.predicted,
        "moves": moves(coordinator, entry),
        "memory_limit_by": memory_limit_by(coordinator, entry),
        "from_unrelated_jobs": None if entry.attempt else coordinator.run_times.unproved(entry),
        "forecasts": [forecast.as_json() for forecast in coordinator.journal.predictions(job=job_id)],
        "history": [
            *(
                {"at_s": at, "what": what, "detail": detail}
                for at, what, detail in coordinator.job_table.history(job_id)
            ),
            *coordinator.folders.failed_notices(job_id),
        ],
    }


def gpu_use(gpus: GpuTable, entry: Entry) -> dict[str, Any]:
    """Tell how many GPUs a job asks for, and what it does with them, or its last attempt has done."""
    usage, live = entry.usage or {}, gpus.use(entry.id)
    if live is not None:
        usage = {
            "gpus_used": live.used,
            "peak_gpu_memory_mb": live.peak_mb,
            "gpu_energy_j": live.energy_j,
            "gpus_emulated": live.emulated,
        }
    names = ("gpus_used", "peak_gpu_memory_mb", "gpu_energy_j")
    emulated = bool(usage.get("gpus_emulated"))
    return {
        "gpus_asked": entry.way.gpus_asked or None,
        **{name: usage.get(name) for name in names},
        "gpus_emulated": emulated,
    }


def moves(coordinator: Coordinator, entry: Entry) -> str | None:
    """Say whether a job can be moved to another device now, or why not; None if that is no question."""
    device_moves = coordinator.engine.device_moves
    if not device_moves.able or not entry.alive:
        return None
    if entry.spec.checkpoint_signal is not None:
        return "can be moved, by checkpoints of its own"
    if entry.fixed or entry.fixed is None:
        return f"cannot be moved: {entry.fixed or 'it was started by an earlier tenbin'}"
    return device_moves.readiness(entry, coordinator.folders.state(entry))


def memory_limit_by(coordinator: Coordinator, entry: Entry) -> str | None:
    """Name what holds a job's memory limit: "cgroup v1", "cgroup v2" or "looking"; None: nothing."""
    if entry.usage is not None:
        holder = entry.usage.get("memory_limit_by")
    elif entry.way.memory_mb is not None and entry.alive:
        state = coordinator.folders.state(entry)
        holder = None if state is None else state.memory_limit_by
    else:
        holder = None
    return holder or None


def hosts(coordinator: Coordinator, entry: Entry) -> list[str]:
    """Name the nodes of a job, as journalled when it was placed; none where there is only this machine."""
    return coordinator.engine.nodes.where(entry) if entry.hosts is None else entry.hosts


# -- the coordinator ---------------------------------------------------------------------------------------


def summary(coordinator: Coordinator) -> dict[str, Any]:
    """Describe the coordinator and its work."""
    return {
        **state(coordinator),
        "home": str(coordinator.journal.store),
        "nodes": node_table(coordinator),
        "starts": coordinator.start_times.account(),
    }


def state(coordinator: Coordinator) -> dict[str, Any]:
    """Describe what the coordinator has to do, without its nodes."""
    by_stage = Counter(entry.shown for entry in coordinator.job_table.entries.values())
    counts = {stage.value: by_stage[stage] for stage in Stage if not stage.final}
    return {
        "pid": os.getpid(),
        "policy": coordinator.policy_text,
        "power": power(coordinator),
        "memory": memory(coordinator),
        "jobs": counts,
        "held": coordinator.why_held(),
        "in_use": in_use(coordinator),
    }


def power(coordinator: Coordinator) -> dict[str, Any] | None:
    """Return the power budget, and the sum of the caps in use; None where no power is scheduled."""
    cluster, rest_w = coordinator.cluster, coordinator.engine.caps.rest_w()
    if cluster.budget_w is None:
        return None
    return {"budget_w": cluster.budget_w + rest_w, "allotted_w": cluster.power_w + rest_w}


def memory(coordinator: Coordinator) -> dict[str, float] | None:
    """Return the memory for all jobs, and how much is set aside; None where nodes count their own."""
    rule = coordinator.machine.state.memory
    total_mb, free_mb = rule.total_mb, rule.free_mb
    return None if math.isinf(total_mb) else {"total_mb": total_mb, "set_aside_mb": total_mb - free_mb}


def prometheus(coordinator: Coordinator) -> bytes:
    """Write the metrics in Prometheus's text format."""
    registry = CollectorRegistry()

    def gauge(name: str, words: str, label: str) -> Gauge:
        return Gauge(name, words, [label], registry=registry)

    jobs = gauge("tenbin_jobs", "Jobs that have not ended, by stage", "stage")
    for stage, count in state(coordinator)["jobs"].items():
        jobs.labels(stage).set(count)
    ended = PrometheusCounter(
        "tenbin_jobs_ended", "Jobs that have ended, by stage", ["stage"], registry=registry
    )
    for stage, count in coordinator.journal.count_ended().items():
        ended.labels(stage).inc(count)
    free = gauge("tenbin_free_units", "Free units (cores, or whole nodes), by pool", "pool")
    units = gauge("tenbin_units", "Units in service, by pool", "pool")
    for pool in coordinator.cluster.cluster.pools:
        free.labels(pool.name).set(coordinator.cluster.free[pool.name])
        units.labels(pool.name).set(coordinator.cluster.in_service[pool.name])
    if room := memory(coordinator):
        amounts = gauge("tenbin_memory_bytes", "Memory for jobs, and what is set aside of it", "what")
        amounts.labels("total").set(room["total_mb"] * 1e6)
        amounts.labels("set_aside").set(room["set_aside_mb"] * 1e6)
    if budget := power(coordinator):
        watts = gauge("tenbin_power_watts", "The power budget, and what is allotted of it", "what")
        watts.labels("budget").set(budget["budget_w"])
        watts.labels("allotted").set(budget["allotted_w"])
    return generate_latest(registry)
