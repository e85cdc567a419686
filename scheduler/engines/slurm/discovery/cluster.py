"""A partition of a Slurm cluster, in the terms that a policy schedules in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from profiles.checks.fitness import Fitness
from profiles.errors import BadInput, Unavailable
from profiles.files.job_store import JobStore
from profiles.files.own_files import make_folder
from profiles.records import Profile
from scheduler.engines.options import Asked
from scheduler.engines.slurm.client import parse
from scheduler.engines.slurm.client.parse import SlurmNode
from scheduler.engines.slurm.client.rights import own_rights
from scheduler.engines.slurm.client.tools import Slurm
from scheduler.engines.slurm.discovery.node_kinds import node_kind_of
from scheduler.engines.slurm.discovery.opencl_devices import devices_of_cluster
from scheduler.engines.slurm.discovery.slurm_machine import SlurmMachine
from scheduler.engines.slurm.external.needs import Shape
from scheduler.engines.slurm.external.sbatch_queue import GATE_S, SbatchQueue
from scheduler.engines.slurm.nodes.node_inventory import ClusterNode, NodeInventory, remember
from scheduler.engines.slurm.site import Site
from scheduler.jobs.sizes import CORE, Unit
from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.registry import create, policy_class
from scheduler.prediction.profiles import ProfiledSlowdowns


@contextmanager
def find(asked: Asked) -> Iterator[SlurmMachine]:
    """Find the nodes of a partition, as ``slurm_cluster`` does, with all that the options ask for."""
    own = asked.own
    machine = slurm_cluster(
        asked.policy,
        asked.home,
        partition=own["partition"],
        cores=own["unit"],
        lease_s=own["lease"],
        take_over=own["take_over"],
        gate_s=own["gate"],
        devices=asked.devices,
        profile=asked.profile,
    )
    if own["set_down"]:
        machine = setting_down(machine)
    if asked.drain_unfit:
        machine = draining(machine)
    if own["partitions"] is not None:
        from scheduler.engines.slurm.discovery.partition_check import partitioned

        machine = partitioned(machine, asked.policy, own["partitions"], asked.home)
    if asked.power_budget_w is not None:
        from scheduler.engines.slurm.discovery.power_caps import capped_nodes

        machine = capped_nodes(
            machine,
            asked.home,
            asked.policy,
            budget_w=asked.power_budget_w,
            profile=asked.profile,
            emulated=asked.emulate,
        )
    yield machine


def slurm_cluster(
    policy: str,
    home: Path,
    *,
    lease_s: float,
    partition: str | None = None,
    cores: int | None = None,
    take_over: Path | None = None,
    gate_s: float = GATE_S,
    devices: bool = False,
    profile: Profile | None = None,
) -> SlurmMachine:
    """Find the nodes of a partition.

    A policy that counts units gets whole nodes, or units of so many ``cores`` of one node; one that places on
    nodes gets the nodes with their cores and memory.

    Args:
        home: the coordinator's folder, on a disk that all nodes share.
        partition: None: Slurm's default one.
        take_over: jobs of plain sbatch are taken over; the file by which job_submit.lua knows that. gate_s:
            for how long they wait before they start by themselves, should tenbin not come back.
        devices: schedule the nodes' OpenCL devices. profile: what moving costs where a node has none stored.

    Raises:
        Unavailable: Slurm does not answer, or is too old.
        BadInput: there is no such partition, or the policy needs what this engine does not have.
    """
    conf = os.environ.get("SLURM_CONF")
    if conf is not None and not Path(conf).is_file():
        raise BadInput(f"SLURM_CONF={conf}: there is no such file", "name the cluster's slurm.conf")
    slurm = Slurm()
    if slurm.version() < parse.OLDEST:
        raise Unavailable("this Slurm is older than 20.11", "see: sinfo --version")
    name, found = nodes_of(slurm, partition)
    suits = policy_class(policy).suits
    make_folder(home, 0o700)
    hosts = remember(home / f"nodes-{name}.json", [ClusterNode(n.name, n.cpus, n.memory_mb) for n in found])
    if devices:
        _check_devices(policy, cores, take_over)
        inventory = NodeInventory(hosts, CORE, whole=False)
        cluster, slots, costs = devices_of_cluster(found, inventory, home, partition=name, profile=profile)
        site = Site(slurm, name, inventory, lease_s, devices=slots)
        most_mb = max(hosts[slot.node].memory_mb for slot in slots.slots)
        return SlurmMachine(cluster, costs=costs, site=site, unit=Unit(hosts=((1, most_mb),)))
    names = tuple(host.name for host in hosts)
    if "counted" in suits or "power" in suits:
        each = cores or min(host.cores for host in hosts)
        kinds = {(host.cores // cores if cores else 1, host.memory_mb) for host in hosts}
        unit = Unit(node=True, cores=each, hosts=tuple(sorted(kinds)))
        inventory = NodeInventory(hosts, unit, whole=cores is None)
        if not inventory.units():
            raise BadInput(f"--unit {cores}: no node has so many cores", "choose fewer")
        pool = Pool("node" if cores is None else "unit", inventory.units(), names=names)
    elif "nodes" in suits:
        if cores is not None:
            raise BadInput(f"--unit {cores}: policy {policy} places on nodes", "leave --unit out")
        unit = Unit(node=True, cores=min(host.cores for host in hosts))
        inventory = NodeInventory(hosts, unit, whole=False)
        capacities = tuple((float(host.cores), host.memory_mb) for host in hosts)
        pool = Pool("node", len(hosts), resources=("cores", "memory_mb"), capacities=capacities, names=names)
    elif "sharing" in suits:
        if cores is not None:
            raise BadInput(f"--unit {cores}: policy {policy} places on nodes", "leave --unit out")
        if take_over is not None:
            what = f"--take-over: policy {policy} knows jobs by their job profiles, sbatch names none"
            raise BadInput(what, "choose another policy, for instance easy")
        return _shared(policy, home, found, slurm=slurm, partition=name, lease_s=lease_s)
    else:
        raise BadInput(f"policy {policy} cannot run jobs on Slurm yet", "try it with: tenbin simulate")
    sbatch = None
    if take_over is not None:
        kind = "nodes" if not pool.counted else "whole" if cores is None else "parts"
        _may_steer(slurm)
        sbatch = SbatchQueue(take_over, gate_s, name, Shape(kind, unit.cores))
    return SlurmMachine(
        Cluster((pool,)), unit=unit, site=Site(slurm, name, inventory, lease_s, sbatch=sbatch)
    )


def setting_down(machine: SlurmMachine) -> SlurmMachine:
    """Have Slurm set dead nodes of the machine down at once.

    Raises:
        BadInput: this user may not.
    """
    return replace(machine, site=replace(_steered(machine, "--set-down", "set nodes down"), set_down=True))


def draining(machine: SlurmMachine) -> SlurmMachine:
    """Have Slurm drain the nodes of the machine that failed their last check.

    Raises:
        BadInput: this user may not.
    """
    return replace(
        machine, site=replace(_steered(machine, "--drain-unfit", "drain nodes"), fitness=Fitness())
    )


def _steered(machine: SlurmMachine, option: str, verb: str) -> Site:
    """Return the machine's site if this user may set the state of its nodes; else raise BadInput."""
    site = machine.site
    rights = own_rights(site.slurm, site.slurm.config())
    if not rights.steers_nodes:
        what = f"{option}: {rights.user} may not {verb}{rights.because}"
        raise BadInput(what, "leave it out, or see: tenbin doctor --engine slurm")
    return site


def _may_steer(slurm: Slurm) -> None:
    """Check that jobs can be taken over: the right to steer other users' jobs, and a job_submit.lua.

    Raises:
        BadInput: one of them lacks.
    """
    config = slurm.config()
    rights = own_rights(slurm, config)
    if not rights.steers_jobs:
        what = f"--take-over: {rights.user} may not steer other users' jobs{rights.because}"
        raise BadInput(what, "see: tenbin doctor --engine slurm")
    if "lua" not in config.get("JobSubmitPlugins", "").split(","):
        remedy = "write it by tenbin slurm-config --job-submit FILE, and in slurm.conf: JobSubmitPlugins=lua"
        raise BadInput("--take-over: slurmctld runs no job_submit.lua", remedy)


def _check_devices(policy: str, cores: int | None, take_over: Path | None) -> None:
    """Refuse, by BadInput, what does not go with devices."""
    if "classes" not in policy_class(policy).suits:
        what = f"policy {policy} does not schedule classes of devices"
        raise BadInput(what, "choose mctbm, las-mq or fcfs")
    for name, value in (("--unit", cores), ("--take-over", take_over)):
        if value is not None:
            raise BadInput(f"{name} {value} with --devices: each job has one device", "leave it out")


def _shared(
    policy: str, home: Path, found: Sequence[SlurmNode], *, slurm: Slurm, partition: str, lease_s: float
) -> SlurmMachine:
    """Describe nodes that jobs share, each on whole cores of its own, as job profiles are measured.

    Raises:
        BadInput: the nodes are not alike, or have too few cores.
    """
    whole = "" if slurm.config().get("SelectType") != "select/linear" else "SelectType=select/linear"
    if slurm.partitions()[partition].get("OverSubscribe") == "EXCLUSIVE":
        whole = f"OverSubscribe=EXCLUSIVE of partition {partition}"
    if whole:
        raise BadInput(
            f"{whole}: Slurm gives whole nodes", "set OverSubscribe=NO, SelectType=select/cons_tres"
        )
    sizes = {(node.cpus, node.threads) for node in found}
    if len(sizes) > 1:
        what = f"policy {policy} needs equal nodes, these have {', '.join(f'{n} CPUs' for n, _ in sizes)}"
        raise BadInput(what, "choose nodes alike: --partition")
    cpus, threads = sizes.pop()
    most, cores = getattr(create(policy), "most", 1), cpus // threads
    if cores < most:
        raise BadInput(
            f"policy {policy}: a node has {cores} cores, too few for {most} jobs", "choose another policy"
        )
    kind = node_kind_of(found, home / f"kinds-{partition}.json")
    memory_mb = min(node.memory_mb for node in found)
    known = [ClusterNode(node.name, cores, memory_mb) for node in found]
    hosts = remember(home / f"nodes-{partition}-shared.json", known)
    unit = Unit(node=True, cores=cores)
    capacity = (float(cores), memory_mb)
    names = tuple(host.name for host in hosts)
    pool = Pool("node", len(hosts), resources=("cores", "memory_mb"), capacity=capacity, names=names)
    site = Site(
        slurm, partition, NodeInventory(hosts, unit, whole=False), lease_s, shared=True, threads=threads
    )
    profiles = ProfiledSlowdowns(JobStore(), kind)
    return SlurmMachine(Cluster((pool,)), unit=unit, site=site, job_profiles=profiles)


def nodes_of(slurm: Slurm, partition: str | None) -> tuple[str, Sequence[SlurmNode]]:
    """Return the partition's name and its nodes, in Slurm's order.

    Raises:
        BadInput: there is no such partition, or it has no nodes.
    """
    partitions = slurm.partitions()
    if partition is None:
        partition = next((name for name, words in partitions.items() if words.get("Default") == "YES"), None)
        if partition is None:
            raise BadInput(
                "Slurm has no default partition", f"choose one: --partition {'|'.join(partitions)}"
            )
    if partition not in partitions:
        raise BadInput(f"--partition {partition}: there is none", f"choose one of {', '.join(partitions)}")
    names = parse.hosts(partitions[partition]["Nodes"])
    known = {node.name: node for node in slurm.nodes()}
    found = [known[name] for name in names if name in known]
    if not found:
        raise BadInput(f"--partition {partition} has no nodes", f"choose one of {', '.join(partitions)}")
    return partition, found
