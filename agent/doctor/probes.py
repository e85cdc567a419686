"""Checks of what the probes find here, but those of power."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.doctor.finding import Case, Finding, limited, missing, ok
from agent.inventory.storage import read_mounts
from probes.c_library import REMEDY, find_compiler
from probes.checkpoint.subjects import may_have_twin
from probes.memory.plan import choose_area, plan
from probes.storage import LEAST_FREE
from probes.streams import library
from probes.streams.plan import choose_arrays
from probes.topology import data_caches_kib, free_memory_mb
from profiles.errors import BadInput
from profiles.inventory import OpenCLDevice, Storage
from profiles.records import MB

SHM_MB = 256.0  # what two ranks of any MPI need for their shared segments, with room
ROOM_MB = 4000.0  # below: the largest sizes of a full profile are left out
LEAST_ROOM_MB = 200.0  # below: too few sizes for a line

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_ROOM_REMEDY = f"free {ROOM_MB:.0f} MB for all sizes, or name another folder: --storage DIR"


def check(case: Case) -> Iterator[Finding]:
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
    yield ok("memory", f"memory bandwidth on 1..{cores} cores", f"{where}; {area_mb:.0f} MB for each core")
    unplanned = plan(case.topology, int(free_mb / area_mb))[1]
    for what, *why in (*amiss, *unplanned):
        if nodes > 1 or not what.startswith("remote"):  # nothing is lost where nothing is remote
            yield limited("memory", f"not measured or not known: {what}", *why)


def _streams(case: Case) -> Iterator[Finding]:
    """Find if the loops could be compiled, and if their arrays have room."""
    what = "memory streams and latency"
    if find_compiler() is None:
        yield missing("streams", f"{what} cannot be measured", "no C compiler", library.REMEDY)
        return
    free_mb = free_memory_mb(case.roots.sysfs, case.roots.procfs) / 2
    caches_kib = data_caches_kib(case.roots.sysfs, case.topology.cores[0].index)
    elements, amiss = choose_arrays(case.topology, free_mb, caches_kib)
    if not elements:
        yield from (missing("streams", f"{what} cannot be measured", *why) for _, *why in amiss[-1:])
        return
    mb = 3 * library.ELEMENT * sum(elements.values()) / 2**20
    yield ok(
        "streams", f"read, write, copy, scale, add, triad on 1..{case.usable_cores} cores", f"{mb:.0f} MB"
    )
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
            f"/dev/shm is small ({shm_mb:.0f} MB)",
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
    match = re.search(r"\bsize=(\d+)([kmg]?)", mounts[-1].options)
    if match:
        return int(match[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2]] / MB
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
            reason = f"{d.name}, {d.compute_units} compute units, {d.global_memory_mb:.0f} MB"
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
        yield _opencl_layer()
    for storage in case.inventory.storage:
        yield from _storage(storage)
    for trouble in case.inventory.missing:
        if trouble.what.startswith("storage "):
            yield missing("checkpoint", f"no {trouble.what}", trouble.reason, trouble.remedy)


def _opencl_layer() -> Finding:
    """Say whether programs that know nothing of tenbin can be moved."""
    from agent.opencl_layer import build, loader, requests  # late: only the doctor asks

    nothing = "no unmodified OpenCL program can be moved"
    if why := build.trouble():
        return limited("checkpoint", nothing, why, build.REMEDY)
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
    free = f"{s.free_mb:.0f} MB are free"
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
            "measure more than once and compare: tenbin compare",
        )
    else:
        what = f"{s.filesystem} on {s.model or s.device} ({s.kind}), {s.free_mb / 1000:.1f} GB free"
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
        least = f"free {LEAST_FREE / MB:.0f} MB, or name another folder: --storage DIR"
        return missing("storage", what, f"{s.free_mb:.0f} MB are free", least)
    done = "large blocks, 4 KiB at random places, writes with fsync"
    return ok("storage", f"speed of storage in {s.folder}", done)


def _scaling(case: Case) -> Iterator[Finding]:
    cores = case.usable_cores
    if cores < 2:
        yield missing("scaling", "scaling cannot be measured", "one core can be used")
    else:
        reason = f"an average parallelism (Downey's A) above {cores / 2:g} can only be bounded from below"
        yield ok("scaling", f"speed-up on 1..{cores} cores", reason)
