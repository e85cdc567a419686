"""Memory modules as firmware, udev and EDAC list them, and links of PCI Express, in made-up machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.drivers import pci_link
from agent.inventory import TABLES, UDEV, read_machine, read_memory_modules
from profiles.records import MemoryModules
from tests.support.labs.machines import Tree

DDR4, DDR5, LPDDR5, RAM = 0x1A, 0x22, 0x23, 0x07


def structure(kind: int, body: bytes, *strings: str) -> bytes:
    """Write a structure of SMBIOS: type, length, handle, fields, strings (DSP0134, 6.1)."""
    texts = b"".join(text.encode() + b"\0" for text in strings) or b"\0"
    return bytes((kind, 4 + len(body), 0, 0)) + body + texts + b"\0"


def module(kind: int, mts: int, place: str, bank: str, *, size: int = 0x4000, rated: int = 0) -> bytes:
    """Write a memory device (DSP0134, 7.18), of which this is up to the configured voltage."""
    extended = mts > 0xFFFE
    fields = bytearray(0x5C)
    fields[0x0C:0x0E] = size.to_bytes(2, "little")
    fields[0x10], fields[0x11], fields[0x12] = 1, 2 if bank else 0, kind
    fields[0x15:0x17] = (rated or min(mts, 0xFFFF)).to_bytes(2, "little")
    fields[0x20:0x22] = (0xFFFF if extended else mts).to_bytes(2, "little")
    fields[0x58:0x5C] = (mts if extended else 0).to_bytes(4, "little")
    return structure(17, bytes(fields[4:]), *filter(None, (place, bank)))


def firmware(tree: Tree, *modules: bytes) -> MemoryModules | None:
    table = structure(1, bytes(20), "Maker", "Product") + b"".join(modules) + structure(127, b"")
    file = tree.put("sys/firmware/dmi/tables/DMI", "")
    file.write_bytes(table)
    return read_memory_modules(tree.sysfs, tree.root)


def test_modules_of_a_server_with_two_to_a_channel(tmp_path: Path) -> None:
    modules = [
        module(DDR5, 4400, f"DIMM {slot}", f"P0 CHANNEL {channel}", rated=4800)
        for channel in "ABCDEFGH"
        for slot in (0, 1)
    ]
    empty = module(DDR5, 0, "DIMM 0", "P0 CHANNEL I", size=0)
    known = firmware(Tree(tmp_path), *modules, empty)
    assert known == MemoryModules(count=16, kind="DDR5", mts=4400, channels=8, source=TABLES)


def test_channels_are_not_guessed(tmp_path: Path) -> None:
    known = firmware(Tree(tmp_path), *(module(DDR4, 3200, f"A{n}", "NODE 1") for n in (1, 2, 3)))
    assert known is not None and (known.count, known.channels) == (3, None)


def test_edac_knows_the_channels(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for controller, channel, slot in ((0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 0, 0)):
        folder = f"sys/devices/system/edac/mc/mc{controller}/dimm{2 * channel + slot}"
        tree.put(f"{folder}/dimm_location", f"channel {channel} slot {slot} ")
    (tree.sysfs / "devices/system/edac/mc/mc1/dimm9/dimm_location").mkdir(parents=True)  # cannot be read
    known = firmware(tree, *(module(DDR4, 3200, f"A{n}", "") for n in range(4)))
    assert known is not None and known.channels == 3


@pytest.mark.parametrize(
    ("modules", "kind", "mts"),
    [
        ((module(DDR4, 2933, "A1", ""), module(DDR4, 2666, "A2", "")), "DDR4", 2666),
        ((module(DDR4, 2933, "A1", ""), module(DDR4, 0, "A2", "")), "DDR4", None),
        ((module(DDR4, 0, "A1", "", rated=3200),), "DDR4", 3200),
        ((module(LPDDR5, 70_000, "A1", ""),), "LPDDR5", 70_000),
        ((module(RAM, 0, "DIMM 0", ""),), "other", None),
    ],
)
def test_kind_and_rate(tmp_path: Path, modules: tuple[bytes, ...], kind: str, mts: float | None) -> None:
    known = firmware(Tree(tmp_path), *modules)
    assert known is not None and (known.kind, known.mts) == (kind, mts)


@pytest.mark.parametrize("length", [0, 3, 10, 60, 130])
def test_a_torn_table_is_read_as_far_as_it_goes(tmp_path: Path, length: int) -> None:
    tree = Tree(tmp_path)
    tree.put("sys/firmware/dmi/tables/DMI", "").write_bytes(module(DDR4, 3200, "A1", "B")[:length])
    known = read_memory_modules(tree.sysfs, tree.root)
    assert known is None or known.count == 1


def test_udev_tells_everybody(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    lines = ["I:1", "E:MEMORY_ARRAY_NUM_DEVICES=3"]
    for n, channel in enumerate("AB"):
        lines += [
            f"E:MEMORY_DEVICE_{n}_{field}"
            for field in (
                "SIZE=17179869184",
                "TYPE=DDR5",
                "SPEED_MTS=5600",
                "CONFIGURED_SPEED_MTS=5200",
                f"BANK_LOCATOR=P0 CHANNEL {channel}",
                "LOCATOR=DIMM 1",
            )
        ]
    lines += ["E:MEMORY_DEVICE_2_PRESENT=0", "E:MEMORY_DEVICE_2_TYPE=Unknown"]
    tree.put("run/udev/data/+dmi:id", "\n".join(lines))
    known = read_memory_modules(tree.sysfs, tree.root)
    assert known == MemoryModules(count=2, kind="DDR5", mts=5200, channels=2, source=UDEV)


def test_a_machine_that_shows_no_modules(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.put("etc/hostname", "n1")
    tree.put("proc/cpuinfo", "processor: 0\ncpu family : 6\nmodel : 143\nflags : fpu avx fma avx2 avx512f")
    machine = read_machine(tree.settings())
    assert machine.memory_modules is None
    cpu = machine.cpu
    assert (cpu.family, cpu.model_number) == (6, 143) and cpu.vectors == ("avx", "fma", "avx2", "avx512f")


@pytest.mark.parametrize(
    ("now", "of_device", "of_port", "lanes", "known"),
    [
        ("2.5 GT/s PCIe", "32.0 GT/s PCIe", "16.0 GT/s PCIe", "16", (16, 16.0)),  # at rest
        ("16.0 GT/s PCIe", "32.0 GT/s PCIe", "2.5 GT/s PCIe", "8", (8, 16.0)),  # a port of a hypervisor
        ("Unknown", "Unknown", "Unknown", "0", (None, None)),
        ("", "", "", "", (None, None)),
    ],
)
def test_links(tmp_path: Path, now: str, of_device: str, of_port: str, *, lanes: str, known: Any) -> None:
    tree, folder = Tree(tmp_path), "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    for path, text in (
        (f"{folder}/current_link_speed", now),
        (f"{folder}/max_link_speed", of_device),
        (f"{folder}/current_link_width", lanes),
        (f"{folder}/../max_link_speed", of_port),
    ):
        tree.put(f"{folder}/class", "0x030200")
        if text:
            tree.put(path, text)
    tree.link("sys/bus/pci/devices/0000:01:00.0", folder)
    link = pci_link(tree.sysfs / "bus/pci/devices/0000:01:00.0")
    assert (link["link_lanes"], link["link_gts"]) == known
