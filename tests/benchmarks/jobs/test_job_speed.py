"""Starts of jobs, one after the other and with a long queue, beside peers on the same jobs.

HyperQueue (pip install hyperqueue; ``TENBIN_HQ`` names a Python that has it) and task-spooler (apt: tsp) are
left out where they are not installed, with the reason. Systems take turns, so that what disturbs the machine
disturbs all of them. A peer keeps nothing on disk before it confirms a job; tenbin does.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.attempts.folder import Attempt
from tests.benchmarks import amount
from tests.benchmarks.jobs.job_systems import Bare, Commands, System, Tenbin, missing

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
JOBS, LATENCIES, QUEUED, IDLE_S, ROUNDS = amount(
    (2_000, 50, 10_000, 20.0, 3), (200, 15, 1_000, 5.0, 1), (20, 3, 50, 1.0, 1)
)
CORES = len(os.sched_getaffinity(0))


def stamp(file: Path) -> list[str]:
    """Return a job that writes the time of its start."""
    return ["sh", "-c", f"date +%s%N > {file}"]


def stamped(file: Path) -> float:
    return int(file.read_text()) / 1e9


@pytest.fixture
def systems(tmp_path: Path) -> Iterator[list[System]]:
    """All that can be had, each with one slot."""
    made: list[System] = []
    print()
    for kind, why in missing().items():
        if why:
            assert not os.environ.get("CI"), f"missing on CI: {kind.name}"
            print(f"BENCH {kind.name}: left out: {why}")
        else:
            made.append(kind(tmp_path / kind.__name__, 1))
    yield made
    for system in made:
        system.stop()


def test_start_latency(systems: list[System], tmp_path: Path) -> None:
    """From before the call that submits to the job's own first command, on an idle system."""
    took: dict[str, list[float]] = {system.name: [] for system in systems}
    for _ in range(LATENCIES):
        for system in systems:
            file = tmp_path / "stamp"
            began, _ = system.run([stamp(file)])
            took[system.name].append(1e3 * (stamped(file) - began))
            file.unlink()
    for name, found in took.items():
        median, p95 = statistics.median(found), sorted(found)[int(0.95 * len(found))]
        ratio = median / statistics.median(took[Bare.name])
        print(
            f"BENCH start latency, {name:14}: median {median:6.1f} ms, p95 {p95:6.1f} ms, "
            f"{ratio:5.1f} times the bare process, n {len(found)}"
        )


@pytest.mark.parametrize("slots", sorted({1, CORES}))
def test_short_jobs(slots: int, tmp_path: Path) -> None:
    """N times ``true``: until the last has started, which tells the time itself."""
    kinds = [kind for kind, why in missing().items() if not why]
    took: dict[str, list[tuple[float, float]]] = {kind.name: [] for kind in kinds}
    print()
    for turn in range(ROUNDS):
        for kind in kinds:
            system = kind(tmp_path / f"{kind.__name__}-{turn}", slots)
            try:
                commands: Commands = [["true"]] * (JOBS - 1)
                system.run([["true"]])
                began, submitting = system.run([*commands, stamp(system.folder / "stamp")])
                took[kind.name].append((stamped(system.folder / "stamp") - began, submitting))
            finally:
                system.stop()
    bare = statistics.median(total for total, _ in took[Bare.name])
    for name, found in took.items():
        total, submitting = (statistics.median(column) for column in zip(*found, strict=True))
        print(
            f"BENCH {JOBS} short jobs, {slots} at once, {name:14}: {total:7.2f} s, of it submitting "
            f"{submitting:6.2f} s; {1e3 * (total - bare) / JOBS:6.2f} ms each over the bare process, "
            f"{total / bare:5.2f} times, rounds {len(found)}"
        )


def test_a_long_queue_slows_nothing(tmp_path: Path) -> None:
    """Submit, list, and go from one job to the next: with a short queue, and a long one."""
    tenbin = Tenbin(tmp_path / "tenbin", 1)
    print()
    try:
        few = queue_times(tenbin, JOBS // 4)
        blocker = tenbin.submit([["sleep", "3600"]])
        began = time.perf_counter()
        for _ in range(QUEUED // 1000):
            tenbin.submit([["true"]] * 1000)
        print(f"BENCH {QUEUED} jobs queued in {time.perf_counter() - began:.2f} s")
        many = queue_times(tenbin, JOBS // 4, blocker)
    finally:
        tenbin.stop()
    for what in few:
        print(
            f"BENCH {what:45}: {few[what]:7.2f} ms with a short queue, {many[what]:7.2f} ms with "
            f"{QUEUED} queued, {many[what] / few[what]:5.2f} times"
        )


def queue_times(tenbin: Tenbin, jobs: int, blocker: int | None = None) -> dict[str, float]:
    """Milliseconds of submitting one job, listing 50, and of each job run; the queue as it is."""
    calls = {"submit, wall clock": 0.0, "jobs, wall clock": 0.0}
    hold = blocker or tenbin.submit([["sleep", "3600"]])
    if blocker is None:
        tenbin.submit([["true"]] * 50)  # as many as are listed
    time.sleep(1.0)  # what was submitted is tidied up
    cpu = tenbin.cpu_s()
    for _ in range(20):
        began = time.perf_counter()
        tenbin.submit([["true"]])
        calls["submit, wall clock"] += 1e3 * (time.perf_counter() - began) / 20
        began = time.perf_counter()
        tenbin.client.call("GET", "/jobs?limit=50")
        calls["jobs, wall clock"] += 1e3 * (time.perf_counter() - began) / 20
    calls["submit and jobs, coordinator's processor time"] = 1e3 * (tenbin.cpu_s() - cpu) / 20
    if blocker is None:
        tenbin.submit([["true"]] * jobs)
    first = len(ended(tenbin))
    cpu, began = tenbin.cpu_s(), time.perf_counter()
    tenbin.client.job(hold).cancel()
    tenbin.client.job(hold + jobs).wait()
    wall_s, cpu_s = time.perf_counter() - began, tenbin.cpu_s() - cpu
    count = len(ended(tenbin)) - first
    calls["a job run, wall clock"] = 1e3 * wall_s / count
    calls["a job run, coordinator's processor time"] = 1e3 * cpu_s / count
    return calls


def ended(tenbin: Tenbin) -> list[int]:
    """Jobs that have ended."""
    return [job["id"] for job in tenbin.client.call("GET", "/jobs?all=true") if job["end_s"] is not None]


def test_idle(tmp_path: Path) -> None:
    """CPU time of a coordinator with nothing to do, and of the supervisor of a job that does nothing."""
    tenbin = Tenbin(tmp_path / "tenbin", 1)
    print()
    try:
        tenbin.run([["true"]] * 100)
        cpu = tenbin.cpu_s()
        time.sleep(IDLE_S)
        share = 100 * (tenbin.cpu_s() - cpu) / IDLE_S
        print(
            f"BENCH idle coordinator: {share:.2f} % of a core over {IDLE_S:g} s, {tenbin.memory_mb():.0f} MB"
        )
        job = tenbin.submit([["sleep", "3600"]])
        attempt = Attempt(tmp_path / "tenbin" / "home" / "jobs" / str(job) / "attempt-1")
        while (state := attempt.state()) is None:
            time.sleep(0.01)
        supervisor = psutil.Process(state.supervisor_pid)
        time.sleep(2.0)
        before = schedstat_s(supervisor.pid)
        time.sleep(IDLE_S)
        share = 100 * (schedstat_s(supervisor.pid) - before) / IDLE_S
        private = supervisor.memory_full_info().uss / 1e6
        print(
            f"BENCH supervisor of a quiet job: {share:.3f} % of a core over {IDLE_S:g} s, "
            f"{private:.1f} MB of its own"
        )
    finally:
        tenbin.stop()


def schedstat_s(pid: int) -> float:
    """Processor time of a process of one thread, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def test_command_line(tmp_path: Path) -> None:
    """A user's wait at the prompt."""
    tenbin = Tenbin(tmp_path / "tenbin", 1)
    print()
    try:
        for words in (["--help"], ["submit", "--", "true"], ["jobs"], ["info", "last"]):
            took = []
            for _ in range(amount(5, 5, 1)):
                before = os.times()
                command = [sys.executable, "-P", "-c", "from tenbin.cli import main; main()", *words]
                environment = {**os.environ, "TENBIN_HOME": str(tmp_path / "tenbin" / "home")}
                subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
                after = os.times()
                took.append(after[2] + after[3] - before[2] - before[3])
            print(
                f"BENCH tenbin {' '.join(words):16}: {1e3 * statistics.median(took):.0f} ms of processor time"
            )
    finally:
        tenbin.stop()
