"""Samples of what jobs use, against work whose use is known."""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.processes import samples, tree
from agent.processes.samples import Sample, Sampler
from tests.agent.supervisor.test_supervisor import Start, start
from tests.support.coordinator import Up
from tests.support.waiting import until

__all__ = ["start"]


def test_a_tree_that_burns_allocates_writes_and_forks(start: Start, tmp_path: Path) -> None:
    """Three processes, one of them gone half-way, five threads, 20 MB to disk, 1.5 s of processor time."""
    job = """
import os, threading, time
def burn(seconds):
    while time.process_time() < seconds: pass
if os.fork() == 0:
    burn(0.5)
    with open("written", "wb") as file:
        file.write(bytes(20_000_000)); os.fsync(file.fileno())
    os._exit(0)
os.wait()
if os.fork() == 0:
    time.sleep(60)
x = bytearray(100_000_000)
for _ in range(4): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
burn(1.0)
time.sleep(1.2)
os._exit(0)
"""
    one = start(sys.executable, "-c", job)
    result = one.result(60)
    rows = samples.read(one.attempt.samples)
    last = rows[-1]
    assert 1.4 < last.cpu_s < 2.5
    assert result.usage.written_mb == pytest.approx(last.written_mb) and 20 <= last.written_mb < 25
    assert 100 < max(row.memory_mb for row in rows) < 250
    assert result.usage.peak_memory_mb >= max(row.memory_mb for row in rows)
    assert max(row.processes for row in rows) == 2 and max(row.threads for row in rows) == 6
    assert all(row.energy_j is None for row in rows)
    for before, row in pairwise(rows):
        assert row.at_s > before.at_s and row.cpu_s >= before.cpu_s and row.written_mb >= before.written_mb


def test_a_short_job_has_no_samples(start: Start) -> None:
    one = start("true")
    assert one.result().how == "exited" and not one.attempt.samples.exists()


def test_a_paused_job_is_left_alone(start: Start) -> None:
    one = start("sleep", "60")
    one.until("started")
    until(lambda: one.attempt.samples.exists() and samples.read(one.attempt.samples))
    one.ask(1, "pause")
    before = samples.read(one.attempt.samples)
    time.sleep(1.5)
    assert samples.read(one.attempt.samples) == before
    one.ask(2, "end")
    one.result()


def test_the_file_is_bounded_and_keeps_the_extremes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 looks in a file of at most 16 rows: times rise, the highest memory is still in it."""
    monkeypatch.setattr(samples, "MOST_ROWS", 16)
    monkeypatch.setattr(samples, "FIRST_S", 0.0)
    monkeypatch.setattr(samples, "LATER_S", 0.001)
    seen: list[Sample] = []

    def look(root: int, reaped: tree.Reaped, energy_j: float | None) -> Sample:
        number = len(seen)
        seen.append(Sample(1e9 + number, number, (number * 7919) % 1009, 0, 2 * number, 1, 1, energy_j))
        return seen[-1]

    monkeypatch.setattr(samples, "look", look)
    now = [0.0]
    monkeypatch.setattr(samples, "time", SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: 0.0))
    sampler = Sampler(tmp_path / "s.csv", os.getpid(), tree.Reaped(), meter=lambda: 3.0 * len(seen))
    while len(seen) < 300:
        now[0] = sampler.due
        sampler.look()
    sampler.end()
    rows = samples.read(tmp_path / "s.csv")
    assert 8 <= len(rows) <= 16 and sampler.rows == len(rows)
    assert rows[-1] == seen[-1]._replace(memory_mb=rows[-1].memory_mb)
    assert [row.at_s for row in rows] == sorted({row.at_s for row in rows})
    assert max(row.memory_mb for row in rows) == max(row.memory_mb for row in seen) == sampler.peak_mb
    gaps = [after.at_s - before.at_s for before, after in pairwise(rows[:-1])]
    assert max(gaps) < 300 / 4 and rows[1].energy_j is not None


def test_half_a_line_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    whole = Sample(1.5, 2.0, 3.0, 4.0, 5.0, 6, 7, None)
    sampler_line = "at_s,cpu_s,memory_mb,read_mb,written_mb,processes,threads,energy_j\n1.5,2,3,4,5,6,7,\n"
    for cut in ("", "2.5", "2.5,3,4,5,6,7,8", "2.5,3,4,5,6,7,8,9", "x,y\n", "\0\0\0\n"):
        file.write_text(sampler_line + cut)
        assert samples.read(file) == [whole]
    assert samples.read(tmp_path / "none.csv") == []


def test_users_see_them(up: Up) -> None:
    up.start("--cores", "1")
    burn = "import time\nwhile time.process_time() < 1.5: pass"
    job = up.client.submit([sys.executable, "-c", burn], memory_mb=200)
    assert job.result(60) == 0
    found = json.loads(up.run("info", "last", "--samples", "--json").stdout)
    rows = found["samples"]
    assert rows == job.samples() and rows[-1]["cpu_s"] == pytest.approx(1.5, abs=0.4)
    assert found["memory_limit_by"] in ("cgroup v1", "cgroup v2", "looking")
    shown = up.run("info", "last", "--samples").stdout
    assert "memory limit held by the" in shown and "processes" in shown and "MB/s" in shown
    up.client.submit(["true"]).wait(20)
    assert "no samples" in up.run("info", "last", "-s").stdout
    assert up.run("info", "99", "--samples").returncode == 2


def test_the_memory_of_a_job_is_its_own(up: Up) -> None:
    """Not that of its supervisor, which both share until the command begins; ``sleep`` needs 1 to 2 MB."""
    up.start("--cores", "1")
    sleeps = up.client.submit(["sleep", "600"])
    up.until(sleeps.samples)
    sleeps.cancel()
    assert 0.5 < sleeps.wait(60)["usage"]["peak_memory_mb"] < 5
    large = "import os; x = bytearray(60_000_000); os._exit(0)"
    found = up.client.submit([sys.executable, "-S", "-c", large]).wait(60)
    assert 60 < found["usage"]["peak_memory_mb"] < 90
    short = up.client.submit(["true"]).wait(60)["usage"]["peak_memory_mb"]
    assert short < 5  # 0: it had ended before anybody looked
    assert short or "too short to see its memory" in up.run("info", "last").stdout
    assert " MB at most" in up.run("info", "1").stdout
