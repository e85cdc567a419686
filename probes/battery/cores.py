"""Slices of the cores: speed of vector arithmetic and the clock of each, while all compute at once."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probes.battery.slices import Reading, Slice
from probes.compute.kernels import ADD_TAKES_A_CYCLE, build
from probes.compute.pool import WorkerPool
from probes.run import Run
from probes.topology import read_topology

WINDOW_S = 0.015


@contextmanager
def slices(run: Run) -> Iterator[list[Slice]]:
    """Yield one slice, in which all cores compute at once, so that it takes no longer with many cores."""
    topology = read_topology(run.settings.sysfs, os.sched_getaffinity(0))
    cores = [cpu.index for cpu in topology.cores]
    with tempfile.TemporaryDirectory(prefix="tenbin-check-", ignore_cleanup_errors=True) as folder:
        library = build(Path(folder))
        with WorkerPool(library, clock=platform.machine() in ADD_TAKES_A_CYCLE) as pool:

            def take() -> Iterator[Reading]:
                rows, _ = pool.compute(cores, "vector", "double", seconds=WINDOW_S, halfway=lambda: None)
                for core, row in zip(cores, rows, strict=True):
                    labels, share = {"core": str(core)}, row.thread_cpu_s / row.wall_s
                    if row.flops and row.busy_s:
                        speed = row.flops / row.busy_s / 1e9
                        by_cpu = row.flops / row.thread_cpu_s / 1e9
                        yield Reading("compute_gflops", labels, speed, "GFLOP/s", share, by_cpu)
                    if row.adds and row.adds_s:
                        yield Reading("compute_clock_ghz", labels, row.adds / row.adds_s / 1e9, "GHz", share)

            list(take())  # starts the workers
            yield [Slice("vector arithmetic on every core", take)]
