"""Floating point speed of one core and of several at once, and the clock that they have meanwhile.

Each core computes in a process of its own (``probes.compute.worker``), in the same window of time:

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

import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from probes.compute.cpufreq import ToldClock, read_clock
from probes.compute.kernels import ADD_TAKES_A_CYCLE, Kernels, build
from probes.compute.pool import WorkerLost, WorkerPool
from probes.compute.worker import ORDER
from probes.memory.plan import core_counts
from probes.run import Run
from probes.topology import read_topology
from profiles.errors import Unavailable
from profiles.fits.compute import OVERLAP

REPETITIONS = 3  # that a visit should get
WINDOW_S = (0.020, 0.100)
OVERHEAD_S = 0.020  # of one window: orders, warm-up, answers
START_S = 0.6
KINDS = (("blas", "double"), ("blas", "single"))
COMPILED_KINDS = (("vector", "double"), ("vector", "single"), ("chain", "integer"))
NAMES = {"blas": "matrix products", "vector": "vector loop", "chain": "chain of additions"}


@dataclass
class Point:
    """A kind of work on ``cores`` (CPUs), and how often it has been measured.

    Attributes:
        needed: whether the models need this point, so that it is measured even when late.
        met: windows in which all cores really computed at the same time.
    """

    kind: str
    precision: str
    cores: tuple[int, ...]
    needed: bool
    tries: int = 0
    met: int = 0
    cost_s: float = 0.0

    @property
    def title(self) -> str:
        count = len(self.cores)
        return f"{NAMES[self.kind]}, {self.precision}, on {count} core{'s' * (count > 1)}"


def measure(run: Run) -> None:
    """Measure every kind of work on 1, 2, 4, ... and all cores, again and again until the time is up."""
    settings = run.settings
    cores = [cpu.index for cpu in read_topology(settings.sysfs, os.sched_getaffinity(0)).cores]
    if not cores:
        listed = f"{settings.sysfs}/devices/system/cpu/online"
        run.absent("floating point speed", f"{listed} lists none of the CPUs that we may use")
        return
    if len(cores) == 1:
        run.absent("floating point speed of several cores", "this process may use one core only")
    with tempfile.TemporaryDirectory(prefix="tenbin-compute-", ignore_cleanup_errors=True) as folder:
        run.progress("compiling")
        library = _compiled(run, Path(folder))
        with WorkerPool(library, clock=platform.machine() in ADD_TAKES_A_CYCLE) as pool:
            run.progress("starting workers")
            Measurement(run, pool, library).repeat(plan(cores, compiled=library is not None))


def plan(cores: Sequence[int], *, compiled: bool) -> list[Point]:
    """Plan the points; one core and all cores are needed, the counts between them make the picture."""
    return [
        Point(kind, precision, tuple(cores[:count]), count in (1, len(cores)))
        for count in core_counts(len(cores))
        for kind, precision in (*KINDS, *(COMPILED_KINDS if compiled else ()))
    ]


def blas_name() -> str:
    """Name the library behind numpy's products: ``scipy-openblas 0.3.31``."""
    found: Any = np.show_config(mode="dicts")
    blas = found.get("Build Dependencies", {}).get("blas", {})
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

    def repeat(self, points: list[Point]) -> None:
        """Visit all points in turn, in a new random order each time, so that drift falls on all alike."""
        run, window_s = self._run, self.window_s(points)
        visited = True
        while visited and points:
            visited = False
            order = [points[i] for i in run.rng.permutation(len(points))]
            order.sort(key=lambda point: point.tries > 0 or not point.needed)  # else as it is
            for point in order:
                first = point.needed and not point.tries  # even when late: a ratio needs all of these
                if not first and run.left_s() < (point.cost_s or window_s + OVERHEAD_S):
                    continue
                visited = True
                run.progress(point.title)
                try:
                    self.observe(point, window_s)
                except WorkerLost as lost:
                    run.absent(point.title, str(lost), "see whether processes are limited: ulimit -a")
                    points.remove(point)
        for point in points:
            if point.tries and not point.met:
                reason = (
                    f"in none of {point.tries} tries did the cores compute at the same time: they are taken"
                )
                run.absent(point.title, reason, "profile while nothing else runs")

    def window_s(self, points: Sequence[Point]) -> float:
        """Choose the length of a window by the time that is left."""
        share_s = 0.9 * (self._run.left_s() - START_S) / REPETITIONS / len(points)
        return min(max(share_s - OVERHEAD_S, WINDOW_S[0]), WINDOW_S[1])

    def observe(self, point: Point, window_s: float) -> None:
        """Measure one window of a point."""
        told: list[ToldClock] = []

        def look() -> None:
            told.append(read_clock(self._run.settings.sysfs, point.cores[0]))

        self._pool.prepare(point.cores)
        begin = monotonic()
        rows, overlap = self._pool.compute(
            point.cores, point.kind, point.precision, seconds=window_s, halfway=look
        )
        point.cost_s = monotonic() - begin
        point.tries += 1
        point.met += overlap >= OVERLAP
        for core, row in zip(point.cores, rows, strict=True):
            first = told[0] if core == point.cores[0] else ToldClock(None, None, None)
            self._run.sample(
                kind=point.kind,
                precision=point.precision,
                repetition=point.tries,
                cores=len(point.cores),
                cpus=",".join(map(str, point.cores)),
                core=core,
                flops=row.flops,
                busy_s=row.busy_s,
                adds=row.adds,
                adds_s=row.adds_s,
                wall_s=row.wall_s,
                thread_cpu_s=row.thread_cpu_s,
                overlap=round(overlap, 4),
                cpufreq_ghz=first.current_ghz,
                base_ghz=first.base_ghz,
                max_ghz=first.max_ghz,
                **self._facts[point.kind],
            )
