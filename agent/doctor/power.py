"""Energy counters and power caps: of the processors by powercap, of NVIDIA's GPUs by NVML."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agent.doctor.finding import Case, Finding, limited, missing, ok
from agent.inventory.files import read
from probes.power.meters import READ_REMEDY, powercap_meter
from probes.power.powercap import Zone, capped, metered, zones
from profiles.errors import Unavailable

PACKAGE_LIMIT_MSR = 0x610  # MSR_PKG_POWER_LIMIT, Intel SDM volume 4; bit 63 locks it until the next reset
LOCK = 1 << 63

_OUTSIDE = "take it from outside: the board's controller (ipmitool dcmi power reading), a metered socket"
_NVIDIA, _AMD = "0x10de", "0x1002"


def check(case: Case) -> Iterator[Finding]:
    found = zones(case.roots.sysfs)
    packages = [zone for zone in metered(found) if zone.is_package]
    if packages:
        yield from _energy(case, packages)
        yield from _caps(case, found)
    else:
        yield _no_zones(case)
    yield from _gpus(case)


def _no_zones(case: Case) -> Finding:
    what = "power of the processors cannot be measured"
    where = case.roots.sysfs / "class/powercap"
    vendor = case.inventory.cpu.vendor
    if case.virtual:
        reason = f"no powercap interface: virtual machine ({case.inventory.virtualisation})"
        return missing("power", what, reason, f"measure on the bare machine, or {_OUTSIDE}")
    if case.inventory.container != "none":
        reason = f"no powercap interface in this container ({case.inventory.container}), engines hide it"
        return missing("power", what, reason, "measure on the host")
    modules = {
        "GenuineIntel": "modprobe intel_rapl_msr (before Linux 5.3: intel_rapl)",
        "AuthenticAMD": "modprobe intel_rapl_msr (it is AMD's driver too, from Linux 5.8 on, Zen and later)",
        "HygonGenuine": "modprobe intel_rapl_msr",
    }
    if vendor in modules:
        reason = f"no powercap interface in {where}: its driver is not loaded"
        return missing("power", what, reason, f"as root: {modules[vendor]}")
    reason = f"Linux has no energy counters for this processor ({case.inventory.cpu.model})"
    return missing("power", what, reason, _OUTSIDE)


def _energy(case: Case, packages: list[Zone]) -> Iterator[Finding]:
    shut = [zone for zone in packages if not zone.readable]
    if shut:
        yield missing(
            "power",
            "the energy counters cannot be read",
            f"{shut[0].energy_path} is readable by root only since CVE-2020-8694 (power tells secrets)",
            READ_REMEDY,
        )
        return
    try:
        with powercap_meter(case.roots.sysfs, case.roots.procfs) as meter:
            parts = meter.parts
    except Unavailable as error:
        yield missing("power", "the energy counters cannot be used", error.what, error.remedy)
        return
    yield ok("power", f"energy can be measured of {', '.join(parts)}")


def _caps(case: Case, found: list[Zone]) -> Iterator[Finding]:
    with_cap = capped(found)
    if not with_cap:
        yield limited(
            "power",
            "power caps cannot be set, idle and loaded power can be measured",
            f"the kernel has no limits for this processor ({case.inventory.cpu.model}), as for all of AMD's",
            "EPYC has limits through the amd_hsmp driver and AMD's e_smi_tool, which tenbin does not use",
        )
        return
    caps = ", ".join(f"{zone.key} {zone.cap_w:g} W" for zone in with_cap)
    if _locked(case):
        yield limited(
            "power",
            f"power caps cannot be changed ({caps})",
            "the firmware has locked them until the next reset (bit 63 of MSR 0x610)",
            "unlock in the firmware's setup: 'package power limit lock' or 'RAPL lock' off",
        )
    elif not all(zone.writable for zone in with_cap):
        limit = with_cap[0].long_term
        yield limited(
            "power",
            f"power caps cannot be changed ({caps})",
            f"{limit.limit_path if limit else with_cap[0].path} may be written by root only",
            "run 'tenbin profile --only power' as root",
        )
    else:
        reason = "whether a cap holds is seen when it is measured: a firmware may have locked it"
        yield ok("power", f"power caps can be changed ({caps})", reason)
    if any(zone.is_duplicate for zone in found):
        yield limited(
            "power",
            "power caps have two doors, registers (MSR) and memory (MMIO)",
            "the lower of the two limits holds, so a cap above the other door's has no effect",
            "where caps do not hold, look at the limits of intel-rapl-mmio:0 (thermald writes them)",
        )


def _locked(case: Case) -> bool:
    """Return whether the firmware has locked the package's limits; False if the register cannot be read."""
    if case.inventory.cpu.vendor != "GenuineIntel":
        return False
    try:
        handle = os.open(case.roots.root / "dev/cpu/0/msr", os.O_RDONLY)
    except OSError:  # not root, or the msr module is not loaded
        return False
    try:
        value = os.pread(handle, 8, PACKAGE_LIMIT_MSR)
    except OSError:  # a processor without this register
        return False
    finally:
        os.close(handle)
    return bool(int.from_bytes(value, "little") & LOCK)


def _gpus(case: Case) -> Iterator[Finding]:
    for gpu in case.inventory.gpus:
        bounds = (gpu.power_limit_w, gpu.power_limit_min_w, gpu.power_limit_max_w)
        text = "limit {:g} W, may be {:g} to {:g} W, changed only with --set-gpu-limits"
        limit = "" if None in bounds else text.format(*bounds)
        yield ok("power", f"energy can be measured of GPU {gpu.index} ({gpu.name})", limit)
    for trouble in case.unknown("gpu"):
        yield missing("power", "NVIDIA's GPUs cannot be asked", trouble.reason, trouble.remedy)
    if case.inventory.gpus or case.unknown("gpu"):
        return
    if _NVIDIA in _graphics(case.roots.sysfs):
        loaded = (case.roots.sysfs / "module/nvidia").exists()
        yield missing(
            "power",
            "power of the NVIDIA GPU cannot be measured",
            "NVML is not there" if loaded else "a GPU is on the bus, NVIDIA's kernel driver is not loaded",
            ".venv/bin/pip install nvidia-ml-py; NVML comes with NVIDIA's driver"
            if loaded
            else "install NVIDIA's driver",
        )
    if _AMD in _graphics(case.roots.sysfs):
        yield missing("power", "power of AMD's GPU is not measured", "tenbin reads GPU energy by NVML only")


def _graphics(sysfs: Path) -> set[str]:
    """List the vendors of the display controllers and accelerators on the bus."""
    return {
        read(device / "vendor") or ""
        for device in (sysfs / "bus/pci/devices").glob("*")
        if (read(device / "class") or "").startswith(("0x03", "0x12"))
    }
