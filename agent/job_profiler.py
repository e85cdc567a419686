"""Makes a job profile: a command run over and over, alone and beside memprobe at graded intensities.

One repetition visits every intensity once, in random order, so that drift falls on all alike; before its runs
memprobe is measured beside itself on the same cores, the reference of the job's pressure. The pressure costs
no runs of its own: the writers beside the job tell how fast they were.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from agent.conditions import Watch
from agent.inventory import read_machine
from agent.jobs.devices import DeviceWatch
from agent.jobs.trial import Ended, Trial
from agent.lock import node_lock
from agent.node_kind import node_kind
from probes.memory_plan import Missing, choose_area
from probes.memory_pool import Pool, Spot, WriterLost
from probes.memory_stream import WINDOW_S, Row, Stream
from probes.topology import Topology, free_memory_mb, read_topology
from profiles.errors import BadInput, TenbinError, Unavailable
from profiles.fits.job import Fitted, fit
from profiles.jobs import Clock, JobProfile
from profiles.records import Absent, Condition, Settings
from profiles.stats import narrow_enough

INTENSITIES = (0.0, 25.0, 50.0, 75.0, 100.0)
LEAST_RUN_S = 5 * WINDOW_S
REFERENCE_WINDOWS = 3
LEAST_REPETITIONS, MOST_REPETITIONS = 3, 20
FULL_REPETITIONS = 6  # below, the median's interval rests on an assumption
TOLERANCE = 0.05
LEAST_AREA_MB = 8.0
NOTABLE_S = 0.05  # of building kernels
BUSY = 0.05  # share of all CPU time that others may take before wall times mean little


class CommandFailed(TenbinError):
    """The command cannot be measured as it is."""


@dataclass(frozen=True)
class JobOrder:
    """What to measure.

    Attributes:
        cores: how many the job gets, pinned; memprobe writes on as many beside it, or on those left.
        limit_s: a run that takes longer is ended.
        budget_s: no further repetition is begun after this time, once the least number is done.
    """

    name: str
    command: tuple[str, ...]
    folder: str
    cores: int = 1
    quick: bool = False
    limit_s: float = 600.0
    budget_s: float = 1200.0
    seed: int = 1


@dataclass(frozen=True)
class JobProgress:
    """What a listener is told."""

    doing: str
    fraction: float
    left_s: float


Listener = Callable[[JobProgress], None]


def make_job_profile(
    order: JobOrder, listener: Listener = lambda progress: None
) -> tuple[JobProfile, dict[str, pd.DataFrame]]:
    """Measure the job; Ctrl-C ends it early with what was measured, if that is a repetition at least.

    Returns:
        The profile, and the samples: tables ``runs`` and ``windows`` (see ``profiles.fits.job``).

    Raises:
        CommandFailed: the command fails, ends too soon, or does not end.
        BadInput: it needs more cores than there are, with one for the probe.
        Unavailable: this machine has no room for a probe.
        Busy: another profile is measuring this node.
    """
    settings = Settings(quick=order.quick, seed=order.seed)
    topology = read_topology(settings.sysfs, os.sched_getaffinity(0))
    job, probes = choose_cpus(topology, order.cores)
    created, began = datetime.now(UTC), time.monotonic()
    with node_lock():
        inventory = read_machine(settings)
        free_mb = free_memory_mb(settings.sysfs, settings.procfs) / 2
        area_mb, amiss = choose_areas(topology, job, probes, free_mb)
        watch = Watch.begin("job", 0)
        with Pool(area_mb, topology.line_bytes) as pool, DeviceWatch() as devices:
            session = _Session(order, pool, devices, job, probes, listener)
            session.absent += [Absent(probe="job", what=m.what, reason=m.reason) for m in amiss]
            session.run()
        condition = watch.ended()
    runs, windows = pd.DataFrame(session.runs), pd.DataFrame(session.windows)
    fitted = fit(runs, windows)
    clock, doubt = choose_clock(condition, fitted)
    profile = JobProfile(
        name=order.name,
        id=created.strftime("%Y%m%dT%H%M%SZ"),
        node=inventory.hostname,
        kind=node_kind(inventory),
        created=created,
        duration_s=round(time.monotonic() - began, 1),
        tenbin_version=version("tenbin"),
        command=order.command,
        folder=order.folder,
        cpus=tuple(spot.core for spot in job),
        probe_cpus=tuple(spot.core for spot in probes),
        quick=order.quick,
        seed=order.seed,
        repetitions=len(set(runs["repetition"])),
        clock=clock,
        **fitted._asdict(),
        condition=condition,
        absent=(*session.absent, _NO_NETWORK),
        interrupted=session.interrupted,
        note="; ".join(filter(None, dict.fromkeys((*session.notes, session.built_anew(fitted), doubt)))),
    )
    return profile, {"runs": runs, "windows": windows}


def choose_areas(
    topology: Topology, job: Sequence[Spot], probes: Sequence[Spot], free_mb: float
) -> tuple[float, list[Missing]]:
    """Size of each writer's area in MB, and what is amiss with it.

    Those that write together through one last-level cache need an area of 4 times that all together: with one
    each, as in the probe of the node, many cores would need more memory than there is.

    Raises:
        Unavailable: that does not fit into ``free_mb``.
    """
    area_mb, amiss = choose_area(topology, free_mb)
    cache_of = {cpu.index: cpu.llc for cpu in topology.cpus}
    together = [Counter(cache_of[spot.core] for spot in side) for side in (job, probes)]
    each_mb = max(area_mb / min(min(side.values()) for side in together), LEAST_AREA_MB)
    needed_mb = each_mb * (len(job) + len(probes))
    remedy = "free some memory, or give the job fewer cores"
    if not area_mb:
        raise Unavailable(f"no memory for memprobe ({amiss[-1].reason})", remedy)
    if needed_mb > free_mb:
        what = f"memprobe needs {needed_mb:.0f} MB for {len(job) + len(probes)} writers"
        raise Unavailable(f"{what}, {free_mb:.0f} MB can be taken", remedy)
    return each_mb, amiss


def choose_clock(condition: Condition, fitted: Fitted) -> tuple[Clock, str]:
    """The clock to predict by, and why it is not the wall's: others had the cores meanwhile."""
    busy = condition.others_ratio + condition.steal_ratio
    if busy <= BUSY:
        return "wall", ""
    doubt = f"others took {busy:.0%} of this machine's CPU time meanwhile: measure while nothing else runs"
    if not any(curve.clock == "cpu" for curve in fitted.sensitivity):
        return "wall", doubt
    return "cpu", f"{doubt}; until then predictions go by CPU time"


_NO_NETWORK = Absent(
    probe="job",
    what="pressure on the network (comprobe)",
    reason="not measured by this version; memory only",
)


def choose_cpus(topology: Topology, cores: int) -> tuple[list[Spot], list[Spot]]:
    """One CPU of each core: the first ones for the job, as many next to them for memprobe, or those left.

    Raises:
        BadInput: none is left. Unavailable: there is one core only.
    """
    usable = [Spot(cpu.index, cpu.node, cpu.index) for cpu in topology.cores]
    if len(usable) < 2:
        raise Unavailable("this process may use one core only", "a probe needs one beside the job")
    if cores >= len(usable):
        raise BadInput(
            f"-n {cores}: this process may use {len(usable)} cores, and memprobe needs one beside the job",
            f"give it {len(usable) - 1} at most",
        )
    return usable[:cores], usable[cores : 2 * cores]


@dataclass
class _Session:
    """What has been seen so far."""

    order: JobOrder
    pool: Pool
    devices: DeviceWatch
    job: Sequence[Spot]
    probes: Sequence[Spot]
    listener: Listener
    runs: list[dict[str, Any]] = field(default_factory=list)
    windows: list[dict[str, object]] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    run_s: float = 0.0
    first_compile_s: float | None = None

    def run(self) -> None:
        self.began = time.monotonic()
        self.rng = np.random.default_rng(self.order.seed)
        self._tell("a first run, alone", 0.0)
        first = self._trial(0.0)
        self._check(first)
        self.run_s = first.wall_s
        self._look_at_device()
        repetition = 0
        try:
            while self._goes_on(repetition):
                repetition += 1
                self._repeat(repetition)
        except KeyboardInterrupt:
            self.interrupted = True
        except (CommandFailed, WriterLost) as error:
            self.absent.append(
                Absent(probe="job", what=f"from repetition {repetition} on", reason=str(error), failed=True)
            )
        self._drop_incomplete(repetition)

    def _look_at_device(self) -> None:
        """After the first run, in which kernels may have to be built anew."""
        self.first_compile_s = self.devices.seen().get("compile_s")
        if self.devices.trouble:
            what = "OpenCL: device memory, kernels, building, draining"
            self.absent.append(Absent(probe="job", what=what, reason=self.devices.trouble))

    def built_anew(self, fitted: Fitted) -> str:
        """A note on kernels that the driver keeps from run to run; "" if it does not."""
        later = next((need.value for need in fitted.alone if need.name == "compile_s"), None)
        first = self.first_compile_s
        if first is None or later is None or first < max(2 * later, NOTABLE_S):
            return ""
        return (
            f"building kernels took {first:.3g} s in the first run, then {later:.3g} s: the driver keeps them"
        )

    def _goes_on(self, done: int) -> bool:
        """Whether another repetition is worth its time."""
        least = LEAST_REPETITIONS if self.order.quick else FULL_REPETITIONS
        spent_s = time.monotonic() - self.began
        if done < LEAST_REPETITIONS:
            return True
        if done >= MOST_REPETITIONS or spent_s * (done + 1) / done > self.order.budget_s:
            return False
        return done < least or not (self.order.quick or self._narrow())

    def _narrow(self) -> bool:
        times = pd.DataFrame(self.runs).pivot(
            index="repetition", columns="intensity_percent", values="wall_s"
        )
        return all(narrow_enough(times[i] / times[0.0], TOLERANCE) for i in INTENSITIES[1:])

    def _repeat(self, repetition: int) -> None:
        """One repetition: the reference, then the job once at each intensity."""
        self._tell(f"repetition {repetition}: memprobe beside itself", self._fraction(repetition, 0))
        for intensity in self.rng.permutation(INTENSITIES):
            self._refer(repetition, float(intensity))
        for i, intensity in enumerate(self.rng.permutation(INTENSITIES)):
            where = f"beside memprobe at {intensity:g} %" if intensity else "alone"
            self._tell(f"repetition {repetition}: {where}", self._fraction(repetition, i))
            ended = self._trial(float(intensity), repetition)
            self._check(ended)
            row = {
                "repetition": repetition,
                "intensity_percent": float(intensity),
                "wall_s": ended.wall_s,
                "cpu_s": ended.cpu_s,
                "peak_memory_mb": ended.peak_memory_mb,
                "read_mb": ended.read_mb,
                "written_mb": ended.written_mb,
                "disk_read_mb": ended.disk_read_mb,
                "disk_written_mb": ended.disk_written_mb,
            }
            self.runs.append(row | self.devices.seen())

    def _refer(self, repetition: int, intensity: float) -> None:
        """memprobe at full intensity where it is beside the job, and at ``intensity`` where the job is."""
        shares = dict.fromkeys(self.probes, 1.0)
        shares |= dict.fromkeys(self.job, intensity / 100) if intensity else {}
        with Stream(self.pool, shares) as stream:
            rows = [row for _ in range(REFERENCE_WINDOWS) for row in stream.step()]
        self._note(rows, repetition, "reference", intensity)

    def _trial(self, intensity: float, repetition: int = 0) -> Ended:
        """One run of the command beside memprobe at ``intensity``."""
        shares = dict.fromkeys(self.probes, intensity / 100)
        rows: list[Row] = []
        with Stream(self.pool, shares) if intensity else nullcontext() as stream:
            if stream is not None:
                stream.step()  # they are at work when it starts
            cpus = [spot.core for spot in self.job]
            order = self.order
            variables = self.devices.variables()
            with Trial(order.command, order.folder, cpus, order.limit_s, variables) as trial:
                while (ended := trial.ended(0.0 if stream else WINDOW_S)) is None:
                    rows += stream.step() if stream else []
        beside = [
            row
            for row in rows
            if ended.started_s <= row.written.start_s
            and row.written.start_s + row.written.wall_s <= ended.ended_s
        ]
        self._note(beside, repetition, "run", intensity)
        return ended

    def _note(self, rows: Sequence[Row], repetition: int, phase: str, intensity: float) -> None:
        for row in rows:
            self.windows.append(
                {
                    "repetition": repetition,
                    "phase": phase,
                    "measured": row.spot in self.probes,
                    "intensity_percent": intensity,
                    "core": row.spot.core,
                    "start_s": row.written.start_s,
                    "wall_s": row.written.wall_s,
                    "thread_cpu_s": row.written.thread_cpu_s,
                    "bytes": row.written.bytes,
                }
            )

    def _check(self, ended: Ended) -> None:
        """Raise what makes a run unusable; note what makes it doubtful."""
        said = f": {ended.last_words}" if ended.last_words else ""
        if ended.trouble:
            raise CommandFailed(f"the command cannot be started: {ended.trouble}", "check its path")
        if ended.overdue:
            raise CommandFailed(
                f"the command still ran after {self.order.limit_s:g} s (--limit) and was ended",
                "give it less to do (fewer steps), or a longer --limit",
            )
        if ended.code:
            how = f"exit code {ended.code}" if ended.code > 0 else f"signal {-ended.code}"
            raise CommandFailed(
                f"the command failed with {how}{said}",
                "try it by itself; what it reads from the terminal is empty here (use < in sh -c)",
            )
        if ended.left:
            raise CommandFailed(
                f"the command ended and left {ended.left} processes running",
                "keep it in the foreground: its own end must be the end of its work",
            )
        if ended.wall_s < LEAST_RUN_S:
            raise CommandFailed(
                f"the command ended after {ended.wall_s:.3g} s, too soon to measure",
                f"give it work for {LEAST_RUN_S:g} s at least, better {10 * LEAST_RUN_S:g} s",
            )
        if ended.strayed:
            self.notes.append("the job took other CPUs than it was given, and was put back")
        if ended.most_threads > 2 * len(self.job) and ended.cpu_s > 0.9 * ended.wall_s * len(self.job):
            self.notes.append(
                f"up to {ended.most_threads} threads on {len(self.job)} core(s): give it more with -n"
            )

    def _drop_incomplete(self, repetition: int) -> None:
        """Forget a repetition that was cut short; say so if nothing is left."""
        complete = len([1 for row in self.runs if row["repetition"] == repetition]) == len(INTENSITIES)
        last = repetition if complete else repetition - 1
        self.runs = [row for row in self.runs if row["repetition"] <= last]
        self.windows = [row for row in self.windows if 0 < int(str(row["repetition"])) <= last]
        if not self.runs:
            if self.interrupted:
                raise KeyboardInterrupt
            raise CommandFailed(self.absent[-1].reason)

    def _fraction(self, repetition: int, step: int) -> float:
        """Of the least work that is still to be done."""
        least = LEAST_REPETITIONS if self.order.quick else FULL_REPETITIONS
        steps = len(INTENSITIES)
        return min(((repetition - 1) * steps + step) / (max(least, repetition) * steps), 1.0)

    def _tell(self, doing: str, fraction: float) -> None:
        least = LEAST_REPETITIONS if self.order.quick else FULL_REPETITIONS
        one_s = len(INTENSITIES) * (self.run_s + 3 * WINDOW_S + REFERENCE_WINDOWS * WINDOW_S)
        left_s = one_s * least * (1 - fraction)
        self.listener(JobProgress(doing, fraction, left_s if self.run_s else 0.0))
