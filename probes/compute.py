"""Floating point speed of one core and of several at once, and the clock that they have meanwhile.

Each core computes in a process of its own (``probes.compute_worker``), in the same window of time:

- ``blas``: products of two matrices by numpy's BLAS, on one thread
- ``vector``: multiply-adds in vector registers, compiled for this processor; no memory is touched
- ``chain``: additions of integers, each after the one before. An addition takes one cycle on x86 and Arm, so
  additions a second are cycles a second. Blocks of the other kinds are each followed by a short chain too,
  which tells the clock that the core had in them.

Samples, one row per core and window of time:

- ``kind``, ``precision`` (``double`` or ``single``; chains ``integer``)
- ``repetition``: counts within the round; the rows of one window share it
- ``cores``: how many computed; ``cpus``: these, ``"0,1"``; ``core``: this row's
- ``flops``, ``busy_s``: floating point operations (a multiply-add is two), and the time that they took
- ``adds``, ``adds_s``: additions of one chain, and the median time of the window's chains
- ``wall_s``, ``thread_cpu_s``: time and CPU time of the window
- ``overlap``: share of the window in which all cores computed
- ``matrix_order``, ``blas``: of the products; ``vector_bits``, ``fused``: of the vector loop
- ``cpufreq_ghz``, ``base_ghz``, ``max_ghz``: the clock that the kernel tells of the first core, halfway
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probes.compute_worker import ADD_TAKES_A_CYCLE, ORDER, Computed, Kernels, build
from probes.loads import LOADS, most_ranks, sizes
from probes.loads.__main__ import LAUNCHED
from probes.mpi.runner import MpiInstall, RanksFailed, find_mpi, run_ranks
from probes.order_process import PATIENCE_S, ProcessLost, ProcessPool
from probes.run import Run
from probes.topology import core_counts, read_text, read_topology
from probes.visits import Point, Visits, say_apart, window_s
from profiles.errors import Unavailable
from profiles.fits.compute import OVERLAP

# -- workers that compute together, in the same window of time ---------------------------------------------


WARM_S = 0.008  # the clock changes within milliseconds once wide vectors are at work
FIRST_S = 0.02  # for the first block of a process, which makes its matrices


class WorkerPool(ProcessPool):
    """Workers that compute together.

    Args:
        library: the compiled kernels; None: matrix products only.
        clock: whether each block is followed by a chain of additions.
    """

    def __init__(self, library: Path | None, clock: bool) -> None:
        arguments = [f"--library={library}", *(["--clock"] if clock else [])] if library else []
        super().__init__("probes.compute_worker", arguments, "worker")
        self._known: set[tuple[int, str, str]] = set()

    def compute(
        self, cores: Sequence[int], kind: str, precision: str, *, seconds: float, halfway: Callable[[], Any]
    ) -> tuple[list[Computed], float]:
        """Have all ``cores`` compute in one window of ``seconds``; call ``halfway`` in its middle.

        Returns:
            A row of each core, in their order, and the share of the window in which all of them computed.

        Raises:
            ProcessLost: a worker is gone; all workers are started anew when needed again.
        """
        self.start(cores)
        keys = {(core, kind, precision) for core in cores}
        lead = 0.003 + 0.0002 * len(cores) + WARM_S + (0.0 if keys <= self._known else FIRST_S)
        start = time.monotonic() + lead
        order = {"kind": kind, "precision": precision, "start_s": start, "warm_s": WARM_S, "seconds": seconds}
        with self.all_or_none():
            for core in cores:
                self._processes[core].order("compute", **order)
            time.sleep(max(start + seconds / 2 - time.monotonic(), 0.0))
            halfway()
            rows = [Computed(**self._processes[core].answer(PATIENCE_S + seconds)) for core in cores]
        self._known |= keys
        return rows, overlap(rows)

    def discard(self) -> None:
        super().discard()
        self._known.clear()


def overlap(rows: Sequence[Computed]) -> float:
    """Compute the share of the time from the first begin to the last end in which all computed (0-1)."""
    begin, end = min(row.start_s for row in rows), max(row.start_s + row.wall_s for row in rows)
    together = min(end, *(row.until_s for row in rows)) - max(begin, *(row.from_s for row in rows))
    return max(together, 0.0) / (end - begin) if end > begin else 0.0


# -- the probe: every kind of work on 1, 2, 4, ... and all cores -------------------------------------------


REPETITIONS = 3  # that a visit should get
WINDOW_S = (0.020, 0.100)
OVERHEAD_S = 0.020  # of one window: orders, warm-up, answers
START_S = 0.6
KINDS = (("blas", "double"), ("blas", "single"))
COMPILED_KINDS = (("vector", "double"), ("vector", "single"), ("chain", "integer"))
NAMES = {"blas": "matrix products", "vector": "vector loop", "chain": "chain of additions"}


class Work(NamedTuple):
    """A kind of work on ``cores`` (CPUs)."""

    kind: str
    precision: str
    cores: tuple[int, ...]

    @property
    def title(self) -> str:
        count = len(self.cores)
        return f"{NAMES[self.kind]}, {self.precision}, on {count} core{'s' * (count > 1)}"


def measure(run: Run) -> None:
    """Measure every kind of work on 1, 2, 4, ... and all cores, again and again until the time is up."""
    settings = run.settings
    cores = [cpu.index for cpu in read_topology(settings.sysfs, os.sched_getaffinity(0)).cores]
    if not cores:
        online = f"{settings.sysfs}/devices/system/cpu/online"
        run.absent("floating point speed", f"{online} lists none of the CPUs that we may use")
        return
    if len(cores) == 1:
        run.absent("floating point speed of several cores", "this process may use one core only")
    with tempfile.TemporaryDirectory(prefix="tenbin-compute-", ignore_cleanup_errors=True) as folder:
        run.progress("compiling")
        library = _compiled(run, Path(folder))
        with WorkerPool(library, clock=platform.machine() in ADD_TAKES_A_CYCLE) as pool:
            run.progress("starting workers")
            Measurement(run, pool, library).repeat(plan(cores, compiled=library is not None))


def plan(cores: Sequence[int], *, compiled: bool) -> list[Point[Work]]:
    """Plan the points: the models need one core and all cores, the counts between them make the picture."""
    return [
        Point(Work(kind, precision, tuple(cores[:count])), least=int(count in (1, len(cores))))
        for count in core_counts(len(cores))
        for kind, precision in (*KINDS, *(COMPILED_KINDS if compiled else ()))
    ]


def blas_name() -> str:
    """Name the library behind numpy's products: ``scipy-openblas 0.3.31``."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def _compiled(run: Run, folder: Path) -> Path | None:
    """Compile the loops; None, and said, where that is impossible."""
    what = "vector loop and clock"
    try:
        library = build(folder)
    except Unavailable as error:
        run.absent(what, error.what, error.remedy)
        return None
    if (machine := platform.machine()) not in ADD_TAKES_A_CYCLE:
        run.absent("clock", f"how many cycles an addition takes on {machine} is not known")
    return library


class Measurement:
    """One visit: its windows, and the rows that they make."""

    def __init__(self, run: Run, pool: WorkerPool, library: Path | None) -> None:
        self._run, self._pool = run, pool
        kernels = Kernels(library) if library else None
        self._facts: dict[str, dict[str, Any]] = {
            "blas": {"matrix_order": ORDER, "blas": blas_name()},
            "vector": {"vector_bits": kernels.vector_bits, "fused": kernels.fused} if kernels else {},
            "chain": {},
        }

    def repeat(self, points: list[Point[Work]]) -> None:
        """Visit all points until the time is up."""
        run = self._run
        share_s = 0.9 * (run.left_s() - START_S) / REPETITIONS / len(points)
        length_s = window_s(share_s, OVERHEAD_S, WINDOW_S)
        for point in points:
            point.cost_s = length_s + OVERHEAD_S
        for visit in Visits(points, run.rng, run.left_s):
            run.progress(visit.key.title)
            try:
                self.observe(visit, length_s)
            except ProcessLost as lost:
                run.absent(visit.key.title, str(lost), "see whether processes are limited: ulimit -a")
                points.remove(visit)
        for point in points:
            if point.count and not point.values:
                say_apart(run, point.key.title, point.count)

    def observe(self, visit: Point[Work], length_s: float) -> None:
        """Measure one window of a point."""
        kind, precision, cores = visit.key
        clocks: list[KernelClock] = []

        def look() -> None:
            clocks.append(read_clock(self._run.settings.sysfs, cores[0]))

        rows, together = self._pool.compute(cores, kind, precision, seconds=length_s, halfway=look)
        if together >= OVERLAP:
            visit.values.append(sum(row.flops or row.adds or 0 for row in rows) / length_s)
        for core, row in zip(cores, rows, strict=True):
            first = clocks[0] if core == cores[0] else KernelClock(None, None, None)
            self._run.sample(
                kind=kind,
                precision=precision,
                repetition=visit.count,
                cores=len(cores),
                cpus=",".join(map(str, cores)),
                core=core,
                flops=row.flops,
                busy_s=row.busy_s,
                adds=row.adds,
                adds_s=row.adds_s,
                wall_s=row.wall_s,
                thread_cpu_s=row.thread_cpu_s,
                overlap=round(together, 4),
                cpufreq_ghz=first.current_ghz,
                base_ghz=first.base_ghz,
                max_ghz=first.max_ghz,
                **self._facts[kind],
            )


KHZ, MHZ = 1e-6, 1e-3  # in GHz


class KernelClock(NamedTuple):
    """The clock of a CPU as the kernel has it: now, its base without boost, and its most, in GHz."""

    current_ghz: float | None
    base_ghz: float | None
    max_ghz: float | None


def read_clock(sysfs: Path, cpu: int) -> KernelClock:
    """Read what the kernel tells of ``cpu``; AMD's base is in ``acpi_cppc``."""
    folder = sysfs / f"devices/system/cpu/cpu{cpu}"
    base = _ghz(folder / "cpufreq/base_frequency", KHZ) or _ghz(folder / "acpi_cppc/nominal_freq", MHZ)
    return KernelClock(
        _ghz(folder / "cpufreq/scaling_cur_freq", KHZ), base, _ghz(folder / "cpufreq/cpuinfo_max_freq", KHZ)
    )


def _ghz(path: Path, unit: float) -> float | None:
    """Read a frequency; None where there is no file, or no number above 0 in it (``<unknown>``)."""
    text = read_text(path)
    return round(int(text) * unit, 6) if text.isdecimal() and int(text) else None


# -- scaling: speed-up of the built-in loads over 1..n cores -----------------------------------------------
#
# The same problem is shared by more ranks. One start of mpiexec runs every load several times; starts with
# different numbers of ranks alternate in random order, so that a slow minute of the machine does not fall on
# one count only. Rank i is bound to the i-th physical core, in the order of NUMA node, socket, shared cache.
#
# Samples: load, size (NPB's class), cores, start (number of the mpiexec), repetition, run_s (the kernel, by
# the slowest rank), verified, verification, mops.


# A fraction of a second on one core of today; the same sizes on every node, so that nodes can be compared.
SMALL = {"ep": "S", "cg": "W", "ft": "W", "mg": "W", "lu": "S"}
LARGE = {"ep": "W", "cg": "A", "ft": "128", "mg": "W", "lu": "128"}
SMALL_CORES = 16
CURVE = "speed-up over cores"
LOADS_START_S = 5.0  # that one start should get at least, where there are to be two on each count
LAUNCH_S = 0.5


def measure_scaling(run: Run) -> None:
    """Time every load on every chosen count of cores, until the budget is used."""
    allowed = os.sched_getaffinity(0)
    cores = [cpu.index for cpu in read_topology(run.settings.sysfs, allowed).cores] or sorted(allowed)
    counts = chosen_counts(len(cores), run.settings.quick)
    mpi = None
    if len(cores) == 1:
        run.absent(CURVE, "this process may use one core only", "profile on more cores")
    else:
        try:
            mpi = find_mpi()
        except Unavailable as error:
            run.absent(CURVE, error.what, error.remedy)
            counts = [1]
    sweeps = min(max(int(run.left_s() / (len(counts) * LOADS_START_S)), 1), 2)
    starts = LoadStarts(run, mpi, cores, chosen_sizes(counts[-1]), run.left_s() / (len(counts) * sweeps))
    order = [1, *(int(n) for n in run.rng.permutation(counts[1:]))]  # one core first: it finds the sizes
    points = [Point(n) for n in order]
    for visit in Visits(points, run.rng, run.left_s, first_in_order=True):
        starts.start(visit.key)


def chosen_counts(cores: int, quick: bool) -> list[int]:
    """Choose counts: up to 4, then doubling, and ``cores``; if quick 1, 2, a middle count, and ``cores``."""
    counts = {n for n in (1, 2, 3, 4) if n <= cores} | {cores}
    n = 8
    while n < cores:
        counts.add(n)
        n *= 2
    ordered = sorted(counts)
    if not quick or len(ordered) <= 4:
        return ordered
    return [1, 2, ordered[(2 + len(ordered) - 1) // 2], cores]


def chosen_sizes(most: int) -> dict[str, str]:
    """Choose for every load a size that can be split over ``most`` ranks, or else the largest."""
    chosen = {}
    for load, size in (SMALL if most <= SMALL_CORES else LARGE).items():
        ladder = sizes(load)
        enough = [s for s in ladder[ladder.index(size) :] if most_ranks(load, s) >= most]
        chosen[load] = enough[0] if enough else ladder[-1]
    return chosen


@dataclass
class LoadStarts:
    """Starts of the loads on n cores, and their samples so far."""

    run: Run
    mpi: MpiInstall | None
    cores: list[int]
    sizes: dict[str, str]
    share_s: float
    number: int = 0
    repetitions: Counter[tuple[str, int]] = field(default_factory=Counter)
    reported: set[str] = field(default_factory=set)

    def start(self, n: int) -> None:
        """Run all loads on ``n`` cores, some passes over them."""
        loads = [load for load in LOADS if most_ranks(load, self.sizes[load]) >= n]
        module = ["-m", "mpi4py", "-m", "probes.loads"] if self.mpi else ["-m", "probes.loads"]
        program = [sys.executable, "-P", *module, *(f"{load}:{self.sizes[load]}" for load in loads)]
        for_s = min(self.share_s, self.run.left_s()) - LAUNCH_S
        least = 2 if self.share_s >= LOADS_START_S else 1
        program += ["--for-s", f"{max(for_s, 0):.1f}", "--repeat", str(least)]
        program += ["--seed", str(self.run.rng.integers(1 << 30))]
        if not self.number:
            program += ["--at-most-s", "1.2" if self.run.settings.quick else "2"]
        self.run.progress(f"loads on {n} core{'s' * (n > 1)}: starting")
        try:
            self._launch(program, n, timeout_s=30 + 5 * self.share_s)
        except RanksFailed as error:
            self._absent(f"loads on {n} cores", error.what, error.remedy)
        self.number += 1

    def _launch(self, program: list[str], n: int, timeout_s: float) -> None:
        def line(text: str) -> None:
            if text.startswith("{"):  # other lines come from MPI or a library
                self._sample(json.loads(text), n)

        if self.mpi:
            run_ranks(self.mpi, program, n, timeout_s=timeout_s, on_line=line, cores=self.cores[:n])
            return
        alone = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
        process = subprocess.Popen(
            ["taskset", "-c", str(self.cores[0]), *program], stdout=subprocess.PIPE, text=True, env=alone
        )
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for text in process.stdout:
                line(text)
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
        if code != 0:
            raise RanksFailed(f"the loads ended with exit code {code}")

    def _sample(self, row: dict[str, object], n: int) -> None:
        load, size = str(row["load"]), str(row["class"])
        if row["ranks"] != n:
            self._absent(f"loads on {n} cores", f"{row['ranks']} ranks ran", "check mpiexec")
            return
        if not row["verified"]:
            self._absent(f"{load} {size} on {n} cores", "its answer was wrong", "check memory and libraries")
        self.sizes[load] = size
        self.run.sample(
            load=load,
            size=size,
            cores=n,
            start=self.number,
            repetition=self.repetitions[load, n],
            run_s=row["time_s"],
            verified=row["verified"],
            verification=row["verification"],
            mops=row["mops"],
        )
        self.repetitions[load, n] += 1
        self.run.progress(f"{load} {size} on {n} core{'s' * (n > 1)}")

    def _absent(self, what: str, reason: str, remedy: str) -> None:
        if what not in self.reported:
            self.reported.add(what)
            self.run.absent(what, reason, remedy)
