"""Network interfaces and InfiniBand ports: speed, driver, NUMA node."""

from __future__ import annotations

import re
from pathlib import Path

from agent.inventory.files import Roots, link_name, number, read
from profiles.inventory import NetworkInterface


def read_network(roots: Roots) -> tuple[NetworkInterface, ...]:
    """Read the interfaces that could carry a job's data: hardware, and virtual interfaces that are up."""
    found = [_interface(path) for path in sorted((roots.sysfs / "class/net").glob("*")) if path.name != "lo"]
    ports = sorted((roots.sysfs / "class/infiniband").glob("*/ports/*"))
    return tuple([interface for interface in found if interface] + [_port(path) for path in ports])


def _interface(path: Path) -> NetworkInterface | None:
    device = path / "device"
    virtual = not device.exists()
    if virtual and read(path / "operstate") != "up":
        return None
    speed = number(path / "speed")
    return NetworkInterface(
        name=path.name,
        speed_mbit=float(speed) if speed is not None and speed > 0 else None,  # -1: the driver does not know
        numa_node=_numa_node(device),
        driver=link_name(device / "driver"),
        virtual=virtual,
    )


def _port(path: Path) -> NetworkInterface:
    """Read a port of an InfiniBand or RoCE adapter; its rate reads like ``100 Gb/sec (4X EDR)``."""
    adapter = path.parent.parent
    rate = re.match(r"([\d.]+) Gb/sec", read(path / "rate") or "")
    return NetworkInterface(
        name=f"{adapter.name}/{path.name}",
        speed_mbit=float(rate[1]) * 1000 if rate else None,
        numa_node=_numa_node(adapter / "device"),
        driver=link_name(adapter / "device/driver"),
        virtual=False,
    )


def _numa_node(device: Path) -> int | None:
    """Read the NUMA node of a device, or of the nearest bus device above (virtio devices hang on PCI)."""
    if not device.exists():
        return None
    for folder in (device.resolve(), *device.resolve().parents):
        node = number(folder / "numa_node")
        if node is not None:
            return node if node >= 0 else None  # -1: the machine has only one
        if folder.name.startswith(("pci", "devices")):
            break
    return None
