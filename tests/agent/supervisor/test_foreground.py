"""``tenbin agent exec``: an attempt in the foreground, for an engine without a spawner of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from agent.attempts.folder import Attempt
from agent.attempts.records import Order
from agent.processes import tree
from tests.agent.supervisor.test_supervisor import Running
from tests.support.amounts import sweep
from tests.support.programs import TENBIN, tenbin
from tests.support.waiting import until


def placed(folder: Path, *command: str, **more: object) -> Attempt:
    folder.mkdir(exist_ok=True)
    attempt = Attempt(folder / "attempt")
    out, err = str(folder / "out"), str(folder / "err")
    attempt.place(Order(7, 1, str(folder), command, dict(os.environ), str(folder), out, err, **more))  # type: ignore[arg-type]
    return attempt


def execute(attempt: Attempt, *options: str) -> subprocess.CompletedProcess[str]:
    return tenbin("agent", "exec", str(attempt.path), *options)


# The shell says "Terminated" where the signal meets a sleep, and nothing between two.
OBLIGING = "trap 'exit 0' TERM; while :; do sleep 0.05; done 2>/dev/null"


@pytest.mark.parametrize(
    ("command", "more", "code"),
    [
        (("sh", "-c", "echo out; echo err >&2; exit 5"), {}, 5),
        (("sh", "-c", "kill -SEGV $$"), {}, 128 + signal.SIGSEGV),
        (("no-such-program",), {}, 125),
        (("sleep", "60"), {"time_limit_s": 0.3}, 128 + signal.SIGTERM),
        (("sh", "-c", OBLIGING), {"time_limit_s": 1.5}, 125),
    ],
)
def test_it_is_what_the_spawner_does(
    tmp_path: Path, command: tuple[str, ...], more: dict[str, object], code: int
) -> None:
    """The same order by both: the same result, but for the times."""
    one, other = placed(tmp_path / "a", *command, **more), placed(tmp_path / "b", *command, **more)
    done = execute(one, "--json")
    assert done.returncode == code
    expected, found = Running(other).result(), one.result()
    assert found is not None and json.loads(done.stdout)["how"] == found.how
    assert (found.how, found.code, found.signal, found.trouble) == (
        expected.how,
        expected.code,
        expected.signal,
        expected.trouble,
    )
    for name in ("out", "err"):
        mine, its = tmp_path / "a" / name, tmp_path / "b" / name
        assert mine.exists() == its.exists() and (not mine.exists() or mine.read_text() == its.read_text())


def test_it_runs_once_and_hands_the_code_on_again(tmp_path: Path) -> None:
    attempt = placed(tmp_path, "sh", "-c", "echo ran >> count; exit 4")
    assert [execute(attempt).returncode for _ in range(2)] == [4, 4]
    assert (tmp_path / "count").read_text() == "ran\n"
    given_up = placed(tmp_path / "other", "touch", "ran")
    assert given_up.claim()
    done = execute(given_up)
    assert done.returncode == 3 and "given up" in done.stderr and not (tmp_path / "other" / "ran").exists()


def test_bad_folders_are_one_line(tmp_path: Path) -> None:
    attempt = placed(tmp_path, "true")
    for content in (None, "", "{}", "[1]", '{"surprise": 1, "command": [], "cores": []}'):
        if content is None:
            (attempt.path / "order.json").unlink()
        else:
            (attempt.path / "order.json").write_text(content)
        done = execute(attempt)
        assert done.returncode == 2 and "order.json" in done.stderr and "Traceback" not in done.stderr, (
            content
        )
    assert execute(Attempt(tmp_path / "none")).returncode == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_ends_it_ends_the_job_in_order(tmp_path: Path, number: int) -> None:
    body = "trap 'echo saved > saved; exit 9' TERM; echo > ready; while :; do sleep 0.02; done"
    attempt = placed(tmp_path, "sh", "-c", body)
    process = subprocess.Popen([*TENBIN, "agent", "exec", str(attempt.path)])
    until((tmp_path / "ready").exists)
    process.send_signal(number)
    assert process.wait(30) == 9 and (tmp_path / "saved").exists()
    result = attempt.result()
    assert result is not None and result.how == "interrupted"


def test_a_job_that_was_stopped_for_long_goes_on(tmp_path: Path) -> None:
    """As by scontrol suspend: all of it stands still, for longer than its supervisor meant to wait."""
    attempt = placed(tmp_path / "job", "sh", "-c", "sleep 2; exit 4")
    running = Running(attempt)
    running.until("started")
    supervisor = running.process.pid
    everything = [supervisor, *tree.descendants(supervisor)]
    tree.send(everything, signal.SIGSTOP)
    time.sleep(3)
    tree.send(everything, signal.SIGCONT)
    assert running.result().code == 4


@pytest.mark.parametrize("fence", sweep((True, False), {True}))
def test_a_lease_ends_a_job(tmp_path: Path, fence: bool) -> None:
    """By a fence at once; without a folder to look at when the time is over."""
    attempt = placed(tmp_path / "job", "sleep", "60", lease_s=2.0)
    running = Running(attempt)
    running.until("started")
    if fence:
        attempt.fence_off()
        assert running.result().how == "interrupted"
    else:
        moved = attempt.path.with_name("moved")
        attempt.path.rename(moved)
        process = Path(f"/proc/{json.loads((moved / 'state.json').read_text())['pid']}")
        until(lambda: not process.exists())
        moved.rename(attempt.path)
        running.process.wait(30)
        found = attempt.result() or attempt.unpublished_result()
        assert found is not None and found.how == "interrupted"
