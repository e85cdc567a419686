"""The drill of unmodified OpenCL programs: parked and moved while coordinators and supervisors die.

Under the mct family and ``las`` the policy parks and moves them, under ``fcfs`` their owner does.
"""

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
from tenbin.client.client import Job
from tenbin.errors import TenbinError
from tests.scheduler.coordinator.drills.test_drill import FULL, SEED, supervisors
from tests.support.amounts import sweep
from tests.support.coordinator import Up
from tests.support.moving import PROGRAMS, TWO, layer

STEPS = (150, 250, 350)
LAS = "las-mq,spare-s=1,first-s=1"
# How often jobs are parked or moved, before no more are submitted.
LEAST = {"fcfs": 4, "mctm": 4, "mctbm": 4, LAS: 10} if FULL else {"fcfs": 2, LAS: 4}
MOVES_BY_OWNER = ("migrate", "migrate", "suspend", "suspend", "resume", "supervisor", "coordinator")
MOVES_BY_POLICY = (*["nothing"] * (5 if FULL else 0), "suspend", "resume", "supervisor", "coordinator")


@pytest.mark.timeout(1800 if FULL else 300)
@pytest.mark.parametrize("policy", sweep(LEAST, {LAS}))
def test_no_job_is_lost_wrong_or_run_twice(up: Up, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
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
    jobs, chosen, blows = list[Job](), list[int](), Counter[str]()
    most = 2 if policy == "fcfs" else 4  # at a time; its owner moves a job only where there is room
    while (more := parks(jobs) < LEAST[policy] * (4 if FULL else 1)) or not all(job.done() for job in jobs):
        going = [job for job in jobs if not job.done()]
        while more and len(going) < most:
            chosen.append(chance.choice(STEPS))
            # The second device is believed to be far slower, so that it is worth while to move to the first.
            expected = {"pocl-0": 2.0 + 0.012 * chosen[-1], "pocl-1": 6.0 + 0.036 * chosen[-1]}
            going.append(up.client.submit([*program, str(chosen[-1]), "0.01"], expect_s=expected))
            jobs.append(going[-1])
        time.sleep(chance.uniform(0.5, 1.5))
        if more:
            blow = chance.choice(MOVES_BY_OWNER if policy == "fcfs" else MOVES_BY_POLICY)
            blows[strike(up, chance, going, policy, blow=blow)] += 1
        else:
            resume(going)
    happened, refused = Counter[str](), Counter[str]()
    for job, steps in zip(jobs, chosen, strict=True):
        end = job.wait(10)
        own = Counter(event["what"] for event in end["history"])
        assert end["stage"] == "done", (end["trouble"], end["history"])
        assert end["attempt"] == 1 + own["lost"], end["history"]
        said = Path(end["stdout"]).read_text().splitlines(True)
        assert {line for line in said if line != "began\n"} == {alone[steps].splitlines(True)[-1]}
        # Whose supervisor is killed between the result and the end has to run again.
        assert len(said) <= 2 * (1 + own["lost"]) and (own["lost"] or len(said) == 2), said
        happened += own + Counter({"moved to another device": end["migrations"]})
        refused += Counter(event["detail"] for event in end["history"] if event["what"].startswith("not "))
    assert not [detail for detail in refused if detail.endswith(": ")], refused  # each has its reason
    print(f"\ndrill {SEED} of {policy}: {len(jobs)} jobs; {dict(blows)}; {dict(happened)}; {dict(refused)}")


def parks(jobs: list[Job]) -> int:
    """Count how often jobs were parked, or moved while they ran."""
    return sum(event["what"] in ("parked", "moved") for job in jobs for event in job.info()["history"])


def strike(up: Up, chance: random.Random, going: list[Job], policy: str, *, blow: str) -> str:
    """Move or suspend a job, let all go on, or kill a supervisor or the coordinator; what was done."""
    if blow == "coordinator":
        up.kill()
        up.start("--devices", "--policy", policy)
    elif blow == "supervisor":
        for _, pid in supervisors(up.home)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    elif blow == "resume":
        resume(going)
    elif blow != "nothing" and going:
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
