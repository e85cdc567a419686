"""The GPUs of this machine that jobs get, by number: which there are, and what a job with some may see.

Numbers stand for identities (UUIDs), and are kept in the coordinator's folder: what a GPU's number is stays
so when another GPU is gone, because jobs that run are journalled with numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.processes import control_groups
from probes import nvml
from probes.topology import read_topology
from profiles.files.safe_files import write_whole
from scheduler.engines.local.cores import ROOTS, Supply
from scheduler.engines.protocol import GpuRow, GpuTable, Taken
from scheduler.jobs.gpus import GpuKind, kind_name

VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))  # the last: of WSL
READ_S = 60.0  # a driver that has to start sleeping GPUs takes seconds


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a part of one.

    Attributes:
        uuid: as ``CUDA_VISIBLE_DEVICES`` takes it. file: the device file of the whole GPU.
        numa_node: the memory that it is near to; None: not known.
    """

    uuid: str
    name: str
    memory_mb: float
    file: str = ""
    numa_node: int | None = None


@dataclass(frozen=True)
class Gpus(GpuTable):
    """The GPUs that jobs get.

    Attributes:
        by_number: each by the number that jobs are journalled with.
        node_of: the NUMA node of each CPU.
        closes: the device files of GPUs that a job does not have are closed to it.
        emulated: folder of the emulation; empty: they are real.
    """

    by_number: Mapping[int, Gpu]
    node_of: Mapping[int, int]
    closes: bool = False
    emulated: str = ""

    @property
    def kinds(self) -> tuple[GpuKind, ...]:
        """The kinds, each a resource of the node."""
        names = sorted({kind_name(gpu.name) for gpu in self.by_number.values()})
        return tuple(
            GpuKind(
                "gpu" if len(names) == 1 else f"gpu:{name}", name, min(g.memory_mb for g in alike), len(alike)
            )
            for name in names
            for alike in [[gpu for gpu in self.by_number.values() if kind_name(gpu.name) == name]]
        )

    @property
    def numbers(self) -> dict[str, list[int]]:
        """The numbers of each resource."""
        return {
            kind.resource: [n for n, gpu in self.by_number.items() if kind_name(gpu.name) == kind.name]
            for kind in self.kinds
        }

    def rows(self) -> list[GpuRow]:
        return [GpuRow(n, gpu.uuid, gpu.name, gpu.memory_mb) for n, gpu in sorted(self.by_number.items())]

    def near(self, numbers: Collection[int], cores: Collection[int]) -> list[int]:
        """Sort GPUs by whether they are near to the memory of one of these cores, then by number."""
        nodes = {self.node_of.get(core) for core in cores}
        return sorted(numbers, key=lambda number: (self.by_number[number].numa_node not in nodes, number))

    def variables(self, numbers: Sequence[int]) -> dict[str, str]:
        """Return the variables by which a job sees these GPUs and no others."""
        seen = ",".join(self.by_number[number].uuid for number in numbers if number in self.by_number)
        # All are NVIDIA's, so what others see is empty.
        variables = dict.fromkeys(VARIABLES, "") | {VARIABLES[0]: seen}
        return variables | ({nvml.FOLDER: self.emulated} if self.emulated else {})

    def closed(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Return the device files that a job with these GPUs may not open."""
        if not self.closes:
            return ()
        own = {self.by_number[number].file for number in numbers if number in self.by_number}
        return tuple(dict.fromkeys(g.file for g in self.by_number.values() if g.file not in {"", *own}))

    def notes(self) -> Iterator[str]:
        """Say what is to be known of them."""
        kinds = ", ".join(map(str, self.kinds))
        hidden = (
            "their files are closed to other jobs" if self.closes else "hidden from other jobs by variables"
        )
        yield f"GPUs: {kinds}{' EMULATED' if self.emulated else ''}; {hidden}"


def find_gpus(supply: Supply, home: Path) -> tuple[Gpus | None, str]:
    """Find the GPUs that nobody else gives to jobs; None: there are none, and why, if that is known."""
    if not (os.environ.get(nvml.FOLDER) or any(path.exists() for path in DRIVERS)):
        return None, ""
    rows, trouble = read()
    if trouble:
        return None, f"GPUs are not scheduled: {trouble}"
    uuids, emulated = [row["uuid"] for row in rows], os.environ.get(nvml.FOLDER, "")
    try:  # each coordinator has emulated ones of its own
        mine = range(len(rows)) if emulated or not rows else supply.take_devices(uuids, by_uuid=True)
    except Taken as error:
        return None, error.what
    numbers = _numbers(home, uuids)
    names = ("uuid", "name", "memory_mb", "file", "numa_node")
    gpus = {numbers[uuids[place]]: Gpu(*(rows[place][name] for name in names)) for place in mine}
    node_of = {cpu.index: cpu.node for cpu in read_topology(ROOTS.sysfs, os.sched_getaffinity(0)).cpus}
    closes = not emulated and not control_groups.why_files_stay_open()
    return (Gpus(gpus, node_of, closes=closes, emulated=emulated) if gpus else None), ""


def read() -> tuple[list[dict[str, Any]], str]:
    """Read the GPUs in a process of its own; and what is wrong with them as a clause."""
    command = [sys.executable, "-P", "-m", "agent.gpus"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=READ_S, check=False)
    except subprocess.TimeoutExpired:
        return [], f"their driver has not answered within {READ_S:g} s"
    if done.returncode:
        return [], (done.stderr.strip().splitlines() or ["their driver has crashed"])[-1]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows, ""


def _numbers(home: Path, uuids: Sequence[str]) -> dict[str, int]:
    """Give each GPU its number, the same as ever before."""
    file = home / "gpus.json"
    known: list[str] = json.loads(file.read_text()) if file.exists() else []
    every = [*known, *(uuid for uuid in uuids if uuid not in known)]
    if every != known:
        write_whole(file, json.dumps(every))
    return {uuid: number for number, uuid in enumerate(every)}


@contextmanager
def emulated_gpus(name: str, home: Path) -> Iterator[Path]:
    """Let this process, and those that it starts, see emulated GPUs until the context ends; yields sysfs."""
    from agent.emulation import emulated_gpus as emulation

    folder = home / "gpus"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with emulation.emulated_gpus(name, folder):
        os.environ[nvml.FOLDER] = str(folder)
        try:
            yield ROOTS.sysfs
        finally:
            del os.environ[nvml.FOLDER]
