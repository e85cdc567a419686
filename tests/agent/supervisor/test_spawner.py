"""Supervisors that run one plain job after the other: nothing of a job is left for the next."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.coordinator import Up

HUNGRY = "import time; held = b'x' * 200_000_000\nwhile time.process_time() < 0.5: pass"


def supervisor(up: Up, job: int) -> int:
    state = up.home / "jobs" / str(job) / "attempt-1" / "state.json"
    return int(json.loads(state.read_text())["supervisor_pid"])


def waiting(up: Up) -> list[psutil.Process]:
    assert up.process is not None
    (spawner,) = psutil.Process(up.process.pid).children()
    return spawner.children()


def test_few_supervisors_run_many_jobs(up: Up) -> None:
    up.start("--cores", "1")
    for job in range(1, 21):
        assert up.client.submit(["sleep", "0.05"]).result(20) == 0, job
    assert len({supervisor(up, job) for job in range(1, 21)}) <= 3


def test_what_one_job_used_is_not_told_of_the_next(up: Up) -> None:
    """Two that follow each other ran under the same supervisor, the hungry one first."""
    up.start("--cores", "1")
    ran = 0
    while ran < 3 or ran % 2 == 0 or supervisor(up, ran) != supervisor(up, ran - 1):
        assert ran < 40
        command = [sys.executable, "-c", HUNGRY] if ran % 2 else ["sleep", "0.05"]
        assert up.client.submit(command).result(20) == 0
        ran += 1
        time.sleep(0.1)  # the one that was at work last is the first to be taken again
    used = {n: up.client.job(n).info()["usage"] for n in range(1, ran + 1)}
    for job, usage in used.items():
        if job % 2:
            assert usage["user_s"] + usage["system_s"] < 0.3 and usage["peak_memory_mb"] < 150, job
        else:
            assert usage["user_s"] + usage["system_s"] > 0.4 and usage["peak_memory_mb"] > 190, job


def test_what_a_job_leaves_behind_ends_with_it(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    stray = f"setsid sh -c 'echo $$ >{tmp_path}/stray; exec sleep 100' &"
    wait = f"while ! [ -s {tmp_path}/stray ]; do :; done"
    assert up.client.submit(["sh", "-c", f"{stray} {wait}; cd /tmp"]).result(20) == 0
    assert up.client.submit(["sh", "-c", "pwd; umask"], folder=str(tmp_path)).result(20) == 0
    assert not psutil.pid_exists(int((tmp_path / "stray").read_text()))
    assert up.client.output(2).split() == [str(tmp_path).encode(), b"%04o" % umask()]


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_one_that_waits_ends_when_it_is_told_to(up: Up, number: int) -> None:
    up.start("--cores", "1")
    for _ in range(3):
        assert up.client.submit(["true"]).result(20) == 0
    told = waiting(up)
    for one in told:
        one.send_signal(number)
    assert told and not psutil.wait_procs(told, 20)[1]
    assert up.client.submit(["true"]).result(20) == 0


def test_a_limited_job_has_a_supervisor_of_its_own(up: Up) -> None:
    up.start("--cores", "1")
    assert up.client.submit(["true"], memory_mb=500).result(20) == 0
    first = supervisor(up, 1)
    up.until(lambda: not psutil.pid_exists(first))
    assert up.client.submit(["true"]).result(20) == 0
