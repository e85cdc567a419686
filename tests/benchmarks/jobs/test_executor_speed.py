"""Small functions by ``Executor.map``, beside the same processes on the same calls without tenbin."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import pytest

import tenbin
from tenbin.client.executor import CallFolder
from tests.benchmarks import amount
from tests.benchmarks.jobs.job_systems import Bare, Tenbin

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
CALLS, SLICES = amount((1_000, 10), (200, 4), (20, 2))
SLICE = CALLS // SLICES
CORES = len(os.sched_getaffinity(0))


def bare(folder: Path) -> float:
    """Run the processes of the calls, as many at once as there are cores; return the seconds."""
    calls = CallFolder(folder / "functions")
    function, began = calls.store(pow), time.perf_counter()
    made = [calls.call() for _ in range(SLICE)]
    for call in made:
        calls.write(call, [(2, 8)], function)
    Bare(folder / "bare", CORES).run([[*call.command, str(call.number)] for call in made])
    found = [call.outcome() for call in made]
    took = time.perf_counter() - began
    assert all(outcome is not None and outcome.value == [256] for outcome in found)
    calls.remove()
    return took


def mapped(executor: Executor, calls: int, chunksize: int = 1) -> float:
    """Call a function by ``executor.map``; return the seconds."""
    began = time.perf_counter()
    assert list(executor.map(pow, [2] * calls, [8] * calls, chunksize=chunksize)) == [256] * calls
    return time.perf_counter() - began


def children_cpu_s() -> float:
    return sum(os.times()[2:4])


def test_small_functions(tmp_path: Path) -> None:
    """Slices take turns, so that what disturbs the machine disturbs both."""
    alone_s: list[float] = []
    jobs_s: list[float] = []
    alone_cpu_s = cpu_s = 0.0
    system = Tenbin(tmp_path / "tenbin", CORES)
    try:
        with tenbin.Executor(client=system.client) as executor:
            mapped(executor, CORES)
            for turn in range(SLICES):
                (tmp_path / str(turn)).mkdir()
                before_s = children_cpu_s()
                alone_s.append(bare(tmp_path / str(turn)))
                alone_cpu_s += children_cpu_s() - before_s
                before_s = system.cpu_s() + time.process_time()
                jobs_s.append(mapped(executor, SLICE))
                cpu_s += system.cpu_s() + time.process_time() - before_s
            whole_s = mapped(executor, CALLS)
            chunks_s = mapped(executor, CALLS, chunksize=CALLS // 20)
    finally:
        system.stop()
    with ProcessPoolExecutor(CORES) as pool:
        pool_s = mapped(pool, CALLS)
    ratios = [ours / bare for ours, bare in zip(jobs_s, alone_s, strict=True)]
    print(
        f"\nBENCH {CALLS} functions, {CORES} cores, in {SLICES} slices: the processes alone "
        f"{sum(alone_s):.2f} s, tenbin.Executor {sum(jobs_s):.2f} s, {sum(jobs_s) / sum(alone_s):.2f} times "
        f"(median of the slices {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f})\n"
        f"BENCH processor time of each: the process {1e3 * alone_cpu_s / CALLS:.1f} ms; beside it, under "
        f"tenbin, the coordinator and this process {1e3 * cpu_s / CALLS:.1f} ms (supervisors not counted)\n"
        f"BENCH all at once {whole_s:.2f} s; in 20 chunks {chunks_s:.2f} s; "
        f"ProcessPoolExecutor {pool_s:.2f} s"
    )
