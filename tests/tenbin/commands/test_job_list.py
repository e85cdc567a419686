"""Lists and accounts of jobs: no job that runs is hidden, and a state has one name everywhere."""

from __future__ import annotations

import json

import pytest

from tests.support.components import require
from tests.support.coordinator import Up
from tests.support.programs import opencl_devices


def test_a_limit_hides_no_job_that_runs(up: Up) -> None:
    """The oldest job runs, and the last ones wait; what is not shown is counted."""
    up.start("--cores", "1")
    running = up.client.submit(["sleep", "60"])
    up.client.submit_all([{"command": ["true"], "folder": "/"}] * 60)
    up.until(lambda: running.info()["stage"] == "running")
    shown = up.run("jobs").stdout
    lines = [line.split() for line in shown.splitlines()]
    assert lines[1][:3] == ["1", "sleep", "running"] and "and 10 more: tenbin jobs --limit 61" in shown
    assert [line[0] for line in lines[2:-1]] == [str(number) for number in range(12, 62)]
    assert "more" not in up.run("jobs", "--limit", "61").stdout
    listed = json.loads(up.run("jobs", "--json", "--limit", "2").stdout)
    assert [job["id"] for job in listed] == [1, 60, 61]
    running.cancel()
    up.client.ended(range(1, 62), 60, all=True)
    assert "and 11 more: tenbin jobs --all --limit 61" in up.run("jobs", "--all").stdout


def test_a_suspended_job_is_suspended_everywhere(up: Up) -> None:
    """One name for its state, whether it ran before or not; one that waits for another is held."""
    up.start("--cores", "1")
    ran, waits = up.client.submit(["sleep", "60"]), up.client.submit(["sleep", "60"])
    up.until(lambda: ran.info()["stage"] == "running")
    ran.suspend()
    up.until(lambda: waits.info()["stage"] == "running")
    never = up.client.submit(["sleep", "60"])
    never.suspend()
    held = up.client.submit(["true"], after=[never.id])
    stages = {ran.id: "suspended", waits.id: "running", never.id: "suspended", held.id: "held"}
    assert {job["id"]: job["stage"] for job in up.client.call("GET", "/jobs")} == stages
    assert {number: up.client.job(number).info()["stage"] for number in stages} == stages
    listed = [line.split() for line in up.run("jobs").stdout.splitlines()[1:]]
    assert {int(line[0]): line[2] for line in listed} == stages
    assert up.run("info", str(never.id)).stdout.startswith(f"job {never.id}: suspended\n")
    assert "2 suspended" in up.run("status").stdout and "1 held" in up.run("status").stdout
    metrics = up.client.call("GET", "/metrics")
    assert 'tenbin_jobs{stage="suspended"} 2.0' in metrics and 'tenbin_jobs{stage="held"} 1.0' in metrics
    assert "is suspended, not running" in up.run("migrate", str(never.id), "--to", "core").stderr
    up.kill()
    up.start("--cores", "1")
    assert {number: up.client.job(number).info()["stage"] for number in stages} == stages
    never.cancel()
    assert never.wait(30)["stage"] == "cancelled" and held.wait(30)["stage"] == "cancelled"
    ended = json.loads(up.run("jobs", "--all", "--json").stdout)[2:]
    assert [job["stage"] for job in ended] == ["cancelled"] * 2


def test_info_names_the_device(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCL_DEVICES", "pthread basic")
    require(len(opencl_devices()) == 2, "two OpenCL devices (PoCL)")
    up.start("--devices", "--policy", "fcfs")
    for device in ("pocl-1", "pocl-0"):
        job = up.client.submit(["true"], device=device)
        assert job.result(60) == 0
        assert f"  device {device}; attempt 1\n" in up.run("info", str(job.id)).stdout


def test_info_names_the_node(up: Up) -> None:
    up.start("--cores", "1", "--nodes", "1", "--policy", "las")
    assert up.client.submit(["true"]).result(60) == 0
    assert "  node0; cores " in up.run("info", "1").stdout
