"""Unmodified OpenCL programs as jobs on devices: PoCL shown as two, real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.processes import tree
from tests.support.coordinator import Up
from tests.support.moving import PROGRAMS, compiled_layer, start_devices

LONG = [sys.executable, str(PROGRAMS / "long.py")]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Yield a coordinator of two devices, whose layer and whose kernels have been compiled before."""
    folder = tmp_path_factory.mktemp("devices")
    coordinator = Up(folder / "home")
    with pytest.MonkeyPatch.context() as environment:
        yield start_devices(coordinator, environment, folder, "fcfs")
    coordinator.sweep()


@pytest.fixture
def devices(shared: Up) -> Iterator[Up]:
    """Yield that coordinator; jobs that a test leaves are cancelled."""
    yield shared
    if left := [job["id"] for job in shared.client.call("GET", "/jobs")]:
        shared.client.call("POST", "/cancel", {"ids": left})
        shared.client.ended(left, 60, all=True)


def began(up: Up, job: Any) -> None:
    """Wait until the program computes."""
    output = Path(job.info()["stdout"])
    up.until(lambda: output.exists() and "began" in output.read_text())


def test_a_job_on_a_device_can_be_moved_as_info_says(devices: Up) -> None:
    """The layer is below it by itself; it sees its own device; ``tenbin opencl`` reaches it."""
    job = devices.client.submit([*LONG, "100000", "0.01"], device="pocl-1")
    began(devices, job)
    assert job.info()["moves"] == "can be moved"
    assert "\n  can be moved\n" in devices.run("info", str(job.id)).stdout
    said = devices.run("opencl", "status").stdout
    assert "on pocl-1; can be" in said, said
    other = devices.client.submit([*LONG, "100000", "0.01"], move=False)
    began(devices, other)
    assert other.info()["moves"] == "cannot be moved: it was submitted with --no-move"
    job.cancel()
    other.cancel()
    assert job.wait(20)["stage"] == other.wait(20)["stage"] == "cancelled"
    sleeper = devices.client.submit(["sleep", "60"])
    devices.until(lambda: sleeper.info()["stage"] == "running")
    devices.until(lambda: "has not used OpenCL" in (sleeper.info()["moves"] or ""))
    own = devices.client.submit(["sleep", "60"], checkpoint_signal=23)
    devices.until(lambda: own.info()["stage"] == "running")
    assert own.info()["moves"] == "can be moved, by checkpoints of its own"


def alone(steps: int) -> str:
    """Return what the program prints that nobody stops."""
    done = subprocess.run([*LONG, str(steps), "0"], capture_output=True, text=True, check=True)
    return done.stdout


def test_suspended_resumed_elsewhere_and_migrated(devices: Up) -> None:
    """The result is bit-identical; the device is another job's meanwhile; all by one attempt."""
    job = devices.client.submit([*LONG, "1500", "0.01"], device="any")
    began(devices, job)
    here = job.info()["placement"]
    there = "pocl-1" if here == "pocl-0" else "pocl-0"
    job.suspend()
    devices.until(lambda: job.info()["stage"] == "suspended")
    assert "it is parked" in job.info()["moves"], job.info()["history"]
    other = devices.client.submit(["sleep", "600"], device=here)
    devices.until(lambda: other.info()["stage"] == "running")
    job.resume()
    devices.until(lambda: job.info()["stage"] == "running")
    assert job.info()["placement"] == there
    devices.until(lambda: job.info()["moves"] == "can be moved")
    assert f"on {there}; " in devices.run("opencl", "status").stdout
    other.cancel()
    other.wait(20)
    done = devices.run("migrate", str(job.id), "--to", here)
    assert done.returncode == 0, done.stderr
    devices.until(lambda: job.info()["stage"] == "running" and job.info()["placement"] == here)
    devices.until(lambda: f"on {here}; " in devices.run("opencl", "status").stdout)
    found = job.wait(90)
    assert (found["stage"], found["attempt"], found["migrations"]) == ("done", 1, 1), found["history"]
    assert Path(found["stdout"]).read_text() == alone(1500)
    assert (parks(found), moves(found)) == (0, 1)  # parked for its owner only
    said = devices.run("info", str(job.id)).stdout
    assert re.search(rf"pause to {here}: predicted [\d.e-]+, measured [\d.e-]+ s", said), said


def parked(up: Up, job: Any) -> None:
    """Suspend a job that computes, and wait until it is parked."""
    job.suspend()
    up.until(lambda: job.info()["stage"] == "suspended")
    assert "it is parked" in job.info()["moves"], job.info()["history"]


def test_the_coordinator_is_killed_while_a_job_is_parked(devices: Up) -> None:
    """The next one knows where it is; killed during the park as well, and cancelled, nothing is left."""
    job = devices.client.submit([*LONG, "300", "0.01"], device="pocl-1")
    began(devices, job)
    parked(devices, job)
    devices.kill()
    devices.start("--devices", "--policy", "fcfs")
    assert "it is parked" in job.info()["moves"], job.info()["history"]
    job.resume()
    found = job.wait(60)
    assert (found["stage"], found["attempt"]) == ("done", 1)
    assert Path(found["stdout"]).read_text() == alone(300)
    job = devices.client.submit([*LONG, "100000", "0.01"])
    began(devices, job)
    job.suspend()
    devices.kill()
    devices.start("--devices", "--policy", "fcfs")
    devices.until(lambda: "it is parked" in (job.info()["moves"] or ""))
    devices.until(lambda: job.info()["stage"] == "suspended")
    pids = tree.descendants(state_of(devices, job)["supervisor_pid"])
    assert pids
    job.cancel()
    assert job.wait(30)["stage"] == "cancelled"
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not list((devices.home / "opencl").iterdir())


def state_of(up: Up, job: Any) -> Any:
    """Read what the supervisor has written."""
    return json.loads((up.home / "jobs" / str(job.id) / "attempt-1" / "state.json").read_text())


@pytest.mark.slow
def test_the_supervisor_is_killed_while_a_job_is_parked(devices: Up) -> None:
    """The job is lost, and runs again from its beginning when its owner resumes it."""
    job = devices.client.submit([*LONG, "200", "0.01"])
    began(devices, job)
    parked(devices, job)
    os.kill(state_of(devices, job)["supervisor_pid"], signal.SIGKILL)
    devices.until(lambda: any(event["what"] == "lost" for event in job.info()["history"]))
    job.resume()
    found = job.wait(60)
    assert (found["stage"], found["attempt"]) == ("done", 2)
    assert Path(found["stdout"]).read_text().splitlines()[-1] == alone(200).splitlines()[-1]


def test_a_program_that_cannot_be_moved_is_paused_where_it_is(devices: Up) -> None:
    """Of shared virtual memory: a move is refused; suspended, the program goes on where it was only."""
    job = devices.client.submit([*LONG, "100000", "0.01", "svm"], device="any")
    began(devices, job)
    assert "cannot be moved: uses shared virtual memory since" in job.info()["moves"]
    here = job.info()["placement"]
    done = devices.run("migrate", str(job.id), "--to", "pocl-1" if here == "pocl-0" else "pocl-0")
    assert done.returncode == 0, done.stderr
    devices.until(lambda: any(event["what"] == "not moved" for event in job.info()["history"]))
    assert (job.info()["stage"], job.info()["placement"]) == ("running", here)
    assert "cannot be moved: the program cannot be moved: it uses" in job.info()["moves"]
    job.suspend()
    devices.until(lambda: job.info()["stage"] == "suspended")
    other = devices.client.submit(["sleep", "600"], device=here)
    devices.until(lambda: other.info()["stage"] == "running")
    job.resume()
    assert job.info()["stage"] == "waiting"
    other.cancel()
    devices.until(lambda: (job.info()["stage"], job.info()["placement"]) == ("running", here))
    job.cancel()
    assert job.wait(20)["stage"] == "cancelled"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mctbm", "weigh"])
def test_a_policy_moves_an_unmodified_program(
    up: Up, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str
) -> None:
    """Begun on the worse device because the better one is taken, it moves when that is free."""
    devices = start_devices(up, monkeypatch, tmp_path, policy)
    first = devices.client.submit(
        ["sleep", "4"], expect_s={"pocl-0": 20.0, "pocl-1": 100.0}, device="pocl-0", time_s=90
    )
    second = devices.client.submit([*LONG, "700", "0.01"], expect_s={"pocl-0": 5.0, "pocl-1": 50.0})
    began(devices, second)
    assert second.info()["placement"] == "pocl-1"
    assert first.wait(30)["stage"] == "done"
    found = second.wait(90)
    assert (found["stage"], found["placement"]) == ("done", "pocl-0"), found["history"]
    assert (found["migrations"], found["attempt"], parks(found), moves(found)) == (1, 1, 0, 1), found[
        "history"
    ]
    assert Path(found["stdout"]).read_text() == alone(700)


@pytest.mark.slow
def test_a_device_that_refuses_a_program(devices: Up, tmp_path: Path) -> None:
    """Without its include file the program cannot be built there, so it runs on; it has never stood."""
    header = tmp_path / "factor.h"
    header.write_text("#define FACTOR 0.25f\n")
    job = devices.client.submit([*LONG, "300", "0.01", f"-I{tmp_path}"], device="any")
    began(devices, job)
    here = job.info()["placement"]
    there = "pocl-1" if here == "pocl-0" else "pocl-0"
    header.rename(tmp_path / "aside.h")
    job.migrate(there)
    other = devices.client.submit(["true"], device=there)
    assert other.wait(20)["stage"] == "done"
    found = job.wait(60)
    assert (found["stage"], found["attempt"], found["placement"]) == ("done", 1, here), found["history"]
    assert (parks(found), moves(found)) == (0, 0)
    assert there in next(event["detail"] for event in found["history"] if event["what"] == "not moved")
    assert Path(found["stdout"]).read_text() == alone(300)


@pytest.mark.slow
def test_a_device_that_refuses_a_parked_program(devices: Up, tmp_path: Path) -> None:
    """The program cannot be built without its include file: it stays whole, and goes on when it is back."""
    header = tmp_path / "factor.h"
    header.write_text("#define FACTOR 0.25f\n")
    job = devices.client.submit([*LONG, "1000", "0.01", f"-I{tmp_path}"])
    began(devices, job)
    here = job.info()["placement"]
    there = "pocl-1" if here == "pocl-0" else "pocl-0"
    parked(devices, job)
    holder = devices.client.submit(["sleep", "600"], device=here)
    devices.until(lambda: holder.info()["stage"] == "running")
    header.rename(tmp_path / "aside.h")
    job.resume()
    devices.until(lambda: any(event["what"] == "not moved" for event in job.info()["history"]))
    holder.cancel()
    devices.until(lambda: (job.info()["stage"], job.info()["placement"]) == ("running", here))
    assert there in next(event["detail"] for event in job.info()["history"] if event["what"] == "not moved")
    devices.kill()
    devices.start("--devices", "--policy", "fcfs")
    other = devices.client.submit(["true"], device=there)
    assert other.wait(20)["stage"] == "done"
    header.write_text("#define FACTOR 0.25f\n")
    found = job.wait(60)
    assert (found["stage"], found["attempt"], found["placement"]) == ("done", 1, here)
    assert Path(found["stdout"]).read_text() == alone(1000)


@pytest.mark.slow
def test_no_memory_to_have_a_program_on_both_devices(
    devices: Up, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program cannot move while it runs: it is parked, and goes on on the other device."""
    monkeypatch.setenv("OPENCL_LAYERS", str(compiled_layer("shared_memory", tmp_path)))
    monkeypatch.setenv("MEMORY_BYTES", "200000")  # it has 128 KiB
    job = devices.client.submit([*LONG, "800", "0.01"], device="any")
    began(devices, job)
    there = "pocl-1" if job.info()["placement"] == "pocl-0" else "pocl-0"
    job.migrate(there)
    found = job.wait(60)
    assert (found["stage"], found["attempt"], found["placement"]) == ("done", 1, there), found["history"]
    assert (parks(found), moves(found)) == (1, 0)
    assert Path(found["stdout"]).read_text() == alone(800)


def parks(found: Any) -> int:
    """Count how often a job was parked."""
    return sum(event["what"] == "parked" for event in found["history"])


def moves(found: Any) -> int:
    """Count how often a job was moved while it ran."""
    return sum(event["what"] == "moved" for event in found["history"])


@pytest.mark.slow
def test_long_jobs_give_way_to_short_ones(up: Up, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By ``las``, on both devices: parked, and bit-identical at their ends; one with SVM keeps its device."""
    devices = start_devices(up, monkeypatch, tmp_path, "las,spare-s=2")
    long = [devices.client.submit([*LONG, "500", "0.01"], device="any") for _ in range(2)]
    for job in long:
        began(devices, job)
    assert {job.info()["placement"] for job in long} == {"pocl-0", "pocl-1"}
    short = [devices.client.submit([*LONG, "20", "0.01"], device=f"pocl-{n}") for n in range(2)]
    for job in short:
        found = job.wait(60)
        assert (found["stage"], parks(found)) == ("done", 0), found["history"]
        assert Path(found["stdout"]).read_text() == alone(20)
    for job in long:
        found = job.wait(90)
        assert (found["stage"], found["attempt"], parks(found)) == ("done", 1, 1), found["history"]
        assert Path(found["stdout"]).read_text() == alone(500)
    keeps = devices.client.submit([*LONG, "300", "0.01", "svm"], device="pocl-0")
    began(devices, keeps)
    behind = devices.client.submit([*LONG, "20", "0.01"], device="pocl-0")
    devices.until(lambda: any(event["what"] == "not parked" for event in keeps.info()["history"]))
    assert (keeps.info()["stage"], behind.info()["stage"]) == ("running", "waiting")
    assert "waits on pocl-0 for 1 device" in behind.info()["why"]
    assert [job.wait(60)["stage"] for job in (behind, keeps)] == ["done"] * 2
    assert behind.info()["start_s"] >= keeps.info()["end_s"]
