"""As tests/scheduler/engines/local/test_spoiled.py on a cluster: one job's odd files stop no other."""

from __future__ import annotations

import pytest

from tests.scheduler.engines.local.test_spoiled import spoil, until_spoiled
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab

FILES = ("state.json", "request.json", "held.json", "beat-node1", "relay", "supervisor.log", "samples.csv")


def test_a_job_that_spoils_its_files_stops_nobody(up: Up, lab: SlurmLab) -> None:
    """Also after a restart; lost with its supervisor, it fails and says why."""
    up.start("--engine", "slurm", "--lease", "6")
    long = spoil(up, "pipe", "result.json", *FILES, then="touch ../spoiled; sleep 300")
    lost = spoil(up, "pipe", *FILES, "result.json", then="touch ../spoiled; kill -9 $PPID; sleep 60")
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


@pytest.mark.slow
def test_cancel_ends_one_that_has_stopped_its_supervisor(up: Up, lab: SlurmLab) -> None:
    up.start("--engine", "slurm")
    script = "kill -STOP $PPID; touch $TENBIN_JOB_FOLDER/../sign; sleep 300"
    job = up.client.submit(["sh", "-c", script], grace_s=0.5, tasks=6)
    up.until((up.home / "jobs" / "sign").exists)
    waits = up.client.submit(["sh", "-c", "exit 3"], tasks=6)
    job.cancel()
    assert waits.result(120) == 3 and job.info()["stage"] == "cancelled"
