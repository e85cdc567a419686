"""The streams against likwid-bench's loops in assembly, interleaved in one run.

Both have arrays of the same size, the same core and the same count of bytes. likwid-bench has no scale and no
add as STREAM has them; its ``stream`` is the triad.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from probes.memory_plan import CHUNK
from probes.streams import Library, PinnedThreads
from probes.topology import free_memory_mb, read_topology
from tests.benchmarks import amount
from tests.support.labs.components import require

PEERS = {
    "read": ("load", 1),
    "write": ("store", 1),
    "write_nt": ("store_mem", 1),
    "copy": ("copy", 2),
    "triad": ("stream", 3),
}
REPETITIONS = amount(7, 7, 1)
ARRAY_MB = amount(512, 512, 64)
SECONDS = amount(0.3, 0.3, 0.05)
PASSES = 3


def likwid(kernel: str, arrays: int, core: int, mb: int) -> float:
    """Run a kernel of likwid-bench over so many arrays of ``mb`` MB on one core; return GB/s."""
    work = f"S0:{arrays * mb}MB:1"
    command = ["likwid-bench", "-t", kernel, "-i", str(PASSES), "-w", work]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    match = re.search(r"MByte/s:\s+([\d.]+)", done.stdout)
    require(match, f"likwid-bench that knows this processor: {done.stdout[-200:]}{done.stderr[-200:]}")
    assert match is not None
    return float(match[1]) / 1e3


@pytest.mark.benchmark
@pytest.mark.timeout(900)
def test_the_streams_are_as_fast_as_assembly() -> None:
    require(shutil.which("likwid-bench"), "likwid-bench: apt-get install likwid")
    require(shutil.which("gcc"), "gcc")
    flags = Path("/proc/cpuinfo").read_text().split()
    require("avx" in flags, "a processor with AVX")
    variant = "avx512" if "avx512f" in flags else "avx"
    allowed = os.sched_getaffinity(0)
    topology = read_topology(Path("/sys"), allowed)
    first = topology.cores[0]
    require(first.index == 0, "the first core of socket 0, where likwid-bench runs")
    room_mb = free_memory_mb(Path("/sys"), Path("/proc"))
    require(room_mb > 7 * ARRAY_MB, "memory for six arrays")
    ours: dict[str, list[float]] = {name: [] for name in PEERS}
    ratios: dict[str, list[float]] = {name: [] for name in PEERS}
    elements = ARRAY_MB * 2**20 // 8 // CHUNK * CHUNK
    with PinnedThreads(Library(), [first]) as threads:
        threads.prepare({first.node: elements}, within_s=300.0)
        for repetition in range(REPETITIONS):
            for name, (peer, arrays) in PEERS.items():
                theirs_first = repetition % 2 == 0  # in turn, so that neither always follows the other
                if theirs_first:
                    theirs = likwid(f"{peer}_{variant}", arrays, first.index, ARRAY_MB)
                threads.stream(name, [first], SECONDS / 10)  # uncounted: wakes the core up
                [row], _ = threads.stream(name, [first], SECONDS)
                if not theirs_first:
                    theirs = likwid(f"{peer}_{variant}", arrays, first.index, ARRAY_MB)
                ours[name].append(row.bytes / row.wall_s / 1e9)
                ratios[name].append(ours[name][-1] / theirs)
    for name, values in ratios.items():
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        best = max(ours[name]) / max(o / r for o, r in zip(ours[name], values, strict=True))
        print(
            f"BENCH {name}/likwid {PEERS[name][0]}_{variant} ratio {middle:.2f} (median of {len(values)}, "
            f"quartiles {low:.2f}-{high:.2f}; best of each {best:.2f}; "
            f"ours {np.median(ours[name]):.1f} GB/s, arrays of {ARRAY_MB} MB)"
        )
