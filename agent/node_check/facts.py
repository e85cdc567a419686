"""Facts that decide a machine's speed: those of the fingerprint, and those that a check finds besides."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

from agent.inventory import Roots, fields, link_name, number, read
from agent.node_profile.identity import deciding_facts
from profiles.records import Inventory, Settings

PCI_CLASSES = {"0x01": "storage", "0x02": "network", "0x03": "GPU", "0x12": "accelerator"}
PLAIN_QUEUES = {"noqueue", "mq", "fq", "fq_codel", "pfifo_fast", "pfifo"}
TOOL_S = 2.0


def facts_of(inventory: Inventory, settings: Settings) -> dict[str, str]:
    """List the facts by name; what this machine does not tell is left out."""
    roots = Roots.of(settings)
    found: dict[str, str | None] = {
        **deciding_facts(inventory),
        **{f"cap of {zone.name}": f"{zone.cap_w:g} W" for zone in inventory.power if zone.cap_w is not None},
        **{f"cap of GPU {g.index}": f"{g.power_limit_w:g} W" for g in inventory.gpus if g.power_limit_w},
        **_firmware(roots),
        **dict(_links(roots)),
        **dict(_queues()),
    }
    limits = inventory.limits
    found |= {
        "clock source": inventory.tuning.clock_source,
        "CPU quota": None if limits.quota_cores is None else f"{limits.quota_cores:g} processors",
        "memory limit": None if limits.memory_mb is None else f"{limits.memory_mb:.0f} MB",
        "CPUs allowed": None if limits.threads is None else str(limits.threads),
    }
    return {name: value for name, value in found.items() if value}


def _firmware(roots: Roots) -> dict[str, str | None]:
    dmi = roots.sysfs / "class/dmi/id"
    words = [read(dmi / name) for name in ("bios_vendor", "bios_version", "bios_date")]
    return {
        "BIOS": " ".join(filter(None, words)) or None,
        "microcode": fields(read(roots.procfs / "cpuinfo")).get("microcode"),
    }


def _links(roots: Roots) -> Iterator[tuple[str, str]]:
    """Yield the width of each PCIe link; not its speed, which falls while a device rests."""
    for device in sorted((roots.sysfs / "bus/pci/devices").glob("*")):
        kind = PCI_CLASSES.get((read(device / "class") or "")[:4])
        width = number(device / "current_link_width")
        if kind and width:
            driver = link_name(device / "driver") or "no driver"
            yield f"PCIe link {device.name}", f"x{width} ({kind}, {driver})"


def _queues() -> Iterator[tuple[str, str]]:
    """Yield each interface whose packets are shaped (``tc``)."""
    tool = shutil.which("tc")
    if tool is None:
        return
    try:
        said = subprocess.run(
            [tool, "-j", "qdisc", "show"], capture_output=True, text=True, timeout=TOOL_S, check=False
        )
        for queue in json.loads(said.stdout or "[]"):
            if queue.get("root") and queue["kind"] not in PLAIN_QUEUES and queue.get("dev") != "lo":
                options = queue.get("options", {})
                rate = f", {options['rate'] * 8 / 1e6:g} Mbit/s" if options.get("rate") else ""
                yield f"queue of {queue['dev']}", f"{queue['kind']}{rate}"
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        return
