"""Under Slurm too: the journal and the jobs' folders, and what umask a job has."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab

START = ("--engine", "slurm")


def test_a_job_goes_on_though_the_journal_is_lost(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        up.start(*START)
    finally:
        os.umask(before)
    body = "umask; until [ -e go ]; do sleep 0.1; done"
    job = up.client.submit(["sh", "-c", body], folder=str(tmp_path))
    up.until(lambda: up.client.output(1) == b"0027\n", 60)
    up.kill()
    for path in up.home.glob("journal.*"):
        path.unlink()
    done = up.run("up", *START)
    assert done.returncode == 2 and "of job 1 there is more in jobs/" in done.stderr
    up.start(*START, "--recover")
    assert job.info()["stage"] in ("running", "held") and job.info()["attempt"] == 1
    (tmp_path / "go").touch()
    assert job.result(60) == 0 and up.client.output(1) == b"0027\n"
    assert up.client.submit(["true"]).result(60) == 0 and up.client.job(2).info()["stage"] == "done"
    assert len(list((up.home / "jobs" / "1").glob("attempt-*"))) == 1
