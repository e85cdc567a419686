"""The vector loop against likwid-bench's, interleaved in one run; matrix products beside them.

likwid-bench (``apt-get install likwid``) has assembler loops that load each number once; all run on one core.
Where the additions of the chain take a cycle, speed by clock is operations a cycle: a fact of the processor.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from probes.c_library import find_compiler
from probes.compute import WorkerPool
from probes.compute_worker import Kernels, build
from tests.benchmarks import amount
from tests.support.labs.components import require

ROUNDS, SECONDS = amount((5, 0.3), (5, 0.3), (2, 0.02))
SIZE = "16kB"  # in the first-level cache
LOOPS = {512: "avx512_fma", 256: "avx_fma", 128: "sse"}  # by the bits of a vector
PREFIX = {"double": "peakflops_", "single": "peakflops_sp_"}


def likwid_gflops(test: str, core: int) -> float:
    """Run one of likwid-bench's loops, pinned to ``core``."""
    command = ["taskset", "-c", str(core), "likwid-bench", "-t", test, "-i", "200000", "-W", f"N:{SIZE}:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = re.search(r"MFlops/s:\s+([\d.]+)", done.stdout)
    require(said, f"likwid-bench -t {test} that runs here: {(done.stderr or done.stdout)[-200:]}")
    assert said is not None
    return float(said[1]) / 1000


@pytest.mark.benchmark
@pytest.mark.parametrize("precision", PREFIX)
def test_the_vector_loop_reaches_what_likwid_reaches(precision: str, tmp_path: Path) -> None:
    require(shutil.which("likwid-bench"), "likwid-bench: apt-get install likwid")
    require(find_compiler(), "a C compiler")
    library = build(tmp_path)
    kernels = Kernels(library)
    require(kernels.fused or kernels.vector_bits == 128, "a loop of likwid-bench for these vectors")
    test = PREFIX[precision] + LOOPS[kernels.vector_bits]
    core = min(os.sched_getaffinity(0))
    ours, theirs, blas, cycles = [], [], [], []
    with WorkerPool(library, clock=True) as pool:
        for _ in range(ROUNDS):
            theirs.append(likwid_gflops(test, core))
            for kind, speeds in (("vector", ours), ("blas", blas)):
                [row], _ = pool.compute([core], kind, precision, seconds=SECONDS, halfway=lambda: None)
                assert row.flops and row.busy_s and row.adds and row.adds_s
                speeds.append(row.flops / row.busy_s / 1e9)
                if kind == "vector":
                    cycles.append(speeds[-1] / (row.adds / row.adds_s / 1e9))
    ratios = np.array(ours) / np.array(theirs)
    print(
        f"BENCH vector loop/{test} ratio {np.median(ratios):.2f} (median of {ROUNDS}, {ratios.min():.2f}-"
        f"{ratios.max():.2f}; likwid {np.median(theirs):.1f}, vector loop {np.median(ours):.1f}, matrix "
        f"products {np.median(blas):.1f} GFLOP/s {precision}; {np.median(cycles):.1f} operations a cycle)"
    )
