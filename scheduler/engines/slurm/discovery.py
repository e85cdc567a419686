"""Discovery for ``tenbin up --engine slurm``: the nodes of a partition, their kinds, devices and power caps.

``find`` makes a machine of them, which makes its engine.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from agent.power.cap_keeper import NodePower
from probes.opencl import NoDevices
from profiles.checks.check import Fitness
from profiles.errors import BadInput, Unavailable
from profiles.files.safe_files import make_folder, node_states, write_whole
from profiles.files.store import JobStore, Store
from profiles.quantities import counted
from profiles.records import NodeKind, OpenCLDevice, Profile
from scheduler.engines.common.projection import (
    Terms,
    cap_choices,
    check_caps,
    measured_power,
    measured_speeds,
    pool_of_nodes,
    terms_of,
)
from scheduler.engines.protocol import Machine
from scheduler.engines.registry import UpRequest
from scheduler.engines.slurm.node_inventory import (
    ClusterNode,
    Devices,
    NodeInventory,
    Site,
    SitePower,
    Slot,
    remember,
)
from scheduler.engines.slurm.node_states import own_names
from scheduler.engines.slurm.sbatch_queue import GATE_S, SbatchQueue, Shape
from scheduler.engines.slurm.slurm_commands import (
    OLDEST,
    Slurm,
    SlurmNode,
    ask_nodes,
    own_rights,
    parse_hosts,
    run_on_node,
)
from scheduler.jobs.gpus import GpuKind, kind_name
from scheduler.jobs.sizes import CORE, Unit
from scheduler.model.costs import FREE, LinearCost, LinearCosts
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.parameters import split
from scheduler.model.speeds import all_bounds
from scheduler.policies.registry import create, policy_class
from scheduler.prediction.profiles import (
    ProfiledSlowdowns,
    begin_of,
    figures_of,
    lines_of,
)

if TYPE_CHECKING:
    from scheduler.engines.slurm.engine import SlurmEngine


# -- the machine -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SlurmMachine(Machine):
    """A partition of a Slurm cluster."""

    site: Site

    def engine(self, store: Path, reports: Path) -> SlurmEngine:
        from scheduler.engines.slurm.engine import SlurmEngine

        return SlurmEngine(store, self.cluster, self.site, self.unit)

    @property
    def emulated(self) -> str:
        return self.site.power.emulated if self.site.power is not None else ""

    @property
    def notes(self) -> Sequence[str]:
        kinds = "; ".join(map(str, self.unit.gpus))
        return [f"GPUs: {kinds}; Slurm gives them to jobs, and hides the others"] if kinds else []

    @property
    def rest_w(self) -> float:
        return self.site.power.rest_w if self.site.power is not None else 0.0


# -- kind of node ------------------------------------------------------------------------------------------
#
# Each node with a free CPU is asked by a job of a second. Answers are remembered for nodes that are not
# free.


T = TypeVar("T")


def _said_before(file: Path, read: Callable[[Any], T]) -> dict[str, T]:
    """Read the last answers of nodes, by name; none where there is no file, or a damaged one."""
    try:
        return {name: read(answer) for name, answer in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


KIND_LIMIT_S = 60.0
KIND_PREFIX = "tenbin-kind "
PRINT_KIND = (
    "from agent.node_profile.identity import node_kind; "
    f"print('{KIND_PREFIX}' + node_kind().model_dump_json())"
)


def node_kind_of(nodes: Sequence[SlurmNode], file: Path) -> NodeKind:
    """Return the kind that all of the nodes are of; ``file`` keeps the answers.

    Raises:
        Unavailable: the kind of no node is known.
        BadInput: the nodes are of several kinds.
    """
    known = _said_before(file, NodeKind.model_validate)
    free = [node for node in nodes if node.usable and node.cpus_used < node.cpus]
    for node, answer in zip(
        free, ask_nodes(free, ["-c", PRINT_KIND], KIND_PREFIX, limit_s=KIND_LIMIT_S), strict=True
    ):
        if isinstance(answer, str):
            known[node.name] = NodeKind(**json.loads(answer.removeprefix(KIND_PREFIX)))
    write_whole(file, json.dumps({name: kind.model_dump() for name, kind in known.items()}))
    kinds_by_node = {node.name: known[node.name] for node in nodes if node.name in known}
    if not kinds_by_node:
        remedy = "see: tenbin slurm doctor; or start it when nodes are free"
        raise Unavailable("no node says which kind it is", remedy)
    kinds = {kind.key: kind for kind in kinds_by_node.values()}
    if len(kinds) > 1:
        listed = "; ".join(
            f"{', '.join(node for node, its in kinds_by_node.items() if its.key == key)}: {kind.title}"
            for key, kind in kinds.items()
        )
        remedy = "name a partition of nodes alike: job profiles hold for one kind of node"
        raise BadInput(f"the nodes are of several kinds ({listed})", remedy)
    return next(iter(kinds.values()))


# -- regions as partitions ---------------------------------------------------------------------------------


log = logging.getLogger("tenbin")


def partitioned(machine: SlurmMachine, policy: str, prefix: str, home: Path) -> SlurmMachine:
    """Give each region of the machine's policy a partition, and warn of what Slurm does to partitions.

    Args:
        prefix: of their names. home: the coordinator's folder, which knows its own ones.

    Raises:
        BadInput: the policy has no such regions, this user may not, or there are partitions of these names
            that are not this coordinator's.
    """
    site = machine.site
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", prefix):
        raise BadInput(f"--partitions {prefix!r} is no name", "begin with a letter, for instance tenbin")
    name, _ = split(policy)
    if not policy_class(policy).fences:
        what = f"--partitions: policy {name} has no regions of its own nodes"
        raise BadInput(what, "choose --policy regions")
    _may_make(site.slurm, prefix, home)
    return replace(machine, site=replace(site, partitions=prefix))


def _may_make(slurm: Slurm, prefix: str, home: Path) -> None:
    """BadInput if partitions of these names may not be made."""
    config = slurm.config()
    rights = own_rights(slurm, config)
    if not rights.steers_nodes:
        what = f"--partitions: {rights.user} may not make partitions{rights.because}"
        raise BadInput(what, "leave it out, or see: tenbin slurm doctor")
    own, form = own_names(home), re.compile(rf"{re.escape(prefix)}-\d+")
    foreign = sorted(name for name in slurm.partitions() if form.fullmatch(name) and name not in own)
    if foreign:
        what = f"--partitions {prefix}: there is a partition {foreign[0]} that this coordinator has not made"
        raise BadInput(what, f"choose another name, or: scontrol delete PartitionName={foreign[0]}")
    if "KeepPartInfo" not in config.get("ReconfigFlags", ""):
        log.warning(
            "tenbin: partitions that are not in slurm.conf end, with their jobs, at scontrol reconfigure "
            "(those run again): add ReconfigFlags=KeepPartInfo there, and start slurmctld with -R"
        )


# -- power caps --------------------------------------------------------------------------------------------


CAPS_AT_ONCE = 32
CAPS_LIMIT_S = 40.0
REAL_SYSFS = "/sys"
LEAST_W = 1.0  # that a node in use is charged beyond its rest
CAPS_HINT = (
    "caps take root on the nodes, and processors with RAPL; to try it on emulated ones see docs/slurm.md"
)


def capped_nodes(
    machine: SlurmMachine,
    home: Path,
    policy: str,
    *,
    budget_w: float,
    profile: Profile | None,
    emulated: str,
) -> SlurmMachine:
    """Put the cluster's nodes under caps: a job has whole nodes, all of them under the same cap.

    Args:
        machine: the cluster, whole nodes as units.
        budget_w: what all nodes may draw together, those without a job at rest among them.
        profile: of one of the nodes; says what a node draws and how caps and sizes change the speed.
        emulated: folder with the emulated tree of each node, by name; empty: they are real.

    Raises:
        BadInput: the policy chooses no caps, or the budget does not carry the nodes at rest and one in use.
        Unavailable: no node can be capped.
    """
    check_caps(policy)
    site = machine.site
    if emulated and not Path(emulated).is_dir():
        raise BadInput(f"--emulate {emulated}: there is no such folder", "see: docs/slurm.md")
    sysfs = f"{Path(emulated).absolute()}/%N" if emulated else REAL_SYSFS
    powers = _node_powers(site, sysfs, home / f"power-{site.partition}.json")
    names = {node_power.emulated for node_power in powers.values()}
    if bool(emulated) != bool(names - {""}) or len(names) > 1:
        what = f"the nodes are not alike: {', '.join(name or 'real' for name in sorted(names))}"
        raise BadInput(what, "emulate all of them, or none")
    known = [powers.get(host.name) or _likely_power(list(powers.values())) for host in site.inventory.hosts]
    pool, rest_w = _power(machine.cluster.pools[0], known, profile, names.pop())
    free_w = budget_w - rest_w
    if free_w < pool.power_w(1, pool.caps_w[0]):
        least_w = rest_w + pool.power_w(1, pool.caps_w[0])
        what = f"--power-budget {budget_w:g}: {pool.units} nodes draw {rest_w:.4g} W at rest"
        raise BadInput(f"{what}, {least_w:.4g} W with one at its lowest cap", "give at least that")
    unit = measured_speeds(machine.unit, profile, pool, 1)
    power = SitePower(sysfs, node_states(), rest_w, known[0].emulated)
    return replace(machine, cluster=Cluster((pool,), free_w), unit=unit, site=replace(site, power=power))


def _power(
    pool: Pool, nodes: Sequence[NodePower], profile: Profile | None, emulated: str
) -> tuple[Pool, float]:
    """Return the pool, and the power of all nodes at rest. A node in use is charged what it draws beyond."""
    lowest, highest = max(node.lowest_w for node in nodes), min(node.highest_w for node in nodes)
    rests, beside_w = [node.rest_w for node in nodes], max(node.beside_w for node in nodes)
    if profile is None:
        caps = cap_choices(lowest, highest)
    else:
        whole = measured_power(pool, profile, emulated)
        caps = tuple(cap for cap in whole.caps_w if cap <= highest) or (highest,)
        rests, beside_w = [whole.idle_w] * len(nodes), whole.base_w
    base_w = max(beside_w - min(rests), LEAST_W - caps[0])
    return replace(pool, base_w=base_w, peak_w=highest, caps_w=caps), sum(rests)


def _node_powers(site: Site, sysfs: str, file: Path) -> dict[str, NodePower]:
    """Ask free nodes for their caps, take the last answers of the others, and write them down.

    Raises:
        Unavailable: nothing is known of any.
    """
    hosts = {host.name for host in site.inventory.hosts}
    powers = {
        name: kept
        for name, kept in _said_before(file, lambda row: NodePower(**row)).items()
        if name in hosts and bool(kept.emulated) == (sysfs != REAL_SYSFS)
    }
    free = [n for n in site.slurm.nodes() if n.name in hosts and n.usable and not n.cpus_used]
    program = ["-m", "agent.power.cap_keeper", sysfs, str(node_states())]
    answers = ask_nodes(
        free, program, "{", limit_s=CAPS_LIMIT_S, partition=site.partition, at_once=CAPS_AT_ONCE
    )
    for node, answer in zip(free, map(_node_power, answers), strict=True):
        if isinstance(answer, NodePower):
            powers[node.name] = answer
        elif node.name not in powers:  # a node with an earlier answer may have been taken by a job just now
            raise Unavailable(f"--power-budget: {node.name}: {answer.what}", answer.remedy)
    if not powers:
        raise Unavailable("--power-budget: no node is free to be asked for its caps", "start it when one is")
    write_whole(file, json.dumps({name: asdict(power) for name, power in sorted(powers.items())}))
    return powers


def _likely_power(known: Sequence[NodePower]) -> NodePower:
    """Guess for a node that could not be asked: it draws as much as any, and can do what all can."""
    return NodePower(
        max(power.lowest_w for power in known),
        min(power.highest_w for power in known),
        max(power.rest_w for power in known),
        max(power.beside_w for power in known),
        known[0].emulated,
    )


def _node_power(answer: str | Unavailable) -> NodePower | Unavailable:
    """Read the answer of ``agent.power.cap_keeper``."""
    if isinstance(answer, Unavailable):
        return answer
    said: Mapping[str, object] = json.loads(answer)
    if "trouble" in said:
        return Unavailable(str(said["trouble"]), str(said["remedy"]) or CAPS_HINT)
    return NodePower(**said)  # type: ignore[arg-type]


# -- OpenCL devices ----------------------------------------------------------------------------------------


DEVICES_LIMIT_S = 60.0
DEVICES_AT_ONCE = 16


class ListedDevice(NamedTuple):
    """A device of a node; ``hidden``: only jobs that have asked Slurm for a GPU see it, each its own."""

    device: OpenCLDevice
    hidden: bool = False


Found = dict[str, list[ListedDevice]]


def find_devices(nodes: Sequence[SlurmNode], file: Path) -> Found:
    """Ask each node for its devices by a one-second job; if that fails, use its last answer.

    Raises:
        Unavailable: no node has, or had, one.
    """
    devices_by_node = _said_before(file, lambda rows: [_listed(**row) for row in rows])
    with ThreadPoolExecutor(DEVICES_AT_ONCE) as pool:
        answers = list(pool.map(_devices_of, nodes))
    troubles = []
    for node, (devices, trouble) in zip(nodes, answers, strict=True):
        if devices is not None:
            devices_by_node[node.name] = devices
        elif node.name not in devices_by_node:
            troubles.append(f"{node.name}: {trouble}")
    if not any(devices_by_node.get(node.name) for node in nodes):
        said = troubles[0] if troubles else "no device"
        raise Unavailable(f"no OpenCL device on any node; {said}", "on a node: tenbin doctor")
    for trouble in troubles:
        log.warning("%s; its devices are left out until tenbin up is started again", trouble)
    written = {
        name: [listed.device.model_dump() | {"hidden": listed.hidden} for listed in seen]
        for name, seen in devices_by_node.items()
    }
    write_whole(file, json.dumps(written))
    return devices_by_node


def _listed(*, hidden: bool = False, **device: Any) -> ListedDevice:
    return ListedDevice(OpenCLDevice.model_validate(device), hidden)


def _devices_of(node: SlurmNode) -> tuple[list[ListedDevice] | None, str]:
    """List a node's devices; None, and why. A job that asks for all GPUs sees those that Slurm hides."""
    count = sum(node.gpus.values())
    devices, trouble = _ask_devices(node, f"gpu:{count}" if count else "")
    if devices is None or not count:
        return None if devices is None else [ListedDevice(device) for device in devices], trouble
    plain, trouble = _ask_devices(node)
    if plain is None:
        return None, trouble
    shown = [device for device in plain if device.kind == "gpu"]
    hidden = [d.kind == "gpu" and not any(d.is_like(other) for other in shown) for d in devices]
    return [ListedDevice(*row) for row in zip(devices, hidden, strict=True)], ""


def _ask_devices(node: SlurmNode, gres: str = "") -> tuple[list[OpenCLDevice] | None, str]:
    """List the devices that a job sees there that has asked for ``gres``; None, and why not."""
    if not node.usable:
        return None, node.state
    program = [sys.executable, "-P", "-m", "probes.opencl"]
    try:
        done = run_on_node(node, program, DEVICES_LIMIT_S, memory_mb=200, gres=gres)
    except Unavailable as error:
        return None, error.what
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    if done.returncode == NoDevices.exit_code:
        return [], ""
    if done.returncode != 0:
        return None, lines[-1]
    return [OpenCLDevice.model_validate(device) for device in json.loads(done.stdout)], ""


def classes(
    hosts: Sequence[ClusterNode], nodes: Sequence[SlurmNode], devices: Found
) -> tuple[list[Pool], list[Slot]]:
    """Put devices that are alike, on nodes of the same features and cores, into a class.

    A class is called after its first device: ``nvidia-0@node5``, however many nodes come later. Devices that
    are no processors come first.
    """
    known = {node.name: node for node in nodes}
    groups: dict[tuple[object, ...], list[tuple[Slot, OpenCLDevice]]] = {}
    for number, host in enumerate(hosts):
        node, seen = known.get(host.name), devices.get(host.name, [])
        for at, (device, _) in enumerate(seen):
            # Of the hidden ones it sees its own.
            shown = [listed.device for listed in seen[:at] if not listed.hidden]
            gres = gres_of(device, node.gpus if node else {})
            key = _key_after(shown, device)
            slot = Slot("", number, len(shown), max(1, host.cores // len(seen)), gres, key)
            features = node.features if node else None
            alike = (device.platform, device.name, device.driver, features, host.cores, gres)
            groups.setdefault(alike, []).append((slot, device))
    pools: list[Pool] = []
    slots: list[Slot] = []
    for members in sorted(groups.values(), key=lambda members: members[0][1].kind == "cpu"):
        first, device = members[0]
        name = f"{device.key}@{hosts[first.node].name}"
        names = tuple(hosts[slot.node].name for slot, _ in members)
        pools.append(Pool(name, len(members), len(pools), kind=device.kind, names=names))
        slots += [replace(slot, pool=name) for slot, _ in members]
    return pools, slots


def _key_after(shown: Sequence[OpenCLDevice], device: OpenCLDevice) -> str:
    """Return the key of a device for a job that sees these devices before it."""
    word = device.key.rpartition("-")[0]
    return f"{word}-{sum(listed.key.rpartition('-')[0] == word for listed in shown)}"


def gres_of(device: OpenCLDevice, gpus: Mapping[str, int]) -> str:
    """Name the generic resource of a device; "" if it is no GPU, or Slurm does not count GPUs.

    If there are several types, it is the one that ``tenbin slurm config`` names for the device.
    """
    if device.kind != "gpu" or not gpus:
        return ""
    kind = kind_name(device.name)
    if kind not in gpus and len(gpus) == 1:
        (kind,) = gpus
    return f"gpu:{kind}:1" if kind and kind in gpus else "gpu:1"


def profiles_of(pools: Sequence[Pool], profile: Profile | None, store: Store) -> dict[str, Profile]:
    """Find the newest profile of the first node of each class, else ``profile``."""
    profiles = {
        pool.name: store.load(pool.names[0]) if store.of_node(pool.names[0]) else profile for pool in pools
    }
    return {name: node_profile for name, node_profile in profiles.items() if node_profile is not None}


def costs_of(profiles: Mapping[str, Profile], home: Path) -> LinearCosts:
    """Find the costs of moving on each class by the profiles of its nodes."""
    checkpoint: dict[str, LinearCost] = {}
    restart: dict[str, LinearCost] = {}
    begin: dict[str, float] = {}
    for name, profile in profiles.items():
        key = name.partition("@")[0]
        lines = lines_of(profile, key, False, home)[0]
        if lines is not None:
            checkpoint[name], restart[name] = lines
            begin[name] = begin_of(profile, key, False)
    return LinearCosts(checkpoint, restart, begin_s=begin) if checkpoint else FREE


def devices_of_cluster(
    nodes: Sequence[SlurmNode],
    inventory: NodeInventory,
    home: Path,
    *,
    partition: str,
    profile: Profile | None,
) -> tuple[Cluster, Devices, LinearCosts]:
    """Find the classes of devices of a partition, their devices, and the costs of moving between them.

    Raises:
        Unavailable: there is no device.
    """
    devices = find_devices(nodes, home / f"devices-{partition}.json")
    pools, slots = classes(inventory.hosts, nodes, devices)
    profiles = profiles_of(pools, profile, Store())
    ratios = all_bounds(
        {
            name: figures_of(node_profile, name.partition("@")[0], False)
            for name, node_profile in profiles.items()
        }
    )
    return Cluster(tuple(pools), ratios=ratios), Devices(slots, inventory), costs_of(profiles, home)


# -- the cluster -------------------------------------------------------------------------------------------


@contextmanager
def find(request: UpRequest) -> Iterator[SlurmMachine]:
    """Find the nodes of a partition, as ``slurm_cluster`` does, with all that the options ask for."""
    own = request.own
    machine = slurm_cluster(
        request.policy,
        request.home,
        partition=own["partition"],
        cores=own["unit"],
        lease_s=own["lease"],
        take_over=own["take_over"],
        gate_s=own["gate"],
        devices=request.devices,
        gpus=request.power_budget_w is None,
        profile=request.profile,
    )
    if own["set_down"]:
        machine = setting_down(machine)
    if request.drain_unfit:
        machine = draining(machine)
    if own["partitions"] is not None:
        machine = partitioned(machine, request.policy, own["partitions"], request.home)
    if request.power_budget_w is not None:
        machine = capped_nodes(
            machine,
            request.home,
            request.policy,
            budget_w=request.power_budget_w,
            profile=request.profile,
            emulated=request.emulate,
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
    gpus: bool = False,
    profile: Profile | None = None,
) -> SlurmMachine:
    """Find the nodes of a partition.

    A policy that counts units gets whole nodes, or units of so many ``cores`` of one node; one that places on
    nodes gets the nodes with their cores and memory. Where Slurm counts GPUs, a policy that does both gets
    the nodes with cores, memory and GPUs.

    Args:
        home: the coordinator's folder, on a disk that all nodes share.
        partition: None: Slurm's default one.
        take_over: jobs of plain sbatch are taken over; the file by which job_submit.lua knows that. gate_s:
            for how long they wait before they start by themselves, should tenbin not come back.
        devices: schedule the nodes' OpenCL devices. profile: what moving costs where a node has none stored.
        gpus: schedule those that Slurm counts.

    Raises:
        Unavailable: Slurm does not answer, or is too old.
        BadInput: there is no such partition, or the policy needs what this engine does not have.
    """
    conf = os.environ.get("SLURM_CONF")
    if conf is not None and not Path(conf).is_file():
        raise BadInput(f"SLURM_CONF={conf}: there is no such file", "name the cluster's slurm.conf")
    slurm = Slurm()
    if slurm.version() < OLDEST:
        raise Unavailable("this Slurm is older than 20.11", "see: sinfo --version")
    name, nodes = nodes_of(slurm, partition)
    terms = terms_of(policy, "Slurm", devices=devices)
    _check_options(policy, terms, cores, take_over)
    make_folder(home, 0o700)
    shares = terms == "sharing"
    known = [ClusterNode(n.name, n.cpus, n.memory_mb, n.gpus) for n in nodes]
    if shares:
        known = _nodes_to_share(policy, nodes, _whole_nodes(slurm, name))
    hosts = remember(home / f"nodes-{name}{'-shared' if shares else ''}.json", known)
    if devices:
        inventory = NodeInventory(hosts, CORE, whole=False)
        cluster, slots, costs = devices_of_cluster(nodes, inventory, home, partition=name, profile=profile)
        site = Site(slurm, name, inventory, lease_s, devices=slots)
        most_mb = max(hosts[slot.node].memory_mb for slot in slots.slots)
        return SlurmMachine(cluster, costs=costs, site=site, unit=Unit(hosts=((1, most_mb),)))
    names = tuple(host.name for host in hosts)
    gpus = gpus and cores is None and take_over is None and terms in ("either", "nodes")
    kinds, gres = gpu_kinds(slurm, name, hosts) if gpus else ((), {})
    if terms in ("counted", "either") and not kinds:
        of_unit = cores or min(host.cores for host in hosts)
        sizes = {(host.cores // cores if cores else 1, host.memory_mb) for host in hosts}
        unit = Unit(node=True, cores=of_unit, hosts=tuple(sorted(sizes)))
        inventory = NodeInventory(hosts, unit, whole=cores is None)
        if not inventory.units():
            raise BadInput(f"--unit {cores}: no node has so many cores", "choose fewer")
        pool = Pool("node" if cores is None else "unit", inventory.units(), names=names)
    else:
        unit = Unit(node=True, cores=min(host.cores for host in hosts), gpus=kinds)
        inventory = NodeInventory(hosts, unit, whole=False)
        alike = known[:1] * len(hosts) if shares else hosts  # one that is gone may have been another
        pool = pool_of_nodes([_capacity(host, kinds) for host in alike], kinds, names)
    sbatch = None
    if take_over is not None:
        kind = "nodes" if not pool.counted else "whole" if cores is None else "parts"
        _may_steer(slurm)
        sbatch = SbatchQueue(take_over, gate_s, name, Shape(kind, unit.cores))
    threads = nodes[0].threads if shares else 1
    site = Site(slurm, name, inventory, lease_s, sbatch=sbatch, gres=gres, shared=shares, threads=threads)
    kind_file = home / f"kinds-{name}.json"
    profiles = ProfiledSlowdowns(JobStore(), node_kind_of(nodes, kind_file)) if shares else None
    return SlurmMachine(Cluster((pool,)), unit=unit, site=site, job_profiles=profiles)


NO_TYPE = "gpu"  # the kind of GPUs to which gres.conf gives no type


def gpu_kinds(
    slurm: Slurm, partition: str, hosts: Sequence[ClusterNode]
) -> tuple[tuple[GpuKind, ...], dict[str, str]]:
    """Return the kinds of the GPUs that Slurm counts, and what it is asked for, by the resource of each.

    There are none where Slurm gives whole nodes.
    """
    if any(host.gpus for host in hosts) and (whole := _whole_nodes(slurm, partition)):
        log.warning("GPUs are not scheduled: %s: Slurm gives whole nodes", whole)
        return (), {}
    types = {kind_name(slurm_type) or NO_TYPE: slurm_type for host in hosts for slurm_type in host.gpus}
    kinds, gres = [], {}
    for name, slurm_type in sorted(types.items()):
        resource = f"gpu:{name}" if len(types) > 1 else "gpu"
        numbers = [_gpus_of(host).get(name, 0) for host in hosts]
        kinds.append(GpuKind(resource, name, 0.0, sum(numbers), max(numbers)))
        gres[resource] = f"gpu:{slurm_type}" if slurm_type else "gpu"
    return tuple(kinds), gres


def _capacity(host: ClusterNode, kinds: Sequence[GpuKind]) -> tuple[float, ...]:
    gpus = _gpus_of(host)
    return float(host.cores), host.memory_mb, *(float(gpus.get(kind.name, 0)) for kind in kinds)


def _gpus_of(host: ClusterNode) -> dict[str, int]:
    return {kind_name(slurm_type) or NO_TYPE: number for slurm_type, number in host.gpus.items()}


def _whole_nodes(slurm: Slurm, partition: str) -> str:
    """Name the setting by which Slurm gives whole nodes; "": it does not."""
    if slurm.config().get("SelectType") == "select/linear":
        return "SelectType=select/linear"
    exclusive = slurm.partitions()[partition].get("OverSubscribe") == "EXCLUSIVE"
    return f"OverSubscribe=EXCLUSIVE of partition {partition}" if exclusive else ""


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
        raise BadInput(what, "leave it out, or see: tenbin slurm doctor")
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
        raise BadInput(what, "see: tenbin slurm doctor")
    if "lua" not in config.get("JobSubmitPlugins", "").split(","):
        remedy = "write it by tenbin slurm config --job-submit FILE, and in slurm.conf: JobSubmitPlugins=lua"
        raise BadInput("--take-over: slurmctld runs no job_submit.lua", remedy)


def _check_options(policy: str, terms: Terms, cores: int | None, take_over: Path | None) -> None:
    """Refuse, by BadInput, options that do not go with what the policy schedules."""
    for name, value in (("--unit", cores), ("--take-over", take_over)):
        if terms == "classes" and value is not None:
            raise BadInput(f"{name} {value} with --devices: each job has one device", "leave it out")
    if terms in ("nodes", "sharing") and cores is not None:
        raise BadInput(f"--unit {cores}: policy {policy} places on nodes", "leave --unit out")
    if terms == "sharing" and take_over is not None:
        what = f"--take-over: policy {policy} knows jobs by their job profiles, sbatch names none"
        raise BadInput(what, "choose another policy, for instance easy")


def _nodes_to_share(policy: str, nodes: Sequence[SlurmNode], whole: str) -> list[ClusterNode]:
    """Describe nodes that jobs share, each on whole cores of its own, as job profiles are measured.

    Args:
        whole: the setting by which Slurm gives whole nodes; "": it does not.

    Raises:
        BadInput: it does, the nodes are not alike, or have too few cores.
    """
    if whole:
        raise BadInput(
            f"{whole}: Slurm gives whole nodes", "set OverSubscribe=NO, SelectType=select/cons_tres"
        )
    sizes = {(node.cpus, node.threads) for node in nodes}
    if len(sizes) > 1:
        what = f"policy {policy} needs equal nodes, these have {', '.join(f'{n} CPUs' for n, _ in sizes)}"
        raise BadInput(what, "choose nodes alike: --partition")
    cpus, threads = sizes.pop()
    most, cores = getattr(create(policy), "most", 1), cpus // threads
    if cores < most:
        raise BadInput(
            f"policy {policy}: a node has {counted(cores, 'core')}, too few for {most} jobs",
            "choose another policy",
        )
    memory_mb = min(node.memory_mb for node in nodes)
    return [ClusterNode(node.name, cores, memory_mb) for node in nodes]


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
    names = parse_hosts(partitions[partition]["Nodes"])
    known = {node.name: node for node in slurm.nodes()}
    nodes = [known[name] for name in names if name in known]
    if not nodes:
        raise BadInput(f"--partition {partition} has no nodes", f"choose one of {', '.join(partitions)}")
    return partition, nodes
