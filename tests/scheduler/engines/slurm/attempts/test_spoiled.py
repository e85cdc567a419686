"""As tests/scheduler/engines/local/test_spoiled.py on a cluster: one job's odd files stop no other."""

from __future__ import annotations

import os

import pytest

from tests.scheduler.engines.local.test_spoiled import spoil, until_spoiled
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab

FILES = ("state.json", "request.json", "held.json", "beat-node1", "relay", "supervisor.log", "samples.csv")


@pytest.mark.parametrize("how", ["empty", "bytes", "pipe"])
def test_a_job_that_spoils_its_files_stops_nobody(up: Up, lab: SlurmLab, how: str) -> None:
    """Also after a restart; lost with its supervisor, it fails and says why."""
    up.start("--engine", "slurm", "--lease", "6")
    long = spoil(up, how, "result.json", *FILES, then="touch ../spoiled; sleep 300")
    lost = spoil(up, how, *FILES, "result.json", then="touch ../spoiled; kill -9 $PPID; sleep 60")
    until_spoiled(up, long)
    until_spoiled(up, lost)
    assert up.client.submit(["true"]).result(60) == 0
    found = lost.wait(60)
    assert found["stage"] == "failed" and "result.json cannot be read" in found["trouble"]
    up.kill()
    up.start("--engine", "slurm", "--lease", "6")
    assert up.client.submit(["sh", "-c", "exit 3"]).result(60) == 3
    assert long.info()["stage"] in ("running", "failed")  # its lease may have ended it
    if not long.info()["end_s"]:
        long.cancel()
    assert long.wait(90)["stage"] in ("cancelled", "failed")


STUBBORN = {
    "removes its folder": 'rm -rf "$TENBIN_JOB_FOLDER/attempt-1"; touch ../../sign; sleep 300',
    "stops its supervisor": "kill -STOP $PPID; touch ../../sign; sleep 300",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", STUBBORN)
def test_cancel_ends_it_and_its_cores_are_free(up: Up, lab: SlurmLab, how: str) -> None:
    up.start("--engine", "slurm")
    script = f"cd $TENBIN_JOB_FOLDER/attempt-1; {STUBBORN[how]}"
    job = up.client.submit(["sh", "-c", script], grace_s=0.5, tasks=6)
    up.until((up.home / "jobs" / "sign").exists)
    waits = up.client.submit(["sh", "-c", "exit 3"], tasks=6)
    job.cancel()
    assert waits.result(120) == 3 and job.info()["stage"] == "cancelled"


@pytest.mark.slow
def test_a_pipe_that_nobody_reads(up: Up, lab: SlurmLab) -> None:
    up.start("--engine", "slurm")
    os.mkfifo(up.home / "pipe")
    found = up.client.submit(["true"], stdout=str(up.home / "pipe")).wait(60)
    assert found["stage"] == "failed" and "nobody reads this pipe" in found["trouble"]
