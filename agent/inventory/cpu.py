"""The processors: model, sockets, cores and their kinds, caches, frequency, from sysfs and procfs."""

from __future__ import annotations

import platform
from collections import Counter
from pathlib import Path

from agent.inventory.files import Roots, fields, number, numbered, read
from probes.topology import cpu_list
from profiles.inventory import Cache, Cpu

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


def read_cpu(roots: Roots) -> Cpu:
    """Read the processors of a machine, from ``cpuinfo`` if sysfs tells nothing."""
    info = read(roots.procfs / "cpuinfo")
    folders = _online(roots.sysfs / "devices/system/cpu")
    if not folders:
        return _from_cpuinfo(info)
    cores = _cores(folders)
    return Cpu(
        model=_model(info),
        vendor=_vendor(info),
        architecture=_architecture(roots),
        sockets=_count(folders, "physical_package_id"),
        dies=_count(folders, "physical_package_id", "die_id"),
        cores=len(cores),
        threads=len(folders),
        smt=any(len(core) > 1 for core in cores),
        core_kinds=_kinds(roots.sysfs, folders, cores),
        caches=_caches(folders),
        governor=_governor(folders),
        turbo=_turbo(roots.sysfs),
        max_mhz=_max_mhz(folders),
    )


def _online(folder: Path) -> dict[int, Path]:
    """Find the folders of the CPUs that are online; offline CPUs have no topology."""
    return {cpu: path for cpu, path in numbered(folder, "cpu") if (path / "topology").is_dir()}


def _from_cpuinfo(info: str | None) -> Cpu:
    processors = [fields(block) for block in (info or "").split("\n\n") if "processor" in fields(block)]
    threads = len(processors) or 1
    sockets = {block.get("physical id", "0") for block in processors}
    cores = {
        (block.get("physical id", "0"), block.get("core id", block["processor"])) for block in processors
    }
    n = len(cores) or threads
    return Cpu(
        model=_model(info),
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
    )


def _model(info: str | None) -> str:
    found = fields(info)
    for key in ("model name", "cpu", "uarch"):  # x86; POWER; RISC-V
        if key in found:
            return " ".join(found[key].split())
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
    found = fields(info)
    return found.get("vendor_id") or ("ARM" if "CPU implementer" in found else None)


def _architecture(roots: Roots) -> str:
    """``x86_64``, ``aarch64``: the kernel's word where it says it (6.1 and later), else this process's."""
    return read(roots.procfs / "sys/kernel/arch") or platform.machine()


def _count(folders: dict[int, Path], *names: str) -> int:
    return len({tuple(read(path / "topology" / name) for name in names) for path in folders.values()})


def _cores(folders: dict[int, Path]) -> list[tuple[int, ...]]:
    """List the logical CPUs of each core."""
    found = set()
    for cpu, path in folders.items():
        # core_cpus_list is the newer name (5.3); a CPU without either is a core of its own.
        siblings = read(path / "topology/core_cpus_list") or read(path / "topology/thread_siblings_list")
        found.add(cpu_list(siblings) or (cpu,))
    return sorted(found)


def _kinds(sysfs: Path, folders: dict[int, Path], cores: list[tuple[int, ...]]) -> dict[str, int]:
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


def _caches(folders: dict[int, Path]) -> tuple[Cache, ...]:
    """Every level, each size and sharing by itself (the kinds of core of a hybrid processor differ)."""
    instances: set[tuple[int, str, int, tuple[int, ...]]] = set()
    for cpu, path in folders.items():
        for _, index in numbered(path / "cache", "index"):
            level, size = number(index / "level"), _size_kb(read(index / "size"))
            if level is not None and size is not None:
                shared = cpu_list(read(index / "shared_cpu_list")) or (cpu,)
                instances.add((level, (read(index / "type") or "unified").lower(), size, shared))
    count = Counter((level, kind, size, len(shared)) for level, kind, size, shared in instances)
    return tuple(
        Cache(level=level, kind=kind, size_kb=size, instances=n, shared_by_cpus=shared)
        for (level, kind, size, shared), n in sorted(count.items())
    )


def _size_kb(text: str | None) -> int | None:
    """``32K`` -> 32; ``None`` for a cache whose size the firmware does not tell."""
    scale = {"K": 1, "M": 1024, "G": 1024**2}
    if not text or not text[:-1].isdigit() or text[-1] not in scale:
        return None
    return int(text[:-1]) * scale[text[-1]] or None


def _governor(folders: dict[int, Path]) -> str | None:
    found = {read(path / "cpufreq/scaling_governor") for path in folders.values()} - {None}
    return ", ".join(sorted(str(governor) for governor in found)) or None


def _turbo(sysfs: Path) -> bool | None:
    cpu = sysfs / "devices/system/cpu"
    no_turbo = number(cpu / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == 0
    boost = number(cpu / "cpufreq/boost")
    return None if boost is None else boost == 1


def _max_mhz(folders: dict[int, Path]) -> float | None:
    found = [number(path / "cpufreq/cpuinfo_max_freq") for path in folders.values()]
    return max((khz / 1000 for khz in found if khz), default=None)
