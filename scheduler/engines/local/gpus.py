"""The GPUs of this machine that jobs get, by number: which there are, and what a job with some may see.

Numbers stand for identities (UUIDs), and are kept in the coordinator's folder: what a GPU's number is stays
so when another GPU is gone, because jobs that run are journalled with numbers.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any, NamedTuple

from agent.gpus import Holder, duration
from agent.processes import control_groups, tree
from probes import nvml
from probes.topology import read_topology
from profiles.checks.check import DeviceFitness, Fitness
from profiles.errors import BadInput
from profiles.files.safe_files import write_whole
from scheduler.engines.local.cores import ROOTS, Supply
from scheduler.engines.protocol import GpuRow, GpuTable, Taken
from scheduler.jobs.gpus import GpuKind, kind_name

DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))  # the last: of WSL
REMEMBERED = 1000  # jobs that have ended
FIRST_S = 10.0  # for the first look; meanwhile nothing is started
END_S = 5.0  # for the process that looks; its driver may hang
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


class GpuNow(NamedTuple):
    """Use of a GPU as seen last: the share of a second in which it worked, and its memory in use."""

    share: float
    used_mb: float
    holders: list[Holder]


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
        variables = {"CUDA_VISIBLE_DEVICES": seen}  # GPUs of other vendors are not scheduled, so not hidden
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


@dataclass
class JobGpus:
    """The GPUs of a job, and what it has done there so far.

    Attributes:
        job: its number. numbers: of its GPUs.
        busy_s: when it was last seen to work on each of them, or was first seen (monotonic clock).
        used_s: sum over its GPUs of the time that they worked. seen_s: time over which that was seen.
        peak_mb: the most memory that it had there.
        reported: its owner was told of idle GPUs, and they have not worked since.
    """

    job: int
    numbers: Sequence[int]
    busy_s: dict[int, float] = field(default_factory=dict)
    used_s: float = 0.0
    seen_s: float = 0.0
    peak_mb: float = 0.0
    reported: bool = False

    def see(self, uses: Mapping[int, GpuNow], passed_s: float, now_s: float) -> None:
        """Add what was seen now."""
        here = {number: uses[number] for number in self.numbers if number in uses}
        self.used_s += passed_s * sum(use.share for use in here.values())
        self.seen_s += passed_s
        self.peak_mb = max(self.peak_mb, sum(use.used_mb for use in here.values()))
        for number, use in here.items():
            if use.share > 0 or number not in self.busy_s:
                self.busy_s[number] = now_s
                self.reported = self.reported and not use.share


class GpuWatch(GpuTable):
    """Looks who holds the GPUs, in a process of its own; readable, like a socket, when that has changed.

    A GPU that a process holds which is of no job that has this GPU is not given out: somebody uses it outside
    of the queue. What a job leaves behind does not count, because its supervisor has ended all of it. Nor is
    one given out whose results its last check found wrong; one that is slower than it was is given out last.

    Args:
        gpus: those that jobs get. free: those of each resource that no job has.
        idle_s: after so long without work on a GPU the owner of its job is told.
    """

    able = True

    def __init__(self, gpus: Gpus, free: Mapping[str, Collection[int]], idle_s: float) -> None:
        self._gpus, self._free, self._idle_s = gpus, free, idle_s
        self._jobs: dict[int, JobGpus] = {}  # by the number of the job's mark
        self._ended: dict[int, None] = {}  # likewise, the last ones
        self._now: dict[int, GpuNow] = {}
        self._read_s = time.monotonic()
        self._fitness, self._node = Fitness(), socket.gethostname()
        self.begin()
        if select([self], [], [], FIRST_S)[0]:  # before any job gets a GPU
            self.read()

    def begin(self) -> None:
        """Start the process. Until it tells something, what was seen last counts."""
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.gpus", "watch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        os.set_blocking(self.fileno(), False)

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> bool:
        """Read who holds the GPUs now; False: the process has ended."""
        with suppress(BlockingIOError):
            while part := os.read(self.fileno(), 1 << 16):
                self._rest += part
            return False
        *lines, self._rest = self._rest.split(b"\n")
        if lines:
            now = {row["uuid"]: _use_of(row) for row in json.loads(lines[-1])}
            self._now = {n: now[g.uuid] for n, g in self._gpus.by_number.items() if g.uuid in now}
            passed_s, self._read_s = time.monotonic() - self._read_s, time.monotonic()
            for job in self._jobs.values():
                job.see(self._now, passed_s, self._read_s)
        return True

    def begins(self, mark: str, job: int, numbers: Sequence[int]) -> None:
        """Note the GPUs of a job that is about to begin, or runs."""
        self._jobs[tree.number_of(mark)] = JobGpus(job, numbers)

    def has_ended(self, mark: str) -> JobGpus | None:
        """Note that nothing of a job is left, whatever was seen last; return what it has done."""
        number = tree.number_of(mark)
        self._ended[number] = None
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
        return self._jobs.pop(number, None)

    def idle(self) -> list[tuple[int, str]]:
        news = []
        for job in self._jobs.values():
            idle = [n for n, busy_s in job.busy_s.items() if self._read_s >= busy_s + self._idle_s]
            if idle and not job.reported:
                job.reported = True
                which = f"GPU{'s' * (len(idle) > 1)} {', '.join(map(str, idle))}"
                news.append((job.job, f"{which}: no work for {duration(self._idle_s)}"))
        return news

    def strangers(self, number: int) -> list[Holder]:
        """Return the processes that hold a GPU and are of no job that has it.

        In a container a job's own processes may not be seen by NVML's numbers.
        """
        return [
            holder
            for holder in (self._now[number].holders if number in self._now else ())
            if holder.mark not in self._ended
            and not (holder.mark in self._jobs and number in self._jobs[holder.mark].numbers)
            and not (holder.age_s is None and any(number in job.numbers for job in self._jobs.values()))
        ]

    def near(self, numbers: Collection[int], cores: Collection[int]) -> list[int]:
        """Sort GPUs by how near to these cores they are; slower ones come later, then those not given out."""
        fitness, near = self._fitness_by_number(), self._gpus.near(numbers, cores)
        return sorted(near, key=lambda n: (self._is_withheld(n, fitness), fitness[n].loss_ratio))

    def _fitness_by_number(self) -> dict[int, DeviceFitness]:
        """Return the fitness of each GPU by its last check."""
        fitness = self._fitness.devices(self._node)
        return {n: fitness.get(gpu.uuid, DeviceFitness()) for n, gpu in self._gpus.by_number.items()}

    def _is_withheld(self, number: int, fitness: Mapping[int, DeviceFitness]) -> bool:
        return bool(fitness[number].failure or self.strangers(number))

    def rows(self) -> list[GpuRow]:
        fitness = self._fitness_by_number()
        return [self._row(number, fitness[number]) for number in sorted(self._gpus.by_number)]

    def _row(self, number: int, fitness: DeviceFitness) -> GpuRow:
        gpu, now = self._gpus.by_number[number], self._now.get(number)
        busy_s = max(
            (job.busy_s[number] for job in self._jobs.values() if number in job.busy_s), default=None
        )
        return GpuRow(
            number,
            gpu.uuid,
            gpu.name,
            gpu.memory_mb,
            tuple(map(str, self.strangers(number))),
            *fitness,
            used_mb=None if now is None else now.used_mb,
            share=None if now is None else now.share,
            idle_s=None if busy_s is None else self._read_s - busy_s,
        )

    def withheld(self) -> dict[str, float]:
        fitness = self._fitness_by_number()
        return {
            resource: float(sum(self._is_withheld(number, fitness) for number in numbers))
            for resource, numbers in self._free.items()
        }

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._process.stdout.close()


def _use_of(row: Mapping[str, Any]) -> GpuNow:
    """Read a GPU's use as its watch tells it; a part of one has no share of its own but its processes'."""
    holders = [Holder(**holder) for holder in row["holders"]]
    share = row["utilisation"]
    return GpuNow(
        min(1.0, sum(holder.utilisation for holder in holders)) if share is None else share,
        row["used_mb"],
        holders,
    )


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
    except Taken:  # whose they are is among the notes of the supply
        return None, "GPUs are not scheduled: others have all of them"
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
    """Give each GPU its number, the same as ever before.

    Raises:
        BadInput: the file of the numbers is damaged.
    """
    file = home / "gpus.json"
    try:
        known = json.loads(file.read_text()) if file.exists() else []
        if not isinstance(known, list) or not all(isinstance(uuid, str) for uuid in known):
            raise ValueError("no list of UUIDs")
    except (OSError, ValueError) as error:
        what = f"{file}: the numbers of GPUs cannot be read ({error})"
        raise BadInput(what, "delete it once no job with GPUs runs: they are numbered anew") from error
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
