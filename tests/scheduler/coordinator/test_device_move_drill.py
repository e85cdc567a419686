"""The drill of unmodified OpenCL programs: moved and suspended while coordinators and supervisors die."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from agent.opencl_layer import build
from tenbin.client.futures import Job
from tenbin.errors import TenbinError
from tests.scheduler.coordinator.test_drill import FULL, SEED, supervisors
from tests.support.coordinator import Up
from tests.support.moving import PROGRAMS, TWO, layer

STEPS = (1500, 2000, 2500)
JOBS, BLOWS = (30, 100) if FULL else (4, 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", ["mctbm", "fcfs"])
def test_no_job_is_lost_wrong_or_run_twice(
    up: Up, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str
) -> None:
    """A job ends once, with the result of a run that nobody disturbs; a further attempt has its reason."""
    layer()
    build.build()
    monkeypatch.setenv("POCL_DEVICES", TWO)
    monkeypatch.setenv("PYOPENCL_NO_CACHE", "1")
    chance = random.Random(SEED)
    program = [sys.executable, str(PROGRAMS / "long.py")]
    alone = {
        steps: subprocess.run([*program, str(steps), "0"], capture_output=True, text=True, check=True).stdout
        for steps in STEPS
    }
    up.start("--devices", "--policy", policy)
    jobs, chosen, blows = [], [chance.choice(STEPS) for _ in range(JOBS)], Counter[str]()
    while sum(blows.values()) < BLOWS or len(jobs) < JOBS:
        going = [job for job in jobs if not job.done()]
        if len(going) < 2 and len(jobs) < JOBS:  # so that there is room to move, now and then
            command = [*program, str(chosen[len(jobs)]), "0.01"]
            jobs.append(up.client.submit(command, expect_s={"pocl-0": 5.0, "pocl-1": 9.0}))
        elif not going:
            break
        time.sleep(chance.uniform(0.0, 1.0))
        blows[strike(up, chance, going)] += 1
        if chance.random() < 0.2:
            up.kill()
            up.start("--devices", "--policy", policy)
            blows["kill"] += 1
    resume(jobs)
    moved = 0
    for job, steps in zip(jobs, chosen, strict=True):
        end = job.wait(300)
        lost = sum(event["what"] == "lost" for event in end["history"])
        assert end["stage"] == "done", (end["trouble"], end["history"])
        assert end["attempt"] == 1 + lost, end["history"]
        said = Path(end["stdout"]).read_text().splitlines(True)
        assert said[-1] == alone[steps].splitlines(True)[-1]
        assert sum(len(line) == 65 for line in said) == 1, said
        moved += sum(event["what"] == "parked" for event in end["history"])
    print(f"\ndrill {SEED} of {policy}: {dict(blows)}; parked {moved} times")


def strike(up: Up, chance: random.Random, going: list[Job]) -> str:
    """Move or suspend a job, let all go on, or kill a supervisor; what was done."""
    blow = chance.choice(("migrate", "migrate", "suspend", "suspend", "resume", "supervisor"))
    if blow == "supervisor":
        for _, pid in supervisors(up.home)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return blow
    if blow == "resume" or not going:
        resume(going)
        return "resume"
    job = chance.choice(going)
    try:
        if blow == "suspend":
            job.suspend()
        else:
            job.migrate("pocl-1" if job.info()["placement"] == "pocl-0" else "pocl-0")
    except TenbinError:  # it moves already, there is no room, or it has ended
        return f"no {blow}"
    return blow


def resume(jobs: list[Job]) -> None:
    """Let all jobs go on that are suspended."""
    for job in jobs:
        with suppress(TenbinError):
            job.resume()
