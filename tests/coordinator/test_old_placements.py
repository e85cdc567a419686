"""What is told of jobs that ran when the machine was divided otherwise."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

import pytest

from tests.conftest import require
from tests.coordinator.conftest import Up
from tests.programs import opencl_devices

TASKS = ["sh", "-c", "echo $TENBIN_TASKS"]


def told(up: Up) -> list[dict[str, Any]]:
    """Everything about every job, by the API; and the command line can say it."""
    found = [up.client.job(job["id"]).info() for job in up.client.call("GET", "/jobs?all=true")]
    for job in found:
        done = up.run("info", str(job["id"]))
        assert done.returncode == 0 and f"job {job['id']}: done" in done.stdout, done.stderr
    return found


def run(up: Up, **needs: Any) -> int:
    """How many tasks a job was told that it has."""
    job = up.client.submit(TASKS, **needs)
    assert job.result(60) == 0
    return int(up.client.output(job.id))


@pytest.mark.parametrize("devices", [False, True])
def test_after_a_change_of_policy_old_jobs_are_told_as_they_were(up: Up, devices: bool) -> None:
    """Their pool, or the size of its nodes, is no more: every field stays what it was when they had ended."""
    if devices:
        require(opencl_devices(), "an OpenCL device")
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    options = (
        ("--cores", "2"),
        ("--policy", "las", "--cores", "2", "--nodes", "2"),
        ("--policy", "match", "--cores", "2", "--nodes", "1"),
        *([("--policy", "mctbm", "--devices")] if devices else []),
        ("--cores", "1"),
    )
    before: list[dict[str, Any]] = []
    counts: list[int] = []
    for divided in options:
        up.start(*divided)
        assert told(up) == before
        counts += [run(up), *([run(up, nodes=1)] if "--nodes" in divided else [])]
        before = told(up)
        assert [job["tasks"] for job in before] == counts
        up.kill()
    assert counts == [1, *(1, 1), *(1, 2), *([1] if devices else []), 1]  # the nodes had one core, and two


def test_jobs_of_a_journal_that_did_not_note_their_tasks(up: Up) -> None:
    """Before version 5 of the journal only their cores said how many they had."""
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    up.start("--policy", "las", "--cores", "2", "--nodes", "1")
    counts = [run(up), run(up, nodes=1), run(up, cores=2)]
    up.kill()
    with sqlite3.connect(up.home / "journal.sqlite") as db:
        for column in ("tasks", "hosts"):
            db.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 4")
    up.start("--cores", "1")
    assert [job["tasks"] for job in told(up)] == counts == [1, 2, 1]
