"""Availability of nodes, as the engine sees it, entered in the cluster state."""

from __future__ import annotations

from scheduler.coordinator.machine_hold import MachineHold
from scheduler.engines.protocol import Engine
from scheduler.model.events import NodeDown, NodeUp
from scheduler.model.jobs import Pool
from scheduler.model.state import ClusterState


def update(state: ClusterState, engine: Engine, hold: MachineHold) -> list[NodeDown | NodeUp]:
    """Bring nodes in the cluster state in and out of service as the engine sees them; return the changes.

    A node with jobs leaves service at once where nodes have identity. Of a counted pool its units follow when
    they are free. Where nodes have no names, all of the machine is in service, or held.
    """
    held = engine.nodes is None and bool(hold.why(state.now))
    absent = engine.nodes.absent() if engine.nodes is not None else {}
    found = list[NodeDown | NodeUp]()
    for pool in state.cluster.pools:
        if pool.counted:
            more = pool.units - _out_of_service(state, engine, pool, held=held) - state.in_service[pool.name]
            if more > 0:
                state.up(pool.name, more)
                found.append(NodeUp(pool.name, more))
            elif more < 0:
                state.down(pool.name, -more)
                found.append(NodeDown(pool.name, -more))
            continue
        up = state.nodes[pool.name].up
        for node in range(pool.units) if absent or held or not up.all() else ():
            away = held or node in absent
            if bool(up[node]) == away:
                state.set_node(pool.name, node, not away)
                found.append((NodeDown if away else NodeUp)(pool.name, 1, node))
    return found


def _out_of_service(state: ClusterState, engine: Engine, pool: Pool, *, held: bool) -> int:
    """Count the units of a counted pool that cannot be used now and that no job has."""
    if engine.nodes is not None:
        return engine.nodes.out_of_service(pool.name)
    used = state.in_service[pool.name] - state.free[pool.name]
    return pool.units - used if held else 0
