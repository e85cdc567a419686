"""Trials that a coordinator makes by itself: PoCL shown as two devices, the second slowed down, real jobs."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.opencl_layer import build
from profiles.errors import BadInput
from scheduler.coordinator import trials
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from scheduler.engines.local.discovery import LocalMachine
from scheduler.engines.registry import ENGINES, UpRequest, check, find, options
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Pool
from tests.support.coordinator import Up
from tests.support.moving import PROGRAMS, TWO, compiled_layer, layer, start_devices

LONG = [sys.executable, str(PROGRAMS / "long.py")]
LAUNCH_MS = "60,0,120,0"  # of each launch, on the first and on the second device (slow_second.c)
RATIO = 60 / 120


@pytest.fixture
def devices(up: Up, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Up:
    """Return a coordinator of two devices, the second half as fast, whose layer has been compiled before."""
    start_devices(up, monkeypatch, tmp_path, "mctbm")
    monkeypatch.setenv("OPENCL_LAYERS", str(compiled_layer("slow_second", tmp_path)))
    monkeypatch.setenv("LAUNCH_MS", LAUNCH_MS)
    return up


@contextmanager
def in_this_process(home: Path) -> Iterator[Coordinator]:
    """Make a coordinator of two devices, whose layer is ready."""
    layer()
    build.build()
    cluster = Cluster((Pool("pocl-0", 1, kind="cpu"), Pool("pocl-1", 1, 1, kind="cpu")))
    machine = LocalMachine(cluster, devices={"pocl-0": [0], "pocl-1": [1]})
    journal, engine = Journal(home), machine.engine(home, home / "r")
    try:
        coordinator = Coordinator(journal, engine, "mctbm")
        until(
            coordinator,
            lambda: not engine.layer or not engine.layer.why_not(JobSpec(command=("true",), folder="/")),
        )
        yield coordinator
    finally:
        engine.close()
        journal.close()


def until(coordinator: Coordinator, condition: Callable[[], object]) -> None:
    """Take turns until the condition holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, [*coordinator.job_table.entries.values()]
        coordinator.turn()
        time.sleep(0.02)


def not_tried(coordinator: Coordinator, job: Entry) -> list[str]:
    """Return why trials of a job have failed."""
    return [why for _, what, why in coordinator.job_table.history(job.id) if what == "not tried"]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Let programs be tried at once; return the environment of the jobs."""
    monkeypatch.setattr(trials, "AFTER_S", 0.0)
    monkeypatch.setattr(trials, "AGAIN_S", 0.2)
    cache = {"POCL_CACHE_DIR": str(tmp_path / "cache"), "PYOPENCL_NO_CACHE": "1"}
    return {**os.environ, "POCL_DEVICES": TWO, **cache}


def test_a_program_that_cannot_be_tried_is_left_alone(
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of shared virtual memory: the layer refuses, the journal says so once, and the job runs on."""
    with in_this_process(tmp_path / "h") as coordinator:
        spec = JobSpec(command=(*LONG, "100000", "0.01", "svm"), folder=str(tmp_path))
        monkeypatch.setattr(trials, "AFTER_S", math.inf)
        (job,) = coordinator.submit([spec], environment)
        output = coordinator.folders.output(job, "stdout")
        until(coordinator, lambda: output.exists() and "began" in output.read_text())
        monkeypatch.setattr(trials, "AFTER_S", 0.0)
        until(coordinator, lambda: not_tried(coordinator, job))
        again = coordinator.clock() + 1.0
        until(coordinator, lambda: coordinator.clock() > again)
        assert (job.stage, job.attempt, job.predicted) == (Stage.RUNNING, 1, None)
        coordinator.cancel([job.id])
        until(coordinator, lambda: job.stage.final)
        (said,) = not_tried(coordinator, job)
    assert said.startswith("on pocl-1: ") and "shared virtual memory" in said


@pytest.mark.slow
def test_a_job_is_suspended_while_its_program_is_tried(tmp_path: Path, environment: dict[str, str]) -> None:
    """The trial gives way, the program is parked, and its result is that of one that nobody disturbs."""
    with in_this_process(tmp_path / "h") as coordinator:
        spec = JobSpec(command=(*LONG, "150", "0.01"), folder=str(tmp_path))
        (job,) = coordinator.submit([spec], environment)
        moves = coordinator.engine.device_moves
        until(coordinator, lambda: moves is not None and moves.trials is not None and moves.trials.busy)
        coordinator.suspend([job.id])
        until(coordinator, lambda: job.stage is Stage.HELD)
        until(coordinator, lambda: not_tried(coordinator, job))
        coordinator.resume([job.id])
        until(coordinator, lambda: job.stage.final)
        output = coordinator.folders.output(job, "stdout").read_text()
        assert not_tried(coordinator, job)[0] == "on pocl-1: its job leaves"
    assert job.stage is Stage.DONE and job.attempt == 1
    done = subprocess.run(spec.command, env=environment, capture_output=True, text=True, check=True)
    assert output == done.stdout


def tried(job: Any) -> Any:
    """Return what trials have told of a job's program."""
    return (job.info()["predicted"] or {}).get("tried")


@pytest.mark.slow
def test_a_policy_moves_a_program_that_was_tried(tmp_path: Path, environment: dict[str, str]) -> None:
    """Known on the first device, and tried on the second, where it is five times as fast."""
    layers = {"OPENCL_LAYERS": str(compiled_layer("slow_second", tmp_path)), "LAUNCH_MS": "100,0,20,0"}
    with in_this_process(tmp_path / "h") as coordinator:
        specs = [
            JobSpec(command=(*LONG, "150", "0"), folder=str(tmp_path), name="heat", device=device)
            for device in ("pocl-0", "any")
        ]
        (first,) = coordinator.submit(specs[:1], environment | layers)
        until(coordinator, lambda: first.stage.final)
        (second,) = coordinator.submit(specs[1:], environment | layers)
        assert second.placement and second.placement.pool == "pocl-0"
        until(coordinator, lambda: second.stage.final)
        digests = [coordinator.folders.output(job, "stdout").read_text() for job in (first, second)]
    assert (second.stage, second.migrations, second.attempt) == (Stage.DONE, 1, 1)
    assert second.placement and second.placement.pool == "pocl-1"
    assert digests[0] == digests[1]
    assert second.usage and first.usage and second.usage["running_s"] < first.usage["running_s"]


def test_trials_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer()
    monkeypatch.setenv("POCL_DEVICES", TWO)
    own = {option.name: option.default for engine in ENGINES for option in options(engine)}
    for no_trials in (False, True):
        asked = UpRequest("fcfs", tmp_path, devices=True, own={**own, "no_trials": no_trials})
        with find("local", asked) as machine:
            assert isinstance(machine, LocalMachine) and machine.tries is not no_trials
    with pytest.raises(BadInput, match="--no-trials: programs are tried on devices only"):
        check("local", replace(asked, devices=False), profiled=False)


@pytest.mark.measures
def test_a_trial_happens_by_itself_and_tells_the_run_time_there(devices: Up) -> None:
    """The ratio is that of the emulated devices; the next job's run time follows from it after a kill."""
    first = devices.client.submit([*LONG, "220", "0"], name="heat", device="any")
    devices.until(lambda: tried(first), 60)
    (one,) = tried(first)
    assert first.info()["stage"] == "running"
    assert (one["pool"], one["over"], one["agrees"]) == ("pocl-1", "pocl-0", True)
    assert one["low"] <= one["value"] <= one["high"]
    assert one["value"] == pytest.approx(RATIO, rel=0.1)
    assert "tried on pocl-1 at" in devices.run("info", str(first.id)).stdout
    devices.kill()
    devices.start("--devices", "--policy", "mctbm")
    assert first.wait(60)["stage"] == "done"
    second = devices.client.submit([*LONG, "220", "0"], name="heat", device="any")
    known = second.info()["predicted"]["run_s"]
    assert known["pocl-0"]["basis"] == "arguments" and known["pocl-1"]["basis"] == "tried"
    assert known["pocl-1"]["middle"] == pytest.approx(known["pocl-0"]["middle"] / one["value"])
    assert "by a trial of this program at" in known["pocl-1"]["rule"]
    assert tried(second) == [one]
    second.cancel()
