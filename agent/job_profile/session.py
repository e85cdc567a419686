"""The runs of a job profile: the command again and again, alone and beside graded memprobe and comprobe.

One repetition visits every intensity of each probe once, in random order, so that drift falls on all alike.
Each probe is measured beside itself too, as reference of the job's pressure. memprobe does so in short rounds
between the runs, because shared memory can be half as fast a second later. The pressure needs no runs of its
own, because the probes beside the job tell how fast they were.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from agent.attempts import checked
from agent.job_profile.trial import CommandFailed, RunOutcome, Start, Trial, check
from probes import c_library
from probes.memory import WINDOW_S, Stream, WriterPool, WriterWindow
from probes.memory_plan import Spot
from probes.mpi.rank_failure import sweep_segments
from probes.mpi.runner import MpiInstall
from probes.network import Comprobe, ExchangeWindow, RankPlaces, greet
from probes.order_process import ProcessLost
from probes.visits import Point, Visits
from profiles.errors import BadInput, Unavailable, UserError
from profiles.files.safe_files import default_storage, make_folder
from profiles.fits.job import Fitted
from profiles.quantities import counted
from profiles.records import MB, Absent

INTENSITIES = (0.0, 25.0, 50.0, 75.0, 100.0)
QUICK_INTENSITIES = (0.0, 50.0, 100.0)
Step = tuple[str, float]  # the probe beside the job, and its intensity
ALONE, MEMORY, NETWORK = "", "memory", "network"
LEAST_RUN_S = 5 * WINDOW_S
REFERENCES, QUICK_REFERENCES = (2, 2), (1, 3)  # times in a repetition, and rounds each time
WARM_UP = 5  # windows until a rested writer is as fast as one beside the job
LEAST_REPETITIONS, MOST_REPETITIONS = 3, 20
FULL_REPETITIONS = 6  # with fewer, the median's interval rests on an assumption
QUICK_LEAST, QUICK_MOST = 2, 3
QUICK_S = 50.0  # end of a third repetition in a quick profile: a minute in all, of runs of 5 s
RUNS = 34  # time of a full profile, in runs: three minutes in all, of runs of 5 s
SHORTEST_S, LONGEST_S = 170.0, 1200.0  # bounds of that time
TOLERANCE = 0.05
MEASURED = ("wall_s", "cpu_s", "peak_memory_mb", "read_mb", "written_mb", "disk_read_mb", "disk_written_mb")
NOTABLE_S = 0.05  # of building kernels
COMPROBE_S = 2.0  # to start comprobe, and its windows


@dataclass(frozen=True)
class JobOrder:
    """The command to measure, and how.

    Attributes:
        quick: two or three repetitions, at 50 and 100 % only, with wider intervals.
        cores: cores that the job is pinned to; memprobe writes on as many others, or on those left. With
            ``mpi``: its ranks, one a core.
        mpi: start the command as so many ranks.
        hosts: the hosts of the ranks; empty: this node.
        limit_s: longest time of a run.
        budget_s: time in which repetitions beyond the least number must end; None: by the length of a run.
    """

    name: str
    command: tuple[str, ...]
    folder: str
    cores: int = 1
    quick: bool = False
    limit_s: float = 600.0
    budget_s: float | None = None
    seed: int = 1
    mpi: bool = False
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobProgress:
    """The progress that a listener is told."""

    doing: str
    fraction: float
    left_s: float


Listener = Callable[[JobProgress], None]


@dataclass
class Session:
    """The samples and troubles so far.

    Attributes:
        job, probes: the cores of the job and of memprobe; no probes: without memprobe.
        network: comprobe, if the job has hosts.
        mpi_time: counts the time inside MPI; None if that is impossible.
    """

    order: JobOrder
    start: Start
    pool: WriterPool
    devices: DeviceWatch
    job: Sequence[Spot]
    probes: Sequence[Spot]
    listener: Listener
    network: Network | None = None
    mpi_time: MpiTime | None = None
    runs: list[dict[str, object]] = field(default_factory=list)
    windows: list[dict[str, object]] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    most_threads: int = 0  # in runs that had too few cores for them
    run_s: float = 0.0
    fraction: float = 0.0
    first_compile_s: float | None = None

    def run(self) -> None:
        """Run all repetitions.

        Raises:
            CommandFailed: the command cannot be measured. KeyboardInterrupt: before anything was.
        """
        self.began = time.monotonic()
        self.rng = np.random.default_rng(self.order.seed)
        self._tell("a first run, alone", 0.0)
        first = self._trial(ALONE, 0.0)
        self._check(first)
        self.run_s = first.wall_s
        self._look_at_device()
        if self.mpi_time and not (ranks := self.mpi_time.seen):
            self.mpi_time = None  # no MPI program
        elif self.mpi_time and self.order.mpi and ranks < self.order.cores:
            self.notes.append(f"only {ranks} of {self.order.cores} ranks told their time inside MPI")
        visits = plan_visits(
            self.order,
            self.steps,
            self.rng,
            run_s=self.run_s,
            spent_s=lambda: time.monotonic() - self.began,
        )
        repetition, wall_s = 0, dict[Step, float]()
        try:
            for number, visit in enumerate(visits):
                repetition, place = visit.count, number % len(self.steps)
                wall_s[visit.key] = self._visit(visit.key, repetition, place)
                if place == len(self.steps) - 1:
                    for point in visits.points[1:]:
                        point.values.append(wall_s[point.key] / wall_s[ALONE, 0.0])
            if wide := visits.describe_wide(_where):
                self.notes.append(f"slow-downs not known to {TOLERANCE:.0%}: {wide}")
        except KeyboardInterrupt:
            self.interrupted = True
        except (UserError, ProcessLost) as error:
            self.absent.append(
                Absent(probe="job", what=f"from repetition {repetition} on", reason=str(error), failed=True)
            )
        if self.most_threads:
            self.notes.append(
                f"up to {self.most_threads} threads on {len(self.job)} core(s): give it more with -n"
            )
        self._drop_incomplete(repetition)

    def _look_at_device(self) -> None:
        """Note the first run's time to build kernels, which the driver may keep."""
        self.first_compile_s = self._on_devices().get("compile_s")
        if self.devices.trouble:
            what = "OpenCL: device memory, kernels, building, draining"
            self.absent.append(Absent(probe="job", what=what, reason=self.devices.trouble))

    def _on_devices(self) -> dict[str, float | None]:
        """Read what the last run did on OpenCL devices; empty over hosts."""
        return {} if self.order.hosts else self.devices.seen()

    def built_anew(self, fitted: Fitted) -> str:
        """Note that the driver keeps kernels from run to run; "" if it does not."""
        later = next((need.value for need in fitted.alone if need.name == "compile_s"), None)
        first = self.first_compile_s
        if first is None or later is None or first < max(2 * later, NOTABLE_S):
            return ""
        return (
            f"building kernels took {first:.3g} s in the first run, then {later:.3g} s: the driver keeps them"
        )

    @property
    def steps(self) -> list[Step]:
        """The conditions of the runs in one repetition: probe and intensity."""
        probes = [probe for probe, there in ((MEMORY, self.probes), (NETWORK, self.network)) if there]
        return [(ALONE, 0.0), *((probe, i) for probe in probes for i in self.intensities[1:])]

    @property
    def intensities(self) -> tuple[float, ...]:
        """The intensities of each probe, from 0."""
        return QUICK_INTENSITIES if self.order.quick else INTENSITIES

    def _visit(self, step: Step, repetition: int, place: int) -> float:
        """Run the job once beside a probe, the references before it where they are due; return its time."""
        if self.network and not place:
            self._tell(f"repetition {repetition}: comprobe beside itself", self._fraction(repetition, 0))
            self.network.refer(repetition, [float(i) for i in self.rng.permutation(self.intensities)])
        times, _ = self._references
        if self.probes and place % math.ceil(len(self.steps) / times) == 0:
            self._refer(repetition, place)
        beside, intensity = step
        self._tell(f"repetition {repetition}: {_where(step)}", self._fraction(repetition, place))
        ended = self._trial(beside, intensity, repetition)
        self._check(ended)
        self.runs.append(
            {
                "repetition": repetition,
                "beside": beside,
                "intensity_percent": intensity,
                **{name: getattr(ended, name) for name in MEASURED},
                "mpi_share": self.mpi_time.share(ended.wall_s) if self.mpi_time else None,
                **self._on_devices(),
            }
        )
        return ended.wall_s

    def _refer(self, repetition: int, place: int) -> None:
        """Memprobe at full intensity where it is beside the job, and at each intensity where the job is.

        Before run number ``place`` of the repetition, in rounds of all intensities.
        """
        self._tell(f"repetition {repetition}: memprobe beside itself", self._fraction(repetition, place))
        self.pool.prepare([*self.probes, *self.job])  # all at once: gigabytes take seconds to come to be
        with Stream(self.pool, dict.fromkeys(self.probes, 1.0), most=WARM_UP) as stream:
            for _ in range(WARM_UP):
                stream.step()
        _, rounds = self._references
        for visit in Visits([Point(intensity, most=rounds) for intensity in self.intensities], self.rng):
            shares = dict.fromkeys(self.probes, 1.0)
            shares |= dict.fromkeys(self.job, visit.key / 100) if visit.key else {}
            with Stream(self.pool, shares, most=1) as stream:
                rows = stream.step()
            number = place * rounds + visit.count - 1
            self._note(rows, repetition, "reference", visit.key, number=number)

    def _trial(self, beside: str, intensity: float, repetition: int = 0) -> RunOutcome:
        """Run the command once beside that probe at ``intensity``."""
        since_s, began = time.time(), time.monotonic()
        if beside == NETWORK and self.network:
            with self.network.beside(repetition, intensity) as times:
                ended = self._run_beside(None)[0]
                times.append((ended.started_s, ended.ended_s))
        else:
            with self._memprobe(beside, intensity) as stream:
                ended, rows = self._run_beside(stream)
            inside = [
                row
                for row in rows
                if ended.started_s <= row.written.start_s
                and row.written.start_s + row.written.wall_s <= ended.ended_s
            ]
            self._note(inside, repetition, "run", intensity, begin_s=ended.started_s)
        if self.order.mpi and (ended.code or ended.overdue):
            sweep_segments(since_s, time.monotonic() - began)
        return ended

    @contextmanager
    def _memprobe(self, beside: str, intensity: float) -> Iterator[Stream | None]:
        shares = dict.fromkeys(self.probes, intensity / 100)
        with Stream(self.pool, shares) if beside == MEMORY else nullcontext() as stream:
            if stream is not None:
                stream.step()  # they are at work when it starts
            yield stream

    def _run_beside(self, stream: Stream | None) -> tuple[RunOutcome, list[WriterWindow]]:
        """Run the command once; return outcome and windows of the writers of ``stream``."""
        rows: list[WriterWindow] = []
        variables = dict(self.start.variables)
        if not self.order.hosts:  # hosts need not share the folder
            variables |= self.devices.variables()
        if self.mpi_time:
            variables |= self.mpi_time.variables()
        start, limit_s = self.start, self.order.limit_s
        with Trial(
            start.command,
            self.order.folder,
            start.cpus,
            limit_s=limit_s,
            variables=variables,
            own_folder=False,
        ) as trial:
            while (ended := trial.ended(0.0 if stream else WINDOW_S)) is None:
                rows += stream.step() if stream else []
        return ended, rows

    def _note(
        self,
        rows: Sequence[WriterWindow],
        repetition: int,
        phase: str,
        intensity: float,
        *,
        begin_s: float | None = None,
        number: int | None = None,
    ) -> None:
        for row in rows:
            self.windows.append(
                {
                    "repetition": repetition,
                    "round": number,
                    "probe": MEMORY,
                    "phase": phase,
                    "measured": row.spot in self.probes,
                    "intensity_percent": intensity,
                    "core": row.spot.core,
                    "start_s": row.written.start_s,
                    "at_s": None if begin_s is None else row.written.start_s - begin_s,
                    "wall_s": row.written.wall_s,
                    "thread_cpu_s": row.written.thread_cpu_s,
                    "bytes": row.written.bytes,
                }
            )

    def _check(self, ended: RunOutcome) -> None:
        """Raise CommandFailed if a run is unusable; note if it is doubtful."""
        check(ended, self.order.limit_s)
        if ended.wall_s < LEAST_RUN_S:
            raise CommandFailed(
                f"the command ended after {ended.wall_s:.3g} s, too soon to measure",
                f"give it work for {LEAST_RUN_S:g} s at least, better {10 * LEAST_RUN_S:g} s",
            )
        if ended.strayed:
            self.notes.append("the job took other CPUs than it was given, and was put back")
        if (
            not self.order.mpi
            and ended.most_threads > 2 * len(self.job)
            and ended.cpu_s > 0.9 * ended.wall_s * len(self.job)
        ):
            self.most_threads = max(self.most_threads, ended.most_threads)

    def _drop_incomplete(self, repetition: int) -> None:
        """Forget a repetition that was cut short; raise if no other is left."""
        if self.network:
            self.windows += self.network.windows
        complete = len([1 for row in self.runs if row["repetition"] == repetition]) == len(self.steps)
        last = repetition if complete else repetition - 1
        self.runs = [row for row in self.runs if int(str(row["repetition"])) <= last]
        self.windows = [row for row in self.windows if 0 < int(str(row["repetition"])) <= last]
        if not self.runs:
            if self.interrupted:
                raise KeyboardInterrupt
            raise CommandFailed(self.absent[-1].reason)

    @property
    def _references(self) -> tuple[int, int]:
        """The number of references of memprobe in a repetition, and of the rounds in each."""
        return QUICK_REFERENCES if self.order.quick else REFERENCES

    @property
    def _planned(self) -> int:
        """The least number of repetitions, unless the time runs out."""
        return QUICK_LEAST if self.order.quick else FULL_REPETITIONS

    def _fraction(self, repetition: int, step: int) -> float:
        """Return the share of the least work that is done."""
        least, steps = self._planned, len(self.steps)
        return min(((repetition - 1) * steps + step) / (max(least, repetition) * steps), 1.0)

    def _tell(self, doing: str, fraction: float) -> None:
        one_s = len(self.steps) * (self.run_s + 3 * WINDOW_S)
        times, rounds = self._references
        windows = times * (WARM_UP + rounds * len(self.intensities))
        one_s += windows * WINDOW_S if self.probes else 0.0
        one_s += 2 * len(self.intensities) * COMPROBE_S if self.network else 0.0
        self.fraction = max(
            self.fraction, fraction
        )  # never less, though there are more repetitions than planned
        left_s = one_s * self._planned * (1 - self.fraction)
        self.listener(JobProgress(doing, self.fraction, left_s if self.run_s else 0.0))


def plan_visits(
    order: JobOrder,
    steps: Sequence[Step],
    rng: np.random.Generator,
    *,
    run_s: float,
    spent_s: Callable[[], float],
) -> Visits[Step]:
    """Plan the runs: whole repetitions, as long as one more is worth its time.

    Args:
        run_s: of the first run, alone. spent_s: seconds since the session began.
    """
    least, most = (QUICK_LEAST, QUICK_MOST) if order.quick else (LEAST_REPETITIONS, MOST_REPETITIONS)
    longest_s = min(max(RUNS * run_s, SHORTEST_S), LONGEST_S) if order.budget_s is None else order.budget_s
    if order.quick:
        longest_s = min(longest_s, QUICK_S)
    points = [Point(step, least=least, most=most) for step in steps]
    points[0].values = [1.0] * FULL_REPETITIONS  # alone there is no slow-down
    return Visits(
        points,
        rng,
        lambda: longest_s - spent_s(),
        target=None if order.quick else TOLERANCE,
        whole=True,
    )


def _where(step: Step) -> str:
    beside, intensity = step
    words = {ALONE: "alone", MEMORY: "beside memprobe", NETWORK: "beside comprobe"}[beside]
    return f"{words} at {intensity:g} %" if intensity else words


# -- over hosts --------------------------------------------------------------------------------------------
#
# The network half of a job profile: the ranks of the job over several hosts, comprobe beside them on each.
#
# The job's ranks have the first cores of each host, comprobe's one rank the next core. Hosts that are
# namespaces of one machine share its cores, and their ranks have the same cores on all of them.


REFERENCE_WINDOWS = 5


@dataclass(frozen=True)
class Layout:
    """The places of the ranks of a job and of comprobe.

    Attributes:
        job_cores: the core of each rank, in their order.
        job, probe: comprobe's places on the job's first core of each host, and beside the job.
        here: whether this machine is one of the hosts, so that memprobe can run beside the job.
        one_kernel: whether the hosts are namespaces of one machine.
    """

    hosts: tuple[str, ...]
    per_host: int
    job_cores: tuple[int, ...]
    job: RankPlaces
    probe: RankPlaces
    here: bool
    one_kernel: bool


def lay_out(hosts: Sequence[str], ranks: int, mpi: MpiInstall) -> Layout:
    """Ask every host, and choose the cores.

    Raises:
        BadInput: there are fewer ranks than hosts, or a host is named twice.
        Unavailable: a host lacks something.
    """
    if ranks < len(hosts):
        raise BadInput(f"-n {ranks}: fewer ranks than the {len(hosts)} hosts", "give each host one at least")
    of_host, boots = cores_of(hosts, mpi)
    per_host = -(-ranks // len(hosts))
    if ranks <= per_host * (len(hosts) - 1):
        raise BadInput(
            f"-n {ranks}: {per_host} ranks a host leave {hosts[-1]} none", "give every host as many"
        )
    for host, cores in zip(hosts, of_host, strict=True):
        if len(cores) <= per_host:
            raise Unavailable(
                f"host {host} has {counted(len(cores), 'core')} for {counted(per_host, 'rank')}, "
                "and comprobe needs one beside them",
                f"-n {(len(cores) - 1) * len(hosts)} at most",
            )
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Layout(
        hosts=tuple(hosts),
        per_host=per_host,
        job_cores=tuple([cores[i] for cores in of_host for i in range(per_host)][:ranks]),
        job=RankPlaces(tuple(hosts), tuple(cores[0] for cores in of_host)),
        probe=RankPlaces(tuple(hosts), tuple(cores[per_host] for cores in of_host)),
        here=here in boots,
        one_kernel=len(set(boots)) < len(boots),
    )


def cores_of(hosts: Sequence[str], mpi: MpiInstall) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return a CPU of each core of each host, and the hosts' boot ids.

    Raises:
        BadInput, Unavailable: see ``probes.network.greet``.
    """
    answers = greet(hosts, mpi.library)
    cores = [tuple(int(core) for core in answer["cores"].split(",")) for answer in answers]
    return cores, [answer["boot"] for answer in answers]


@dataclass
class Network:
    """comprobe beside a job, and beside itself; ``windows`` is what it saw (see ``profiles.fits.job``)."""

    mpi: MpiInstall
    layout: Layout
    windows: list[dict[str, object]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def check(self) -> None:
        """See that messages leave the hosts, before the job is run.

        Raises:
            RanksFailed, Unavailable: they do not.
        """
        with Comprobe(self.mpi, self.layout.probe, 1.0, preflight=True) as comprobe:
            self.doubts = comprobe.doubts

    def refer(self, repetition: int, intensities: Sequence[float]) -> None:
        """Measure comprobe alone (0 %), and beside itself in the place of the job's ranks.

        Raises:
            RanksFailed: comprobe has ended.
        """
        with Comprobe(self.mpi, self.layout.probe, 1.0) as measured:
            for intensity in intensities:
                if not intensity:
                    measured.windows()
                    self._note(measured.windows(REFERENCE_WINDOWS), repetition, intensity)
                    continue
                with Comprobe(self.mpi, self.layout.job, intensity / 100) as other:
                    measured.windows()
                    self._note(measured.windows(REFERENCE_WINDOWS), repetition, intensity)
                    self._note(other.windows(1), repetition, intensity, measured=False)

    @contextmanager
    def beside(self, repetition: int, intensity: float) -> Iterator[list[tuple[float, float]]]:
        """Run comprobe; the caller appends the (begin, end) of the job's run to the list that is yielded.

        Raises:
            RanksFailed: comprobe has ended.
        """
        times: list[tuple[float, float]] = []
        with Comprobe(self.mpi, self.layout.probe, intensity / 100) as comprobe:
            yield times
            seen = comprobe.windows()
        for begin, end in times:
            inside = [w for w in seen if begin <= w.ended_s - w.wall_s and w.ended_s <= end]
            self._note(inside, repetition, intensity, phase="run", begin_s=begin)

    def _note(
        self,
        rows: Sequence[ExchangeWindow],
        repetition: int,
        intensity: float,
        *,
        phase: str = "reference",
        measured: bool = True,
        begin_s: float | None = None,
    ) -> None:
        for row in rows:
            self.windows.append(
                {
                    "repetition": repetition,
                    "probe": "network",
                    "phase": phase,
                    "measured": measured,
                    "intensity_percent": intensity,
                    "core": (self.layout.probe if measured else self.layout.job).cores[0],
                    "start_s": row.ended_s - row.wall_s,
                    "at_s": None if begin_s is None else row.ended_s - row.wall_s - begin_s,
                    "wall_s": row.wall_s,
                    "thread_cpu_s": row.inside_s,
                    "bytes": row.bytes,
                }
            )


# -- traces of a run: its use of OpenCL devices, and the time of its ranks inside MPI ----------------------


class DeviceWatch:
    """The traces of each run, in a folder of its own.

    The folder is also the run's ``TENBIN_JOB_FOLDER``, so that a ``tenbin.Checkpoint`` begins anew in each
    run, and notes its phases there.

    Attributes:
        trouble: why there is no layer, as a sentence; "" if there is one.
    """

    def __init__(self) -> None:
        self.trouble = ""
        self._library: Path | None = None
        self._runs = 0

    def __enter__(self) -> Self:
        self._aside = tempfile.TemporaryDirectory(prefix="tenbin-job-")
        self._root = Path(self._aside.name)
        try:
            self._library = c_library.build_opencl_layer(self._root)
        except Unavailable as error:
            self.trouble = str(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._aside.cleanup()

    def variables(self) -> dict[str, str]:
        """Return variables of the environment of the next run."""
        self._runs += 1
        folder = self._folder
        folder.mkdir()
        more = c_library.opencl_variables(self._library, folder) if self._library else {}
        return {"TENBIN_JOB_FOLDER": str(folder), **more}

    def seen(self) -> dict[str, float | None]:
        """Read what the last run needed, in the columns of ``profiles.fits.job``; empty without a device.

        ``tenbin.Checkpoint`` goes before the layer, because its build times are those of a restart.
        """
        noted, facts = checked.read_phases(self._folder), c_library.read_opencl_usage(self._folder)
        needs: dict[str, float | None] = {}
        if facts is not None:
            needs = {
                "device_memory_mb": facts.device_memory_mb,
                "kernels": float(facts.kernels),
                "compile_s": facts.compile_s,
                "drain_s": facts.drain_s,
            }
        if noted:
            needs["registered_mb"] = max(phase.bytes for phase in noted) / MB
            needs["compile_s"] = sum(phase.time_s for phase in noted if phase.phase == "compile")
            drains = [phase.time_s for phase in noted if phase.phase == "drain"]
            needs["drain_s"] = max(drains) if drains else needs.get("drain_s")
        return needs

    @property
    def _folder(self) -> Path:
        return self._root / f"run-{self._runs}"


@dataclass
class MpiTime:
    """The library that counts time inside MPI, and the folder with the counts of each run."""

    library: Path
    folder: Path
    run: int = 0

    def variables(self) -> dict[str, str]:
        """Return variables of the environment of the next run."""
        self.run += 1
        self._folder.mkdir()
        return c_library.mpi_variables(self.library, self._folder)

    @property
    def seen(self) -> int:
        """Number of ranks of the last run that called MPI."""
        return len(c_library.read_mpi_shares(self._folder))

    def share(self, wall_s: float) -> float | None:
        """Return the share of the last run's ``wall_s`` inside MPI; None if no rank called MPI."""
        ranks = c_library.read_mpi_shares(self._folder)
        return c_library.mpi_share(ranks, wall_s) if ranks else None

    @property
    def _folder(self) -> Path:
        return self.folder / str(self.run)


@contextmanager
def mpi_times(hosts: Sequence[str]) -> Iterator[MpiTime]:
    """Build the library in a folder that the hosts share if they share home folders; remove it afterwards.

    Raises:
        Unavailable: it cannot be built.
    """
    above = default_storage() if hosts else None
    if above:
        make_folder(above)
    with tempfile.TemporaryDirectory(prefix="tenbin-mpi-", dir=above) as name:
        folder = Path(name)
        yield MpiTime(c_library.build_mpi_library(folder), folder)
