"""The coordinator dies, Slurm does, others change things: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scheduler.engines.slurm.test_engine import START, run, stage
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab

# Notes each time that it is begun, and runs until it is told to go.
NOTES = "i=$TENBIN_ARRAY_INDEX; echo $i >>begun; until [ -e go ]; do sleep 0.05; done; echo $i >>done"


def begun(folder: Path, name: str = "begun") -> list[str]:
    return sorted((folder / name).read_text().split()) if (folder / name).exists() else []


def slurm_states(lab: SlurmLab) -> list[str]:
    return lab.call("squeue", "-h", "-o", "%T").split()


def test_a_killed_coordinator_finds_its_jobs(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Those that ran on, the one that ended meanwhile, the one that waits, and one that is paused."""
    up.start(*START)
    run(up, "submit", "--array", "1-4", "--chdir", str(tmp_path), "--", "sh", "-c", NOTES)
    up.until(lambda: len(begun(tmp_path)) == 3)
    run(up, "suspend", "3")
    up.until(lambda: len(begun(tmp_path)) == 4 and "SUSPENDED" in slurm_states(lab))
    up.kill()
    (tmp_path / "go").touch()
    up.until(lambda: len(begun(tmp_path, "done")) == 3)
    up.start(*START)
    assert [up.client.job(n).result(60) for n in (2, 4, 5)] == [0, 0, 0]
    assert stage(up, 3) == "suspended"
    run(up, "resume", "3")
    assert up.client.job(3).result(60) == 0
    assert begun(tmp_path) == begun(tmp_path, "done") == ["1", "2", "3", "4"]


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


def test_slurmctld_is_restarted(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    up.start(*START)
    run(up, "submit", "--array", "1-2", "--chdir", str(tmp_path), "--", "sh", "-c", NOTES)
    up.until(lambda: len(begun(tmp_path)) == 2)
    lab.keep()
    lab.kill_slurmctld()
    run(up, "submit", "--chdir", str(tmp_path), "--", "true")
    up.until(lambda: "Slurm does not answer" in str(up.client.job(4).info()["why"]), 60)
    lab.start_slurmctld()
    assert up.client.job(4).result(120) == 0
    (tmp_path / "go").touch()
    assert [up.client.job(n).result(60) for n in (2, 3)] == [0, 0]
    assert begun(tmp_path) == ["1", "2"]


@pytest.mark.slow
def test_what_others_do_in_slurm_is_respected(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    up.start(*START)
    run(up, "submit", "--array", "1-2", "--chdir", str(tmp_path), "--", "sh", "-c", NOTES)
    up.until(lambda: len(begun(tmp_path)) == 2)
    second, third = (lab.call("squeue", "-h", "-o", "%i", f"--name=tenbin-{n}").strip() for n in (2, 3))
    lab.call("scancel", second)
    up.until(lambda: stage(up, 2) == "cancelled")
    lab.call("scontrol", "suspend", third)
    up.until(lambda: "suspended in Slurm by somebody else" in up.client.job(3).info()["why"])
    lab.call("scontrol", "resume", third)
    (tmp_path / "go").touch()
    assert up.client.job(3).result(60) == 0


def test_the_jobs_of_a_dead_node_run_elsewhere(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Slurm says that it is lost; the job begins anew when its lease is over, and only there."""
    up.start(*START, "--lease", "3")
    waits = "hostname >>begun; until [ -e go ]; do sleep 0.05; done"
    run(up, "submit", "--chdir", str(tmp_path), "--", "sh", "-c", waits)
    up.until(lambda: len(begun(tmp_path)) == 1)
    (node,) = begun(tmp_path)
    lab.power_off(node)
    lab.call("scontrol", "update", f"nodename={node}", "state=down", "reason=power")
    up.until(lambda: len(begun(tmp_path)) == 2, 60)
    (tmp_path / "go").touch()
    assert up.client.job(1).result(60) == 0
    assert up.client.job(1).info()["attempt"] == 2 and begun(tmp_path)[0] != begun(tmp_path)[1]
