"""Jobs that do what they can against their end: cancelled, they end, and their core is the next one's."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent.processes import tree
from tests.support.amounts import sweep
from tests.support.coordinator import Up

REMOVES = 'rm -rf "$TENBIN_JOB_FOLDER/attempt-1"'
STUBBORN = {
    "removes its folder": f"{REMOVES}; touch $0; sleep 300",
    "removes its folder and goes on": f"trap '' TERM; {REMOVES}; touch $0; while :; do sleep 0.1; done",
    "moves its folder": 'mv "$TENBIN_JOB_FOLDER/attempt-1" "$TENBIN_JOB_FOLDER/away"; touch $0; sleep 300',
    "has a file for a folder": f'{REMOVES}; echo x >"$TENBIN_JOB_FOLDER/attempt-1"; touch $0; sleep 300',
    "has a folder for requests": 'mkdir "$TENBIN_JOB_FOLDER/attempt-1/request.json"; touch $0; sleep 300',
    "claims that all was done": (
        'cd "$TENBIN_JOB_FOLDER/attempt-1"; '
        """echo '{"number": 9999, "want": "run", "cores": []}' >request.json; """
        "kill -USR1 $PPID; sleep 0.2; touch $0; sleep 300"
    ),
    "stops its supervisor": "kill -STOP $PPID; touch $0; sleep 300",
    "stops it again and again": "touch $0; while :; do kill -STOP $PPID; done",
    "stops it and leaves": "kill -STOP $PPID; touch $0",
    "stops it and removes its folder": f"kill -STOP $PPID; {REMOVES}; touch $0; sleep 300",
}


def begin(up: Up, script: str, sign: Path) -> Any:
    job = up.client.submit(["sh", "-c", script, str(sign)], grace_s=0.5)
    up.until(sign.exists)
    return job


def nothing_left(up: Up, job: Any) -> bool:
    return not tree.marked(f"{up.home}:{job.id}:1")


@pytest.mark.parametrize("how", sweep(STUBBORN, {"removes its folder and goes on", "stops it and leaves"}))
def test_cancel_ends_it_and_its_core_is_free(up: Up, tmp_path: Path, how: str) -> None:
    up.start("--cores", "1")
    job = begin(up, STUBBORN[how], tmp_path / "sign")
    waits = up.client.submit(["sh", "-c", "exit 3"])
    job.cancel()
    assert waits.result(60) == 3
    assert job.info()["stage"] in ("cancelled", "done" if "leaves" in how else "") and nothing_left(up, job)


@pytest.mark.parametrize(
    "how",
    sweep(("stops it again and again", "stops it and removes its folder"), {"stops it again and again"}),
)
def test_also_when_the_coordinator_is_killed_meanwhile(up: Up, tmp_path: Path, how: str) -> None:
    up.start("--cores", "1")
    job = begin(up, STUBBORN[how], tmp_path / "sign")
    up.kill()
    up.start("--cores", "1")
    assert job.info()["stage"] == "running"
    job.cancel()
    up.kill()
    up.start("--cores", "1")
    assert up.client.submit(["sh", "-c", "exit 3"]).result(60) == 3
    assert job.info()["stage"] == "cancelled" and nothing_left(up, job)


@pytest.mark.parametrize(
    "after",
    [
        REMOVES,
        f'{REMOVES}; touch "$TENBIN_JOB_FOLDER/attempt-1"',
        'mkdir "$TENBIN_JOB_FOLDER/attempt-1/result.json"',
    ],
)
def test_a_job_without_its_folder_tells_its_end(shared: Up, after: str) -> None:
    for limit in ({}, {"memory_mb": 500}):
        job = shared.client.submit(["sh", "-c", f"{after}; exit 5"], **limit)
        assert job.result(30) == 5 and job.info()["attempt"] == 1
    assert shared.client.submit(["true"]).result(20) == 0


def test_a_pipe_for_output(shared: Up, tmp_path: Path) -> None:
    """Without a reader the job cannot be started, and says so; with one it has all that was written."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in ("stdout", "stderr"):
        found = shared.client.submit(["true"], **{name: str(pipe)}).wait(20)
        assert found["stage"] == "failed", found
        assert f"{pipe}: nobody reads this pipe" in found["trouble"]
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    script = "import os; os.write(1, b'x' * 1_000_000); print(os.get_blocking(1), os.get_blocking(2))"
    job = shared.client.submit(["python3", "-c", script], stdout=str(pipe), stderr=str(pipe))
    said = b""
    while not job.done():  # more is written than a pipe holds at once: its writer waits
        with suppress(BlockingIOError):
            said += os.read(reader, 1 << 20)
    with suppress(BlockingIOError):
        said += os.read(reader, 1 << 20)
    os.close(reader)
    assert job.result(20) == 0 and said == b"x" * 1_000_000 + b"True True\n"


def test_whose_lock_it_is(tmp_path: Path) -> None:
    """Found by the kernel's tables, whatever has become of the file; who only reads it has no lock."""
    file = tmp_path / "a" / "alive"
    file.parent.mkdir()
    holder = subprocess.Popen(["flock", str(file), "sleep", "60"], start_new_session=True)
    reader = subprocess.Popen(["sh", "-c", f"sleep 60 <{file}"], start_new_session=True)
    try:
        while not (found := tree.lockers(file)):
            pass
        assert holder.pid in found and reader.pid not in found
        file.unlink()
        file.parent.rmdir()
        assert holder.pid in tree.lockers(file)
        assert tree.lockers(file, [reader.pid]) == [] and tree.lockers(tmp_path / "b") == []
    finally:
        for one in (holder, reader):
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()
