"""Recoveries that are killed, headers that are damaged, and rows of which a bit has changed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import BadInput
from scheduler.coordinator.journal import journal_file
from scheduler.coordinator.journal.journal import Journal
from scheduler.coordinator.journal.recovery import recover
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Region
from scheduler.prediction.predictions import TrackedPrediction
from tests.support.amounts import ALL
from tests.support.killed import killed

JOBS = range(1, 16)


def write(home: Path, source: Path) -> None:
    """Write a journal of 15 jobs, and copy it while ten of them are in its log only."""
    journal = Journal(source)
    key = journal.keep_environment({"HOME": "/"})
    for number in JOBS:
        entry = Entry(number, JobSpec(command=("echo", "x" * 300), folder="/"), key, 1.0)
        told = TrackedPrediction(number, number, 1, "run-time", 1.0, 7.25)
        journal.commit(
            [],
            [(float(number), number, "submitted", "")],
            [entry],
            [(5.0, ("tag", number))],
            regions={"core": [Region("r", 4, 4)]},
            predictions=[told],
        )
        if number == 5:
            journal.tidy(now=True)
    shutil.copytree(source, home)
    journal.close()


def content(home: Path) -> list[Any]:
    """All that a journal has."""
    with closing(Journal(home)) as journal:
        entries = journal.entries()
        histories = [journal.history(entry.id) for entry in entries]
        assert all(journal.environment(entry.environment) == {"HOME": "/"} for entry in entries)
        return [entries, histories, journal.predictions(), journal.timers(), journal.regions()]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Any]]:
    """Return a journal with its log, the same with all in its file, and what both have."""
    folder = tmp_path_factory.mktemp("written")
    write(folder / "log", folder / "source")
    truth = content(folder / "source")
    assert [entry.id for entry in truth[0]] == list(JOBS)
    return folder / "log", folder / "source", truth


def test_a_recovery_that_was_killed_anywhere_is_done_again(
    written: tuple[Path, Path, list[Any]], tmp_path: Path
) -> None:
    """No row is lost, and until then nothing starts on what is there; the old journal stays in a copy."""
    home, (source, _, truth) = tmp_path / "home", written
    for step in count(1, 1 if ALL else 2):
        shutil.copytree(source, home)
        (home / "journal.tally").write_text("?")
        came = killed(step, lambda: recover(home))
        if came and step % 4 < 2:
            killed(step, lambda: recover(home))
        try:
            found = content(home)
        except BadInput as error:
            assert "tenbin up --recover" in str(error)
            assert "15 of its jobs could be read" in recover(home), step
            found = content(home)
        assert found == truth, step
        (old, *_) = home.glob("journal-2*")
        assert {path.name for path in old.iterdir()} >= {"journal.sqlite", "journal.sqlite-wal"}
        assert "nothing to recover" in recover(home)
        left = {path.name for path in home.iterdir() if not path.name.startswith("journal-2")}
        assert left - {".journal-recovered"} == {"journal.sqlite", "journal.tally", "lock"}, step
        shutil.rmtree(home)
        if not came:
            break
    assert step > 50


# Of each field of SQLite's header the last byte at least; the first of the log's, and of its first page's.
HEADER = [("journal.sqlite", at) for at in (0, 15, 16, *range(17, 24), *range(27, 100, 4), 56, 61)]
LOG_HEADER = [("journal.sqlite-wal", at) for at in range(0, 32 + 24, 4)]


@pytest.mark.parametrize("place", HEADER + LOG_HEADER)
def test_under_a_damaged_header_every_row_is_read(
    written: tuple[Path, Path, list[Any]], tmp_path: Path, place: tuple[str, int]
) -> None:
    (log, file, truth), (name, at) = written, place
    for bit in (0, 5):
        home = tmp_path / str(bit)
        shutil.copytree(log if name.endswith("-wal") else file, home)
        damaged = bytearray((home / name).read_bytes())
        damaged[at] ^= 1 << bit
        (home / name).write_bytes(damaged)
        try:
            found = content(home)
        except BadInput as error:
            assert "tenbin up --recover" in str(error)
            assert "15 of its jobs could be read" in recover(home)
            found = content(home)
        assert found == truth


def test_what_an_earlier_log_has_left_behind_is_not_read(tmp_path: Path) -> None:
    """SQLite writes a log anew over the one before, whose end stays."""
    home = tmp_path / "home"
    with closing(Journal(tmp_path / "source")) as journal:
        key = journal.keep_environment({})
        entry = Entry(1, JobSpec(command=("true",), folder="/"), key, 1.0)
        journal.commit((), [(1.0, 1, "submitted", "")], [entry])
        for number in range(30):
            entry.trouble = f"old {number}"
            journal.commit([entry])
        with closing(sqlite3.connect(tmp_path / "source" / "journal.sqlite")) as db:
            assert db.execute("PRAGMA wal_checkpoint (PASSIVE)").fetchone()[0] == 0
        entry.trouble = "new"
        journal.commit([entry])
        shutil.copytree(tmp_path / "source", home)
    log = bytearray((home / "journal.sqlite-wal").read_bytes())
    assert b"old 28" in log
    log[3] ^= 1
    (home / "journal.sqlite-wal").write_bytes(log)
    assert "1 of its jobs could be read" in recover(home)
    with closing(Journal(home)) as journal:
        assert journal.entries() == [entry]


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("forecasts", "predicted = 14.5"),
        ("events", "at_s = 3.5"),
        ("timers", "at_s = 6.0"),
        ("regions", "max_units = 5"),
        ("jobs", "submit_s = 2.0"),
    ],
)
def test_a_row_that_is_not_as_it_was_written_is_refused(
    written: tuple[Path, Path, list[Any]], tmp_path: Path, table: str, change: str
) -> None:
    """All other rows are recovered."""
    home, truth = tmp_path / "home", written[2]
    shutil.copytree(written[1], home)
    with closing(sqlite3.connect(home / "journal.sqlite")) as db:
        least = db.execute(f"SELECT min(rowid) FROM {table}").fetchone()[0]
        db.execute(f"UPDATE {table} SET {change} WHERE rowid = {least}")
        db.commit()
    with pytest.raises(BadInput, match=r"is damaged: (row \d+ of its|what it says of job)"):
        content(home)
    recover(home)
    entries, histories, told, timers, regions = content(home)
    assert entries == truth[0][table == "jobs" :]
    if table != "jobs":
        assert histories == ([[], *truth[1][1:]] if table == "events" else truth[1])
    assert told == truth[2][table == "forecasts" :]
    assert timers == truth[3][table == "timers" :]
    assert regions == ({} if table == "regions" else truth[4])


BEFORE = """
CREATE TABLE events (number INTEGER PRIMARY KEY, at_s REAL, job INTEGER, kind TEXT, detail TEXT);
CREATE TABLE timers (at_s REAL, tag TEXT);
CREATE TABLE regions (pool TEXT, name TEXT, units INTEGER, max_units INTEGER);
CREATE TABLE forecasts (number INTEGER PRIMARY KEY, job INTEGER, attempt INTEGER, kind TEXT,
    at_s REAL, predicted REAL, measured REAL, void TEXT, emulated INTEGER, detail TEXT);
"""  # version 9


def test_a_journal_without_checksums_is_brought_forward(
    written: tuple[Path, Path, list[Any]], tmp_path: Path
) -> None:
    """In one transaction, after a copy; from then on its rows are checked."""
    home, truth = tmp_path / "home", written[2]
    shutil.copytree(written[1], home)
    with closing(sqlite3.connect(home / "journal.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        for statement in BEFORE.split(";")[:-1]:
            table = statement.split()[2]
            db.execute(f"ALTER TABLE {table} RENAME TO renamed")
            db.execute(statement)
            columns = ", ".join(row[1] for row in db.execute(f"PRAGMA table_info ({table})"))
            db.execute(f"INSERT INTO {table} SELECT {columns} FROM renamed")
            db.execute("DROP TABLE renamed")
        db.execute("PRAGMA application_id = 0")
        db.execute("PRAGMA user_version = 9")
        db.execute("PRAGMA journal_mode = WAL")
    before = (home / "journal.sqlite").read_bytes()
    assert content(home) == truth
    assert (home / "journal-version-9" / "journal.sqlite").read_bytes() == before
    with closing(sqlite3.connect(home / "journal.sqlite")) as db:
        db.execute("UPDATE forecasts SET predicted = 14.5 WHERE number = 3")
        db.commit()
    with pytest.raises(BadInput, match="row 3 of its forecasts"):
        content(home)


def test_what_jobs_become_that_were_told_to_end_is_brought_forward(tmp_path: Path) -> None:
    """Before version 11 only the trouble of a job said whether its deadline, a fault or its owner ends it."""
    troubles = {"it reached its deadline": Stage.KILLED, "a fault of tenbin's: Odd": Stage.FAILED, "": None}
    with closing(Journal(tmp_path)) as journal:
        key = journal.keep_environment({})
        spec = JobSpec(command=("true",), folder="/")
        entries = [
            Entry(number, spec, key, 1.0, alive=True, want="end", trouble=trouble)
            for number, trouble in enumerate(troubles, 1)
        ]
        again = Entry(4, spec, key, 1.0, trouble="exit code 3")  # it is to be tried again
        journal.commit((), (), [*entries, again])
    with closing(sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)) as db:
        db.execute("ALTER TABLE jobs DROP COLUMN ending")
        db.execute(f"PRAGMA application_id = {journal_file.APPLICATION_ID ^ 10}")
        db.execute("PRAGMA user_version = 10")
    for _ in range(2):  # its rows are whole when it is opened again
        with closing(Journal(tmp_path)) as journal:
            assert [entry.ending for entry in journal.open_jobs()] == [*troubles.values(), None]
    assert (tmp_path / "journal-version-10" / "journal.sqlite").exists()
