"""The OpenCL devices of a Slurm cluster's nodes, as classes of resource."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from profiles.errors import Unavailable
from profiles.files.store import Store
from profiles.files.whole_files import write_whole
from profiles.inventory import OpenCLDevice
from profiles.records import Profile
from scheduler.engines.slurm.client.node_programs import run_on_node
from scheduler.engines.slurm.client.parse import SlurmNode
from scheduler.engines.slurm.nodes.devices import Devices, Slot, gres_type
from scheduler.engines.slurm.nodes.node_inventory import ClusterNode, NodeInventory
from scheduler.model.costs import FREE, LinearCost, LinearCosts
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.speed_bounds import all_bounds
from scheduler.prediction.profiles import begin_of, figures_of, lines_of

LIMIT_S = 60.0
AT_ONCE = 16
log = logging.getLogger("tenbin")


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
    found = _said_last(file)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(_devices_of, nodes))
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
    written = {
        name: [one.device.model_dump() | {"hidden": one.hidden} for one in seen]
        for name, seen in found.items()
    }
    write_whole(file, json.dumps(written))
    return found


def _said_last(file: Path) -> Found:
    found: Found = {}
    with suppress(OSError, ValueError):
        for name, devices in json.loads(file.read_text()).items():
            hidden = [device.pop("hidden", False) for device in devices]
            seen = [OpenCLDevice.model_validate(device) for device in devices]
            found[name] = [ListedDevice(*one) for one in zip(seen, hidden, strict=True)]
    return found


def _devices_of(node: SlurmNode) -> tuple[list[ListedDevice] | None, str]:
    """List a node's devices; None, and why. A job that asks for all GPUs sees those that Slurm hides."""
    count = sum(node.gpus.values())
    devices, trouble = _ask(node, f"gpu:{count}" if count else "")
    if devices is None or not count:
        return None if devices is None else [ListedDevice(device) for device in devices], trouble
    plain, trouble = _ask(node)
    if plain is None:
        return None, trouble
    shown = [device for device in plain if device.kind == "gpu"]
    hidden = [d.kind == "gpu" and not any(d.is_like(other) for other in shown) for d in devices]
    return [ListedDevice(*one) for one in zip(devices, hidden, strict=True)], ""


def _ask(node: SlurmNode, gres: str = "") -> tuple[list[OpenCLDevice] | None, str]:
    """List the devices that a job sees there that has asked for ``gres``; None, and why not."""
    if not node.usable:
        return None, node.state
    program = [sys.executable, "-P", "-m", "probes.opencl.devices"]
    try:
        done = run_on_node(node, program, LIMIT_S, memory_mb=200, gres=gres)
    except Unavailable as error:
        return None, error.what
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    if "no OpenCL" in done.stderr:
        return [], ""
    if done.returncode != 0:
        return None, lines[-1]
    return [OpenCLDevice.model_validate(device) for device in json.loads(done.stdout)], ""


def classes(
    hosts: Sequence[ClusterNode], nodes: Sequence[SlurmNode], found: Found
) -> tuple[list[Pool], list[Slot]]:
    """Put devices that are alike, on nodes of the same features and cores, into a class.

    A class is called after its first device: ``nvidia-0@node5``, however many nodes come later. Devices that
    are no processors come first.
    """
    known = {node.name: node for node in nodes}
    groups: dict[tuple[object, ...], list[tuple[Slot, OpenCLDevice]]] = {}
    for number, host in enumerate(hosts):
        node, seen = known.get(host.name), found.get(host.name, [])
        for at, (device, _) in enumerate(seen):
            shown = [one.device for one in seen[:at] if not one.hidden]  # of the hidden ones it sees its own
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
    return f"{word}-{sum(one.key.rpartition('-')[0] == word for one in shown)}"


def gres_of(device: OpenCLDevice, gpus: Mapping[str, int]) -> str:
    """Name the generic resource of a device; "" if it is no GPU, or Slurm does not count GPUs.

    If there are several types, it is the one that ``tenbin slurm-config`` names for the device.
    """
    if device.kind != "gpu" or not gpus:
        return ""
    kind = gres_type(device.name)
    if kind not in gpus and len(gpus) == 1:
        (kind,) = gpus
    return f"gpu:{kind}:1" if kind and kind in gpus else "gpu:1"


def profiles_of(pools: Sequence[Pool], profile: Profile | None, store: Store) -> dict[str, Profile]:
    """Find the newest profile of the first node of each class, else ``profile``."""
    told = {
        pool.name: store.load(pool.names[0]) if store.of_node(pool.names[0]) else profile for pool in pools
    }
    return {name: found for name, found in told.items() if found is not None}


def costs_of(profiles: Mapping[str, Profile], home: Path) -> LinearCosts:
    """Find the costs of moving on each class by the profiles of its nodes."""
    checkpoint: dict[str, LinearCost] = {}
    restart: dict[str, LinearCost] = {}
    begin: dict[str, float] = {}
    for name, told in profiles.items():
        key = name.partition("@")[0]
        lines = lines_of(told, key, False, home)[0]
        if lines is not None:
            checkpoint[name], restart[name] = lines
            begin[name] = begin_of(told, key, False)
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
    found = find_devices(nodes, home / f"devices-{partition}.json")
    pools, slots = classes(inventory.hosts, nodes, found)
    profiles = profiles_of(pools, profile, Store())
    ratios = all_bounds(
        {name: figures_of(told, name.partition("@")[0], False) for name, told in profiles.items()}
    )
    return Cluster(tuple(pools), ratios=ratios), Devices(slots, inventory), costs_of(profiles, home)
