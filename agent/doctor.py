"""The doctor: what can be measured on this node and what not, with reasons and remedies.

Nothing is changed, apart from a file of one page in each checkpoint folder that is removed at once; and what
was tried is kept for the next time, if asked for.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from agent.inventory import Roots, fields, gather, read, read_mounts
from agent.kept_answers import Answer, KeptAnswers
from agent.node_profile.identity import explain
from agent.processes import control_groups
from probes.c_library import HEADERS_REMEDY, REMEDY, find_compiler
from probes.folders import LEAST_FREE
from probes.memory_plan import ELEMENT, ONE_NODE, choose_area, choose_arrays, plan_writings
from probes.meters import READ_REMEDY, powercap_meter
from probes.opencl import may_have_twin
from probes.powercap import Zone, capped, metered, zones
from probes.registry import PROBES
from probes.topology import Topology, cpu_list, data_caches_kib, free_memory_mb, kernel_bytes, read_topology
from profiles.card import BUSY, STOLEN
from profiles.errors import BadInput, Unavailable
from profiles.files.safe_files import default_storage
from profiles.quantities import counted, duration, file_size, memory
from profiles.records import MB, Inventory, Missing, OpenCLDevice, Profile, Record, Settings, Storage

# -- machine and findings ----------------------------------------------------------------------------------


class Finding(Record):
    """A finding: a thing can be measured here, cannot, or only with limits.

    ``what`` and ``reason`` are sentences without a full stop; ``remedy`` is the next step, or empty.
    """

    topic: str  # a probe's name, or machine
    state: Literal["ok", "limited", "missing"]
    what: str
    reason: str = ""
    remedy: str = ""


def ok(topic: str, what: str, reason: str = "") -> Finding:
    return Finding(topic=topic, state="ok", what=what, reason=reason)


def limited(topic: str, what: str, reason: str, remedy: str = "") -> Finding:
    return Finding(topic=topic, state="limited", what=what, reason=reason, remedy=remedy)


def missing(topic: str, what: str, reason: str, remedy: str = "") -> Finding:
    return Finding(topic=topic, state="missing", what=what, reason=reason, remedy=remedy)


@dataclass(frozen=True)
class Case:
    """The machine under examination."""

    inventory: Inventory
    roots: Roots
    answers: KeptAnswers = field(default_factory=KeptAnswers)

    @cached_property
    def topology(self) -> Topology:
        """The CPUs that this process may use, as the probes see them."""
        status = fields(read(self.roots.procfs / "self/status"))
        allowed = cpu_list(status.get("Cpus_allowed_list")) or os.sched_getaffinity(0)
        return read_topology(self.roots.sysfs, set(allowed))

    @property
    def virtual(self) -> bool:
        return self.inventory.virtualisation != "none"

    @property
    def usable_cores(self) -> int:
        """Cores that this process may use, and has the CPU time for."""
        cores, quota = len(self.topology.cores), self.inventory.limits.quota_cores
        return cores if quota is None else min(cores, max(int(quota), 1))

    def unknown(self, what: str) -> list[Missing]:
        """Return why something is not in the inventory."""
        return [m for m in self.inventory.missing if m.what == what]


# -- load by others ----------------------------------------------------------------------------------------


SAMPLE_S = 0.25
PRESSURE = 0.05

_QUIET = "measure when it is quiet; 'top' shows who it is"


class Ticks(NamedTuple):
    """CPU time of the whole machine since it was started, in clock ticks."""

    total: int
    idle: int
    stolen: int


def read_ticks(roots: Roots) -> Ticks | None:
    """Read the first line of ``/proc/stat``; ``None`` if there is none."""
    line = (read(roots.procfs / "stat") or "").partition("\n")[0].split()
    if len(line) < 5 or line[0] != "cpu":
        return None
    # user nice system idle iowait irq softirq steal; guest time, which follows, is in user time already.
    times = [int(text) for text in line[1:9]]
    return Ticks(sum(times), times[3] + sum(times[4:5]), sum(times[7:8]))


def load_findings(roots: Roots) -> Iterator[Finding]:
    """Watch the machine for ``SAMPLE_S`` seconds, in which this process sleeps."""
    before = read_ticks(roots)
    time.sleep(SAMPLE_S)
    yield from compare(roots, before, read_ticks(roots))


def compare(roots: Roots, before: Ticks | None, after: Ticks | None) -> Iterator[Finding]:
    """Judge the load by two readings of CPU time and the kernel's averages."""
    yield from _busy(roots, before, after)
    yield from _stolen(before, after)
    for resource, what in (("io", "storage"), ("memory", "memory")):
        waiting = _pressure(roots, resource)
        if waiting is not None and waiting > PRESSURE:
            yield limited(
                "machine",
                f"busy: processes waited for {what} {waiting:.0%} of the last 10 s",
                "others use it, or there is too little of it",
                _QUIET,
            )


def _busy(roots: Roots, before: Ticks | None, after: Ticks | None) -> Iterator[Finding]:
    now = _busy_now(before, after)
    lately = _pressure(roots, "cpu")
    load = re.match(r"[\d.]+", read(roots.procfs / "loadavg") or "")
    beside = f"load average {load[0]}" if load else ""
    if now is not None and now > BUSY:
        yield limited("machine", f"busy: {now:.0%} of all CPU time is used by others", beside, _QUIET)
    elif lately is not None and lately > PRESSURE:
        what = f"busy: processes waited for a CPU {lately:.0%} of the last 10 s"
        yield limited("machine", what, beside, _QUIET)
    elif now is not None:
        yield ok("machine", f"quiet: {now:.0%} of all CPU time is used by others", beside)


def _busy_now(before: Ticks | None, after: Ticks | None) -> float | None:
    if before is None or after is None or after.total <= before.total:
        return None
    idle = after.idle - before.idle
    return min(max(1 - idle / (after.total - before.total), 0.0), 1.0)


def _stolen(before: Ticks | None, after: Ticks | None) -> Iterator[Finding]:
    if before is None or after is None:
        return
    since_start = after.stolen / after.total if after.total else 0.0
    ticks = after.total - before.total
    now = (after.stolen - before.stolen) / ticks if ticks else 0.0
    if max(now, since_start) > STOLEN:
        yield limited(
            "machine",
            f"the hypervisor gave {now:.1%} of the CPU time to others just now, {since_start:.1%} since boot",
            "more virtual CPUs than real ones are in use on this host",
            "ask for dedicated CPUs, or measure at another hour",
        )


def _pressure(roots: Roots, resource: str) -> float | None:
    """Read the share of the last 10 s in which some process waited (pressure stall information)."""
    text = read(roots.procfs / "pressure" / resource) or ""
    match = re.search(r"^some avg10=([\d.]+)", text, re.MULTILINE)
    return float(match[1]) / 100 if match else None


# -- what concerns every probe -----------------------------------------------------------------------------


# Clocks that are read by a system call, or over a slow bus, each time.
_SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit", "xen"}

_PERFORMANCE = "as root: echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"


def machine_findings(case: Case) -> Iterator[Finding]:
    yield from _usable(case)
    yield from _threads_and_kinds(case)
    yield from _frequency(case)
    yield from _clock(case)
    yield from _around(case)
    if case.inventory.gpus:
        yield _hidden_gpus()


def _hidden_gpus() -> Finding:
    """Tell what keeps jobs from GPUs that they did not get."""
    if why := control_groups.why_files_stay_open():
        what = "GPUs are hidden from jobs that did not get them by variables only, which a program can change"
        return limited("machine", what, why.what, why.remedy)
    return ok("machine", "the files of GPUs are closed to jobs that did not get them")


def changes(case: Case, last: Profile) -> Iterator[Finding]:
    """Say how the machine, drivers included, has changed since its last profile; checkpoint folders apart."""
    then, now = (i.model_copy(update={"storage": ()}) for i in (last.inventory, case.inventory))
    if differences := explain(then, now):
        what = f"its last profile ({last.id}) is stale: the machine has changed since"
        yield limited("machine", what, "; ".join(differences), "profile it again: tenbin profile")


def _usable(case: Case) -> Iterator[Finding]:
    cpu, limits = case.inventory.cpu, case.inventory.limits
    outside = (
        "start tenbin outside of what sets the limit, or take the profile as one of this part of the node"
    )
    if limits.threads is not None:
        yield limited(
            "machine",
            f"only {limits.threads} of {cpu.threads} logical CPUs can be measured",
            "this process's affinity mask (taskset, a cpuset, a batch job) leaves no more",
            outside,
        )
    if limits.quota_cores is not None:
        yield limited(
            "machine",
            f"CPU time is limited to {limits.quota_cores:g} of {cpu.threads} logical CPUs",
            "a control group sets a quota; when it is used up everything stands still until the next period",
            outside,
        )
    if limits.memory_mb is not None:
        yield limited(
            "machine",
            f"only {memory(limits.memory_mb)} of {memory(case.inventory.memory_mb)} of memory can be used",
            "a control group sets a limit, and kills what goes beyond",
            outside,
        )
    offline = _offline(case)
    if offline:
        yield limited(
            "machine",
            f"{len(offline)} CPUs are offline and are not measured",
            "the kernel was told so",
            f"as root: echo 1 > /sys/devices/system/cpu/cpu{offline[0]}/online",
        )
    if limits.threads is None and limits.quota_cores is None and not offline:
        yield ok("machine", f"all {cpu.threads} logical CPUs can be used")


def _offline(case: Case) -> tuple[int, ...]:
    """List the CPUs that are offline, without those that are off because SMT was switched off."""
    folder = case.roots.sysfs / "devices/system/cpu"
    if read(folder / "smt/control") in ("off", "forceoff"):
        return ()
    there = cpu_list(read(folder / "present"))
    return tuple(cpu for cpu in cpu_list(read(folder / "offline")) if cpu in there)


def _threads_and_kinds(case: Case) -> Iterator[Finding]:
    cpu = case.inventory.cpu
    if cpu.smt:
        yield limited(
            "machine",
            f"SMT is on: {cpu.threads} threads on {counted(cpu.cores, 'core')}",
            "two threads of one core share its units, so each is slower than alone; the probes count cores "
            "and use one thread of each",
            "nothing to do; jobs that gain nothing from it run steadier with: "
            "echo off > /sys/devices/system/cpu/smt/control",
        )
    if len(cpu.core_kinds) > 1:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(cpu.core_kinds.items()))
        yield limited(
            "machine",
            f"the cores are of different kinds: {kinds}",
            "a curve over 1..n cores bends where it comes to the slower kind, and an unpinned load wanders",
            "measure one kind at a time: taskset -c <its CPUs> tenbin profile",
        )


def _frequency(case: Case) -> Iterator[Finding]:
    cpu = case.inventory.cpu
    if cpu.governor is None:
        reason = (
            "the hypervisor decides it" if case.virtual else "no frequency driver: the firmware decides it"
        )
        remedy = "" if case.virtual else "let the operating system control power in the firmware's setup"
        yield limited("machine", "clock frequency and turbo cannot be seen", reason, remedy)
    elif cpu.governor != "performance":
        yield limited(
            "machine",
            f"the frequency governor is {cpu.governor}",
            "after a pause a core starts slowly, so short measurements vary",
            _PERFORMANCE,
        )
    else:
        yield ok("machine", "the frequency governor is performance")
    if cpu.turbo:
        intel = (case.roots.sysfs / "devices/system/cpu/intel_pstate/no_turbo").exists()
        switch = "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo" if intel else (
            "echo 0 > /sys/devices/system/cpu/cpufreq/boost"
        )  # fmt: skip
        yield limited(
            "machine",
            "turbo is on",
            "the clock depends on temperature and on how many cores are busy",
            f"leave it on if jobs run so; for the steadiest figures, as root: {switch}",
        )


def _clock(case: Case) -> Iterator[Finding]:
    clock = case.inventory.tuning.clock_source
    if clock in _SLOW_CLOCKS:
        yield limited(
            "machine",
            f"the clock is {clock}",
            "each reading costs a microsecond or more, so short times are coarse",
            "see why the kernel gave up the processor's own: dmesg | grep -i -e tsc -e clocksource",
        )
    elif clock is not None:
        yield ok("machine", f"the clock ({clock}) is read without a system call")


def _around(case: Case) -> Iterator[Finding]:
    i = case.inventory
    if case.virtual:
        yield limited(
            "machine",
            f"this is a virtual machine ({i.virtualisation})",
            "neighbours on the same hardware share its caches and memory, unseen from here",
            "measure more than once and compare: tenbin profile compare; better on the bare machine",
        )
    if i.container != "none":
        yield limited(
            "machine",
            f"this is a container ({i.container})",
            "it shows the host's processors and hides some of its devices and files",
            "measure on the host, or take the profile as one of jobs in such containers",
        )
    if i.tuning.numa_balancing and len(i.numa) > 1:
        yield limited(
            "machine",
            "the kernel moves memory between NUMA nodes by itself",
            "pages that a probe has placed may move while it measures",
            "as root: sysctl kernel.numa_balancing=0",
        )
    if i.tuning.huge_pages == "never":
        yield limited(
            "machine",
            "transparent huge pages are off",
            "large areas of memory then cost a page fault and a table entry every 4 KiB",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


# -- power -------------------------------------------------------------------------------------------------


PACKAGE_LIMIT_MSR = 0x610  # MSR_PKG_POWER_LIMIT, Intel SDM volume 4; bit 63 locks it until the next reset
LOCK = 1 << 63

_OUTSIDE = "take it from outside: the board's controller (ipmitool dcmi power reading), a metered socket"
_NVIDIA, _AMD = "0x10de", "0x1002"


def power_findings(case: Case) -> Iterator[Finding]:
    power_zones = zones(case.roots.sysfs)
    packages = [zone for zone in metered(power_zones) if zone.is_package]
    if packages:
        yield from _energy(case, packages)
        yield from _caps(case, power_zones)
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


def _caps(case: Case, power_zones: list[Zone]) -> Iterator[Finding]:
    with_cap = capped(power_zones)
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
    if any(zone.is_duplicate for zone in power_zones):
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


# -- probes ------------------------------------------------------------------------------------------------


SHM_MB = 256.0  # what two ranks of any MPI need for their shared segments, with room
ROOM_MB = 4000.0  # below: the largest sizes of a full profile are left out
LEAST_ROOM_MB = 200.0  # below: too few sizes for a line

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_ROOM_REMEDY = f"free {file_size(ROOM_MB)} for all sizes, or name another folder: --storage DIR"


def probe_findings(case: Case) -> Iterator[Finding]:
    yield from _memory(case)
    yield from _streams(case)
    yield from _compute(case)
    yield from _network(case)
    yield from _messages(case)
    yield from _device(case)
    yield from _checkpoint(case)
    for storage in case.inventory.storage:
        yield _storage_speed(storage)
    yield from _scaling(case)


def _memory(case: Case) -> Iterator[Finding]:
    """Find what the memory probe could measure now."""
    free_mb = free_memory_mb(case.roots.sysfs, case.roots.procfs) / 2
    area_mb, amiss = choose_area(case.topology, free_mb)
    if not area_mb:
        yield from (missing("memory", f"{what} cannot be measured", *why) for what, *why in amiss)
        return
    cores, nodes = case.usable_cores, len(case.topology.memory_nodes)
    where = (
        f"local and remote over {nodes} NUMA nodes" if nodes > 1 else "one NUMA node, so all of it is local"
    )
    yield ok("memory", f"memory bandwidth on 1..{cores} cores", f"{where}; {memory(area_mb)} for each core")
    unplanned = plan_writings(case.topology, int(free_mb / area_mb))[1]
    for absent in (*amiss, *unplanned):
        if absent != ONE_NODE:  # nothing is lost where nothing is remote
            what, *why = absent
            yield limited("memory", f"not measured or not known: {what}", *why)


def _streams(case: Case) -> Iterator[Finding]:
    """Find if the loops could be compiled, and if their arrays have room."""
    what = "memory streams and latency"
    if find_compiler() is None:
        yield missing("streams", f"{what} cannot be measured", "no C compiler", HEADERS_REMEDY)
        return
    free_mb = free_memory_mb(case.roots.sysfs, case.roots.procfs) / 2
    caches_kib = data_caches_kib(case.roots.sysfs, case.topology.cores[0].index)
    elements, amiss = choose_arrays(case.topology, free_mb, caches_kib)
    if not elements:
        yield from (missing("streams", f"{what} cannot be measured", *why) for _, *why in amiss[-1:])
        return
    mb = 3 * ELEMENT * sum(elements.values()) / MB
    yield ok("streams", f"read, write, copy, scale, add, triad on 1..{case.usable_cores} cores", memory(mb))
    for unknown, *why in amiss:
        yield limited("streams", f"not measured or not known: {unknown}", *why)


def _compute(case: Case) -> Iterator[Finding]:
    """Find what of the floating point speed could be measured now."""
    cores = case.usable_cores
    yield ok("compute", f"floating point speed on 1..{cores} cores", "matrix products by numpy's BLAS")
    if find_compiler() is None:
        reason = "both are compiled for this processor when they are needed, and there is no C compiler"
        yield limited("compute", "no vector loop and no clock is measured", reason, REMEDY)


def _network(case: Case) -> Iterator[Finding]:
    i = case.inventory
    if i.mpi is None:
        for trouble in case.unknown("mpi"):
            yield missing(
                "network", "all-to-all communication cannot be measured", trouble.reason, trouble.remedy
            )
    else:
        yield ok("network", "all-to-all communication", f"{i.mpi.library}, started by {i.mpi.launcher}")
    shm_mb = _shm_mb(case)
    if shm_mb is not None and shm_mb < SHM_MB:
        yield limited(
            "network",
            f"/dev/shm is small ({memory(shm_mb)})",
            "ranks on one node pass their messages through it, and die when it is full",
            "as root: mount -o remount,size=1G /dev/shm; in Docker: --shm-size=1g",
        )
    hardware = [n for n in i.network if not n.virtual]
    if hardware:
        names = ", ".join(f"{n.name} ({_speed(n.speed_mbit)})" for n in hardware)
        yield ok("network", f"interfaces to other hosts: {names}")
    else:
        yield limited(
            "network",
            "no network interface with hardware is seen",
            "a container's or a virtual network hides it" if i.network else "this node is alone",
            "measure between hosts from the hosts themselves: tenbin profile --hosts a,b",
        )


def _messages(case: Case) -> Iterator[Finding]:
    what = "messages between two ranks"
    if case.inventory.mpi is None:
        for trouble in case.unknown("mpi"):
            yield missing("messages", f"{what} cannot be measured", trouble.reason, trouble.remedy)
    elif case.usable_cores < 2:
        yield missing("messages", f"{what} of this node cannot be measured", "one core can be used")
    else:
        yield ok("messages", what, "latency and bandwidth, as osu_latency and osu_bw")


def _speed(mbit: float | None) -> str:
    return "speed not told" if mbit is None else f"{mbit:g} Mbit/s"


def _shm_mb(case: Case) -> float | None:
    """Read the size of ``/dev/shm``: its mount's limit, else that of the file system."""
    mounts = [m for m in read_mounts(case.roots) if m.point == Path("/dev/shm")]
    if not mounts:
        return None
    if limit := re.search(r"\bsize=(\w+)", mounts[-1].options):
        return kernel_bytes(limit[1]) / MB
    if case.roots.root != Path("/"):
        return None
    space = os.statvfs("/dev/shm")
    return space.f_blocks * space.f_frsize / MB


def _device(case: Case) -> Iterator[Finding]:
    """Say of which devices the speed can be measured."""
    for trouble in case.unknown("opencl"):
        what = "the speed of OpenCL devices cannot be measured"
        yield missing("device", what, trouble.reason, trouble.remedy)
    for d in case.inventory.opencl:
        if d.kind == "cpu":
            reason = "the processor itself, as its driver compiles for it; copies are within its memory"
        else:
            reason = f"{d.name}, {d.compute_units} compute units, {memory(d.global_memory_mb)}"
        yield ok("device", f"memory, arithmetic, launches and copies of {d.key}", reason)


def _checkpoint(case: Case) -> Iterator[Finding]:
    devices = case.inventory.opencl
    for trouble in case.unknown("opencl"):
        yield missing("checkpoint", "no OpenCL device can be measured", trouble.reason, trouble.remedy)
    for trouble in case.unknown("opencl platforms"):
        yield limited("checkpoint", "a device is measured twice", trouble.reason, trouble.remedy)
    for trouble in case.unknown("opencl drivers"):
        yield limited("checkpoint", "an OpenCL device is overlooked", trouble.reason, trouble.remedy)
    for d in devices:
        yield ok(
            "checkpoint", f"checkpoint and restart of {d.key}", f"{d.name}, {d.platform}, driver {d.driver}"
        )
    if len(devices) == 1:
        yield _one_device(devices)
    if devices:
        yield _opencl_layer(case)
    for storage in case.inventory.storage:
        yield from _storage(storage)
    for trouble in case.inventory.missing:
        if trouble.what.startswith("storage "):
            yield missing("checkpoint", f"no {trouble.what}", trouble.reason, trouble.remedy)


def _opencl_layer(case: Case) -> Finding:
    """Say whether programs that know nothing of tenbin can be moved."""
    from agent.opencl_layer import build, loader, requests  # late: only the doctor asks

    nothing = "no unmodified OpenCL program can be moved"

    def compile_headers() -> Answer:
        why = build.trouble()
        return Answer(missing=(Missing(what="compiler", reason=why, remedy=build.REMEDY),) if why else ())

    compiled = case.answers.answer("compiler", build.installed_files(), compile_headers)
    for trouble in compiled.missing:
        return limited("checkpoint", nothing, trouble.reason, trouble.remedy)
    try:
        requests.check_length(requests.default_folder())
    except BadInput as error:
        return limited("checkpoint", nothing, error.what, error.remedy)
    if why := loader.trouble():
        return limited("checkpoint", "most unmodified OpenCL programs cannot be moved", why, loader.remedy())
    return ok("checkpoint", "moves of unmodified OpenCL programs", "tenbin opencl run -- CMD")


def _one_device(devices: Sequence[OpenCLDevice]) -> Finding:
    """Say which migrations can be measured with one device."""
    key = devices[0].key
    remedy = "a second driver makes a second device: a GPU's, or 'apt-get install pocl-opencl-icd' beside one"
    if may_have_twin(devices):
        what = f"migration between {key} and a twin of it only"
        reason = "there is one OpenCL device; PoCL shows it twice, so that whole migrations can be timed"
        return limited("checkpoint", what, reason, remedy)
    reason = "there is one OpenCL device; checkpoint and restart are measured on it"
    return limited("checkpoint", "no migration between devices", reason, remedy)


def _storage(s: Storage) -> Iterator[Finding]:
    if not s.writable:
        yield missing(
            "checkpoint",
            f"nothing can be written to {s.folder}",
            "it is no folder, is mounted read-only, or belongs to somebody else",
            "name another: --storage DIR",
        )
        return
    free = f"{file_size(s.free_mb)} are free"
    if s.free_mb < LEAST_ROOM_MB:
        yield missing("checkpoint", f"{s.folder} is too small", free, _ROOM_REMEDY)
        return
    if s.free_mb < ROOM_MB:
        yield limited("checkpoint", f"large checkpoints do not fit into {s.folder}", free, _ROOM_REMEDY)
    if s.kind == "memory":
        yield limited(
            "checkpoint",
            f"{s.folder} is memory, not storage ({s.filesystem})",
            "what is written there costs a copy only and does not outlive the machine",
            "name a folder on a disk or a shared file system: --storage DIR",
        )
    elif not s.direct_io:
        yield limited(
            "checkpoint",
            f"{s.folder} has no direct I/O ({s.filesystem})",
            "all goes through the page cache, so times are less steady and depend on free memory",
            "name a folder on another file system: --storage DIR",
        )
    elif s.kind == "network":
        yield limited(
            "checkpoint",
            f"{s.folder} is reached over a network ({s.filesystem})",
            "others use the same servers, so times vary with what they do",
            "measure more than once and compare: tenbin profile compare",
        )
    else:
        what = f"{s.filesystem} on {s.model or s.device} ({s.kind}), {file_size(s.free_mb)} free"
        yield ok("checkpoint", f"checkpoints in {s.folder}, by direct I/O", what)


def _storage_speed(s: Storage) -> Finding:
    """Say whether the storage probe can measure a folder."""
    what, remedy = f"the speed of {s.folder} cannot be measured", "name another folder: --storage DIR"
    if not s.writable:
        return missing("storage", what, "no file can be made there", remedy)
    if s.filesystem in _IN_MEMORY:
        return missing("storage", what, f"its files stay in memory ({s.filesystem})", remedy)
    if not s.direct_io:
        return missing("storage", what, f"{s.filesystem} cannot bypass the page cache", remedy)
    if s.free_mb < LEAST_FREE / MB:
        least = f"free {file_size(LEAST_FREE / MB)}, or name another folder: --storage DIR"
        return missing("storage", what, f"{file_size(s.free_mb)} are free", least)
    done = "large blocks, 4 KiB at random places, writes with fsync"
    return ok("storage", f"speed of storage in {s.folder}", done)


def _scaling(case: Case) -> Iterator[Finding]:
    cores = case.usable_cores
    if cores < 2:
        yield missing("scaling", "scaling cannot be measured", "one core can be used")
    else:
        reason = f"an average parallelism (Downey's A) above {cores / 2:g} can only be bounded from below"
        yield ok("scaling", f"speed-up on 1..{cores} cores", reason)


def _kept(answers: KeptAnswers) -> Iterator[Finding]:
    """Say what was not tried now, and since when it is known."""
    if answers.kept_s:
        ago = duration(round(time.time() - min(answers.kept_s.values())))
        what = f"{', '.join(answers.kept_s)}: tried {ago} ago, nothing of them has changed since"
        yield ok("machine", what, "tenbin doctor --again tries them anew")


# -- all findings ------------------------------------------------------------------------------------------


def examine(
    settings: Settings,
    inventory: Inventory | None = None,
    last: Profile | None = None,
    answers: KeptAnswers | None = None,
) -> list[Finding]:
    """Collect all findings, by probe in the order of the registry, then those of the whole machine.

    Args:
        settings: where to look; without checkpoint folders, at the default folder of a profile.
        inventory: the node's inventory, if it is known already.
        last: the node's last profile; a finding says how the node has changed since.
        answers: keeps what drivers, MPI and compiler answer; None: they are tried anew.
    """
    answers = answers or KeptAnswers()
    if not settings.storage:
        settings = settings.model_copy(update={"storage": (default_storage(),)})
    roots = Roots.of(settings)
    busy = list(load_findings(roots))  # before the drivers are asked, which is work too
    case = Case(inventory or gather(settings, answers), roots, answers)
    findings = [*probe_findings(case), *power_findings(case), *machine_findings(case), *busy]
    findings += _kept(answers)
    if last is not None:
        findings += changes(case, last)
    order = [*PROBES, "machine"]
    return sorted(findings, key=lambda finding: order.index(finding.topic))
