"""Messages between two ranks beside the same patterns in C, in turns: the cost of Python in the probe."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probes.mpi.runner import MpiInstall, run_ranks
from probes.network_rank import WINDOW
from tests.benchmarks import amount, few
from tests.support.labs.components import require

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]
SIZES, ROUNDS, REPETITIONS = few([8, 64 << 10, 4 << 20]), *amount((5, 60), (5, 60), (1, 4))
OURS = """
import sys
import numpy as np
from mpi4py import MPI
from probes.network_rank import PATTERNS
size, repetitions = map(int, sys.argv[1:])
found = []
for pattern, batch in (("latency", 20), ("bandwidth", 1)):
    one = PATTERNS[pattern](MPI.COMM_WORLD, size)
    one.timed(size, 10, batch)
    found.append(float(np.median(one.timed(size, repetitions, batch))))
if MPI.COMM_WORLD.rank == 0:
    print(*found)
"""


def test_beside_c(mpi: MpiInstall, tmp_path: Path) -> None:
    compiler = shutil.which("mpicc", path=str(Path(mpi.launcher).parent)) or shutil.which("mpicc")
    require(compiler and shutil.which("cc"), "mpicc and a C compiler")
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    peer = tmp_path / "peer"
    source = Path(__file__).with_name("messages_peer.c")
    subprocess.run([str(compiler), "-O2", "-o", peer, source], check=True)
    cores = sorted(os.sched_getaffinity(0))[:2]
    programs = {"python": [sys.executable, "-P", "-m", "mpi4py", "-c", OURS], "c": [str(peer)]}
    print()
    for size in SIZES:
        took: dict[str, list[list[float]]] = {name: [] for name in programs}
        for turn in range(ROUNDS):
            for name in sorted(programs, reverse=bool(turn % 2)):
                took[name].append(run(mpi, [*programs[name], str(size), str(REPETITIONS)], cores))
        for place, what in enumerate(("latency", "bandwidth")):
            ours, theirs = (statistics.median(one[place] for one in took[name]) for name in ("python", "c"))
            print(
                f"BENCH messages of {size} B, {what}: {1e6 * ours:.3f} us, in C {1e6 * theirs:.3f} us, "
                f"{ours / theirs:.2f} times (n = {ROUNDS} x {REPETITIONS}, window {WINDOW})"
            )


def run(mpi: MpiInstall, program: list[str], cores: list[int]) -> list[float]:
    """Run two ranks and read the two medians that rank 0 prints."""
    lines: list[Any] = []
    run_ranks(mpi, program, 2, timeout_s=120, on_line=lines.append, cores=cores)
    return [float(word) for word in lines[-1].split()]
