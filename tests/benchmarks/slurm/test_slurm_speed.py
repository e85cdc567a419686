"""The price of steering Slurm by tenbin, beside plain ``sbatch`` on the same cluster (the tests' lab).

The two take turns. A start waits for slurmctld's own loop (of a second in 22.05) most of the time, so
submissions come at random moments, those of a pair at the same one of that second, and means are compared.
Jobs of ``--file`` come by one call, as those of an array do; ``sbatch`` is called once for each.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.benchmarks import amount
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
STARTS, SHORT, ROUNDS, QUEUED, IDLE_S = amount(
    (40, 200, 3, 1_000, 180.0), (3, 24, 1, 100, 10.0), (2, 4, 1, 30, 1.0)
)
TOOLS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun")


@pytest.fixture
def counted(tmp_path: Path, lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each call of Slurm's tools by the coordinator is a line in this file: they are scripts before them."""
    before, log = tmp_path / "bin", tmp_path / "calls"
    before.mkdir()
    log.touch()
    for tool in TOOLS:
        script = f'#!/bin/sh\necho {tool} >>{log}\nexec {shutil.which(tool)} "$@"\n'
        (before / tool).write_text(script)
        (before / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{before}:{os.environ['PATH']}")
    return log


@pytest.fixture
def up(lab: SlurmLab, tmp_path: Path) -> Iterator[Up]:
    one = Up(tmp_path / "home")
    yield one
    one.sweep()


def stamp(file: Path) -> str:
    """For a shell: write when it began, whole or not at all."""
    return f"date +%s%N >{file}.new; mv {file}.new {file}"


def stamped(folder: Path, count: int) -> float:
    """When the last of so many began; the stamps are gone then."""
    while len(found := [one for one in folder.iterdir() if one.suffix != ".new"]) < count:
        time.sleep(0.01)
    last = max(int(one.read_text()) for one in found) / 1e9
    for one in found:
        one.unlink()
    return last


def sbatch(script: str) -> None:
    words = ["sbatch", "--parsable", "--ntasks=1", "--output=/dev/null", "--wrap", script]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def by_sbatch(stamps: list[Path]) -> None:
    for file in stamps:
        sbatch(stamp(file))


def by_tenbin(up: Up) -> Callable[[list[Path]], None]:
    def submit(stamps: list[Path]) -> None:
        specs = [{"command": ["sh", "-c", stamp(file)], "folder": "/"} for file in stamps]
        up.client.submit_all(specs)

    return submit


def moments(count: int) -> list[float]:
    """Parts of a second, random, and spread over all of it."""
    chance = random.Random(1)
    found = [(number + chance.random()) / count for number in range(count)]
    chance.shuffle(found)
    return found


def sleep_until(part: float) -> None:
    """For a second or two, until so much of one has passed."""
    time.sleep(1.0 + (part - time.time()) % 1.0)


def until_empty(lab: SlurmLab) -> None:
    while lab.call("squeue", "--noheader").strip():
        time.sleep(0.05)


def took(
    lab: SlurmLab, folder: Path, submit: Callable[[list[Path]], None], count: int
) -> tuple[float, float]:
    """From the first submission to the last job's first command; and until Slurm knows them to have ended."""
    began = time.time()
    submit([folder / str(number) for number in range(count)])
    started = stamped(folder, count) - began
    until_empty(lab)
    return started, time.time() - began


def test_submit_to_start(lab: SlurmLab, up: Up, tmp_path: Path) -> None:
    up.start("--engine", "slurm", "--unit", "1", "--policy", "fcfs")
    folder = tmp_path / "stamps"
    folder.mkdir()
    systems = {"sbatch": by_sbatch, "tenbin": by_tenbin(up)}
    found: dict[str, list[float]] = {name: [] for name in systems}
    for moment in moments(STARTS):
        for name, submit in systems.items():
            sleep_until(moment)  # wherever slurmctld's loop is
            found[name].append(took(lab, folder, submit, 1)[0])
    print()
    plain = statistics.mean(found["sbatch"])
    for name, each in found.items():
        print(
            f"BENCH Slurm, submit to start, {name}: mean {statistics.mean(each):.3f} s, "
            f"{statistics.mean(each) / plain:.2f} times sbatch, median {statistics.median(each):.3f} s, "
            f"n {len(each)}"
        )
    more = [1e3 * (one - other) for one, other in zip(found["tenbin"], found["sbatch"], strict=True)]
    low, middle, high = statistics.quantiles(more, n=4)
    print(f"BENCH Slurm, submit to start, of pairs: tenbin {middle:.0f} ms later ({low:.0f} to {high:.0f})")


def test_short_jobs(lab: SlurmLab, up: Up, tmp_path: Path) -> None:
    up.start("--engine", "slurm", "--unit", "1", "--policy", "fcfs")
    folder = tmp_path / "stamps"
    folder.mkdir()
    systems = {"sbatch": by_sbatch, "tenbin": by_tenbin(up)}
    found: dict[str, list[float]] = {name: [] for name in systems}
    print()
    for turn in range(ROUNDS):
        for name, submit in systems.items():
            started, ended = took(lab, folder, submit, SHORT)
            found[name].append(SHORT / ended)
            print(f"  round {turn}, {name}: last start after {started:.2f} s, all ended after {ended:.2f} s")
    for name, each in found.items():
        ratio = statistics.median(each) / statistics.median(found["sbatch"])
        print(
            f"BENCH Slurm, {SHORT} short jobs, {name}: {statistics.median(each):.1f} jobs/s, "
            f"{ratio:.2f} of plain Slurm's rate, rounds {len(each)}"
        )


def test_a_long_queue(lab: SlurmLab, up: Up, counted: Path, tmp_path: Path) -> None:
    """Queued jobs cost nothing in Slurm: they wait here, and only what starts is submitted there."""
    up.start("--engine", "slurm", "--unit", "1", "--policy", "easy")
    cores = lab.cpus * len(lab.nodes)
    (hold,) = up.client.submit_all([{"command": ["sleep", "3600"], "folder": "/", "tasks": cores}])
    up.until(lambda: hold.info()["stage"] == "running")
    cpu, began = cpu_s(up), time.perf_counter()
    jobs = up.client.submit_all([{"command": ["true"], "folder": "/", "time_s": 60} for _ in range(QUEUED)])
    print(
        f"\nBENCH Slurm, {QUEUED} jobs queued: {time.perf_counter() - began:.2f} s to submit, {_cpu(up, cpu)}"
    )
    cpu, began = cpu_s(up), time.perf_counter()
    for _ in range(10):
        up.client.call("GET", "/jobs?limit=50")
    each_ms = 100 * (time.perf_counter() - began)
    print(f"BENCH Slurm, {QUEUED} jobs queued: the first 50 listed in {each_ms:.1f} ms, {_cpu(up, cpu, 10)}")
    calls = counted.read_text().count("\n")
    cpu, began = cpu_s(up), time.perf_counter()
    hold.cancel()
    ran = 4 * cores
    jobs[ran - 1].wait(600)
    took_s, calls = time.perf_counter() - began, counted.read_text().count("\n") - calls
    print(
        f"BENCH Slurm, {QUEUED} jobs queued: {1e3 * took_s / ran:.0f} ms a job run, {calls / ran:.1f} Slurm "
        f"calls, {_cpu(up, cpu, ran)}"
    )


def test_idle(lab: SlurmLab, up: Up, counted: Path) -> None:
    up.start("--engine", "slurm", "--policy", "easy")
    for what in ("idle", "one quiet job"):
        if what != "idle":
            job = up.client.submit(["sleep", "3600"])
            up.until(lambda job=job: job.info()["stage"] == "running")  # type: ignore[misc]
            time.sleep(3.0)
        calls, cpu = counted.read_text().splitlines(), cpu_s(up)
        time.sleep(IDLE_S)
        made = counted.read_text().splitlines()[len(calls) :]
        share = 100 * (cpu_s(up) - cpu) / IDLE_S
        print(
            f"\nBENCH Slurm, {what}: {60 * len(made) / IDLE_S:.1f} Slurm calls a minute, "
            f"{share:.2f} % of a core with them, over {IDLE_S:g} s"
        )
    job.cancel()
    job.wait(60)


def cpu_s(up: Up) -> float:
    """Processor time of the coordinator, with that of the tools it has called."""
    assert up.process is not None
    return sum(psutil.Process(up.process.pid).cpu_times()[:4])


def _cpu(up: Up, before: float, count: int = 1) -> str:
    each = "" if count == 1 else " each"
    return f"{1e3 * (cpu_s(up) - before) / count:.1f} ms of processor time{each}"
