"""Speed-up of the built-in loads over 1..n cores (strong scaling: the same problem shared by more ranks).

One start of mpiexec runs every load several times; starts with different numbers of ranks alternate in random
order, so that a slow minute of the machine does not fall on one count only. Rank i is bound to the i-th
physical core, in the order of NUMA node, socket, shared cache.

Samples: load, size (NPB's class), cores, start (number of the mpiexec), repetition, run_s (the kernel, by the
slowest rank), verified, verification, mops.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field

from probes.loads import LOADS, most_ranks, sizes
from probes.loads.__main__ import LAUNCHED
from probes.mpi.runner import MpiInstall, RanksFailed, find_mpi, run_ranks
from probes.run import Run
from probes.topology import read_topology
from probes.visits import Point, Visits
from profiles.errors import Unavailable

# A fraction of a second on one core of today; the same sizes on every node, so that nodes can be compared.
SMALL = {"ep": "S", "cg": "W", "ft": "W", "mg": "W", "lu": "S"}
LARGE = {"ep": "W", "cg": "A", "ft": "128", "mg": "W", "lu": "128"}
SMALL_CORES = 16
CURVE = "speed-up over cores"
START_S = 5.0  # that one start should get at least, where there are to be two on each count
LAUNCH_S = 0.5


def measure(run: Run) -> None:
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
    sweeps = min(max(int(run.left_s() / (len(counts) * START_S)), 1), 2)
    starts = _Starts(run, mpi, cores, chosen_sizes(counts[-1]), run.left_s() / (len(counts) * sweeps))
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
class _Starts:
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
        least = 2 if self.share_s >= START_S else 1
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
