"""The GPUs of this machine that jobs get, by number: which there are, and what a job with some may see.

Numbers stand for identities (UUIDs), and are kept in the coordinator's folder: what a GPU's number is stays
so when another GPU is gone, because jobs that run are journalled with numbers. A new GPU has the number of
one that is gone, and that no job has.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, product
from math import comb
from pathlib import Path
from select import select
from typing import Any, NamedTuple

from agent.gpus import TELL_S, Holder
from agent.processes import control_groups, tree
from agent.processes.claims import running_jobs
from probes import drm, nvml
from probes.nvml import ELSEWHERE, LINKED, SAME_NODE
from probes.topology import read_topology
from profiles.checks.check import DeviceFitness, Fitness
from profiles.errors import BadInput
from profiles.files.safe_files import write_whole
from profiles.quantities import duration
from scheduler.engines.local.cores import ROOTS, Supply
from scheduler.engines.protocol import GpuRow, GpuTable, IdleGpus, JobGpuUse, Taken
from scheduler.engines.registry import IdleRule
from scheduler.jobs.gpus import VARIABLES, GpuKind, kind_name

MOST_SETS = 3000  # of GPUs that are compared for a job: every one of up to 12 GPUs, milliseconds
REMEMBERED = 1000  # jobs that have ended
FIRST_S = 10.0  # for the first look; meanwhile nothing is started
END_S = 5.0  # for the process that looks; its driver may hang
SILENT_S = 3 * TELL_S  # a watch that tells nothing for longer hangs
READ_S = 60.0  # a driver that has to start sleeping GPUs takes seconds
LIVED_S, LONGEST_PAUSE_S = 10.0, 60.0  # a watch that ends sooner is started again after a pause
UNSEEN_S = 60.0  # what a job did in a longer time without a look is not known: it may have worked
LOST = "does not answer"
log = logging.getLogger("tenbin")


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a part of one.

    Attributes:
        uuid: its identity. file: the device file of the whole GPU.
        numa_node: the memory that it is near to; None: not known.
        bus: PCI address of the whole GPU. distances: of others, by theirs (``nvml.distances``).
        vendor: of ``VARIABLES``. seen_as: its word in the variable; "": its identity.
    """

    uuid: str
    name: str
    memory_mb: float
    file: str = ""
    numa_node: int | None = None
    bus: str = ""
    distances: Mapping[str, int] = field(default_factory=dict, hash=False)
    vendor: str = "NVIDIA"
    seen_as: str = ""

    def distance(self, other: Gpu) -> int:
        """Tell how far another GPU is; by their NUMA nodes, where the driver does not tell."""
        if self.bus and self.bus == other.bus:
            return LINKED
        by_node = SAME_NODE if self.numa_node == other.numa_node else ELSEWHERE
        return self.distances.get(other.bus, by_node)


class GpuNow(NamedTuple):
    """Use of a GPU as seen last.

    Attributes:
        share: of the time since the look before in which it worked; None: a part of a GPU does not tell.
        used_mb: memory in use; None: it is not known how much of it is a job's.
        energy_j: counted since some time by the GPU itself; None: it does not. power_w: likewise.
        work: of ``share``, that of processes with each mark; None: it is not known whose it is.
        since_s: from when on ``share`` and ``work`` are means (monotonic clock).
    """

    share: float | None
    used_mb: float | None
    energy_j: float | None
    power_w: float | None
    holders: list[Holder]
    work: Mapping[int, float] | None = None
    since_s: float = 0.0

    def of_job(self, mark: int, job: JobGpus, read_s: float) -> GpuNow:
        """Return the part that is a job's own, as far as it can be told; energy and power are of the whole.

        Processes that cannot be seen, in a container, count as its own (``GpuWatch.strangers``).
        """
        own = [holder for holder in self.holders if holder.mark == mark or holder.age_s is None]
        alone, seen = len(own) == len(self.holders), all(holder.age_s is not None for holder in own)
        known = [holder.memory_mb for holder in own if holder.memory_mb is not None]
        used_mb = sum(known) if len(known) == len(own) else self.used_mb if alone else None
        passed_s, early = read_s - job.since_s, self.since_s < job.began_s
        share = self.share
        if self.work is not None and seen:
            share = self.work.get(mark, 0.0)
            if early and passed_s > 0:
                share = min(1.0, share * (read_s - self.since_s) / passed_s)
        elif not alone or (early and share):
            share = None
        return self._replace(share=share, used_mb=used_mb)

    @property
    def meter(self) -> tuple[float | None, float | None]:
        return self.energy_j, self.power_w


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
        by_name: dict[str, list[int]] = {}
        for number, gpu in self.by_number.items():
            by_name.setdefault(kind_name(gpu.name), []).append(number)
        return tuple(
            GpuKind(
                "gpu" if len(by_name) == 1 else f"gpu:{name}",
                name,
                min(self.by_number[number].memory_mb for number in numbers),
                len(numbers),
                numbers=tuple(numbers),
            )
            for name, numbers in sorted(by_name.items())
        )

    @property
    def numbers(self) -> dict[str, list[int]]:
        """The numbers of each resource."""
        return {kind.resource: list(kind.numbers) for kind in self.kinds}

    def choose(
        self,
        numbers: Collection[int],
        cores: Collection[int],
        count: int,
        rank: Callable[[int], float] = lambda number: 0.0,
    ) -> list[int]:
        """Choose so many of these GPUs for a job on these cores, in this order of importance.

        Those of the lowest ``rank``; those nearest to each other; those near to the memory of one of the
        cores; those that leave near to each other what is left; the lowest numbers. Where that would be many
        sets to compare, each GPU is taken for itself.
        """
        nodes = {self.node_of.get(core) for core in cores}
        far = {number: self.by_number[number].numa_node not in nodes for number in numbers}
        ranks = {number: rank(number) for number in numbers}
        alone = sorted(numbers, key=lambda number: (ranks[number], far[number], number))
        if not 0 < comb(len(alone), count) <= MOST_SETS:
            return alone[:count]

        def spread(pairs: Iterable[tuple[int, int]]) -> int:
            return sum(self.by_number[a].distance(self.by_number[b]) for a, b in pairs)

        def order(chosen: tuple[int, ...]) -> tuple[Any, ...]:
            worst = sorted((ranks[number] for number in chosen), reverse=True)
            left = [number for number in numbers if number not in chosen]
            outside = spread(product(chosen, left))
            return worst, spread(combinations(chosen, 2)), sum(far[n] for n in chosen), -outside, chosen

        best = min(combinations(sorted(numbers), count), key=order)
        return [number for number in alone if number in best]

    def variables(self, numbers: Sequence[int]) -> dict[str, str]:
        """Return the variables by which a job sees these GPUs and no others of vendors that are scheduled."""
        variables = {nvml.FOLDER: self.emulated} if self.emulated else {}
        for vendor in {"NVIDIA", *(gpu.vendor for gpu in self.by_number.values())}:
            own = [self.by_number[n] for n in numbers if n in self.by_number]
            words = [gpu.seen_as or gpu.uuid for gpu in own if gpu.vendor == vendor]
            name, none = VARIABLES[vendor]
            variables[name] = ",".join(words) or none
        return variables

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
        if os.geteuid() and any(gpu.vendor != "NVIDIA" for gpu in self.by_number.values()):
            yield "who else uses GPUs of AMD and Intel only root can see"


@dataclass
class JobGpus:
    """The GPUs of a job, and what it has done there so far; written to a file, for the next coordinator.

    Attributes:
        job: its number. numbers: of its GPUs.
        quiet_s: how long it has done nothing on each of them, as far as somebody has looked.
        used_s: sum over its GPUs of the time that they worked. seen_s: time over which that was seen.
        peak_mb: the most memory that it had there; None: not known. emulated: they are.
        energy_j: of its GPUs since it began; None: not known. meters: energy and power of each then.
        reported: GPUs of whose idleness its owner was told, and which have not worked since.
        ruled: the rule for idle GPUs was applied.
        since_s: when somebody looked last, or it began (monotonic clock). began_s: when it began.
    """

    job: int
    numbers: Sequence[int]
    quiet_s: dict[int, float] = field(default_factory=dict)
    used_s: float = 0.0
    seen_s: float = 0.0
    peak_mb: float | None = None
    energy_j: float | None = None
    meters: dict[int, tuple[float | None, float | None]] = field(default_factory=dict)
    reported: list[int] = field(default_factory=list)
    ruled: bool = False
    emulated: bool = False
    since_s: float = field(default_factory=time.monotonic)
    began_s: float = field(default_factory=time.monotonic)

    def see(self, uses: Mapping[int, GpuNow], read_s: float) -> None:
        """Add what was seen at ``read_s``."""
        passed_s, self.since_s = read_s - self.since_s, read_s
        here = {number: uses[number] for number in self.numbers if number in uses}
        known = [use.used_mb for use in here.values() if use.used_mb is not None]
        if here and len(known) == len(here):
            self.peak_mb = max(self.peak_mb or 0.0, sum(known))
        seen = passed_s <= UNSEEN_S
        complete = here and all(use.share is not None for use in here.values())
        if seen and complete and len(here) == len(self.numbers):
            self.used_s += passed_s * sum(use.share or 0.0 for use in here.values())
            self.seen_s += passed_s
        for number, use in here.items():
            self._draw(number, use.power_w, passed_s, use.energy_j)
            quiet = use.share == 0
            self.quiet_s[number] = (
                self.quiet_s[number] + passed_s if quiet and seen and number in self.quiet_s else 0.0
            )
            if not quiet and number in self.reported:
                self.reported.remove(number)
        for number in self.quiet_s.keys() - here.keys():
            self.quiet_s[number] = 0.0

    def end(self, passed_s: float) -> None:
        """Add the energy from the last look to its end."""
        for number, (_, power_w) in list(self.meters.items()):
            self._draw(number, power_w if self.seen_s else None, passed_s)

    def _draw(
        self, number: int, power_w: float | None, passed_s: float, energy_j: float | None = None
    ) -> None:
        """Add the energy since the last look: as the GPU has counted it, else by its power now."""
        before_j, _ = self.meters.get(number, (None, None))
        self.meters[number] = energy_j, power_w
        if energy_j is not None and before_j is not None and energy_j >= before_j:  # else loaded anew
            self.energy_j = (self.energy_j or 0.0) + energy_j - before_j
        elif power_w is not None:
            self.energy_j = (self.energy_j or 0.0) + power_w * passed_s

    @property
    def use(self) -> JobGpuUse:
        """Its use of its GPUs so far."""
        used = self.used_s / self.seen_s if self.seen_s else None
        return JobGpuUse(used, self.peak_mb, self.energy_j, self.emulated)


class GpuWatch(GpuTable):
    """Looks who holds the GPUs, in a process of its own; readable, like a socket, when that has changed.

    A GPU that a process holds which is of no job that has this GPU is not given out: somebody uses it outside
    of the queue. What a job leaves behind does not count, because its supervisor has ended all of it. Nor is
    one given out that does not answer, or whose results its last check found wrong; one that is slower than
    it was is given out last. While the process tells nothing, none is given out.

    Args:
        gpus: those that jobs get. free: those of each resource that no job has.
        home: folder for what is kept over a restart.
        idle_s: after so long without work on a GPU the owner of its job is told.
        rule: what becomes of a job that does nothing on all of its GPUs; None: nothing.
        moves: they are OpenCL devices, among which programs move: one may hold others than its own, and of
            what a job has only idleness is told.
    """

    able = True

    def __init__(
        self,
        gpus: Gpus,
        free: Mapping[str, Collection[int]],
        home: Path,
        *,
        idle_s: float,
        rule: IdleRule | None,
        moves: bool = False,
    ) -> None:
        self._gpus, self._free, self._idle_s, self._rule = gpus, free, idle_s, rule
        self._moves = moves
        self._jobs: dict[int, JobGpus] = {}  # by the number of the job's mark
        self._attempts: dict[int, int] = {}  # likewise, of every job that runs its number
        self._ended: dict[int, None] = {}  # likewise, the last ones
        self._now: dict[int, GpuNow] = {}
        self._read_s = time.monotonic()
        self._fresh = False
        self._outside = set[tuple[int, int]]()  # strangers: GPU and process, 0: it is lost
        self._pause_s = 0.0
        self._file, self._kept = home / "gpu-use.json", False
        self._fitness, self._node = Fitness(), socket.gethostname()
        self._recall()
        self.begin()
        if select([self], [], [], FIRST_S)[0]:  # before any job gets a GPU
            self.read()

    def begin(self) -> None:
        """Start the process. Until it tells something, no GPU is given out."""
        self._rest, self._has_answered, self._begun_s = b"", False, time.monotonic()
        self._due_s = self._begun_s + READ_S
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.gpus", "watch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        os.set_blocking(self.fileno(), False)

    def pause_s(self) -> float:
        """Return how long to wait before the process is started again, which has ended."""
        lived = time.monotonic() - self._begun_s >= LIVED_S
        self._pause_s = 0.0 if lived else min(max(1.0, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._has_answered = False
        return self._pause_s

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
            self._read_s, self._fresh, self._has_answered = time.monotonic(), True, True
            self._due_s = self._read_s + SILENT_S
            self._now = {n: now[g.uuid] for n, g in self._gpus.by_number.items() if g.uuid in now}
            for mark, job in self._jobs.items():
                own = {n: self._now[n].of_job(mark, job, self._read_s) for n in job.numbers if n in self._now}
                job.see(own, self._read_s)
            self._keep()
        return True

    def end_if_silent(self) -> None:
        """Kill the process if it hangs; its end is read as any other."""
        if time.monotonic() >= self._due_s:
            log.warning("the watch of the GPUs tells nothing: it is killed")
            self._has_answered, self._due_s = False, math.inf
            self._process.kill()

    def _keep(self) -> None:
        """Write what jobs have done so far; it is lost, not the jobs, if it cannot be written."""
        kept = {mark: asdict(job) for mark, job in self._jobs.items()}
        if not (kept or self._kept):
            return
        try:
            write_whole(self._file, json.dumps({"at_s": time.time(), "jobs": kept}))
            self._kept = bool(kept)
        except OSError as error:
            log.warning("what jobs do with their GPUs is not kept: %s", error)

    def _recall(self) -> None:
        """Read what jobs had done as the coordinator before saw it; nothing if that cannot be read."""
        self._recalled: dict[int, JobGpus] = {}
        try:
            kept = json.loads(self._file.read_text())
            since_s = time.monotonic() - max(0.0, time.time() - kept["at_s"])
            for mark, job in kept["jobs"].items():
                by_number = {
                    name: {int(number): value for number, value in job[name].items()}
                    for name in ("quiet_s", "meters")
                }
                self._recalled[int(mark)] = JobGpus(**{**job, **by_number, "since_s": since_s})
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("%s: what jobs have done with their GPUs is not known (%s)", self._file, error)

    def begins(self, mark: str, job: int, numbers: Sequence[int]) -> None:
        """Note the GPUs of a job that is about to begin, or runs; none is noted of a job without."""
        key, now_s = tree.number_of(mark), time.monotonic()
        self._attempts[key] = job
        numbers = [number for number in numbers if number in self._gpus.by_number]
        if not numbers and not self._moves:
            return
        self._jobs[key] = self._recalled.get(key) or JobGpus(
            job, numbers, emulated=bool(self._gpus.emulated), since_s=now_s
        )
        self._jobs[key].numbers = numbers
        for number in numbers:
            if number in self._now and number not in self._jobs[key].meters:
                (energy_j, power_w), ago_s = self._now[number].meter, now_s - self._read_s
                by_now_j = None if energy_j is None else energy_j + (power_w or 0.0) * ago_s
                self._jobs[key].meters[number] = by_now_j, power_w

    def has_moved(self, mark: str, numbers: Sequence[int]) -> None:
        """Note that a job which runs has other devices now, or none because it is parked."""
        job = self._jobs.get(tree.number_of(mark))
        if self._moves and job is not None:
            job.numbers = [number for number in numbers if number in self._gpus.by_number]
            job.quiet_s.clear()
            job.ruled = False

    def has_ended(self, mark: str, ended_s: float) -> JobGpus | None:
        """Note that nothing of a job is left, whatever was seen last; return what it has done."""
        number = tree.number_of(mark)
        self._ended[number] = None
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
        self._attempts.pop(number, None)
        job = self._jobs.pop(number, None)
        if job is not None:
            job.end(max(0.0, time.monotonic() - job.since_s - max(0.0, time.time() - ended_s)))
        return None if self._moves else job

    def idle(self) -> list[IdleGpus]:
        news, jobs = [], [job for job in self._jobs.values() if job.numbers]
        for job in jobs:
            idle = [n for n in job.numbers if job.quiet_s.get(n, 0.0) >= self._idle_s]
            if set(idle) - set(job.reported):
                job.reported = idle
                news.append(IdleGpus(job.job, f"{_named(idle)}: no work for {duration(self._idle_s)}"))
        if news:  # once, whenever the coordinator is killed
            self._keep()
        if self._rule is None:
            return news
        for job in jobs:
            quiet_s = min(job.quiet_s.get(number, 0.0) for number in job.numbers)
            if not job.ruled and quiet_s >= self._rule.after_s:
                job.ruled = True  # kept at the next look: it is committed then, and else due again
                what = f"{_named(job.numbers)}: no work for {duration(self._rule.after_s)}"
                news.append(IdleGpus(job.job, what, self._rule.then))
        return news

    def use(self, job: int) -> JobGpuUse | None:
        jobs = () if self._moves else self._jobs.values()
        return next((gpus.use for gpus in jobs if gpus.job == job), None)

    def news(self) -> list[tuple[str, str]]:
        if not self._fresh:
            return []
        self._fresh = False
        now = {
            (n, holder.pid): ("stranger", f"GPU {n} is held outside of the queue by {holder}")
            for n in self._now
            for holder in self.strangers(n)
        }
        now |= {
            (n, 0): ("gpu-lost", f"GPU {n} {LOST}") for n in self._gpus.by_number.keys() - self._now.keys()
        }
        new = sorted(now.keys() - self._outside)
        self._outside = set(now)
        return [now[key] for key in new]

    def strangers(self, number: int) -> list[Holder]:
        """Return the processes that hold a GPU and are of no job that has it.

        In a container a job's own processes may not be seen by NVML's numbers.
        """
        ago_s = time.monotonic() - self._read_s
        return [
            replace(
                holder,
                age_s=None if holder.age_s is None else holder.age_s + ago_s,
                job=self._attempts.get(holder.mark, 0),
            )
            for holder in (self._now[number].holders if number in self._now else ())
            if holder.mark not in self._ended
            and not (holder.mark in self._jobs and (self._moves or number in self._jobs[holder.mark].numbers))
            and not (holder.age_s is None and any(number in job.numbers for job in self._jobs.values()))
        ]

    def choose(self, numbers: Collection[int], cores: Collection[int], count: int) -> list[int]:
        """Choose so many GPUs for a job on these cores; slower ones come later, then those not given out."""
        fitness = self._fitness_by_number()

        def rank(number: int) -> float:
            return math.inf if self._is_withheld(number, fitness) else fitness[number].loss_ratio

        return self._gpus.choose(numbers, cores, count, rank)

    def _fitness_by_number(self) -> dict[int, DeviceFitness]:
        """Return the fitness of each GPU by its last check."""
        fitness = self._fitness.devices(self._node)
        return {n: fitness.get(gpu.uuid, DeviceFitness()) for n, gpu in self._gpus.by_number.items()}

    def _is_withheld(self, number: int, fitness: Mapping[int, DeviceFitness]) -> bool:
        return bool(self._failure(number, fitness) or self.strangers(number))

    def _failure(self, number: int, fitness: Mapping[int, DeviceFitness]) -> str:
        """Say why a GPU is not to be used, whoever holds it; "": it is."""
        if not self._has_answered or time.monotonic() >= self._due_s:
            return "is not watched at the moment: it is not known who uses it"
        if number not in self._now:
            return LOST
        if failure := fitness[number].failure:
            return f"failed its check ({failure}), again: tenbin profile check"
        return ""

    def rows(self) -> list[GpuRow]:
        fitness = self._fitness_by_number()
        return [self._row(number, fitness) for number in sorted(self._gpus.by_number)]

    def _row(self, number: int, fitness: Mapping[int, DeviceFitness]) -> GpuRow:
        gpu, now = self._gpus.by_number[number], self._now.get(number)
        quiet_s = (job.quiet_s[number] for job in self._jobs.values() if number in job.quiet_s)
        return GpuRow(
            number,
            gpu.uuid,
            gpu.name,
            gpu.memory_mb,
            strangers=tuple(map(str, self.strangers(number))),
            loss_ratio=fitness[number].loss_ratio,
            failure=self._failure(number, fitness),
            used_mb=None if now is None else now.used_mb,
            share=None if now is None else now.share,
            idle_s=min(quiet_s, default=None),
        )

    def withheld(self) -> dict[str, float]:
        fitness = self._fitness_by_number()
        return {
            resource: float(sum(n in fitness and self._is_withheld(n, fitness) for n in numbers))
            for resource, numbers in self._free.items()
        }

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.stdout.close()


def _use_of(row: Mapping[str, Any]) -> GpuNow:
    """Read a GPU's use as its watch tells it."""
    holders = [Holder(**holder) for holder in row["holders"]]
    work = None if row["work"] is None else {int(mark): share for mark, share in row["work"].items()}
    now = row["utilisation"], row["used_mb"], row["energy_j"], row["power_w"]
    return GpuNow(*now, holders, work, row["since_s"])


def _named(numbers: Sequence[int]) -> str:
    return f"GPU{'s' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))}"


def find_gpus(supply: Supply, home: Path) -> tuple[Gpus | None, str]:
    """Find the GPUs that nobody else gives to jobs; None: there are none, and why, if that is known.

    One that is gone, but that a job which runs was given, is among them, so that the job keeps its place.
    """
    if not (os.environ.get(nvml.FOLDER) or nvml.expected() or drm.gpus(drm.root())):
        return None, ""
    rows, trouble = read()
    if trouble:
        return None, f"GPUs are not scheduled: {trouble}"
    uuids, emulated = [row["uuid"] for row in rows], os.environ.get(nvml.FOLDER, "")
    try:  # each coordinator has emulated ones of its own
        mine = range(len(rows)) if emulated or not rows else supply.take_devices(uuids, by_uuid=True)
    except Taken:  # whose they are is among the notes of the supply
        return None, "GPUs are not scheduled: others have all of them"
    of_jobs = {uuid for job in running_jobs(ROOTS.procfs) if job.is_of(home) for uuid in job.gpus}
    numbers = _numbers(home, uuids, of_jobs)
    names = ("uuid", "name", "memory_mb", "file", "numa_node", "bus", "distances", "vendor", "seen_as")
    gpus = {numbers[uuids[place]]: Gpu(*(rows[place][name] for name in names)) for place in mine}
    if len({gpu.name for gpu in gpus.values()}) == 1:  # else it is not known what is gone
        alike = next(iter(gpus.values()))
        gone = of_jobs & numbers.keys() - {*uuids}
        gpus |= {numbers[uuid]: Gpu(uuid, alike.name, alike.memory_mb) for uuid in sorted(gone)}
    node_of = {cpu.index: cpu.node for cpu in read_topology(ROOTS.sysfs, os.sched_getaffinity(0)).cpus}
    closes = not emulated and not control_groups.why_files_stay_open()
    return (Gpus(gpus, node_of, closes=closes, emulated=emulated) if gpus else None), ""


def gpus_behind(devices: Mapping[int, Mapping[str, Any]]) -> Gpus | None:
    """Find the GPUs that are OpenCL devices, by PCI address, under the devices' numbers; None: none is known.

    A divided one is not: which of its parts an OpenCL device is, nobody tells.

    Args:
        devices: by number, as ``probes.opencl`` tells of each, with its PCI address.
    """
    if not any(device["bus"] for device in devices.values()):
        return None
    rows, _ = read()
    buses = [row["bus"] for row in rows]
    whole = {row["bus"]: row for row in rows if buses.count(row["bus"]) == 1}
    watched = {
        n: (device["key"], whole[device["bus"]]) for n, device in devices.items() if device["bus"] in whole
    }
    gpus = {n: Gpu(row["uuid"], key, row["memory_mb"], bus=row["bus"]) for n, (key, row) in watched.items()}
    return Gpus(gpus, {}, emulated=os.environ.get(nvml.FOLDER, "")) if gpus else None


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


def _numbers(home: Path, uuids: Sequence[str], of_jobs: Collection[str] = ()) -> dict[str, int]:
    """Give each GPU its number, the same as before.

    Args:
        of_jobs: those that jobs have, whether they are there or not.

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
    every, gone = [*known], [uuid for uuid in known if uuid not in {*uuids, *of_jobs}]
    for uuid in uuids:
        if uuid not in known and gone:
            every[every.index(gone.pop(0))] = uuid
        elif uuid not in known:
            every.append(uuid)
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
