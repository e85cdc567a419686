"""This machine as a cluster, in the terms that a policy schedules in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.inventory.memory import read_limits, read_memory_mb
from agent.node_profile.node_kind import node_kind
from profiles.errors import BadInput, Unavailable
from profiles.files.job_store import JobStore
from profiles.records import Profile
from scheduler.engines.common.machine import scaling_of
from scheduler.engines.local.capped import capped_packages
from scheduler.engines.local.machine import LocalMachine
from scheduler.engines.local.supply import ROOTS, Supply
from scheduler.engines.options import Asked
from scheduler.jobs.amounts import memory_text
from scheduler.jobs.sizes import CORE, Unit
from scheduler.model.costs import FREE
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.parameters import split
from scheduler.policies.registry import create, policy_class
from scheduler.prediction.profiles import ProfiledSlowdowns, measured_cluster


@contextmanager
def find(asked: Asked) -> Iterator[LocalMachine]:
    """Find the cores, devices or packages of this machine that jobs get; an emulated machine ends with it."""
    from agent.emulation.persistent import persistent_node

    cores, nodes, memory_mb = (asked.own[name] for name in ("cores", "nodes", "memory"))
    emulated = persistent_node(asked.emulate, asked.home) if asked.emulate else nullcontext(Path("/sys"))
    share = asked.own["share"] or bool(os.environ.get("TENBIN_SHARE"))
    with emulated as sysfs, Supply(asked.home, share=share) as supply:
        if asked.devices:
            machine = devices_of_machine(asked.policy, asked.profile, asked.home, supply)
            machine = replace(machine, tries=not asked.own["no_trials"])
        elif asked.power_budget_w is not None:
            machine = capped_packages(
                asked.policy,
                asked.power_budget_w,
                nodes,
                asked.profile,
                sysfs=sysfs,
                emulated=asked.emulate,
                supply=supply,
            )
        else:
            machine = divide(asked.policy, cores, nodes, asked.profile, supply=supply)
        yield with_memory(machine, memory_mb)


def devices_of_machine(
    policy: str, profile: Profile | None, folder: Path | None = None, supply: Supply | None = None
) -> LocalMachine:
    """Find each OpenCL device as a class of its own, those that are no processors first.

    Args:
        profile: says what moving a job costs, and how fast devices are. folder: where checkpoints will lie.

    Raises:
        BadInput: the policy schedules something else, or others have all devices.
        Unavailable: there is no OpenCL device.
    """
    supply = supply or Supply()
    name, _ = split(policy)
    if "classes" not in policy_class(policy).suits:
        raise BadInput(f"policy {name} does not schedule classes of devices", "choose mctbm, las-mq or fcfs")
    # In a process of its own: a driver that crashes must not take the coordinator with it.
    command = [sys.executable, "-P", "-m", "probes.opencl.devices"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout) if done.returncode == 0 else []
    if not found:
        said = (done.stderr.strip().splitlines() or ["no device"])[-1]
        raise Unavailable(f"no OpenCL device: {said}", "see: tenbin doctor")
    mine = supply.take_devices([d["key"] for d in found])
    numbered = sorted(((n, found[n]) for n in mine), key=lambda pair: pair[1]["kind"] == "cpu")
    pools = tuple(Pool(d["key"], 1, rank, kind=d["kind"]) for rank, (_, d) in enumerate(numbered))
    cluster, costs = Cluster(pools), FREE
    if profile is not None:
        measured = measured_cluster(cluster, {pool.name: profile for pool in pools}, folder)
        cluster, costs = replace(cluster, ratios=measured.cluster.ratios), measured.costs
    devices = {d["key"]: [number] for number, d in numbered}
    return LocalMachine(cluster, devices=devices, costs=costs, supply=supply)


def divide(
    policy: str,
    cores: int | None,
    nodes: int | None,
    profile: Profile | None = None,
    *,
    supply: Supply | None = None,
) -> LocalMachine:
    """Find all cores, or so many.

    A policy that schedules counted units gets all cores as one pool; one that places on nodes gets nodes
    with cores and memory, in equal parts.

    Args:
        supply: where the cores come from; None: they are not claimed, and nobody else's are minded.

    Raises:
        BadInput: there are not so many cores, or the policy needs what this engine does not have.
    """
    name, _ = split(policy)
    suits = policy_class(policy).suits
    supply = supply or Supply()
    if "counted" in suits or "power" in suits:
        if nodes not in (None, 1):
            raise BadInput(f"--nodes {nodes}: policy {name} schedules cores, not nodes", "leave --nodes out")
        unit = Unit(scaling=scaling_of(profile)) if profile is not None else CORE
        used = supply.take(cores)
        return LocalMachine(Cluster((Pool("core", len(used)),)), cores=[used], unit=unit, supply=supply)
    if profile is not None:
        raise BadInput(f"--profile: policy {name} uses nothing of it here", "leave it out")
    if "sharing" in suits:
        return _shared(policy, supply.take(cores, whole=True), nodes or 1, supply=supply)
    if "nodes" not in suits:
        raise BadInput(f"policy {name} cannot run jobs on this machine yet", "try it with: tenbin simulate")
    return _in_nodes(supply.take(cores), nodes or 1, supply=supply)


def _in_nodes(used: list[int], count: int, **more: Any) -> LocalMachine:
    """Make so many equal nodes of these cores."""
    if count > len(used):
        raise BadInput(f"--nodes {count}: there are {len(used)} cores", "ask for fewer")
    each = len(used) // count
    capacity = float(each), usable_memory_mb() / count
    pool = Pool("node", count, resources=("cores", "memory_mb"), capacity=capacity)
    parts = [used[each * i : each * (i + 1)] for i in range(count)]
    return LocalMachine(Cluster((pool,)), cores=parts, unit=Unit(node=True, cores=each), **more)


def with_memory(machine: LocalMachine, most_mb: float | None) -> LocalMachine:
    """Limit the memory for all jobs together (None: all that may be used).

    Nodes have equal parts of it.

    Raises:
        BadInput: there is less.
    """
    memory_mb, cluster = usable_memory_mb(most_mb), machine.cluster
    pools = tuple(
        pool if pool.counted else replace(pool, capacity=(pool.capacity[0], memory_mb / pool.units))
        for pool in cluster.pools
    )
    return replace(machine, cluster=replace(cluster, pools=pools, memory_mb=memory_mb))


def usable_memory_mb(most_mb: float | None = None) -> float:
    """Return the memory for jobs in MB: ``most_mb``, else what control groups leave of the machine's.

    Raises:
        BadInput: there is less than ``most_mb``.
    """
    there_mb = read_memory_mb(ROOTS)
    there_mb = read_limits(ROOTS, os.cpu_count() or 1, there_mb).memory_mb or there_mb
    if most_mb is not None and most_mb > there_mb:
        raise BadInput(
            f"--memory: {memory_text(most_mb)} asked for, {memory_text(there_mb)} are there", "ask for less"
        )
    return there_mb if most_mb is None else most_mb


def _shared(policy: str, used: list[int], nodes: int, *, supply: Supply) -> LocalMachine:
    """Divide the machine into nodes that jobs share: neighbours in cache and memory on one node.

    One hardware thread of each core is used, as when job profiles are measured.
    """
    most = getattr(create(policy), "most", 1)
    if len(used) // nodes < most:
        what = f"--nodes {nodes}: of {len(used)} cores no node has enough for {most} jobs"
        remedy = f"{len(used) // most} nodes at most" if len(used) >= most else "choose another policy"
        raise BadInput(what, remedy)
    profiles = ProfiledSlowdowns(JobStore(), node_kind())
    return _in_nodes(used, nodes, job_profiles=profiles, supply=supply)
