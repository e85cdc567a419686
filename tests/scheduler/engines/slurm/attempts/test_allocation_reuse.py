"""A short job's place in Slurm goes to the next of the same size; each runs once, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.attempts.folder import Attempt
from agent.attempts.records import Order, Request
from agent.processes import tree
from agent.supervisor import allocation_reuse, batch_process
from scheduler.engines.slurm.attempt_step import SlurmAttempt
from scheduler.engines.slurm.batch_jobs import follows
from scheduler.engines.slurm.slurm_commands import Batch
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab
from tests.support.waiting import until

LIMIT_S = 60.0
BATCH = Batch("script", "", "tenbin:x:1:1", "main", ("node1",), 1, 1, 100.0, None, Path("out"))


def placed(folder: Path, script: str, /, **more: object) -> Attempt:
    attempt = Attempt(folder / "attempt")
    words = ("sh", "-c", script)
    environment = {"PATH": os.environ["PATH"]}
    out = str(folder / "out")
    order = Order(1, 1, f"{folder}", words, environment, str(folder), out, out, lease_s=30.0)
    attempt.place(replace(order, **more))  # type: ignore[arg-type]
    return attempt


def carry(attempt: Attempt) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", batch_process.__file__, str(attempt.path)])


def test_one_after_the_other(tmp_path: Path) -> None:
    """The second is there before the first has ended; afterwards nothing can be passed on any more."""
    one, two = (tmp_path / name for name in ("one", "two"))
    one.mkdir(), two.mkdir()
    first, second = placed(one, "echo $PPID; exit 3"), placed(two, "echo $PPID; exit 4")
    assert allocation_reuse.pass_on(first.path, second.path)
    assert not allocation_reuse.pass_on(first.path, second.path) and not allocation_reuse.pass_on(
        first.path, ""
    )
    assert carry(first).wait(LIMIT_S) == 4
    results = first.result(), second.result()
    assert [result and result.code for result in results] == [3, 4]
    assert (one / "out").read_text() != (two / "out").read_text()  # each has a supervisor
    assert not allocation_reuse.pass_on(second.path, first.path), "it has left"


@pytest.mark.parametrize("script", ["kill -KILL $PPID; sleep 60 & sleep 60", "exit 3"])
def test_it_leaves(tmp_path: Path, script: str) -> None:
    """When nobody comes, and when the supervisor was killed, whoever is waiting: with its code."""
    attempt = placed(tmp_path, script)
    process = carry(attempt)
    assert process.wait(LIMIT_S) == (3 if script == "exit 3" else 128 + signal.SIGKILL)
    assert not tree.marked(str(tmp_path))
    assert (attempt.result() is not None) == (script == "exit 3")


def test_a_request_reaches_the_supervisor_through_it(tmp_path: Path) -> None:
    attempt = placed(tmp_path, "sleep 60")
    process = carry(attempt)
    until(attempt.state)
    attempt.write_request(Request(1, "end"))
    process.send_signal(signal.SIGUSR1)
    assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    result = attempt.result()
    assert result is not None and result.how == "cancelled"
    assert not (attempt.path / allocation_reuse.NEXT).exists(), "after such an end nobody follows"


def test_nothing_is_left_of_one_that_is_killed(tmp_path: Path) -> None:
    attempt = placed(tmp_path, "sleep 60 & sleep 60")
    process = carry(attempt)
    until(attempt.state)
    process.kill()
    process.wait(LIMIT_S)  # only then its supervisor is told to die
    until(lambda: not tree.kill_marked(str(tmp_path)) or not attempt.lives())
    assert attempt.result() is None


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({}, 3),
        ({"memory_limit_mb": 500.0}, 3),
        ({"time_limit_s": 60.0, "checkpoint_signal": int(signal.SIGURG)}, 3),
        ({"command": ("no-such-program",)}, 125),
        ({"folder": "/no/such/folder"}, 125),
    ],
)
def test_with_and_without_anything_to_prepare(tmp_path: Path, more: dict[str, object], code: int) -> None:
    """Most commands are started before there is a supervisor; some need it for that."""
    attempt = placed(tmp_path, "exit 3", **more)
    assert carry(attempt).wait(LIMIT_S) == code
    result = attempt.result()
    assert result is not None and result.how == ("exited" if code == 3 else "not-started")
    assert code == 3 or "No such file" in result.trouble
    assert carry(attempt).wait(LIMIT_S) == code, "it runs once, and its code is handed on again"
    assert attempt.claimed() and not tree.marked(str(tmp_path))


def test_the_code_of_a_job_that_leaves_with_0_at_its_limit(tmp_path: Path) -> None:
    """A batch system takes 0 for success."""
    obliging = "trap 'exit 0' TERM; : > ready; while :; do sleep 0.05; done"
    attempt = placed(tmp_path, obliging, time_limit_s=3600.0)
    process = carry(attempt)
    until(lambda: (tmp_path / "ready").exists() and attempt.state())
    attempt.write_request(Request(1, "limit", time_limit_s=0.01))
    process.send_signal(signal.SIGUSR1)
    assert process.wait(LIMIT_S) == 125
    result = attempt.result()
    assert result is not None and (result.how, result.code) == ("time-limit", 0)


def test_who_ends_before_anybody_waits_is_not_taken_for_longer(tmp_path: Path) -> None:
    """Whatever it takes until there is a supervisor: its end is seen when it comes."""
    attempt = placed(tmp_path, "exit 3")
    program = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from agent.attempts.begin import begin\n"
        "from agent.attempts.folder import Attempt\n"
        "from agent.supervisor.supervisor import supervise_claimed\n"
        "with begin(sys.argv[1]) as begun:\n"
        "    os.waitid(os.P_PID, begun.pid, os.WEXITED | os.WNOWAIT)\n"
        "    print(time.monotonic() - begun.at)\n"
        "    time.sleep(1)\n"
        "supervise_claimed(Attempt(Path(sys.argv[1])), begun, lambda _what, _at_s: None)\n"
    )
    words = [sys.executable, "-P", "-c", program, str(attempt.path)]
    took_s = float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    result = attempt.result()
    assert result is not None and result.code == 3
    assert 0 < result.usage.running_s <= took_s


@given(*[st.none() | st.floats(0.1, 900.0)] * 2, st.floats(0.0, 900.0))
def test_who_follows_ends_in_the_time_that_slurm_gives(
    before_s: float | None, limit_s: float | None, age_s: float
) -> None:
    """Slurm counts whole minutes from the start of the first; without a limit that of the partition holds."""
    first = SlurmAttempt(job_id=1, number=1, cpus={"node1": 1}, batch=replace(BATCH, time_s=before_s))
    then = SlurmAttempt(job_id=2, number=1, cpus={"node1": 1}, batch=replace(BATCH, time_s=limit_s))
    fits = follows(first, then, first.since + age_s)
    if before_s is None or limit_s is None:
        assert fits == (before_s is limit_s is None and age_s < 45.0)
    else:
        (option,) = [word for word in replace(BATCH, time_s=before_s).options() if "--time=" in word]
        ends_s = 60.0 * int(option.removeprefix("--time="))
        assert not fits or age_s + limit_s < ends_s - 10.0
        assert fits or age_s + limit_s > ends_s - 20.0
    assert not follows(first, replace(then, batch=replace(BATCH, time_s=limit_s, cpus=2)), first.since)


def numbers(up: Up, jobs: list[int]) -> list[str]:
    return [up.client.output(job).decode().split()[0] for job in jobs]


def test_jobs_of_one_size_share_a_slurm_job(up: Up, lab: SlurmLab) -> None:
    """The number that share depends on speed; jobs with a limit never share with those without."""
    up.start("--engine", "slurm", "--unit", "1", "--policy", "fcfs")
    spec = {"command": ["sh", "-c", "echo $SLURM_JOB_ID; exit $TENBIN_JOB_ID"], "folder": "/"}
    small = up.client.submit_all([spec] * 40)
    long = up.client.submit_all([{**spec, "time_s": 3600}] * 3)
    assert [job.result(120) for job in [*small, *long]] == list(range(1, 44))
    of_small, of_long = numbers(up, list(range(1, 41))), numbers(up, [41, 42, 43])
    assert len(set(of_small)) < len(of_small)
    assert not set(of_small) & set(of_long)
    for job in set(of_long):
        assert "TimeLimit=01:02:00" in lab.call("scontrol", "show", "job", job)
