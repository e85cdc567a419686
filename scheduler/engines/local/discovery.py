"""This machine as a cluster, in the terms that a policy schedules in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.inventory.files import Roots
from agent.inventory.memory import read_limits, read_memory_mb
from agent.node_profile.node_kind import node_kind
from probes.topology import read_topology
from profiles.errors import BadInput, Unavailable
from profiles.job_store import JobStore
from profiles.records import Profile
from scheduler.engines.local.packages import Packages
from scheduler.jobs.sizes import CORE, Unit, memory_text
from scheduler.model.costs import FREE, LinearCosts
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.parameters import split, unknown
from scheduler.policies.base import Policy
from scheduler.policies.registry import POLICIES, create
from scheduler.prediction.profiles import ProfiledSlowdowns, measured_cluster

if TYPE_CHECKING:
    from scheduler.engines.slurm.site import Site  # most coordinators have no Slurm

SCALES_LIKE = {"compute": "ep", "memory": "mg"}  # the built-in load whose measured scaling stands for a job's


@dataclass(frozen=True)
class Machine:
    """What stands behind a cluster: cores of each node, devices of each pool, costs of moving, its unit, and
    job profiles where jobs share nodes; or a Slurm cluster with its nodes."""

    cluster: Cluster
    cores: list[list[int]]
    devices: dict[str, list[int]] = field(default_factory=dict)
    costs: LinearCosts = FREE
    unit: Unit = CORE
    job_profiles: ProfiledSlowdowns | None = None
    packages: Packages | None = None
    slurm: Site | None = None


def devices_of_machine(policy: str, profile: Profile | None, folder: Path | None = None) -> Machine:
    """Each OpenCL device as a class of its own, those that are no processors first.

    Args:
        profile: says what moving a job costs. folder: where checkpoints will lie.

    Raises:
        BadInput: the policy schedules something else.
        Unavailable: there is no OpenCL device.
    """
    name, _ = split(policy)
    if "classes" not in kind_of(name).suits:
        raise BadInput(f"policy {name} does not schedule classes of devices", "choose mctbm, mct or fcfs")
    # In a process of its own: a driver that crashes must not take the coordinator with it.
    command = [sys.executable, "-P", "-m", "probes.opencl.devices"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout) if done.returncode == 0 else []
    if not found:
        said = (done.stderr.strip().splitlines() or ["no device"])[-1]
        raise Unavailable(f"no OpenCL device: {said}", "see: tenbin doctor")
    numbered = sorted(enumerate(found), key=lambda pair: pair[1]["kind"] == "cpu")
    pools = tuple(Pool(d["key"], 1, rank, kind=d["kind"]) for rank, (_, d) in enumerate(numbered))
    cluster, costs = Cluster(pools), FREE
    if profile is not None:
        costs = measured_cluster(cluster, {pool.name: profile for pool in pools}, folder).costs
    return Machine(cluster, [], {d["key"]: [number] for number, d in numbered}, costs)


def kind_of(name: str) -> type[Policy]:
    """The class of a policy; BadInput if there is none of that name."""
    if name not in POLICIES:
        raise unknown("policy", name, POLICIES)
    return POLICIES[name].load()


def divide(policy: str, cores: int | None, nodes: int | None, profile: Profile | None = None) -> Machine:
    """All cores, or so many.

    A policy that schedules counted units gets all cores as one pool; one that places on nodes gets nodes
    with cores and memory, in equal parts.

    Raises:
        BadInput: there are not so many cores, or the policy needs what this engine does not have.
    """
    name, _ = split(policy)
    suits = kind_of(name).suits
    usable = sorted(os.sched_getaffinity(0))
    if cores is not None and cores > len(usable):
        raise BadInput(f"--cores {cores}: this process may use {len(usable)}", "ask for fewer")
    used = usable[:cores]
    if "counted" in suits or "power" in suits:
        if nodes not in (None, 1):
            raise BadInput(f"--nodes {nodes}: policy {name} schedules cores, not nodes", "leave --nodes out")
        unit = Unit(scaling=scaling_of(profile)) if profile is not None else CORE
        return Machine(Cluster((Pool("core", len(used)),)), [used], unit=unit)
    if profile is not None:
        raise BadInput(f"--profile: policy {name} uses nothing of it here", "leave it out")
    if "sharing" in suits:
        return _shared(policy, cores, nodes or 1)
    if "nodes" not in suits:
        raise BadInput(f"policy {name} cannot run jobs on this machine yet", "try it with: tenbin simulate")
    return _in_nodes(used, nodes or 1)


def _in_nodes(used: list[int], count: int, **more: Any) -> Machine:
    """So many equal nodes of these cores."""
    if count > len(used):
        raise BadInput(f"--nodes {count}: there are {len(used)} cores", "ask for fewer")
    each = len(used) // count
    capacity = float(each), usable_memory_mb() / count
    pool = Pool("node", count, resources=("cores", "memory_mb"), capacity=capacity)
    parts = [used[each * i : each * (i + 1)] for i in range(count)]
    return Machine(Cluster((pool,)), parts, unit=Unit(node=True, cores=each), **more)


def with_memory(machine: Machine, most_mb: float | None) -> Machine:
    """The machine with so much memory for all jobs together (None: all that may be used).

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
    """Memory that jobs may have together in MB: ``most_mb``, else what control groups leave of the machine's.

    Raises:
        BadInput: there is less than ``most_mb``.
    """
    roots = Roots(Path("/sys"), Path("/proc"), Path("/"))
    there_mb = read_memory_mb(roots)
    there_mb = read_limits(roots, os.cpu_count() or 1, there_mb).memory_mb or there_mb
    if most_mb is not None and most_mb > there_mb:
        raise BadInput(
            f"--memory: {memory_text(most_mb)} asked for, {memory_text(there_mb)} are there", "ask for less"
        )
    return there_mb if most_mb is None else most_mb


def _shared(policy: str, cores: int | None, nodes: int) -> Machine:
    """Nodes that jobs share: one hardware thread of each core, as job profiles are measured; neighbours in
    cache and memory on one node."""
    topology = read_topology(Path("/sys"), os.sched_getaffinity(0))
    used = [cpu.index for cpu in topology.cores]
    if cores is not None and cores > len(used):
        raise BadInput(f"--cores {cores}: this process may use {len(used)} whole cores", "ask for fewer")
    used, most = used[:cores], getattr(create(policy), "most", 1)
    if len(used) // nodes < most:
        what = f"--nodes {nodes}: of {len(used)} cores no node has enough for {most} jobs"
        remedy = f"{len(used) // most} nodes at most" if len(used) >= most else "choose another policy"
        raise BadInput(what, remedy)
    return _in_nodes(used, nodes, job_profiles=ProfiledSlowdowns(JobStore(), node_kind()))


def scaling_of(profile: Profile) -> dict[str, tuple[float, float]]:
    """Downey's A and sigma by what bounds a job, as far as they were measured."""
    found = {}
    for load, probe in SCALES_LIKE.items():
        model = profile.find("run_s", load=probe)
        if model is not None:
            found[load] = (model["A"].value, model["sigma"].value)
    return found
