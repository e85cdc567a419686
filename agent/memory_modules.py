"""The memory modules of a node, as its firmware lists them: their kind, rate and channels.

The firmware's tables (SMBIOS, structure 17 of DMTF's DSP0134) are readable by root only. udev keeps what they
say of memory where everybody may read it. The kernel's error reporting (EDAC) knows the channels in use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from profiles import records

TABLES, UDEV = "the firmware's tables", "udev's database"
MEMORY_DEVICE = 17
END_OF_TABLE = 127
KINDS = {
    **{0x18: "DDR3", 0x1A: "DDR4", 0x22: "DDR5", 0x20: "HBM", 0x21: "HBM2", 0x24: "HBM3"},
    **{0x1B: "LPDDR", 0x1C: "LPDDR2", 0x1D: "LPDDR3", 0x1E: "LPDDR4", 0x23: "LPDDR5"},
}
UNKNOWN_WORD = 0xFFFF  # of a speed: see the extended one


@dataclass(frozen=True, slots=True)
class Module:
    """A module that is there; ``channel`` is empty where its place does not name one."""

    kind: str
    mts: int | None
    channel: str


def read_memory_modules(sysfs: Path, root: Path) -> records.MemoryModules | None:
    """Read what the firmware says of the modules; None where it says nothing that this user may read."""
    for source, path, parse in (
        (TABLES, sysfs / "firmware/dmi/tables/DMI", of_tables),
        (UDEV, root / "run/udev/data/+dmi:id", of_udev),
    ):
        try:
            modules = list(parse(path.read_bytes()))
        except OSError:
            continue
        if modules:
            return _together(modules, source, edac_channels(sysfs))
    return None


def _together(modules: list[Module], source: str, channels: int | None) -> records.MemoryModules:
    """Sum up: the slowest rate counts, because all modules of a controller run at it."""
    rates = [module.mts for module in modules if module.mts]
    places = {module.channel for module in modules}
    return records.MemoryModules(
        count=len(modules),
        kind=", ".join(sorted({module.kind for module in modules})),
        mts=min(rates) if len(rates) == len(modules) else None,
        channels=channels or (None if "" in places else len(places)),
        source=source,
    )


def of_tables(tables: bytes) -> Iterator[Module]:
    """Parse SMBIOS structures; a module that is not there has the size 0."""
    at = 0
    while at + 4 <= len(tables):
        kind, length = tables[at], tables[at + 1]
        end = tables.find(b"\0\0", at + length)
        if kind == END_OF_TABLE or length < 4 or end < 0:
            return
        body = tables[at : at + length]
        strings = tables[at + length : end].decode(errors="replace").split("\0")
        at = end + 2
        if kind == MEMORY_DEVICE and length > 0x16 and _word(body, 0x0C):
            names = [strings[n - 1] if 0 < n <= len(strings) else "" for n in body[0x10:0x12]]
            mts = _speed(body, 0x20, 0x58) or _speed(body, 0x15, 0x54)
            yield Module(KINDS.get(body[0x12], "other"), mts, channel(*names))


def _word(body: bytes, at: int, size: int = 2) -> int:
    return int.from_bytes(body[at : at + size], "little") if at + size <= len(body) else 0


def _speed(body: bytes, at: int, extended: int) -> int | None:
    word = _word(body, at)
    return (_word(body, extended, 4) if word == UNKNOWN_WORD else word) or None


def of_udev(database: bytes) -> Iterator[Module]:
    """Parse udev's properties ``MEMORY_DEVICE_<n>_<name>``; a module that is not there has no size."""
    devices: dict[str, dict[str, str]] = {}
    for line in database.decode(errors="replace").splitlines():
        if match := re.match(r"E:MEMORY_DEVICE_(\d+)_(\w+)=(.*)", line):
            devices.setdefault(match[1], {})[match[2]] = match[3]
    for device in devices.values():
        if device.get("PRESENT") != "0" and _number(device, "SIZE"):
            mts = _number(device, "CONFIGURED_SPEED_MTS") or _number(device, "SPEED_MTS")
            place = channel(device.get("LOCATOR", ""), device.get("BANK_LOCATOR", ""))
            yield Module(device.get("TYPE", "other"), mts, place)


def _number(device: Mapping[str, str], name: str) -> int | None:
    text = device.get(name, "")
    return int(text) if text.isdecimal() and int(text) else None


def channel(place: str, bank: str) -> str:
    """Find the channel in the names of a module's place: ``P0 CHANNEL A``, ``Controller0-ChannelA-DIMM1``."""
    for name in (bank, place):
        if match := re.match(r".*channel[ _-]?[a-z0-9]+", name, re.IGNORECASE):
            return match[0]
    return ""


def edac_channels(sysfs: Path) -> int | None:
    """Count the channels with a module; None where the kernel has no driver of the memory controllers."""
    channels = set()
    for place in (sysfs / "devices/system/edac/mc").glob("mc*/*/dimm_location"):
        with suppress(OSError):  # a driver that is unloaded meanwhile
            if match := re.search(r"channel (\d+)", place.read_text(errors="replace")):
                channels.add((place.parents[1].name, match[1]))
    return len(channels) or None
