"""Unmodified OpenCL programs as jobs on the nodes' devices, parked by the layer below them: real PoCL."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent.opencl_layer import build
from profiles.errors import Unavailable
from tests.scheduler.engines.slurm.test_engine import START
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.labs.slurm_lab import SlurmLab
from tests.support.moving import PROGRAMS
from tests.support.programs import opencl_devices

LONG = [sys.executable, str(PROGRAMS / "long.py")]
HERE = "pocl-0@node1"
START_HERE = (*START, "--devices", "--policy", "fcfs")


@pytest.fixture
def devices(up: Up, lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Up:
    """Return a coordinator whose nodes have compiled the layer."""
    require(len(opencl_devices()) == 1, "one OpenCL device (PoCL)")
    try:
        build.build()
    except Unavailable as error:
        require(False, str(error))
    for name, folder in (("POCL_CACHE_DIR", "cache"), ("TENBIN_STORE", "store")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("PYOPENCL_NO_CACHE", "1")
    up.start(*START_HERE)
    up.until(lambda: libraries(up) == set(lab.nodes), 120)  # others may be compiling
    return up


def libraries(up: Up) -> set[str]:
    """Return the nodes that have said that they have the layer."""
    with suppress(FileNotFoundError):
        return set(json.loads((up.home / "layers.json").read_text())["libraries"])
    return set()


def began(up: Up, job: Any, words: str) -> None:
    """Wait until the program computes, and its supervisor has asked it."""
    output = Path(job.info()["stdout"])
    up.until(lambda: output.exists() and "began" in output.read_text())
    up.until(lambda: words in (job.info()["moves"] or ""))


def in_slurm(lab: SlurmLab, job: Any) -> str:
    """Return the state of a job in Slurm."""
    return lab.call("squeue", "-h", "-o", "%T", f"--name=tenbin-{job.id}").strip()


def test_suspended_and_resumed_a_program_is_parked(devices: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Its device is another job's meanwhile; the coordinator is killed; the result is bit-identical."""
    go = tmp_path / "go"
    job = devices.client.submit([*LONG, "3000", "0.1", f"until={go}"], device=HERE)
    began(devices, job, "can be parked; it stays on its device of node1")
    refused = devices.run("migrate", str(job.id), "--to", "pocl-0@node2")
    assert "its program stays on its device of node1" in refused.stderr, refused.stderr
    job.suspend()
    devices.until(lambda: job.info()["stage"] == "suspended")
    assert "it is parked: 0.131 MB that it had on pocl-0" in job.info()["moves"]
    devices.until(lambda: in_slurm(lab, job) == "SUSPENDED")
    devices.kill()
    devices.start(*START_HERE)
    assert "it is parked" in job.info()["moves"]
    other = devices.client.submit(["hostname"], device=HERE)
    assert other.wait(30)["hosts"] == ["node1"]
    job.resume()
    go.touch()
    found = job.wait(60)
    assert (found["stage"], found["attempt"], found["hosts"]) == ("done", 1, ["node1"]), found["history"]
    alone = subprocess.run([*LONG, "3000", "0"], capture_output=True, text=True, check=True)
    assert Path(found["stdout"]).read_text() == alone.stdout
    order = json.loads((devices.home / "jobs" / str(job.id) / "attempt-1" / "order.json").read_text())
    assert order["layer"] and not Path(order["layer"]).exists()
