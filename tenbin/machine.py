"""This machine as a cluster, in the terms that a policy schedules in."""

from __future__ import annotations

import os

from profiles.errors import BadInput
from scheduler.model import Cluster, Pool
from scheduler.parameters import split, unknown
from scheduler.registry import POLICIES


def divide(policy: str, cores: int | None, nodes: int | None) -> tuple[Cluster, list[list[int]]]:
    """Cluster, and the numbers of the cores of each node.

    A policy that schedules counted units gets all cores as one pool; one that places on nodes gets nodes
    with cores and memory, in equal parts.

    Raises:
        BadInput: there are not so many cores, or the policy needs what this engine does not have.
    """
    name, _ = split(policy)
    if name not in POLICIES:
        raise unknown("policy", name, POLICIES)
    suits = POLICIES[name].load().suits
    usable = sorted(os.sched_getaffinity(0))
    if cores is not None and cores > len(usable):
        raise BadInput(f"--cores {cores}: this process may use {len(usable)}", "ask for fewer")
    used = usable[:cores]
    if "counted" in suits:
        if nodes not in (None, 1):
            raise BadInput(f"--nodes {nodes}: policy {name} schedules cores, not nodes", "leave --nodes out")
        return Cluster((Pool("core", len(used)),)), [used]
    if "nodes" not in suits:
        raise BadInput(f"policy {name} cannot run jobs on this machine yet", "try it with: tenbin simulate")
    count = nodes or 1
    if count > len(used):
        raise BadInput(f"--nodes {count}: there are {len(used)} cores", "ask for fewer")
    size = len(used) // count
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e6 / count
    pool = Pool("node", count, resources=("cores", "memory_mb"), capacity=(float(size), memory_mb))
    return Cluster((pool,)), [used[size * i : size * (i + 1)] for i in range(count)]
