"""The OpenCL devices of a Slurm cluster's nodes, as classes of resource."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from profiles.errors import BadInput, Unavailable
from profiles.files import write_whole
from profiles.inventory import OpenCLDevice
from profiles.records import Profile
from profiles.store import Store
from scheduler.costs import FREE, Line, LinearCosts
from scheduler.engines.slurm.devices import Devices, Slot
from scheduler.engines.slurm.parse import SlurmNode
from scheduler.engines.slurm.roster import Host, Roster
from scheduler.measured import begin_of, lines_of
from scheduler.model import Cluster, Pool
from scheduler.site.asking import ask

LIMIT_S = 60.0
AT_ONCE = 16
Found = dict[str, list[OpenCLDevice]]
log = logging.getLogger("tenbin")


def find_devices(nodes: Sequence[SlurmNode], file: Path) -> Found:
    """The devices of each node: asked by a job of a second; of one that cannot be asked now, as it said last.

    Raises:
        Unavailable: no node has, or had, one.
    """
    found: Found = {}
    try:
        for name, devices in json.loads(file.read_text()).items():
            found[name] = [OpenCLDevice.model_validate(device) for device in devices]
    except (OSError, ValueError):
        pass
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(_ask, nodes))
    troubles = []
    for node, (devices, trouble) in zip(nodes, answers, strict=True):
        if devices is not None:
            found[node.name] = devices
        elif node.name not in found:
            troubles.append(f"{node.name}: {trouble}")
    if not any(found.get(node.name) for node in nodes):
        said = troubles[0] if troubles else "no device"
        raise Unavailable(f"no OpenCL device on any node; {said}", "on a node: tenbin doctor")
    for trouble in troubles:
        log.warning("%s; its devices are left out until tenbin up is started again", trouble)
    write_whole(
        file, json.dumps({name: [d.model_dump() for d in devices] for name, devices in found.items()})
    )
    return found


def _ask(node: SlurmNode) -> tuple[list[OpenCLDevice] | None, str]:
    """A node's devices; None, and why not."""
    if not node.usable:
        return None, node.state
    done = ask(node, [sys.executable, "-P", "-m", "probes.opencl"], LIMIT_S, memory_mb=200)
    if done is None:
        return None, f"it did not answer within {LIMIT_S:g} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    if "no OpenCL" in done.stderr:
        return [], ""
    if done.returncode != 0:
        return None, lines[-1]
    return [OpenCLDevice.model_validate(device) for device in json.loads(done.stdout)], ""


def classes(hosts: Sequence[Host], nodes: Sequence[SlurmNode], found: Found) -> tuple[list[Pool], list[Slot]]:
    """Devices that are alike, on nodes of the same features and cores, are a class, called after the first:
    ``nvidia-0@node5``, however many nodes come later. No processors come first."""
    features = {node.name: node.features for node in nodes}
    groups: dict[tuple[object, ...], list[tuple[int, int, OpenCLDevice]]] = {}
    for number, host in enumerate(hosts):
        for index, device in enumerate(found.get(host.name, ())):
            alike = (device.platform, device.name, device.driver, features.get(host.name), host.cores)
            groups.setdefault(alike, []).append((number, index, device))
    pools: list[Pool] = []
    slots: list[Slot] = []
    for members in sorted(groups.values(), key=lambda members: members[0][2].kind == "cpu"):
        node, _, device = members[0]
        name = f"{device.key}@{hosts[node].name}"
        names = tuple(hosts[number].name for number, _, _ in members)
        pools.append(Pool(name, len(members), len(pools), kind=device.kind, names=names))
        for number, index, _ in members:
            share = max(1, hosts[number].cores // len(found[hosts[number].name]))
            slots.append(Slot(name, number, index, share))
    return pools, slots


def costs_of(
    pools: Sequence[Pool], found: Found, home: Path, profile: Profile | None, store: Store
) -> LinearCosts:
    """What moving costs on each class: by the newest stored profile of its first node, else ``profile``."""
    checkpoint: dict[str, Line] = {}
    restart: dict[str, Line] = {}
    begin: dict[str, float] = {}
    for pool in pools:
        known = store.of_node(pool.names[0])
        told = store.load(pool.names[0]) if known else profile
        key = pool.name.partition("@")[0]
        lines = None if told is None else lines_of(told, key, False, home)[0]
        if told is not None and lines is not None:
            checkpoint[pool.name], restart[pool.name] = lines
            begin[pool.name] = begin_of(told, key, False)
    return LinearCosts(checkpoint, restart, begin_s=begin) if checkpoint else FREE


def devices_of_cluster(
    policy: str,
    suits: frozenset[str],
    home: Path,
    nodes: Sequence[SlurmNode],
    roster: Roster,
    partition: str,
    profile: Profile | None,
) -> tuple[Cluster, Devices, LinearCosts]:
    """The classes of devices of a partition, their devices, and what moving between them costs.

    Raises:
        BadInput: the policy schedules something else.
        Unavailable: there is no device.
    """
    if "classes" not in suits:
        raise BadInput(f"policy {policy} does not schedule classes of devices", "choose mctbm, mct or fcfs")
    found = find_devices(nodes, home / f"devices-{partition}.json")
    pools, slots = classes(roster.hosts, nodes, found)
    costs = costs_of(pools, found, home, profile, Store())
    return Cluster(tuple(pools)), Devices(slots, roster), costs
