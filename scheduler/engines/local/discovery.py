"""This machine as a cluster, in the terms that a policy schedules in."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.inventory import read_limits, read_memory_mb
from agent.node_profile.identity import node_kind
from probes.powercap import LOWEST_SHARE, Zone, capped, cores_of, zones
from profiles.errors import BadInput, Unavailable
from profiles.files.store import JobStore
from profiles.quantities import counted
from profiles.records import Profile
from scheduler.engines.common.projection import (
    cap_choices,
    check_caps,
    measured_power,
    measured_speeds,
    pool_of_nodes,
    terms_of,
)
from scheduler.engines.local.cores import ROOTS, Packages, Supply
from scheduler.engines.local.gpus import Gpus, emulated_gpus, find_gpus, gpus_behind
from scheduler.engines.protocol import Machine
from scheduler.engines.registry import GPUS, IdleRule, UpRequest
from scheduler.jobs.literals import memory_text
from scheduler.jobs.sizes import CORE, Unit
from scheduler.model.costs import FREE
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.parameters import split
from scheduler.policies.registry import create
from scheduler.prediction.profiles import (
    ProfiledSlowdowns,
    measured_cluster,
    scaling_of,
)

if TYPE_CHECKING:
    from scheduler.engines.local.engine import LocalEngine


# -- the machine -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalMachine(Machine):
    """This machine: the cores of each node, the devices of each pool, and the packages under power caps.

    Attributes:
        tries: running programs are tried on idle devices.
        supply: where cores and devices come from; None: they are not claimed.
        gpus: those of the one node, or among the devices; None: there are none, or they are not scheduled,
            and ``no_gpus`` says why.
        idle_s: after so long without work on a GPU the owner of its job is told. idle_rule: what then.
    """

    cores: list[list[int]] = field(default_factory=list)
    devices: dict[str, list[int]] = field(default_factory=dict)
    packages: Packages | None = None
    tries: bool = True
    supply: Supply | None = None
    gpus: Gpus | None = None
    no_gpus: str = ""
    idle_s: float = 3600.0
    idle_rule: IdleRule | None = None

    def engine(self, store: Path, reports: Path) -> LocalEngine:
        from scheduler.engines.local.engine import LocalEngine

        return LocalEngine(
            store,
            reports,
            self.cluster,
            self.cores,
            devices=self.devices,
            unit=self.unit,
            packages=self.packages,
            tries=self.tries,
            supply=self.supply,
            gpus=self.gpus,
            idle_s=self.idle_s,
            idle_rule=self.idle_rule,
        )

    @property
    def emulated(self) -> str:
        return self.packages.emulated if self.packages is not None else ""

    @property
    def notes(self) -> Sequence[str]:
        notes = list(self.supply.notes()) if self.supply is not None else []
        notes += [self.no_gpus] if self.no_gpus else []
        return notes + (list(self.gpus.notes()) if self.gpus is not None and not self.devices else [])


# -- packages under power caps -----------------------------------------------------------------------------


HINT = "see: tenbin doctor; to try it on emulated ones: --emulate intel-2s"


def capped_packages(
    policy: str,
    budget_w: float,
    nodes: int | None,
    profile: Profile | None,
    *,
    sysfs: Path,
    emulated: str,
    supply: Supply | None = None,
) -> LocalMachine:
    """Find the processor packages, each a node that one job has to itself.

    Args:
        policy: name of the policy, which must choose caps.
        budget_w: what the packages in use may draw together.
        nodes: so many packages; None: all.
        profile: measured here; says what a package draws and how caps and sizes change the speed.
        sysfs: root of the tree with the zones. emulated: name of the emulated machine; empty: it is real.

    Raises:
        BadInput: the policy chooses no caps, there are fewer packages, or the budget carries none of them.
        Unavailable: there are no caps here, or this user may not set them.
    """
    check_caps(policy)
    with_caps = sorted(capped(zones(sysfs)), key=lambda zone: zone.key)
    if not with_caps:
        raise Unavailable(f"--power-budget: no package below {sysfs} has a power cap", HINT)
    for zone in with_caps:
        if not zone.writable:
            raise Unavailable(f"--power-budget: {zone.path} may be written by root only", "run as root")
    if nodes is not None and nodes > len(with_caps):
        have = f"{len(with_caps)} package{'s' * (len(with_caps) > 1)} here"
        raise BadInput(f"--nodes {nodes}: a cap is of a whole package, and there are {have}", "ask for fewer")
    supply = supply or Supply()
    cores = _emulated_cores(emulated) if emulated else cores_of(sysfs, with_caps, supply.usable.core_of)
    taken = supply.take_packages([cores[zone.key] for zone in with_caps if cores[zone.key]], nodes)
    used = [zone for zone in with_caps if cores[zone.key] in taken]
    size = min((len(cores[zone.key]) for zone in used), default=0)
    if not size:
        raise Unavailable("--power-budget: this process may use no core of any package", "see: taskset -p $$")
    pool = _power(used, len(with_caps), profile, emulated)
    unit = Unit(node=True, cores=size, package=True, emulated=emulated)
    unit = measured_speeds(unit, profile, pool, len(with_caps))
    least_w = pool.power_w(1, pool.caps_w[0])
    if budget_w < least_w:
        what = f"--power-budget {budget_w:g}: a package at its lowest cap draws {least_w:g} W"
        raise BadInput(what, "give at least that")
    packages = Packages(sysfs, tuple(zone.key for zone in used), emulated)
    parts = [list(cores[zone.key][:size]) for zone in used]
    return LocalMachine(Cluster((pool,), budget_w), cores=parts, unit=unit, packages=packages, supply=supply)


def _power(used: Sequence[Zone], packages: int, profile: Profile | None, emulated: str) -> Pool:
    """Return the pool with the power of a package; a profile tells the power of all packages together."""
    pool = Pool("node", len(used))
    if profile is not None:
        whole = measured_power(pool, profile, emulated)
        caps = tuple(cap / packages for cap in whole.caps_w)
        power = {name: getattr(whole, name) / packages for name in ("base_w", "peak_w", "idle_w")}
        return replace(pool, caps_w=caps, **power)
    lowest = max(_lowest_w(zone) for zone in used)
    highest = min(zone.cap_w or math.inf for zone in used)
    return replace(pool, peak_w=highest, caps_w=cap_choices(lowest, highest))


def _lowest_w(zone: Zone) -> float:
    """Return the lowest cap that the hardware names, else a quarter of the largest."""
    constraint = zone.long_term
    if constraint is not None and constraint.min_w:
        return constraint.min_w
    return LOWEST_SHARE * min(zone.cap_max_w or zone.cap_w or 0.0, zone.cap_w or 0.0)


def _emulated_cores(name: str) -> dict[str, tuple[int, ...]]:
    from agent.emulation.machines import cores_of, parse

    return cores_of(parse(name)[0])


# -- the cluster -------------------------------------------------------------------------------------------


@contextmanager
def find(request: UpRequest) -> Iterator[LocalMachine]:
    """Find the cores, devices or packages of this machine that jobs get; an emulated machine ends with it."""
    from agent.emulation.machines import persistent_node

    cores, nodes, memory_mb = (request.own[name] for name in ("cores", "nodes", "memory"))
    emulated: AbstractContextManager[Path] = nullcontext(Path("/sys"))
    if request.emulate.startswith(GPUS):
        emulated = emulated_gpus(request.emulate, request.home)
    elif request.emulate:
        emulated = persistent_node(request.emulate, request.home)
    share = request.own["share"] or bool(os.environ.get("TENBIN_SHARE"))
    with emulated as sysfs, Supply(request.home, share=share) as supply:
        if request.devices:
            machine = devices_of_machine(request.policy, request.profile, request.home, supply)
            machine = replace(machine, tries=not request.own["no_trials"])
        elif request.power_budget_w is not None:
            machine = capped_packages(
                request.policy,
                request.power_budget_w,
                nodes,
                request.profile,
                sysfs=sysfs,
                emulated=request.emulate,
                supply=supply,
            )
        else:
            home = None if request.own["no_gpus"] else request.home
            machine = divide(
                request.policy, cores, nodes, request.profile, supply=supply, home=home, memory_mb=memory_mb
            )
        if request.emulate.startswith(GPUS) and machine.gpus is None:
            why, remedy = machine.no_gpus, "or leave --emulate out"
            if not why:
                why = "no GPUs are scheduled so"
                remedy = "choose policy easy, weigh or las-mq, without --no-gpus and --nodes"
            raise BadInput(f"--emulate {request.emulate}: {why}", remedy)
        cluster = replace(machine.cluster, memory_mb=usable_memory_mb(memory_mb))
        if request.own["idle_gpu"] is not None and machine.gpus is None:
            what = f"--idle-gpu: no GPUs are scheduled{machine.no_gpus and f' ({machine.no_gpus})'}"
            raise BadInput(what, "leave it out")
        idle_s, idle_rule = request.own["idle_after"], request.own["idle_gpu"]
        yield replace(machine, cluster=cluster, idle_s=idle_s, idle_rule=idle_rule)


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
    terms_of(policy, "this machine", devices=True)
    # In a process of its own: a driver that crashes must not take the coordinator with it.
    command = [sys.executable, "-P", "-m", "probes.opencl", "bus"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = json.loads(done.stdout) if done.returncode == 0 else []
    if not rows:
        said = (done.stderr.strip().splitlines() or ["no device"])[-1]
        raise Unavailable(f"no OpenCL device: {said}", "see: tenbin doctor")
    mine = supply.take_devices([d["key"] for d in rows])
    numbered = sorted(((n, rows[n]) for n in mine), key=lambda pair: pair[1]["kind"] == "cpu")
    pools = tuple(Pool(d["key"], 1, rank, kind=d["kind"]) for rank, (_, d) in enumerate(numbered))
    cluster, costs = Cluster(pools), FREE
    if profile is not None:
        measured = measured_cluster(cluster, {pool.name: profile for pool in pools}, folder)
        cluster, costs = replace(cluster, ratios=measured.cluster.ratios), measured.costs
    devices = {d["key"]: [number] for number, d in numbered}
    gpus = gpus_behind(dict(numbered))
    return LocalMachine(cluster, devices=devices, costs=costs, supply=supply, gpus=gpus)


def divide(
    policy: str,
    cores: int | None,
    nodes: int | None,
    profile: Profile | None = None,
    *,
    supply: Supply | None = None,
    home: Path | None = None,
    memory_mb: float | None = None,
) -> LocalMachine:
    """Find all cores, or so many.

    A policy that schedules counted units gets all cores as one pool; where there are GPUs, one that can place
    on nodes gets one node with cores, memory and GPUs. One that can nothing else gets nodes with cores and
    memory, in equal parts, and the GPUs if it is one node; where jobs share nodes, one hardware thread of
    each core is used, as when job profiles are measured, and neighbours in cache and memory are on one node.

    Args:
        supply: where the cores come from; None: they are not claimed, and nobody else's are minded.
        home: folder of the coordinator; None: GPUs are left alone.
        memory_mb: of all nodes together; None: all that may be used.

    Raises:
        BadInput: there are not so many cores, or the policy needs what this engine does not have.
    """
    name, _ = split(policy)
    terms, supply, count = terms_of(policy, "this machine"), supply or Supply(), nodes or 1
    whole, shares = terms in ("counted", "either"), terms == "sharing"
    if whole and count > 1:
        raise BadInput(f"--nodes {nodes}: policy {name} schedules cores, not nodes", "leave --nodes out")
    if profile is not None and not whole:
        raise BadInput(f"--profile: policy {name} uses nothing of it here", "leave it out")
    used = supply.take(cores, whole=shares)
    with_gpus = home is not None and count == 1 and terms in ("either", "nodes")
    gpus, no_gpus = find_gpus(supply, home) if home is not None and with_gpus else (None, "")
    unit = Unit(scaling=scaling_of(profile)) if profile is not None else CORE
    if whole and gpus is None:
        pool = Pool("core", len(used))
        return LocalMachine(Cluster((pool,)), cores=[used], unit=unit, supply=supply, no_gpus=no_gpus)
    of_node, kinds = len(used) // count, gpus.kinds if gpus is not None else ()
    _check_size(used, count, getattr(create(policy), "most", 1) if shares else 1)
    capacity = float(of_node), usable_memory_mb(memory_mb) / count, *(float(kind.number) for kind in kinds)
    return LocalMachine(
        Cluster((pool_of_nodes([capacity] * count, kinds),)),
        cores=[used[of_node * i : of_node * (i + 1)] for i in range(count)],
        unit=replace(unit, node=True, cores=of_node, gpus=kinds),
        supply=supply,
        gpus=gpus,
        job_profiles=ProfiledSlowdowns(JobStore(), node_kind()) if shares else None,
    )


def _check_size(used: Sequence[int], nodes: int, most: int) -> None:
    """Refuse, by BadInput, so many nodes of these cores if one is too small for ``most`` jobs."""
    there = counted(len(used), "core")
    if nodes > len(used):
        raise BadInput(f"--nodes {nodes}: this machine has {there}", "ask for fewer")
    if len(used) // nodes < most:
        remedy = f"{len(used) // most} nodes at most" if len(used) >= most else "choose another policy"
        raise BadInput(f"--nodes {nodes}: of {there} no node has enough for {most} jobs", remedy)


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
