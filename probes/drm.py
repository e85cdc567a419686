"""GPUs of AMD and Intel as the kernel tells of them: devices by sysfs, their users by ``/proc/PID/fdinfo``.

The formats are those of Linux's documentation (drm-usage-stats, amdgpu, i915, xe); no such GPU was at hand.
All is read below a root, so that another machine's tree can be read here; that of the emulation, if there is
one (``nvml.FOLDER``). The processes of other users can only be read as root.

Only GPUs that are no part of a processor count. Intel's part of a processor is always device 0000:00:02.0;
AMD's has little memory of its own.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from probes.nvml import FOLDER
from probes.topology import read_text

AMD, INTEL = "AMD", "Intel"
VENDORS = {"0x1002": AMD, "0x8086": INTEL}
LEAST_BYTES = 2 << 30  # AMD's GPU that has less is part of a processor
INTEL_PART = "0000:00:02.0"
MEMORY_BAR = 2  # of Intel's GPUs: the region by which a processor reaches their memory
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class DrmGpu:
    """A GPU of AMD or Intel.

    Attributes:
        bus: PCI address. device: its folder in sysfs. file: by which programs compute on it.
        unique_id: AMD's; "": this model has none.
        index: among all GPUs of the vendor in PCI order, parts of processors too.
    """

    vendor: str
    bus: str
    name: str
    device: Path
    file: str
    memory_bytes: int
    unique_id: str
    index: int
    numa_node: int | None

    def figure(self, *names: str) -> int | None:
        """Read the first of these files that there is; None: there is none."""
        return next((number for name in names for number in _numbers(self.device, name)), None)


def root() -> Path:
    """Return the root of the trees that are read."""
    return Path(os.environ.get(FOLDER) or "/")


def gpus(root: Path) -> list[DrmGpu]:
    """List the GPUs, in PCI order."""
    listed, numbers = [], dict.fromkeys(VENDORS.values(), 0)
    cards = [path for path in (root / "sys/class/drm").glob("card*") if re.fullmatch(r"card\d+", path.name)]
    for bus, card in sorted(((card / "device").resolve().name, card) for card in cards):
        device = card / "device"
        vendor = VENDORS.get(read_text(device / "vendor"), "")
        if not vendor:
            continue
        index, numbers[vendor] = numbers[vendor], numbers[vendor] + 1
        memory_bytes, render = _memory_bytes(vendor, bus, card), sorted((device / "drm").glob("renderD*"))
        if memory_bytes and render:
            listed.append(
                DrmGpu(
                    vendor=vendor,
                    bus=bus,
                    name=read_text(device / "product_name") or f"{vendor} {read_text(device / 'device')}",
                    device=device,
                    file=str(root / "dev/dri" / render[0].name),
                    memory_bytes=memory_bytes,
                    unique_id=read_text(device / "unique_id"),
                    index=index,
                    numa_node=next(iter(_numbers(device, "numa_node")), None),
                )
            )
    return listed


def address(root: Path, slot: str) -> str:
    """Return the PCI address of the GPU at ``c1:00.1``, of which AMD's OpenCL does not tell the domain.

    Where sysfs has no such GPU, the domain is taken to be the first; "": GPUs of several domains are there.
    """
    devices = (card.resolve().name for card in (root / "sys/class/drm").glob("card*/device"))
    there = {name for name in devices if name.partition(":")[2] == slot} or {f"0000:{slot}"}
    return there.pop() if len(there) == 1 else ""


def _memory_bytes(vendor: str, bus: str, card: Path) -> int:
    """Return the size of a GPU's own memory; 0 of the part of a processor."""
    device = card / "device"
    if vendor == AMD:
        (size,) = _numbers(device, "mem_info_vram_total") or (0,)
        return size if size >= LEAST_BYTES else 0
    if bus == INTEL_PART:
        return 0
    of_tiles = sum(_numbers(device, "tile*/physical_vram_size_bytes"))
    return next(iter(_numbers(card, "lmem_total_bytes")), 0) or of_tiles or _bar_bytes(device)


def _bar_bytes(device: Path) -> int:
    """Return the size of the region through which the memory is seen."""
    with suppress(IndexError, ValueError):
        first, last, _ = (
            int(word, 16) for word in read_text(device / "resource").splitlines()[MEMORY_BAR].split()
        )
        return last - first + 1 if last else 0
    return 0


def _numbers(folder: Path, pattern: str) -> list[int]:
    return [int(text) for path in sorted(folder.glob(pattern)) if (text := read_text(path)).isdecimal()]


# -- processes ---------------------------------------------------------------------------------------------


@dataclass
class Client:
    """Memory and work of a process on a GPU.

    Attributes:
        memory_bytes: of the GPU's own memory.
        busy: by engine, the ns, or cycles, in which it worked. of: of how many cycles; {}: of the time.
    """

    memory_bytes: int = 0
    busy: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    of: dict[str, int] = field(default_factory=dict)

    def share(self, before: Client | None, passed_ns: float) -> float:
        """Return the share of the time since ``before`` in which the engine worked that did so most."""
        if before is None:
            return 0.0
        shares = [0.0]
        for engine, busy in self.busy.items():
            whole = self.of[engine] - before.of.get(engine, 0) if engine in self.of else passed_ns
            shares.append((busy - before.busy.get(engine, busy)) / whole if whole > 0 else 0.0)
        return min(1.0, max(shares))


def clients(root: Path) -> dict[str, dict[int, Client]]:
    """Read which processes use GPUs, by PCI address and process."""
    users: dict[str, dict[int, Client]] = {}
    devices, seen = f"{root / 'dev/dri'}/", set[tuple[str, str]]()
    for process in (root / "proc").glob("[0-9]*"):
        for words in _descriptors(process, devices):
            bus, number = words.get("drm-pdev", ""), words.get("drm-client-id", "")
            if bus and (bus, number) not in seen:  # a descriptor that was copied, or inherited, is no other
                seen.add((bus, number))
                _add(users.setdefault(bus, {}).setdefault(int(process.name), Client()), words)
    return users


def _descriptors(process: Path, devices: str) -> Iterator[Mapping[str, str]]:
    """Yield what the kernel tells of each open file of a process that is a GPU's."""
    with suppress(OSError):  # it has ended, or is somebody else's
        for descriptor in os.scandir(process / "fd"):
            with suppress(OSError):
                if str(Path(descriptor.path).readlink()).startswith(devices):
                    text = (process / "fdinfo" / descriptor.name).read_text()
                    lines = (line.partition(":") for line in text.splitlines() if line.startswith("drm-"))
                    yield {key: value.strip() for key, _, value in lines}


def _add(client: Client, words: Mapping[str, str]) -> None:
    """Add what a descriptor tells to what its process has."""
    client.memory_bytes += _own_memory(words)
    for key, value in words.items():
        kind, _, engine = key.removeprefix("drm-").partition("-")
        number = value.split()[0] if value else ""
        if not number.isdecimal() or engine.startswith("capacity-"):
            continue
        if kind in ("engine", "cycles"):
            client.busy[engine] += int(number)
        elif kind == "total" and engine.startswith("cycles-"):
            client.of[engine.removeprefix("cycles-")] = int(number)


def _own_memory(words: Mapping[str, str]) -> int:
    """Add up the regions of a GPU's own memory; the kind of figure depends on the driver's release."""
    for kind in ("drm-resident-", "drm-memory-", "drm-total-"):
        sizes = [
            int(number) * UNITS.get(unit, 1)
            for key, value in words.items()
            if key.removeprefix(kind).startswith(("vram", "local")) and key.startswith(kind)
            for number, _, unit in [value.partition(" ")]
            if number.isdecimal()
        ]
        if sizes:
            return sum(sizes)
    return 0
