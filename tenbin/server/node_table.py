"""The nodes of a coordinator: what each has, and what is free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.coordinator.coordinator import Coordinator
from scheduler.engines.protocol import Nodes
from scheduler.jobs.entry import Stage
from scheduler.model.jobs import Pool


def node_table(coordinator: Coordinator) -> list[dict[str, Any]]:
    """List each node, or each pool of counted units and the nodes under it, with what is free."""
    table: list[dict[str, Any]] = []
    engine = coordinator.engine
    absent = engine.nodes.absent()
    places = engine.regions.places() if coordinator.policy.fences else {}
    for pool in coordinator.cluster.cluster.pools:
        if pool.counted:
            free = coordinator.cluster.free[pool.name]
            regions = _regions(coordinator, pool, places)
            table.append({"name": pool.name, "units": pool.units, "free": free, "regions": regions})
            continue
        nodes = coordinator.cluster.nodes[pool.name]
        for number in range(pool.units):
            table.append(
                {
                    "name": pool.name_of(number),
                    "capacity": dict(zip(pool.resources, pool.capacity_of(number), strict=True)),
                    "free": dict(zip(pool.resources, nodes.free[number].tolist(), strict=True)),
                    "up": bool(nodes.up[number]),
                    "trouble": absent.get(number, ""),
                    "jobs": sorted(nodes.jobs[number]),
                }
            )
    if all(pool.counted for pool in coordinator.cluster.cluster.pools):
        table += _hosts(coordinator, engine.nodes, places)
    return table


def in_use(coordinator: Coordinator) -> list[dict[str, Any]]:
    """Sum up the units of each pool, and each resource of nodes that are up: used, and in all."""
    sums: dict[str, list[float]] = {}

    def add(name: str, free: float, total: float) -> None:
        found = sums.setdefault(name, [0.0, 0.0])
        found[0] += total - free
        found[1] += total

    state = coordinator.cluster
    for pool in state.cluster.pools:
        if pool.counted:
            add(pool.name, state.free[pool.name], state.in_service[pool.name])
            continue
        nodes = state.nodes[pool.name]
        free, total = nodes.free[nodes.up].sum(axis=0).tolist(), nodes.capacity[nodes.up].sum(axis=0).tolist()
        for place, resource in enumerate(pool.resources):
            add(resource, free[place], total[place])
    return [{"name": name, "used": used, "total": total} for name, (used, total) in sums.items()]


def _regions(
    coordinator: Coordinator, pool: Pool, places: Mapping[str, Mapping[str, int]]
) -> list[dict[str, Any]]:
    """List the regions of a pool, and their nodes."""
    used, least, found = coordinator.cluster.region_used, 1, []
    for region in coordinator.cluster.regions.get(pool.name, ()) if places else ():
        where = {name: shares[region.name] for name, shares in places.items() if region.name in shares}
        found.append(
            {
                "name": region.name,
                "units": region.units,
                "used": used.get((pool.name, region.name), 0),
                "job_units": [least, region.max_units],
                "places": where,
            }
        )
        least = region.max_units + 1
    return found


def _hosts(
    coordinator: Coordinator, nodes: Nodes, places: Mapping[str, Mapping[str, int]]
) -> list[dict[str, Any]]:
    """Return the nodes that lie under units without identity."""
    names, absent = nodes.names(), nodes.absent()
    jobs: dict[str, list[int]] = {name: [] for name in names}
    for entry in coordinator.job_table.entries.values():
        if entry.alive and entry.stage in (Stage.RUNNING, Stage.STOPPING):
            for name in nodes.where(entry):
                jobs[name].append(entry.id)
    return [
        {
            "name": name,
            "up": number not in absent,
            "trouble": absent.get(number, ""),
            "jobs": jobs[name],
            "regions": dict(places.get(name, {})),
        }
        for number, name in enumerate(names)
    ]
