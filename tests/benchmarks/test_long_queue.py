"""The coordinator's time with a long queue: a name for each job, one name for all, and an array."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from tests.benchmarks import FULL
from tests.benchmarks.job_systems import Tenbin

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
QUEUED, ENDS, ROUNDS, ARRAY = (10_000, 2_000, 3, 100_000) if FULL else (2_000, 300, 1, 20_000)


def test_names_of_their_own(tmp_path: Path) -> None:
    """Processor time of each end, no run time said: with names of their own against one name, in turns."""
    took: dict[str, list[float]] = {"own": [], "one": []}
    slowest: dict[str, float] = {"own": 0.0, "one": 0.0}
    print()
    for turn in range(ROUNDS):
        for kind in ("own", "one") if turn % 2 else ("one", "own"):
            tenbin = Tenbin(tmp_path / f"{kind}-{turn}", 2)
            try:
                names = (f"n{n}" if kind == "own" else "n" for n in range(QUEUED))
                specs = [{"command": ["true"], "folder": "/", "name": name} for name in names]
                tenbin.client.submit_all(specs)
                cpu, first, _ = tenbin.cpu_s(), *left(tenbin)
                now = first
                while first - now < ENDS:
                    time.sleep(0.5)
                    now, answer_s = left(tenbin)
                    slowest[kind] = max(slowest[kind], answer_s)
                took[kind].append(1e3 * (tenbin.cpu_s() - cpu) / (first - now))
            finally:
                tenbin.stop()
    own, one = (statistics.median(took[kind]) for kind in ("own", "one"))
    print(
        f"BENCH an end with {QUEUED} queued: names of their own {own:.2f} ms of processor time, one name "
        f"{one:.2f} ms, {own / one:.2f} times; slowest answer {slowest['own']:.2f} s, {slowest['one']:.2f} s"
    )


def left(tenbin: Tenbin) -> tuple[int, float]:
    """Jobs that have not ended; seconds of the answer."""
    began = time.perf_counter()
    jobs = tenbin.client.call("GET", "/status")["jobs"]
    return sum(jobs.values()), time.perf_counter() - began


def test_an_array(tmp_path: Path) -> None:
    """From the call until all of it is safe: an array, and as many jobs with names of their own."""
    print()
    for kind in ("array", "specs of their own"):
        tenbin = Tenbin(tmp_path / kind, 1)
        try:
            spec = {"command": ["true"], "folder": "/"}
            specs = [
                {**spec, "array_index": n, "name": "" if kind == "array" else f"n{n}"} for n in range(ARRAY)
            ]
            cpu, began = tenbin.cpu_s(), time.perf_counter()
            tenbin.client.submit_all(specs)
            wall_s, cpu_s = time.perf_counter() - began, tenbin.cpu_s() - cpu
            print(f"BENCH {ARRAY} jobs, {kind}: {wall_s:.2f} s, coordinator's processor time {cpu_s:.2f} s")
        finally:
            tenbin.process.kill()
            tenbin.process.wait()
