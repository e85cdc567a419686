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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any

from agent.gpus import Holder
from agent.processes import control_groups, tree
from probes import nvml
from probes.topology import read_topology
from profiles.files.safe_files import write_whole
from scheduler.engines.local.cores import ROOTS, Supply
from scheduler.engines.protocol import GpuRow, GpuTable, Taken
from scheduler.jobs.gpus import GpuKind, kind_name

VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))  # the last: of WSL
REMEMBERED = 1000  # jobs that have ended
FIRST_S = 10.0  # for the first look; meanwhile nothing is started
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
class Gpus:
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


class GpuWatch(GpuTable):
    """Looks who holds the GPUs, in a process of its own; readable, like a socket, when that has changed.

    A GPU that a process holds which is of no job that has this GPU is not given out: somebody uses it outside
    of the queue. What a job leaves behind does not count, because its supervisor has ended all of it.

    Args:
        gpus: those that jobs get. free: those of each resource that no job has.
    """

    able = True

    def __init__(self, gpus: Gpus, free: Mapping[str, Collection[int]]) -> None:
        self._gpus, self._free = gpus, free
        self._jobs: dict[int, Sequence[int]] = {}  # GPUs of each job, by the number of its mark
        self._ended: dict[int, None] = {}  # likewise, the last ones
        self._holders: dict[int, list[Holder]] = {}
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.gpus", "watch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        os.set_blocking(self.fileno(), False)
        if select([self], [], [], FIRST_S)[0]:  # before any job gets a GPU
            self.read()

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> bool:
        """Read who holds the GPUs now; False: the driver cannot be asked any more."""
        with suppress(BlockingIOError):
            while part := os.read(self.fileno(), 1 << 16):
                self._rest += part
            return False
        *lines, self._rest = self._rest.split(b"\n")
        if lines:
            holders = {
                row["uuid"]: [Holder(**holder) for holder in row["holders"]] for row in json.loads(lines[-1])
            }
            self._holders = {n: holders.get(gpu.uuid, []) for n, gpu in self._gpus.by_number.items()}
        return True

    def begins(self, mark: str, numbers: Sequence[int]) -> None:
        """Note the GPUs of a job that is about to begin, or runs."""
        self._jobs[tree.number_of(mark)] = numbers

    def has_ended(self, mark: str) -> None:
        """Note that nothing of a job is left, whatever was seen last."""
        number = tree.number_of(mark)
        self._jobs.pop(number, None)
        self._ended[number] = None
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def strangers(self, number: int) -> list[Holder]:
        """Return the processes that hold a GPU and are of no job that has it.

        In a container a job's own processes may not be seen by NVML's numbers.
        """
        return [
            holder
            for holder in self._holders.get(number, ())
            if holder.mark not in self._ended
            and number not in self._jobs.get(holder.mark, ())
            and not (holder.age_s is None and any(number in gpus for gpus in self._jobs.values()))
        ]

    def near(self, numbers: Collection[int], cores: Collection[int]) -> list[int]:
        """Sort GPUs by how near to these cores they are; those that strangers hold come last."""
        return sorted(self._gpus.near(numbers, cores), key=lambda number: bool(self.strangers(number)))

    def rows(self) -> list[GpuRow]:
        return [
            GpuRow(n, gpu.uuid, gpu.name, gpu.memory_mb, tuple(map(str, self.strangers(n))))
            for n, gpu in sorted(self._gpus.by_number.items())
        ]

    def withheld(self) -> dict[str, float]:
        return {
            resource: float(sum(bool(self.strangers(number)) for number in numbers))
            for resource, numbers in self._free.items()
        }

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


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
