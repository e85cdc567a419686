"""Trials that a coordinator makes by itself: PoCL shown as two devices, the second slowed down, real jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agent.opencl_layer import build
from tests.support.coordinator import Up
from tests.support.moving import PROGRAMS, TWO, compiled_layer, layer

LONG = [sys.executable, str(PROGRAMS / "long.py")]
LAUNCH_MS = "60,0,120,0"  # of each launch, on the first and on the second device (slow_second.c)
RATIO = 60 / 120


@pytest.fixture
def devices(up: Up, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Up:
    """Return a coordinator of two devices, the second half as fast, whose layer has been compiled before."""
    layer()  # skips where there is no OpenCL
    build.build()
    monkeypatch.setenv("POCL_DEVICES", TWO)
    monkeypatch.setenv("PYOPENCL_NO_CACHE", "1")
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "cache"))
    up.start("--devices", "--policy", "mctbm")
    monkeypatch.setenv("OPENCL_LAYERS", str(compiled_layer("slow_second", tmp_path)))
    monkeypatch.setenv("LAUNCH_MS", LAUNCH_MS)
    return up


def tried(job: Any) -> Any:
    """Return what trials have told of a job's program."""
    return (job.info()["predicted"] or {}).get("tried")


@pytest.mark.measures
def test_a_trial_happens_by_itself_and_tells_the_run_time_there(devices: Up) -> None:
    """The ratio is that of the emulated devices; the next job's run time follows from it after a kill."""
    first = devices.client.submit([*LONG, "280", "0"], name="heat", device="any")
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
    second = devices.client.submit([*LONG, "280", "0"], name="heat", device="any")
    known = second.info()["predicted"]["run_s"]
    assert known["pocl-0"]["basis"] == "arguments" and known["pocl-1"]["basis"] == "tried"
    assert known["pocl-1"]["middle"] == pytest.approx(known["pocl-0"]["middle"] / one["value"])
    assert "by a trial of this program at" in known["pocl-1"]["rule"]
    assert tried(second) == [one]
    second.cancel()
