"""memprobe's writer against the same loop in C, interleaved in one run.

Both have the same area, stride, pages and core, and begin after the same pause and a warm-up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from probes.memory import WriterPool
from probes.memory_plan import Spot, choose_area
from probes.topology import free_memory_mb, read_topology
from tests.benchmarks import amount
from tests.support.labs.components import require

REPETITIONS, SECONDS = amount((15, 0.1), (15, 0.1), (2, 0.02))
PAUSE_S = 0.013  # what a pool leaves between the order and the start


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, float]]:
    """Start the C program, pinned and with its area touched; yield it, its CPU and the area's size in MB."""
    require(shutil.which("gcc"), "gcc")
    allowed = os.sched_getaffinity(0)
    area_mb, _ = choose_area(
        read_topology(Path("/sys"), allowed), free_memory_mb(Path("/sys"), Path("/proc")) / 4
    )
    require(area_mb, "memory for two areas of several times the last-level cache")
    area_mb = 2 * (area_mb // 2)  # whole huge pages
    program = tmp_path / "memory_peer"
    source = Path(__file__).with_name("memory_peer.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-o", program, source], check=True)
    core = max(allowed)
    command = [str(program), str(core), str(int(area_mb * 2**20))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process, core, area_mb
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.benchmark
def test_the_writer_is_as_fast_as_c(peer: tuple[subprocess.Popen[str], int, float]) -> None:
    process, core, area_mb = peer
    assert process.stdin is not None and process.stdout is not None
    passes = 4
    ratios: dict[str, list[float]] = {"wall": [], "thread": []}
    speeds = []
    with WriterPool(area_mb) as pool:
        for _ in range(REPETITIONS):
            time.sleep(PAUSE_S)
            print(passes, file=process.stdin, flush=True)
            wall_s, cpu_s, n_bytes, right = (float(x) for x in process.stdout.readline().split())
            [ours], _ = pool.write([Spot(core, 0, core)], SECONDS)
            assert right == 1
            if not ours.bytes:
                continue  # it was kept from the processor for all of its window
            ratios["wall"].append(ours.bytes / ours.wall_s / (n_bytes / wall_s))
            ratios["thread"].append(ours.bytes / ours.thread_cpu_s / (n_bytes / cpu_s))
            speeds.append(n_bytes / wall_s / 1e9)
            passes = max(round(passes * SECONDS / wall_s), 1)  # windows of like length
    assert 2 * len(speeds) >= REPETITIONS
    for clock, values in ratios.items():
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        print(
            f"BENCH memprobe/C {clock} ratio {middle:.2f} (median of {len(values)}, "
            f"quartiles {low:.2f}-{high:.2f}, C {np.median(speeds):.1f} GB/s, area {area_mb:.0f} MB)"
        )
