"""A node that stood still goes on when its job runs elsewhere: what its copy then writes does no harm."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.scheduler.engines.slurm.test_engine import START
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.labs.slurm_lab import SlurmLab
from tests.support.programs import opencl_devices

STANDS_AT = 5  # the step whose checkpoint is on the disk, and not yet renamed
COUNTS = """
import os, signal, sys, time, tenbin
from pathlib import Path

folder, mine = Path(os.environ["TENBIN_JOB_FOLDER"]), int(os.environ["TENBIN_GENERATION"])

def stop(event, arguments):
    if event == "os.rename" and check.state["step"] == STANDS_AT:
        (folder / "stands").touch()
        os.kill(os.getpid(), signal.SIGSTOP)

check = tenbin.Checkpoint("counts")
check.state["step"] = 0
check.restore()
if mine == 1:
    sys.addaudithook(stop)
while not (folder / "go").exists():
    check.state["step"] += 1
    with (folder / f"steps-{mine}").open("a") as file:
        file.write(f"{check.state['step']}\\n")
    check.save()
    time.sleep(0.05)
check.finish()
"""


def steps(folder: Path, attempt: int) -> list[int]:
    file = folder / f"steps-{attempt}"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.mark.slow
def test_a_node_that_stood_still_writes_late(
    up: Up, lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it stands still in the middle of a save, so that its supervisor cannot end the job either."""
    require(opencl_devices(), "an OpenCL device")
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "cache"))
    up.start(*START, "--lease", "3")
    code = COUNTS.replace("STANDS_AT", str(STANDS_AT))
    job = up.client.submit([sys.executable, "-c", code], checkpoint_signal=int(signal.SIGURG))
    folder = up.home / "jobs" / str(job.id)
    up.until((folder / "stands").exists, 60)
    (node,) = job.info()["hosts"]
    copy = next(pid for pid in lab.processes(node) if b"TENBIN_GENERATION=1\0" in environ(pid))
    lab.pause(node)
    try:
        lab.call("scontrol", "update", f"nodename={node}", "state=down", "reason=stalled")
        up.until(lambda: len(steps(folder, 2)) > STANDS_AT, 90)
        os.kill(copy, signal.SIGCONT)
        stderr = Path(job.info()["stderr"])
        up.until(lambda: "attempt 2 of this job has begun" in stderr.read_text(), 60)
        assert (folder / "checkpoint.tenbin.g2").exists()
        assert not (folder / "checkpoint.tenbin.g1").exists()
    finally:
        lab.go_on(node)
    (folder / "go").touch()
    found = job.wait(60)
    assert (found["stage"], found["attempt"]) == ("done", 2) and found["hosts"] != [node]
    assert steps(folder, 1) == list(range(1, STANDS_AT + 1))
    second = steps(folder, 2)
    assert second == list(range(STANDS_AT, STANDS_AT + len(second)))  # from the last one that was whole
    assert not list(folder.glob("*checkpoint.tenbin*"))


def environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
