"""Reports of jobs that ran when the machine was divided otherwise."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tenbin.errors import TenbinError
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.programs import opencl_devices

TASKS = ["sh", "-c", "echo $TENBIN_TASKS"]


def told(up: Up) -> list[dict[str, Any]]:
    """Everything about every job, by the API; and the command line can say it."""
    found = [up.client.job(job["id"]).info() for job in up.client.call("GET", "/jobs?all=true")]
    done = up.run("info", f"1-{len(found)}") if found else None
    assert done is None or done.stdout.count(": done\n") == len(found), done.stderr
    return found


def run(up: Up, **needs: Any) -> int:
    """Run a job; return the number of tasks that it was told."""
    job = up.client.submit(TASKS, **needs)
    assert job.result(60) == 0
    return int(up.client.output(job.id))


def runs_under(up: Up, options: tuple[tuple[str, ...], ...]) -> list[int]:
    """Run a job under each set of options, and a whole-node job where nodes are scheduled; count tasks.

    What is told of each job stays what it was, whatever comes after it.
    """
    before: list[dict[str, Any]] = []
    counts: list[int] = []
    for divided in options:
        up.start(*divided)
        assert [up.client.job(job["id"]).info() for job in before] == before
        counts += [run(up), *([run(up, nodes=1)] if "--nodes" in divided else [])]
        before = told(up)
        assert [job["tasks"] for job in before] == counts
        up.kill()
    return counts


def test_after_a_change_of_policy_old_jobs_are_told_as_they_were(up: Up) -> None:
    """Their pool, or the size of its nodes, is no more."""
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    counts = runs_under(
        up,
        (
            ("--cores", "2"),
            ("--policy", "las", "--cores", "2", "--nodes", "2"),
            ("--policy", "match", "--cores", "2", "--nodes", "1"),
            ("--cores", "1"),
        ),
    )
    assert counts == [1, *(1, 1), *(1, 2), 1]  # the nodes had one core, and two


@pytest.mark.slow
def test_jobs_that_ran_on_devices_are_told_as_they_were(up: Up) -> None:
    require(opencl_devices(), "an OpenCL device")
    assert runs_under(up, (("--policy", "mctbm", "--devices"), ("--cores", "1"))) == [1, 1]


def test_jobs_of_a_journal_that_did_not_note_their_tasks(up: Up) -> None:
    """Before version 5 of the journal only their cores said how many they had."""
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    up.start("--policy", "las", "--cores", "2", "--nodes", "1")
    counts = [run(up), run(up, nodes=1), run(up, cores=2)]
    up.kill()
    with sqlite3.connect(up.home / "journal.sqlite") as db:
        for column in ("tasks", "hosts", "asked", "sum"):
            db.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        db.execute("DROP TABLE tally")
        db.execute("PRAGMA application_id = 0")
        db.execute("PRAGMA user_version = 4")
    (up.home / "journal.tally").unlink()
    up.start("--cores", "1")
    assert [job["tasks"] for job in told(up)] == counts == [1, 2, 1]


@pytest.mark.slow
def test_jobs_that_the_machine_cannot_run_any_more(up: Up, tmp_path: Path) -> None:
    """Divided otherwise, the machine is too small for some jobs.

    They are held with the reason, can be cancelled, and run when there is room for them again. Nothing else
    is hindered.
    """
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    leaves = ["sh", "-c", "while ! [ -e go ]; do sleep 0.02; done"]
    up.start("--cores", "2")
    large = up.client.submit(["sleep", "600"], tasks=2, checkpoint_signal=23)
    up.until(large.running)
    large.suspend()
    other = up.client.submit(["sleep", "600"], tasks=2)
    up.until(other.running)
    other.suspend()
    first = up.client.submit(leaves, folder=str(tmp_path))
    behind, dropped = (up.client.submit(["true"], tasks=2, after=[first.id]) for _ in range(2))
    small = up.client.submit(["true"], after=[first.id])
    up.until(first.running)
    up.kill()
    up.start("--cores", "1")
    with pytest.raises(TenbinError, match="job 1: this machine cannot run the job"):
        large.resume()
    assert large.info()["held_by_user"] and "suspended by its owner" in large.info()["why"]
    assert other.cancel() and other.wait(60)["stage"] == "cancelled"
    (tmp_path / "go").touch()
    assert first.result(60) == 0 and small.result(60) == 0
    for job in (behind, dropped):
        assert job.info()["stage"] == "held" and "cannot run the job" in job.info()["why"]
    assert dropped.cancel() and dropped.wait(60)["stage"] == "cancelled"
    up.kill()
    up.start("--cores", "2")
    assert behind.result(60) == 0
    large.resume()
    up.until(large.running)
    up.kill()
    up.start("--cores", "2")
    assert up.run("cancel", "all").returncode == 0 and large.wait(60)["stage"] == "cancelled"
