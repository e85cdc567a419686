"""What the journal and the jobs' folders say of each other, and what is done where they disagree."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from agent.jobs.folder import Attempt, Order
from scheduler.coordination.coordinator import Coordinator
from scheduler.coordination.journal import Journal, Stage
from scheduler.coordination.specs import JobSpec
from scheduler.engines.local import LocalEngine
from scheduler.model import Cluster, Pool
from tests.coordinator.conftest import Up
from tests.programs import TENBIN


def test_a_new_job_has_a_number_above_all_folders(tmp_path: Path) -> None:
    """The journal may be younger than the folders: the next job must not get the folder of an earlier one."""
    for name in ("2", "17", "notes", "x9"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
    journal = Journal(tmp_path)
    assert journal.next_id() == 18
    journal.close()


def test_an_order_is_not_placed_where_another_job_has_run(tmp_path: Path) -> None:
    """The files of another job are not taken for those of this one: it fails, and says why."""
    cores = [sorted(os.sched_getaffinity(0))[:1]]
    journal = Journal(tmp_path)
    engine = LocalEngine(tmp_path, tmp_path / "report.sock", Cluster((Pool("core", 1),)), cores)
    try:
        coordinator = Coordinator(journal, engine, "fcfs")
        old = Attempt(tmp_path / "jobs" / "1" / "attempt-1")  # it came after the journal was opened
        out = str(tmp_path / "out")
        old.place(Order(1, 1, "other", ("true",), {}, "/", out, out))
        assert old.claim()
        before = (old.path / "order.json").read_bytes()
        touch = JobSpec(command=("touch", str(tmp_path / "ran")), folder="/")
        job, second = coordinator.submit([touch, JobSpec(command=("true",), folder="/")], dict(os.environ))
        deadline = time.monotonic() + 30
        while not coordinator.ledger.settled(second):
            assert time.monotonic() < deadline
            coordinator.turn()
            time.sleep(0.01)
        entry = coordinator.ledger.entry(job)
        assert entry is not None and entry.stage is Stage.FAILED
        assert "another job has run in this folder" in entry.trouble and str(old.path) in entry.trouble
        assert (old.path / "order.json").read_bytes() == before and not (tmp_path / "ran").exists()
        assert coordinator.ledger.stage(second) is Stage.DONE
    finally:
        engine.close()
        journal.close()


def test_an_order_may_be_placed_again(tmp_path: Path) -> None:
    """An engine that was interrupted between its orders begins with all of them anew."""
    attempt, out = Attempt(tmp_path / "jobs" / "1" / "attempt-1"), str(tmp_path / "out")
    order = Order(1, 1, "m", ("true",), {"A": "é"}, "/", out, out, cores=(0, 3), time_limit_s=0.1)
    attempt.place(order)
    assert attempt.claim()
    attempt.place(order)
    with pytest.raises(FileExistsError, match="another job"):
        attempt.place(Order(1, 1, "m", ("false",), {"A": "é"}, "/", out, out))
    assert attempt.order() == order


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_as_it_should(up: Up, number: signal.Signals) -> None:
    """Also while somebody waits for a job: nothing is left behind, and all of the journal is in its file."""
    up.start("--cores", "1")
    assert up.process is not None
    job = up.client.submit(["sleep", "60"])
    up.until(lambda: job.info()["stage"] == "running")
    words = [*TENBIN, "wait", "1"]
    environment = {**os.environ, "TENBIN_HOME": str(up.home)}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as waiting:
        time.sleep(0.5)  # by then it waits, or it is refused: either will do
        up.kill(number)
        assert up.process.returncode == 0
        assert "no coordinator answers" in waiting.communicate(timeout=30)[1] and waiting.returncode == 4
    assert {path.name for path in up.home.iterdir()} - {"jobs", "lock"} == {"journal.sqlite"}
    with sqlite3.connect(up.home / "journal.sqlite") as db:
        assert db.execute("SELECT id, stage FROM jobs").fetchall() == [(1, "running")]
    up.start("--cores", "1")
    job.cancel()
    assert job.wait(30)["stage"] == "cancelled"
