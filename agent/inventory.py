"""The inventory of this node. Taking it changes nothing, and no broken part stops it.

Everything under ``/sys`` and ``/proc`` is read from the roots in the settings, so that a captured or made-up
machine can be examined as if it were this one. Drivers that might hang or abort are asked in processes of
their own.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent.kept_answers import LINKER, Answer, KeptAnswers
from probes.folders import inspect_folder
from probes.mpi import installed
from probes.powercap import zones
from probes.topology import cpu_list, kernel_bytes
from profiles import records
from profiles.errors import Unavailable, UserError

# -- files of the kernel -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roots:
    """The roots of a machine's files: the real ones, or a tree that was captured or made up."""

    sysfs: Path
    procfs: Path
    root: Path  # the rest: /etc, /run, /dev

    @classmethod
    def of(cls, settings: records.Settings) -> Roots:
        """Take the roots from settings; a captured machine has its ``etc`` beside its ``sys``."""
        beside = settings.sysfs.parent
        root = beside if (beside / "etc").is_dir() else Path("/")
        return cls(settings.sysfs, settings.procfs, root)


def read(path: Path) -> str | None:
    """Read the stripped text of a file; ``None`` if it is missing, refused, or its driver has no answer."""
    try:
        return path.read_bytes().decode(errors="replace").strip("\0 \t\n")
    except OSError:  # ENOENT, EACCES, and EINVAL or ENODEV from drivers
        return None


def number(path: Path) -> int | None:
    """Read the whole number in a file; ``None`` if there is none."""
    text = read(path)
    return int(text) if text and re.fullmatch(r"[+-]?\d+", text) else None


def fields(text: str | None) -> dict[str, str]:
    """Parse the ``key: value`` lines of ``cpuinfo`` or ``meminfo``; the first of each key counts."""
    values: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    return values


def link_name(path: Path) -> str | None:
    """Read the name that a link points to (a driver, a subsystem); ``None`` if there is no link."""
    try:
        return path.readlink().name
    except OSError:
        return None


def numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """List the entries ``prefix0``, ``prefix1`` ... of a folder, by number."""
    folders = [
        (int(match[1]), path)
        for path in folder.glob(f"{prefix}[0-9]*")
        if (match := re.fullmatch(rf"{prefix}(\d+)", path.name))
    ]
    return sorted(folders)


# -- questions to drivers ----------------------------------------------------------------------------------


TIMEOUT_S = 20.0  # a driver that has to start a sleeping GPU takes seconds
PROGRAM = Path(__file__).with_name("drivers.py")


def ask(what: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Ask the drivers of ``what`` (``opencl`` or ``gpu``) in a child; trouble becomes a ``Missing``."""
    # As a file: as a module it would import this package, and with it more than it needs. Likewise what
    # site-packages start with every Python (-S).
    command = [sys.executable, "-P", "-S", str(PROGRAM), what, *arguments]
    path = {"PYTHONPATH": os.pathsep.join([str(PROGRAM.parent.parent), *sys.path])}
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=os.environ | path
        )
    except subprocess.TimeoutExpired:
        return _trouble(what, f"its driver has not answered within {timeout_s:g} s")
    if child.returncode:
        return _trouble(what, f"its driver {_end(child.returncode)}{_last_line(child.stderr)}")
    try:
        return Answer.model_validate_json(_last_line(child.stdout).removeprefix(": "))
    except ValidationError:
        return _trouble(what, "its driver's answer cannot be read" + _last_line(child.stdout))


def _trouble(what: str, reason: str) -> Answer:
    remedy = f"see what it says by itself: {Path(sys.executable).name} -P -m agent.drivers {what}"
    return Answer(missing=(records.Missing(what=what, reason=reason, remedy=remedy),))


def _end(returncode: int) -> str:
    if returncode < 0:
        return f"died of {signal.Signals(-returncode).name}"
    return f"failed with exit code {returncode}"


def _last_line(text: str) -> str:
    """Return the last line as the end of a sentence: ``": last line"``."""
    lines = text.strip().splitlines()
    return f": {lines[-1]}" if lines else ""


# -- processors --------------------------------------------------------------------------------------------


# Arm's processors name themselves by numbers (MIDR_EL1): implementer, part.
_ARM_PARTS = {
    ("0x41", "0xd03"): "ARM Cortex-A53",
    ("0x41", "0xd05"): "ARM Cortex-A55",
    ("0x41", "0xd08"): "ARM Cortex-A72",
    ("0x41", "0xd0b"): "ARM Cortex-A76",
    ("0x41", "0xd0c"): "ARM Neoverse-N1",
    ("0x41", "0xd40"): "ARM Neoverse-V1",
    ("0x41", "0xd49"): "ARM Neoverse-N2",
    ("0x41", "0xd4f"): "ARM Neoverse-V2",
    ("0x46", "0x001"): "Fujitsu A64FX",
    ("0x48", "0xd01"): "HiSilicon Kunpeng-920",
    ("0xc0", "0xac3"): "Ampere-1",
}

# Intel's hybrid processors: one event source of the kernel for each kind of core.
_HYBRID = {"cpu_core": "performance", "cpu_atom": "efficiency", "cpu_lowpower": "low-power efficiency"}

_BY_CAPACITY = {2: ("little", "big"), 3: ("little", "medium", "big")}


def read_cpu(roots: Roots) -> records.Cpu:
    """Read the processors of a machine, from ``cpuinfo`` if sysfs tells nothing."""
    info = read(roots.procfs / "cpuinfo")
    folders = _online(roots.sysfs / "devices/system/cpu")
    if not folders:
        return _from_cpuinfo(info)
    cores = _cores(folders)
    return records.Cpu(
        model=_cpu_model(info),
        vendor=_vendor(info),
        architecture=_architecture(roots),
        sockets=_count(folders, "physical_package_id"),
        dies=_count(folders, "physical_package_id", "die_id"),
        cores=len(cores),
        threads=len(folders),
        smt=any(len(core) > 1 for core in cores),
        core_kinds=_core_kinds(roots.sysfs, folders, cores),
        caches=_caches(folders),
        governor=_governor(folders),
        turbo=_turbo(roots.sysfs),
        max_mhz=_max_mhz(folders),
        **_instruction_sets(info),
    )


def _online(folder: Path) -> dict[int, Path]:
    """Find the folders of the CPUs that are online; offline CPUs have no topology."""
    return {cpu: path for cpu, path in numbered(folder, "cpu") if (path / "topology").is_dir()}


def _from_cpuinfo(info: str | None) -> records.Cpu:
    processors = [fields(block) for block in (info or "").split("\n\n") if "processor" in fields(block)]
    threads = len(processors) or 1
    sockets = {block.get("physical id", "0") for block in processors}
    cores = {
        (block.get("physical id", "0"), block.get("core id", block["processor"])) for block in processors
    }
    n = len(cores) or threads
    return records.Cpu(
        model=_cpu_model(info),
        vendor=_vendor(info),
        architecture=platform.machine(),
        sockets=len(sockets) or 1,
        cores=n,
        threads=threads,
        smt=threads > n,
        core_kinds={"core": n},
        caches=(),
        governor=None,
        max_mhz=None,
        **_instruction_sets(info),
    )


_VECTORS = ("avx", "fma", "avx2", "avx512f", "asimd", "sve")


def _instruction_sets(info: str | None) -> dict[str, Any]:
    """Read what decides how much a core computes in a cycle; family and model are x86's."""
    values = fields(info)
    flags = (values.get("flags") or values.get("Features") or "").split()
    family, model = (values.get(key, "") for key in ("cpu family", "model"))
    known = family.isdecimal() and model.isdecimal()
    return {
        "family": int(family) if known else None,
        "model_number": int(model) if known else None,
        "vectors": tuple(name for name in _VECTORS if name in flags),
    }


def _cpu_model(info: str | None) -> str:
    values = fields(info)
    for key in ("model name", "cpu", "uarch"):  # x86; POWER; RISC-V
        if key in values:
            return " ".join(values[key].split())
    parts = _arm_parts(info)
    if parts:
        return " + ".join(_ARM_PARTS.get(part, f"ARM {part[0]} part {part[1]}") for part in parts)
    return "unknown"


def _arm_parts(info: str | None) -> list[tuple[str, str]]:
    """List the distinct (implementer, part) of all processors, in order of appearance."""
    blocks = [fields(block) for block in (info or "").split("\n\n")]
    keys = ("CPU implementer", "CPU part")
    return list(dict.fromkeys((b[keys[0]], b[keys[1]]) for b in blocks if b.keys() >= set(keys)))


def _vendor(info: str | None) -> str | None:
    values = fields(info)
    return values.get("vendor_id") or ("ARM" if "CPU implementer" in values else None)


def _architecture(roots: Roots) -> str:
    """``x86_64``, ``aarch64``: the kernel's word where it says it (6.1 and later), else this process's."""
    return read(roots.procfs / "sys/kernel/arch") or platform.machine()


def _count(folders: dict[int, Path], *names: str) -> int:
    return len({tuple(read(path / "topology" / name) for name in names) for path in folders.values()})


def _cores(folders: dict[int, Path]) -> list[tuple[int, ...]]:
    """List the logical CPUs of each core."""
    cores = set()
    for cpu, path in folders.items():
        # core_cpus_list is the newer name (5.3); a CPU without either is a core of its own.
        siblings = read(path / "topology/core_cpus_list") or read(path / "topology/thread_siblings_list")
        cores.add(cpu_list(siblings) or (cpu,))
    return sorted(cores)


def _core_kinds(sysfs: Path, folders: dict[int, Path], cores: list[tuple[int, ...]]) -> dict[str, int]:
    """Count the cores of each kind; one kind, ``core``, if all are alike."""
    kind_of: dict[int, str] = {}
    for source, kind in _HYBRID.items():
        kind_of |= dict.fromkeys(cpu_list(read(sysfs / "devices" / source / "cpus")), kind)
    if not kind_of:
        kind_of = _kinds_by_capacity(folders)
    count = Counter(kind_of.get(core[0], "core") for core in cores)
    return dict(count) if len(count) > 1 else {"core": len(cores)}


def _kinds_by_capacity(folders: dict[int, Path]) -> dict[int, str]:
    """Arm's big.LITTLE: the scheduler's capacity of each CPU, 1024 for the fastest."""
    capacity = {cpu: number(path / "cpu_capacity") for cpu, path in folders.items()}
    levels = sorted({level for level in capacity.values() if level is not None})
    names = _BY_CAPACITY.get(len(levels), tuple(f"capacity {level}" for level in levels))
    name_of = dict(zip(levels, names, strict=True))
    return {cpu: name_of[level] for cpu, level in capacity.items() if level is not None}


def _caches(folders: dict[int, Path]) -> tuple[records.Cache, ...]:
    """Every level, each size and sharing by itself (the kinds of core of a hybrid processor differ)."""
    instances: set[tuple[int, str, int, tuple[int, ...]]] = set()
    for cpu, path in folders.items():
        for _, index in numbered(path / "cache", "index"):
            level, size = number(index / "level"), kernel_bytes(read(index / "size")) // 1024
            if level is not None and size:
                shared = cpu_list(read(index / "shared_cpu_list")) or (cpu,)
                instances.add((level, (read(index / "type") or "unified").lower(), size, shared))
    count = Counter((level, kind, size, len(shared)) for level, kind, size, shared in instances)
    return tuple(
        records.Cache(level=level, kind=kind, size_kb=size, instances=n, shared_by_cpus=shared)
        for (level, kind, size, shared), n in sorted(count.items())
    )


def _governor(folders: dict[int, Path]) -> str | None:
    governors = {read(path / "cpufreq/scaling_governor") for path in folders.values()} - {None}
    return ", ".join(sorted(str(governor) for governor in governors)) or None


def _turbo(sysfs: Path) -> bool | None:
    cpu = sysfs / "devices/system/cpu"
    no_turbo = number(cpu / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == 0
    boost = number(cpu / "cpufreq/boost")
    return None if boost is None else boost == 1


def _max_mhz(folders: dict[int, Path]) -> float | None:
    limits_khz = [number(path / "cpufreq/cpuinfo_max_freq") for path in folders.values()]
    return max((khz / 1000 for khz in limits_khz if khz), default=None)


# -- memory and limits -------------------------------------------------------------------------------------


def read_memory_mb(roots: Roots) -> float:
    """Read the size of all memory that the kernel manages."""
    return _kib_as_mb(fields(read(roots.procfs / "meminfo")).get("MemTotal", ""))


def read_numa(roots: Roots) -> tuple[records.NumaNode, ...]:
    """Read the NUMA nodes; none if the kernel was built without them."""
    return tuple(
        records.NumaNode(
            index=index,
            cpus=cpu_list(read(path / "cpulist")),
            memory_mb=_node_memory_mb(read(path / "meminfo")),
            distances=tuple(int(text) for text in (read(path / "distance") or "").split()),
        )
        for index, path in numbered(roots.sysfs / "devices/system/node", "node")
    )


def _node_memory_mb(text: str | None) -> float:
    """Read lines like ``Node 0 MemTotal:       16384 kB``."""
    match = re.search(r"MemTotal:\s*(\d+ kB)", text or "")
    return _kib_as_mb(match[1]) if match else 0.0


def _kib_as_mb(text: str) -> float:
    """``16384 kB`` (of 1024 bytes, whatever it says) in MB."""
    match = re.match(r"\d+", text)
    return round(int(match[0]) * 1024 / records.MB, 1) if match else 0.0


def read_limits(roots: Roots, threads: int, memory_mb: float) -> records.Limits:
    """Read the limits by affinity and control groups; ``None`` for those that take nothing away.

    The affinity mask already has the control group's cpuset in it.
    """
    allowed = len(cpu_list(fields(read(roots.procfs / "self/status")).get("Cpus_allowed_list")))
    quota = min(_quotas(roots), default=None)
    memory = min(_memory_limits_mb(roots), default=None)
    return records.Limits(
        threads=allowed if 0 < allowed < threads else None,
        quota_cores=quota if quota is not None and quota < (allowed or threads) else None,
        memory_mb=memory if memory is not None and memory < memory_mb else None,
    )


def _quotas(roots: Roots) -> Iterator[float]:
    """Yield the cores' worth of time that each control group above this process allows."""
    for folder in _groups(roots, "cpu"):
        v2 = re.fullmatch(r"(\d+) (\d+)", read(folder / "cpu.max") or "")
        if v2:
            yield int(v2[1]) / int(v2[2])
        quota, period = number(folder / "cpu.cfs_quota_us"), number(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            yield quota / period


def _memory_limits_mb(roots: Roots) -> Iterator[float]:
    for folder in _groups(roots, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = number(folder / name)
            if limit is not None:
                yield round(limit / records.MB, 1)


def _groups(roots: Roots, controller: str) -> Iterator[Path]:
    """Yield this process's control group for a controller and all above it, of versions 1 and 2."""
    for line in (read(roots.procfs / "self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        base = roots.sysfs / "fs/cgroup"
        if controllers == "":
            mounts = [base, base / "unified"]
        elif controller in controllers.split(","):
            mounts = [base / controllers, base / controller]
        else:
            continue
        for mount in mounts:
            # Inside a container the path may be the host's, which is not there: the mount's root still is.
            folder = mount / path.lstrip("/")
            yield from (f for f in (folder, *folder.parents) if f.is_relative_to(mount) and f.is_dir())


# -- memory modules, as the firmware lists them ------------------------------------------------------------
#
# The firmware's tables (SMBIOS, structure 17 of DMTF's DSP0134) are readable by root only. udev keeps what
# they say of memory where everybody may read it. The kernel's error reporting (EDAC) knows the channels in
# use.

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
        (TABLES, sysfs / "firmware/dmi/tables/DMI", _modules_of_tables),
        (UDEV, root / "run/udev/data/+dmi:id", _modules_of_udev),
    ):
        try:
            modules = list(parse(path.read_bytes()))
        except OSError:
            continue
        if modules:
            return _summed_modules(modules, source, _edac_channels(sysfs))
    return None


def _summed_modules(modules: list[Module], source: str, channels: int | None) -> records.MemoryModules:
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


def _modules_of_tables(tables: bytes) -> Iterator[Module]:
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
        if kind == MEMORY_DEVICE and length > 0x16 and _smbios_word(body, 0x0C):
            names = [strings[n - 1] if 0 < n <= len(strings) else "" for n in body[0x10:0x12]]
            mts = _smbios_speed(body, 0x20, 0x58) or _smbios_speed(body, 0x15, 0x54)
            yield Module(KINDS.get(body[0x12], "other"), mts, _channel(*names))


def _smbios_word(body: bytes, at: int, size: int = 2) -> int:
    return int.from_bytes(body[at : at + size], "little") if at + size <= len(body) else 0


def _smbios_speed(body: bytes, at: int, extended: int) -> int | None:
    word = _smbios_word(body, at)
    return (_smbios_word(body, extended, 4) if word == UNKNOWN_WORD else word) or None


def _modules_of_udev(database: bytes) -> Iterator[Module]:
    """Parse udev's properties ``MEMORY_DEVICE_<n>_<name>``; a module that is not there has no size."""
    devices: dict[str, dict[str, str]] = {}
    for line in database.decode(errors="replace").splitlines():
        if match := re.match(r"E:MEMORY_DEVICE_(\d+)_(\w+)=(.*)", line):
            devices.setdefault(match[1], {})[match[2]] = match[3]
    for device in devices.values():
        if device.get("PRESENT") != "0" and _udev_number(device, "SIZE"):
            mts = _udev_number(device, "CONFIGURED_SPEED_MTS") or _udev_number(device, "SPEED_MTS")
            place = _channel(device.get("LOCATOR", ""), device.get("BANK_LOCATOR", ""))
            yield Module(device.get("TYPE", "other"), mts, place)


def _udev_number(device: Mapping[str, str], name: str) -> int | None:
    text = device.get(name, "")
    return int(text) if text.isdecimal() and int(text) else None


def _channel(place: str, bank: str) -> str:
    """Find the channel in the names of a module's place: ``P0 CHANNEL A``, ``Controller0-ChannelA-DIMM1``."""
    for name in (bank, place):
        if match := re.match(r".*channel[ _-]?[a-z0-9]+", name, re.IGNORECASE):
            return match[0]
    return ""


def _edac_channels(sysfs: Path) -> int | None:
    """Count the channels with a module; None where the kernel has no driver of the memory controllers."""
    channels = set()
    for place in (sysfs / "devices/system/edac/mc").glob("mc*/*/dimm_location"):
        with suppress(OSError):  # a driver that is unloaded meanwhile
            if match := re.search(r"channel (\d+)", place.read_text(errors="replace")):
                channels.add((place.parents[1].name, match[1]))
    return len(channels) or None


# -- network -----------------------------------------------------------------------------------------------


def read_network(roots: Roots) -> tuple[records.NetworkInterface, ...]:
    """Read the interfaces that could carry a job's data: hardware, and virtual interfaces that are up."""
    interfaces = [
        _interface(path) for path in sorted((roots.sysfs / "class/net").glob("*")) if path.name != "lo"
    ]
    ports = sorted((roots.sysfs / "class/infiniband").glob("*/ports/*"))
    return tuple([interface for interface in interfaces if interface] + [_port(path) for path in ports])


def _interface(path: Path) -> records.NetworkInterface | None:
    device = path / "device"
    virtual = not device.exists()
    if virtual and read(path / "operstate") != "up":
        return None
    speed = number(path / "speed")
    return records.NetworkInterface(
        name=path.name,
        speed_mbit=float(speed) if speed is not None and speed > 0 else None,  # -1: the driver does not know
        numa_node=_numa_node(device),
        driver=link_name(device / "driver"),
        virtual=virtual,
    )


def _port(path: Path) -> records.NetworkInterface:
    """Read a port of an InfiniBand or RoCE adapter; its rate reads like ``100 Gb/sec (4X EDR)``."""
    adapter = path.parent.parent
    rate = re.match(r"([\d.]+) Gb/sec", read(path / "rate") or "")
    return records.NetworkInterface(
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


# -- storage -----------------------------------------------------------------------------------------------


_NETWORK_FILESYSTEMS = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.daos", "fuse.glusterfs", "fuse.juicefs",
    "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2",
    "smb3", "wekafs",
}  # fmt: skip
_MEMORY_FILESYSTEMS = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_VIRTUAL_FILESYSTEMS = {"virtiofs", "vboxsf", "fuse.vmhgfs-fuse"}

# Block devices by the name the kernel gives them.
_DISK_NAMES = (
    ("nvme", "nvme"),
    ("zram", "memory"),
    ("ram", "memory"),
    ("pmem", "memory"),
    ("vd", "virtual"),
    ("xvd", "virtual"),
    ("nbd", "network"),
    ("rbd", "network"),
    ("drbd", "network"),
    ("mmcblk", "ssd"),
)

# Disks that say a real interface and are something else.
_DISK_MODELS = (
    ("Elastic Block Store", "network"),
    ("nvme_card-pd", "network"),
    ("PersistentDisk", "network"),
    ("QEMU", "virtual"),
    ("VMware", "virtual"),
    ("Virtual", "virtual"),
    ("VBOX", "virtual"),
)


@dataclass(frozen=True)
class Mount:
    """A line of ``mountinfo``."""

    point: Path
    filesystem: str
    source: str
    number: str  # the device's major:minor
    options: str


def read_mounts(roots: Roots) -> list[Mount]:
    """Read the mounts that this process sees, in their order."""
    mounts = []
    for line in (read(roots.procfs / "self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        parts, rest = left.split(" "), right.split(" ")
        if len(parts) > 4 and len(rest) > 1:
            options = rest[2] if len(rest) > 2 else ""
            mounts.append(Mount(Path(_plain(parts[4])), rest[0], _plain(rest[1]), parts[2], options))
    return mounts


def _plain(text: str) -> str:
    r"""Replace the octal escapes of ``mountinfo``: ``\040`` is a blank."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(folder: Path, mounts: list[Mount]) -> Mount | None:
    """Find the mount of a folder: the longest path; of two on one path the later covers the earlier."""
    deepest = None
    for mount in mounts:
        deeper = deepest is None or len(mount.point.parts) >= len(deepest.point.parts)
        if folder.is_relative_to(mount.point) and deeper:
            deepest = mount
    return deepest


def read_storage(roots: Roots, folder: Path) -> records.Storage:
    """Inspect the storage under ``folder``, or under its nearest parent if the folder does not exist.

    Raises:
        Unavailable: its file system does not answer (a lost server).
    """
    try:
        seen = inspect_folder(folder)
    except Unavailable as error:
        mount = mount_of(folder.absolute(), read_mounts(roots))
        what = f"{error.what} ({mount.filesystem} from {mount.source})" if mount else error.what
        raise Unavailable(what, error.remedy) from error
    mount = mount_of(Path(seen.there), read_mounts(roots))
    block = _disk(roots, mount)
    model = _disk_model(block)
    return records.Storage(
        folder=str(folder),
        device=mount.source if mount else "unknown",
        filesystem=mount.filesystem if mount else "unknown",
        kind=_storage_kind(mount, block, model),
        model=model,
        size_mb=None if seen.size_bytes is None else round(seen.size_bytes / records.MB, 1),
        free_mb=round(seen.free_bytes / records.MB, 1),
        writable=seen.writable,
        direct_io=seen.direct_io,
    )


def _disk(roots: Roots, mount: Mount | None) -> Path | None:
    """Find the disk's folder in sysfs: the disk of a partition, the first disk under a stacked device."""
    if mount is None:
        return None
    # btrfs and the like show a made-up number; the name of the source still leads to the disk.
    links = [roots.sysfs / "dev/block" / mount.number]
    if mount.source.startswith("/dev/"):
        links.append(roots.sysfs / "class/block" / Path(mount.source).name)
    block = next((link.resolve() for link in links if link.exists()), None)
    for _ in range(8):  # encryption on a volume on a RAID on a partition
        if block is None:
            break
        if (block / "partition").exists():
            block = block.parent
        below = sorted((block / "slaves").glob("*"))
        if not below:
            break
        block = below[0].resolve()
    return block


def _disk_model(block: Path | None) -> str | None:
    return None if block is None else read(block / "device/model")


def _storage_kind(mount: Mount | None, block: Path | None, model: str | None) -> str:
    if mount is None:
        return "unknown"
    for kind, names in (
        ("network", _NETWORK_FILESYSTEMS),
        ("memory", _MEMORY_FILESYSTEMS),
        ("virtual", _VIRTUAL_FILESYSTEMS),
    ):
        if mount.filesystem in names:
            return kind
    return "unknown" if block is None else _kind_of_disk(block, model)


def _kind_of_disk(block: Path, model: str | None) -> str:
    if (read(block / "device/transport") or "pcie") not in ("pcie", "apple-nvme"):
        return "network"  # NVMe over fabrics
    for word, kind in _DISK_MODELS:
        if model and word in model:
            return kind
    for prefix, kind in _DISK_NAMES:
        if re.match(rf"{prefix}[a-z0-9]", block.name):
            return kind
    rotational = number(block / "queue/rotational")
    return {0: "ssd", 1: "hdd"}.get(-1 if rotational is None else rotational, "unknown")


# -- the system around the hardware ------------------------------------------------------------------------


# What a hypervisor puts into the firmware's tables (after systemd's detect-virt).
_DMI_WORDS = (
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("Google Compute Engine", "kvm"),
    ("Amazon EC2", "kvm"),
    ("QEMU", "qemu"),
    ("VMware", "vmware"),
    ("VirtualBox", "virtualbox"),
    ("innotek GmbH", "virtualbox"),
    ("Xen", "xen"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Hyper-V", "microsoft"),
    ("Virtual Machine", "microsoft"),
    ("Apple Virtualization", "apple"),
)

# Clocks that only a guest of that hypervisor has.
_GUEST_CLOCKS = (("kvm-clock", "kvm"), ("hyperv_clocksource", "microsoft"), ("xen", "xen"))

# Files that a container's engine leaves in its root; a ``.singularity.d`` is also what Apptainer makes.
_CONTAINER_MARKS = (
    ("run/.containerenv", "podman"),
    (".dockerenv", "docker"),
    (".singularity.d", "apptainer"),
)

_CONTAINER_GROUPS = (
    ("docker", "docker"),
    ("libpod", "podman"),
    ("kubepods", "kubernetes"),
    ("/lxc", "lxc"),
    ("machine.slice", "systemd-nspawn"),
)

# The namespaces of the system itself have fixed numbers (linux/proc_ns.h).
_FIRST_NAMESPACES = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}


def read_hostname(roots: Roots) -> str:
    return read(roots.procfs / "sys/kernel/hostname") or socket.gethostname()


def read_kernel(roots: Roots) -> str:
    """Read the kernel's release: ``6.1.0-18-amd64``."""
    return read(roots.procfs / "sys/kernel/osrelease") or platform.release()


def read_distribution(roots: Roots) -> str:
    """``Debian GNU/Linux 12 (bookworm)``, or ``unknown``."""
    for name in ("etc/os-release", "usr/lib/os-release"):
        match = re.search(r"^PRETTY_NAME=(.+)$", read(roots.root / name) or "", re.MULTILINE)
        if match:
            return " ".join(shlex.split(match[1]))
    return "unknown"


def read_tuning(roots: Roots) -> records.Tuning:
    """Read the settings of the kernel that decide how fast memory and clocks are."""
    pages = re.search(r"\[(\w+)\]", read(roots.sysfs / "kernel/mm/transparent_hugepage/enabled") or "")
    balancing = read(roots.procfs / "sys/kernel/numa_balancing")
    clocks = roots.sysfs / "devices/system/clocksource/clocksource0"
    return records.Tuning(
        huge_pages=pages[1] if pages else None,
        numa_balancing=None if balancing is None else balancing != "0",
        clock_source=read(clocks / "current_clocksource"),
    )


def read_virtualisation(roots: Roots) -> str:
    """Name the hypervisor under this kernel (``kvm`` ...; ``vm`` if it hides its name), or ``none``."""
    if "control_d" in (read(roots.procfs / "xen/capabilities") or ""):
        return "none"  # the machine's own system, which sees the hardware
    if read(roots.sysfs / "hypervisor/type"):
        return read(roots.sysfs / "hypervisor/type") or "xen"
    info = fields(read(roots.procfs / "cpuinfo"))
    dmi = _dmi(roots)
    if "flags" not in info:  # not x86: no flag says so, the firmware's names must do
        tree = read(roots.procfs / "device-tree/hypervisor/compatible") or ""
        named = next((kind for word, kind in _DMI_WORDS if word in dmi), None)
        bare = dmi and ".metal" in dmi  # a cloud's whole machine, under the cloud's name
        return "none" if bare else named or ("kvm" if "kvm" in tree else "none")
    if "hypervisor" not in info["flags"].split():
        return "none"
    clocks = read(roots.sysfs / "devices/system/clocksource/clocksource0/available_clocksource") or ""
    by_clock = next((kind for word, kind in _GUEST_CLOCKS if word in clocks), None)
    return by_clock or next((kind for word, kind in _DMI_WORDS if word in dmi), "vm")


def _dmi(roots: Roots) -> str:
    names = ("sys_vendor", "product_name", "board_vendor", "bios_vendor")
    return " ".join(read(roots.sysfs / "class/dmi/id" / name) or "" for name in names)


def read_container(roots: Roots) -> str:
    """Name the container around this process (``docker``, ``podman``, ``apptainer`` ...), or ``none``.

    An engine's mark in the root is believed only where the process is in namespaces that are not the system's
    own: machines whose disk was made from a container's image carry the mark too.
    """
    if "APPTAINER_CONTAINER" in os.environ or "SINGULARITY_CONTAINER" in os.environ:
        return "apptainer"
    name = read(roots.root / "run/systemd/container")
    if name:
        return name
    groups = read(roots.procfs / "1/cgroup") or ""
    for word, kind in _CONTAINER_GROUPS:
        if word in groups:
            return kind
    if not _in_own_namespaces(roots):
        return "none"
    return next((kind for mark, kind in _CONTAINER_MARKS if (roots.root / mark).exists()), "none")


def _in_own_namespaces(roots: Roots) -> bool:
    here = {name: link_name(roots.procfs / "self/ns" / name) for name in _FIRST_NAMESPACES}
    return any(link is not None and link != _FIRST_NAMESPACES[name] for name, link in here.items())


# -- the inventory -----------------------------------------------------------------------------------------


def gather(settings: records.Settings, kept: KeptAnswers | None = None) -> records.Inventory:
    """Take the inventory of this node; ``missing`` has what could not be found out, with its reason.

    The storage under each folder of ``settings.storage`` is examined. Takes about a second, most of it
    waiting for drivers.

    Args:
        kept: keeps what drivers and MPI answer; None: they are tried anew.
    """
    sysfs, tried = str(settings.sysfs), (kept or KeptAnswers()).answer
    with ThreadPoolExecutor() as pool:
        answers = [
            pool.submit(tried, "OpenCL", _driver_files(), partial(ask, "opencl")),
            pool.submit(tried, "NVML", _driver_files(), partial(ask, "gpu", sysfs), sysfs),
            pool.submit(tried, "MPI", _mpi_files(), _mpi),
        ]
        machine = read_machine(settings)
        opencl, gpu, mpi = (answer.result() for answer in answers)
    drivers = {
        "opencl": opencl.opencl,
        "gpus": gpu.gpus,
        "mpi": mpi.mpi,
        "missing": (*machine.missing, *opencl.missing, *gpu.missing, *mpi.missing),
    }
    return machine.model_copy(update=drivers)


def _driver_files() -> list[Path]:
    """List what tells that a driver came, went or changed, but for the libraries that it loads."""
    vendors = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    devices = [Path("/dev/dri"), Path("/dev/kfd"), Path("/dev/dxg"), *Path("/dev").glob("nvidia*")]
    code = [PROGRAM, *(PROGRAM.parent.parent / "probes" / name for name in ("opencl.py", "nvml.py"))]
    packages = [Path(folder) for folder in sys.path if folder.endswith("-packages")]
    return [vendors, *vendors.glob("*.icd"), LINKER, *devices, *code, *packages]


def _mpi_files() -> list[Path]:
    code = [PROGRAM.parent.parent / "probes/mpi" / name for name in ("runner.py", "rank_guard.py")]
    return [LINKER, *installed.files(), *code]


def read_machine(settings: records.Settings) -> records.Inventory:
    """Read the part of the inventory that files tell: all but OpenCL devices, GPUs and MPI."""
    roots = Roots.of(settings)
    cpu = read_cpu(roots)
    memory_mb = read_memory_mb(roots)
    storage, no_storage = _storage(roots, settings.storage)
    return records.Inventory(
        hostname=read_hostname(roots),
        kernel=read_kernel(roots),
        distribution=read_distribution(roots),
        virtualisation=read_virtualisation(roots),
        container=read_container(roots),
        cpu=cpu,
        limits=read_limits(roots, cpu.threads, memory_mb),
        tuning=read_tuning(roots),
        numa=read_numa(roots),
        memory_mb=memory_mb,
        memory_modules=read_memory_modules(roots.sysfs, roots.root),
        storage=storage,
        network=read_network(roots),
        power=_power(roots),
        missing=no_storage,
    )


def _storage(
    roots: Roots, folders: Sequence[Path]
) -> tuple[tuple[records.Storage, ...], tuple[records.Missing, ...]]:
    storage, missing = [], []
    for folder in folders:
        try:
            storage.append(read_storage(roots, folder))
        except Unavailable as error:
            missing.append(records.Missing(what=f"storage {folder}", reason=error.what, remedy=error.remedy))
    return tuple(storage), tuple(missing)


def _mpi() -> Answer:
    from probes.mpi.runner import find_mpi  # late, because what files tell needs no start of ranks

    try:
        mpi = find_mpi()
    except UserError as error:
        return Answer(missing=(records.Missing(what="mpi", reason=error.what, remedy=error.remedy),))
    return Answer(mpi=records.Mpi(library=mpi.library, launcher=str(mpi.launcher)))


def _power(roots: Roots) -> tuple[records.PowerZone, ...]:
    return tuple(
        records.PowerZone(
            name=zone.key,
            path=str(zone.path),
            cap_w=zone.cap_w,
            cap_max_w=zone.cap_max_w,
            readable=zone.readable,
            writable=zone.writable,
        )
        for zone in zones(roots.sysfs)
    )
