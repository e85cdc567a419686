"""Memory and NUMA nodes, and how much of CPUs and memory this process may use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from agent.inventory.files import Roots, fields, number, numbered, read
from probes.topology import cpu_list
from profiles.inventory import Limits, NumaNode
from profiles.records import MB


def read_memory_mb(roots: Roots) -> float:
    """Read the size of all memory that the kernel manages."""
    return _kib_as_mb(fields(read(roots.procfs / "meminfo")).get("MemTotal", ""))


def read_numa(roots: Roots) -> tuple[NumaNode, ...]:
    """Read the NUMA nodes; none if the kernel was built without them."""
    return tuple(
        NumaNode(
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
    return round(int(match[0]) * 1024 / MB, 1) if match else 0.0


def read_limits(roots: Roots, threads: int, memory_mb: float) -> Limits:
    """Read the limits by affinity and control groups; ``None`` for those that take nothing away.

    The affinity mask already has the control group's cpuset in it.
    """
    allowed = len(cpu_list(fields(read(roots.procfs / "self/status")).get("Cpus_allowed_list")))
    quota = min(_quotas(roots), default=None)
    memory = min(_memory_limits_mb(roots), default=None)
    return Limits(
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
                yield round(limit / MB, 1)


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
