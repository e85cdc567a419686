"""Journal and folders of jobs: what each says, if they disagree, and if the journal cannot be written."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from agent.attempts.folder import Attempt
from agent.attempts.records import Order
from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.job_table import NoRoom
from scheduler.coordinator.journal.journal import Journal
from scheduler.coordinator.journal.recovery import check_folders, recover
from scheduler.engines.local.engine import LocalEngine
from scheduler.jobs.entry import Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Pool
from tenbin.client.client import Job
from tests.support.amounts import sweep
from tests.support.coordinator import Up
from tests.support.programs import TENBIN
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit

BODY = 'echo $TENBIN_JOB_ID >> "$LOG"; echo new; '


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
        job, second = (
            job.id
            for job in coordinator.submit([touch, JobSpec(command=("true",), folder="/")], dict(os.environ))
        )
        deadline = time.monotonic() + 30
        while not coordinator.job_table.settled(second):
            assert time.monotonic() < deadline
            coordinator.turn()
            time.sleep(0.01)
        entry = coordinator.job_table.entry(job)
        assert entry is not None and entry.stage is Stage.FAILED
        assert "another job has run in this folder" in entry.trouble and str(old.path) in entry.trouble
        assert (old.path / "order.json").read_bytes() == before and not (tmp_path / "ran").exists()
        assert coordinator.job_table.stage(second) is Stage.DONE
    finally:
        engine.close()
        journal.close()


def test_an_order_may_be_placed_again(tmp_path: Path) -> None:
    """An engine that was interrupted between its orders begins with all of them anew."""
    attempt, out = Attempt(tmp_path / "jobs" / "1" / "attempt-1"), str(tmp_path / "out")
    order = Order(1, 1, "m", ("true",), {"TENBIN_JOB_KEY": "1-5"}, "/", out, out, cores=(0,))
    attempt.place(order)
    assert attempt.claim()
    attempt.place(replace(order, cores=(3,)))
    for environment in ({"TENBIN_JOB_KEY": "1-6"}, {}):
        with pytest.raises(FileExistsError, match="another job"):
            attempt.place(replace(order, environment=environment))
    assert attempt.order() == order


@pytest.mark.parametrize("number", sweep((signal.SIGTERM, signal.SIGINT), {signal.SIGTERM}))
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
        said = waiting.communicate(timeout=30)[1]
        assert "no coordinator answers" in said or "is starting or ending" in said
        assert waiting.returncode == 4
    kept = {"jobs", "lock", "journal.tally", "default-policy"}
    assert {path.name for path in up.home.iterdir()} - kept == {"journal.sqlite"}
    with sqlite3.connect(up.home / "journal.sqlite") as db:
        assert db.execute("SELECT id, stage FROM jobs").fetchall() == [(1, "running")]
    up.start("--cores", "1")
    job.cancel()
    assert job.wait(30)["stage"] == "cancelled"


def test_jobs_without_their_journal_are_said_and_taken_in(up: Up, tmp_path: Path) -> None:
    """Nothing runs before its owner has chosen; then none is lost, none runs twice, each has its number."""
    log = tmp_path / "jobs.log"
    environment = {**os.environ, "LOG": str(log)}

    def submit(body: str, **more: object) -> Job:
        spec = {"command": ["sh", "-c", BODY + body], "folder": str(tmp_path), **more}
        return up.client.submit_all([spec], environment)[0]

    up.start("--cores", "2")
    for code in (0, 0, 3):
        assert submit(f"exit {code}").result(30) == code
    going, dying = submit("while ! [ -e go ]; do sleep 0.05; done", name="going"), submit("sleep 60")
    up.until(lambda: len(log.read_text().split()) == 5)
    up.kill(signal.SIGTERM)
    for path in up.home.glob("journal.*"):
        path.unlink()
    state = Attempt(up.home / "jobs" / "5" / "attempt-1").state()
    assert state is not None
    os.kill(state.supervisor_pid, signal.SIGKILL)

    done = up.run("up", "--cores", "2")
    assert done.returncode == 2 and "of jobs 1-5 there is more in jobs/ than in the journal" in done.stderr
    assert "tenbin up --recover" in done.stderr and len(done.stderr.splitlines()) == 1
    up.start("--cores", "2", "--recover")
    assert [up.client.job(number).wait(30)["stage"] for number in (1, 2, 3)] == ["done", "done", "failed"]
    assert going.info()["stage"] == "running" and going.info()["name"] == "going"
    up.until(lambda: dying.info()["history"][-1]["what"] == "lost")
    assert dying.info()["stage"] == "suspended" and "tenbin resume 5" in dying.info()["why"]
    for _ in range(4):  # with the numbers and folders of the old ones they were done without having run
        assert submit("exit 3").wait(30)["stage"] == "failed"
    (tmp_path / "go").touch()
    assert going.result(30) == 0 and up.client.output(4) == b"new\n"
    dying.resume()
    up.until(lambda: dying.info()["stage"] == "running" and len(log.read_text().split()) == 10)
    dying.cancel()
    assert dying.wait(30)["attempt"] == 2
    assert log.read_text().split() == ["1", "2", "3", "4", "5", "6", "7", "8", "9", "5"]


def test_a_job_that_goes_on_in_the_journals_place_is_not_begun_anew(up: Up, tmp_path: Path) -> None:
    """The journal is an older one: it has the job as waiting, the folder has an attempt that runs."""
    up.start("--cores", "1")
    first = up.client.submit(["sleep", "60"])
    second = up.client.submit(
        ["sh", "-c", "echo x; while ! [ -e go ]; do sleep 0.05; done"], folder=str(tmp_path)
    )
    third = up.client.submit(["true"])
    up.kill(signal.SIGTERM)
    copies = {path: path.read_bytes() for path in up.home.glob("journal.*")}
    up.start("--cores", "1")
    first.cancel()
    up.until(lambda: up.client.output(second.id) == b"x\n")
    lost = up.client.submit(["true"])
    up.kill()
    tally = (up.home / "journal.tally").read_bytes()
    for path, content in copies.items():
        path.write_bytes(content)
    (up.home / "journal.tally").write_bytes(tally)
    for path in (up.home / "journal.sqlite-wal", up.home / "journal.sqlite-shm"):
        path.unlink(missing_ok=True)

    done = up.run("up", "--cores", "1", "--daemon")
    assert done.returncode == 2 and "changes are lost; of 4 jobs it has 3" in done.stderr
    done = up.run("up", "--cores", "1", "--daemon", "--recover")
    assert done.returncode == 0, done.stderr
    assert "lost, because no folder tells of them: job 4;" in done.stdout
    try:
        assert first.wait(30)["stage"] == "cancelled"
        assert second.info()["stage"] in ("running", "suspended") and second.info()["attempt"] == 1
        (tmp_path / "go").touch()
        assert second.result(30) == 0 and up.client.output(second.id) == b"x\n"
        assert third.result(30) == 0
        assert up.client.submit(["true"]).id == lost.id + 1
    finally:
        assert up.run("down").returncode == 0


def test_folders_of_an_older_version_are_taken_in(tmp_path: Path) -> None:
    """Their orders do not have the journal's row; of some nothing can be read at all."""
    out = str(tmp_path / "out")
    environment = {"TENBIN_JOB_KEY": "3-1700000000", "A": "1"}
    old = Attempt(tmp_path / "jobs" / "3" / "attempt-2")
    old.place(
        Order(3, 2, "m", ("tool", "-x"), environment, "/tmp", out, out, cores=(0, 1), time_limit_s=60.0)
    )
    content = json.loads((old.path / "order.json").read_text())
    del content["journalled"]
    (old.path / "order.json").write_text(json.dumps(content))
    for number, text in ((5, "{"), (6, "[]"), (7, '{"environment": 3}')):
        (tmp_path / "jobs" / str(number) / "attempt-1").mkdir(parents=True)
        (tmp_path / "jobs" / str(number) / "attempt-1" / "order.json").write_text(text)
    (tmp_path / "jobs" / "9").mkdir()  # nothing was placed there
    journal = Journal(tmp_path)
    with pytest.raises(BadInput, match=r"of jobs 3, 5-7 there is more"):
        check_folders(journal)
    journal.close()
    assert "0 of its jobs could be read, 4 are as their folders tell" in recover(tmp_path)
    journal = Journal(tmp_path)
    check_folders(journal)
    three, *others = journal.entries()
    assert three.spec.command == ("tool", "-x") and three.submit_s == 1700000000.0 and three.attempt == 2
    assert (three.spec.cores, three.spec.time_s, three.stage) == (2, 60.0, Stage.HELD) and three.held_by_user
    assert journal.environment(three.environment)["A"] == "1"
    assert [entry.stage for entry in others] == [Stage.FAILED] * 3 and journal.next_id() == 10
    journal.close()
    assert "nothing to recover" in recover(tmp_path)


def test_only_its_owner_can_read_what_it_writes(up: Up, tmp_path: Path) -> None:
    """Also the log of the journal, and in a home that others could enter.

    A job has the umask that it had, and so has output that it is to write elsewhere.
    """
    up.home.mkdir()
    up.home.chmod(0o755)
    before = os.umask(0o027)
    try:
        up.start("--cores", "1")
    finally:
        os.umask(before)
    assert f"others could enter {up.home} (mode 755): closed" in (tmp_path / "coordinator.log").read_text()
    job = up.client.submit(["sh", "-c", "umask; touch made"], folder=str(tmp_path))
    assert job.result(30) == 0 and up.client.output(1) == b"0027\n"
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o640
    assert up.client.submit(["true"], folder=str(tmp_path), stdout="out-%j").result(30) == 0
    assert stat.S_IMODE((tmp_path / "out-2").stat().st_mode) == 0o640
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [up.home, *up.home.rglob("*")]}
    assert {"journal.sqlite-wal", "journal.sqlite-shm", "order.json"} <= {path.name for path in modes}
    mine = {path: mode for path, mode in modes.items() if path.name != "samples.csv"}
    assert {path: oct(mode) for path, mode in mine.items() if mode & 0o077} == {}


def test_a_home_that_is_open_or_not_ones_own_is_refused(up: Up, tmp_path: Path) -> None:
    """Only a folder that is plainly a coordinator's is closed; a folder of other things stays as it is."""
    up.home.mkdir()
    (up.home / "thesis.tex").touch()
    for mode in (0o755, 0o777, 0o1777):
        up.home.chmod(mode)
        done = up.run("up", "--cores", "1")
        assert done.returncode == 2 and f"others can enter {up.home} (mode {mode:o})" in done.stderr
        assert stat.S_IMODE(up.home.stat().st_mode) == mode
    assert [path.name for path in up.home.iterdir()] == ["thesis.tex"]


# Changes that users ask for while the journal cannot be written are not called done.


@contextmanager
def full(coordinator: Coordinator) -> Iterator[None]:
    def commit(*_: object, **__: object) -> NoReturn:
        raise sqlite3.OperationalError("database or disk is full")

    before = coordinator.journal.commit
    coordinator.journal.commit = commit  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        coordinator.journal.commit = before  # type: ignore[method-assign]


def priority(coordinator: Coordinator, job_ids: list[int]) -> None:
    coordinator.set_priority(job_ids, 5)


def change(name: str) -> Callable[[Coordinator, list[int]], Any]:
    return priority if name == "priority" else getattr(Coordinator, name)


@pytest.mark.parametrize(
    ("first", "name", "after"),
    [
        ("", "cancel", "cancelled"),
        ("", "suspend", "suspended"),
        ("suspend", "resume", "waiting"),
        ("cancel", "retry", "waiting"),
        ("", "priority", "waiting"),
    ],
)
@pytest.mark.parametrize("killed", [False, True])
def test_a_change_is_told_to_be_open_until_it_is_durable(
    first: str, name: str, *, after: str, killed: bool, tmp_path: Path
) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        _, job = submit(coordinator), submit(coordinator)
        if first:
            change(first)(coordinator, [job])
        before = shown(coordinator, job)
        with full(coordinator), pytest.raises(NoRoom, match="the journal cannot be written"):
            change(name)(coordinator, [job])
        if not killed:
            coordinator.turn()
    with engine.coordinator(tmp_path) as coordinator:
        assert shown(coordinator, job) == (before if killed else [after])
        entry = coordinator.job_table.entry(job)
        assert entry is not None
        assert entry.priority == (5 if name == "priority" and not killed else 0)


def test_a_job_that_cannot_be_placed_holds_up_no_change(tmp_path: Path) -> None:
    """The journal has it."""
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator)
        engine.full = True
        submit(coordinator)
        engine.full = True
        coordinator.cancel([job])
        assert engine.asks == [(job, "end")]
