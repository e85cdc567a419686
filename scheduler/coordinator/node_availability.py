"""Availability of nodes, as the engine sees it, entered in the cluster state."""

from __future__ import annotations

from scheduler.engines.protocol import Engine
from scheduler.model.events import NodeDown, NodeUp
from scheduler.model.state import ClusterState


def update(state: ClusterState, engine: Engine) -> list[NodeDown | NodeUp]:
    """Bring nodes in the cluster state in and out of service as the engine sees them; return the changes.

    A node with jobs leaves service at once where nodes have identity. Of a counted pool its units follow when
    they are free.
    """
    if engine.nodes is None:
        return []
    absent, found = engine.nodes.absent(), list[NodeDown | NodeUp]()
    for pool in state.cluster.pools:
        if pool.counted:
            more = pool.units - engine.nodes.out_of_service(pool.name) - state.in_service[pool.name]
            if more > 0:
                state.up(pool.name, more)
                found.append(NodeUp(pool.name, more))
            elif more < 0:
                state.down(pool.name, -more)
                found.append(NodeDown(pool.name, -more))
            continue
        up = state.nodes[pool.name].up
        for node in range(pool.units) if absent or not up.all() else ():
            if bool(up[node]) == (node in absent):
                state.set_node(pool.name, node, node not in absent)
                found.append((NodeDown if node in absent else NodeUp)(pool.name, 1, node))
    return found
