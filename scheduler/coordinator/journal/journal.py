"""The journal: every job and what happened to it, durable before it takes effect (SQLite).

One row a job, and a history of events. A batch of changes is one transaction: after a crash at any instant
all of it is there or none.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from heapq import merge
from pathlib import Path
from typing import Any

from profiles.errors import BadInput
from profiles.files.safe_files import make_folder
from scheduler.coordinator.journal import journal_file as file
from scheduler.coordinator.journal.journal_file import (
    INSERT,
    Tally,
    TallyFile,
    prediction_row,
    read_predictions,
    thaw,
)
from scheduler.engines.common.job_folders import PackedJobs, folders_on_disk
from scheduler.jobs.entry import FINAL, Entry, Stage
from scheduler.jobs.job_list import JobFilter
from scheduler.jobs.rows import CHANGING, COLUMNS, as_row, entry_of, new_rows
from scheduler.model.jobs import Region
from scheduler.prediction.predictions import Kind, TrackedPrediction

# 1 had no goals, 2 no predictions, 3 nothing of what others change, 4 no tasks and hosts, 5 no checksums,
# 6 no arrays, 7 no changed priorities, 8 not which programs can be moved, 9 checksums of jobs only,
# 10 not what jobs become that were told to end, 11 no promised starts, 12 not since when jobs could start.
VERSION = 13
MARKS = ", ".join("?" * len(FINAL))
BUSY_MS = 5000  # to wait for somebody who reads
LARGEST = (1 << 63) - 1  # number that SQLite knows
CHECKPOINT_S = 30.0  # so long what is committed may be in the log only


SCHEMA = f"""
CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY, {", ".join(c for c in COLUMNS if c != "id")},
    asked, sum);
CREATE TABLE IF NOT EXISTS tally (commits INTEGER, jobs INTEGER, last INTEGER);
CREATE INDEX IF NOT EXISTS by_stage ON jobs (stage);
CREATE INDEX IF NOT EXISTS by_array ON jobs (array, array_index, stage) WHERE array IS NOT NULL;
CREATE TABLE IF NOT EXISTS environments (key TEXT PRIMARY KEY, variables TEXT);
CREATE TABLE IF NOT EXISTS events
    (number INTEGER PRIMARY KEY, at_s REAL, job INTEGER, kind TEXT, detail TEXT, sum);
CREATE INDEX IF NOT EXISTS by_job ON events (job);
CREATE TABLE IF NOT EXISTS timers (at_s REAL, tag TEXT, sum);
CREATE TABLE IF NOT EXISTS regions (pool TEXT, name TEXT, units INTEGER, max_units INTEGER, sum);
CREATE TABLE IF NOT EXISTS forecasts (number INTEGER PRIMARY KEY, job INTEGER, attempt INTEGER, kind TEXT,
    at_s REAL, predicted REAL, measured REAL, void TEXT, emulated INTEGER, detail TEXT, sum);
CREATE INDEX IF NOT EXISTS forecasts_by_job ON forecasts (job);
CREATE INDEX IF NOT EXISTS forecasts_open ON forecasts (number) WHERE measured IS NULL AND void = '';
"""
# What a job asked for never changes: only the rest is written again.
ADD = f"INSERT INTO jobs ({', '.join(COLUMNS)}, asked, sum) VALUES ({', '.join('?' * len(COLUMNS))}, ?, ?)"
CHANGE = f"UPDATE jobs SET {', '.join(f'{c} = ?' for c in CHANGING)}, sum = ? WHERE id = ?"


def _note_endings(db: sqlite3.Connection) -> None:
    """Note what jobs become that tenbin has told to end; before version 11 only their trouble told it."""
    where = "alive AND want = 'end' AND ending IS NULL AND trouble <> ''"
    rows = db.execute(f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE {where}").fetchall()
    for entry in map(entry_of, rows):
        entry.ending = Stage.KILLED if entry.trouble == "it reached its deadline" else Stage.FAILED
        db.execute(CHANGE, _changed_row(entry))


LAYOUT = file.Layout(VERSION, SCHEMA, COLUMNS, COLUMNS.index("stage"), _note_endings)


class Journal:
    """The journal of one store; one coordinator holds it at a time.

    Raises:
        Busy: another coordinator holds it.
        Damaged: the file is not whole.
        BadInput: it is of a later version, or cannot be used.
    """

    def __init__(self, store: Path) -> None:
        make_folder(store, 0o700)
        self.store = store
        self._lock = file.hold(store)
        try:
            self._db = file.open_file(store, LAYOUT)
            self._tally = Tally(*self._db.execute("SELECT commits, jobs, last FROM tally").fetchone())
            self._tally_file = TallyFile(store, self._tally)
            # The journal may be younger than the folders.
            self._last = max(self._tally.last, *folders_on_disk(store), *PackedJobs(store).numbers(), 0)
        except BaseException:
            os.close(self._lock)
            raise
        self._last_environment: tuple[str, dict[str, str]] = "", {}
        self._checkpoint_at = 0.0
        self.tidy(now=True)

    def close(self) -> None:
        self.tidy(now=True)
        self._tally_file.close()
        self._db.close()
        os.close(self._lock)

    def tidy(self, now: bool = False) -> None:
        """Carry over what the log has into the file itself, if it is time, and nobody reads."""
        if not now and time.monotonic() < self._checkpoint_at:
            return
        self._checkpoint_at = time.monotonic() + CHECKPOINT_S
        with suppress(OSError, sqlite3.Error):  # no room: what is committed is as safe as before
            self._db.execute("PRAGMA busy_timeout = 0")
            if self._db.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchone()[0] == 0:
                self._tally_file.settle()
                self._checkpoint_at = math.inf
        self._db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    def next_id(self) -> int:
        self._last += 1
        return self._last

    def commit(
        self,
        changed: Iterable[Entry],
        events: Iterable[tuple[float, int, str, str]] = (),
        added: Iterable[Entry] = (),
        timers: Iterable[tuple[float, object]] | None = None,
        *,
        regions: Mapping[str, Sequence[Region]] | None = None,
        predictions: Iterable[TrackedPrediction] = (),
    ) -> None:
        """Write all of this in one transaction, durably.

        Args:
            changed, added: jobs. events: (time, job, kind, detail). predictions: new and changed ones.
            timers: all that are pending. regions: of all pools that are divided. None: as before.
        """
        new = list(added)
        last = max(self._last, *(entry.id for entry in new), 0)
        tally = Tally(self._tally.commits + 1, self._tally.jobs + len(new), last)
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(ADD, _whole_rows(new))
            self._db.executemany(CHANGE, [_changed_row(entry) for entry in changed])
            self._db.execute("UPDATE tally SET commits = ?, jobs = ?, last = ?", tally)
            self._db.executemany(INSERT["events"], events)
            if timers is not None:
                self._db.execute("DELETE FROM timers")
                rows = [(at, json.dumps(tag)) for at, tag in timers]
                self._db.executemany(INSERT["timers"], rows)
            if regions is not None:
                self._db.execute("DELETE FROM regions")
                parts = [
                    (pool, r.name, r.units, r.max_units) for pool, of_pool in regions.items() for r in of_pool
                ]
                self._db.executemany(INSERT["regions"], parts)
            self._db.executemany(INSERT["forecasts"], list(map(prediction_row, predictions)))
        self._tally, self._last = tally, last
        with suppress(OSError):
            self._tally_file.note(tally)
        self._checkpoint_at = min(self._checkpoint_at, time.monotonic() + CHECKPOINT_S)

    def keep_environment(self, variables: dict[str, str]) -> str:
        """Store an environment once, however many jobs have it; return its key."""
        text = json.dumps(variables, sort_keys=True)
        key = file.key_of(text)
        self._db.execute("INSERT OR IGNORE INTO environments VALUES (?, ?)", (key, text))
        return key

    def environment(self, key: str) -> dict[str, str]:
        """Return the variables; KeyError if the environment was never stored."""
        if key == self._last_environment[0]:  # most jobs that start one after the other share one
            return self._last_environment[1]
        row = self._db.execute("SELECT variables FROM environments WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise KeyError(key)
        self._last_environment = key, json.loads(row[0])
        return self._last_environment[1]

    def open_jobs(self) -> list[Entry]:
        """Return all jobs that have not ended, in the order of their numbers."""
        return list(self._select(f"WHERE stage NOT IN ({MARKS}) ORDER BY id", FINAL))

    def open_attempts(self) -> dict[int, int]:
        """Return the number of the last attempt of each job that has not ended, without the rest of it."""
        query = f"SELECT id, attempt FROM jobs WHERE stage NOT IN ({MARKS})"
        return dict(self._db.execute(query, FINAL).fetchall())

    def entry(self, job_id: int) -> Entry | None:
        return next(self._select("WHERE id = ?", (job_id,)), None)

    def stage(self, job_id: int) -> Stage | None:
        """Return the stage of a job, without the rest of it."""
        row = self._db.execute("SELECT stage FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else Stage(row[0])

    def numbers(self, array: int) -> dict[int, int]:
        """Return the number of each member of an array, by its index."""
        return dict(self._db.execute("SELECT array_index, id FROM jobs WHERE array = ?", (array,)).fetchall())

    def entries(self, limit: int | None = None) -> list[Entry]:
        """Return the last jobs (all), in the order of their numbers."""
        latest_first = list(self._select("ORDER BY id DESC LIMIT ?", (-1 if limit is None else limit,)))
        return latest_first[::-1]

    def ended_lately(self, last: int) -> list[Entry]:
        """Return those of the last jobs that have ended, in the order of their numbers."""
        latest = f"id IN (SELECT id FROM jobs ORDER BY id DESC LIMIT ?) AND stage IN ({MARKS})"
        return list(self._select(f"WHERE {latest} ORDER BY id", (last, *FINAL)))

    def count_single_jobs(self) -> int:
        """Count the jobs that belong to no array, ended or not."""
        members = self._db.execute("SELECT count(*) FROM jobs WHERE array IS NOT NULL").fetchone()[0]
        return self.count() - int(members)

    def ended(self, job_filter: JobFilter, user: str) -> Iterator[Entry]:
        """Yield jobs that have ended, the last ones first; of ``job_filter`` only what is cheap is looked at.

        Args:
            user: whose jobs those are that name nobody.
        """
        if job_filter.ids is not None:
            given = "(SELECT value FROM json_each(?))"
            where = f"WHERE (id IN {given} OR array IN {given}) AND stage IN ({MARKS}) ORDER BY id DESC"
            ids = json.dumps(list(job_filter.ids))
            yield from self._select(where, (ids, ids, *FINAL))
            return
        checks = job_filter.conditions(user)
        where = "".join(f" AND {text}" for text in checks)
        index = "by_array" if job_filter.array is not None else "by_stage"
        text = f"INDEXED BY {index} WHERE stage = ?{where} ORDER BY id DESC"
        stages = [stage for stage in FINAL if not job_filter.stages or stage in job_filter.stages]
        parts = [self._select(text, (stage, *checks.values())) for stage in stages]
        yield from merge(*parts, key=lambda entry: entry.id, reverse=True)

    def count(self) -> int:
        """Count the jobs, ended or not."""
        return int(self._db.execute("SELECT count(*) FROM jobs").fetchone()[0])

    def last_id(self) -> int:
        """Return the highest number that is taken, 0 before the first."""
        return self._last

    def reserve(self, last: int) -> None:
        """Reserve all numbers up to ``last``, also those of jobs that are not known any more."""
        self._last = max(self._last, last)

    def ids(self) -> set[int]:
        """Return the numbers of all jobs."""
        return {number for (number,) in self._db.execute("SELECT id FROM jobs")}

    def history(self, job_id: int) -> list[tuple[float, str, str]]:
        """Return (time, kind, detail) of what happened to a job."""
        query = "SELECT at_s, kind, detail FROM events WHERE job = ? ORDER BY number"
        return self._db.execute(query, (job_id,)).fetchall()

    def last_event_s(self) -> float:
        """Return when the last event was, by the clock as it was then; 0 before the first."""
        row = self._db.execute("SELECT at_s FROM events ORDER BY number DESC LIMIT 1").fetchone()
        return 0.0 if row is None else float(row[0])

    def count_ended(self) -> dict[str, int]:
        """Count the jobs that have ended, by stage."""
        query = f"SELECT stage, count(*) FROM jobs WHERE stage IN ({MARKS}) GROUP BY stage"
        return {stage.value: 0 for stage in FINAL} | dict(self._db.execute(query, FINAL).fetchall())

    def count_members(self) -> list[tuple[int, str, int]]:
        """Count the members of each array, by stage: (array, stage, count)."""
        query = "SELECT array, stage, count(*) FROM jobs WHERE array IS NOT NULL GROUP BY array, stage"
        return self._db.execute(query).fetchall()

    def members(self, array: int, low: int = 0, high: int = LARGEST) -> list[int]:
        """Return the numbers of an array's members whose indices lie in a range, in the order of these."""
        query = "SELECT id FROM jobs WHERE array = ? AND array_index BETWEEN ? AND ? ORDER BY array_index"
        return [number for (number,) in self._db.execute(query, (array, low, high))]

    def failed_members(self, array: int) -> list[int]:
        """Return the indices of the members that failed or were killed, in their order."""
        where = "WHERE array = ? AND stage IN ('failed', 'killed')"
        query = f"SELECT array_index FROM jobs {where} ORDER BY array_index"
        return [index for (index,) in self._db.execute(query, (array,))]

    def unsuccessful_members(self, array: int) -> list[Entry]:
        """Return the members that have ended without success, in the order of their numbers."""
        stages = tuple(stage for stage in FINAL if stage is not Stage.DONE)
        marks = ", ".join("?" * len(stages))
        return list(self._select(f"WHERE array = ? AND stage IN ({marks}) ORDER BY id", (array, *stages)))

    def index_range(self, array: int) -> tuple[int, int]:
        """Return the least and the largest index of an array."""
        query = "SELECT min(array_index), max(array_index) FROM jobs WHERE array = ?"
        least, most = self._db.execute(query, (array,)).fetchone()
        return int(least), int(most)

    def regions(self) -> dict[str, tuple[Region, ...]]:
        """Return the regions of each pool that is divided."""
        regions: dict[str, tuple[Region, ...]] = {}
        for pool, *region in self._db.execute("SELECT pool, name, units, max_units FROM regions"):
            regions[pool] = (*regions.get(pool, ()), Region(*region))
        return regions

    def last_prediction(self) -> int:
        """Return the number of the last prediction, 0 before the first."""
        return int(self._db.execute("SELECT coalesce(max(number), 0) FROM forecasts").fetchone()[0])

    def predictions(
        self, *, job: int | None = None, kind: Kind | None = None, last: int | None = None, open: bool = False
    ) -> list[TrackedPrediction]:
        """Return predictions in the order in which they were made.

        Args:
            job, kind: only those of a job, of a kind.
            last: only so many, the newest.
            open: only those whose outcome is not known.
        """
        return read_predictions(self._db, job=job, kind=kind, last=last, open=open)

    def timers(self) -> list[tuple[float, object]]:
        return [(at, thaw(json.loads(tag))) for at, tag in self._db.execute("SELECT at_s, tag FROM timers")]

    def _select(self, where: str, values: tuple[Any, ...]) -> Iterator[Entry]:
        for row in self._db.execute(f"SELECT {', '.join(COLUMNS)} FROM jobs {where}", values):
            yield entry_of(row)


def predictions_of(
    store: Path, *, kind: Kind | None = None, last: int | None = None
) -> list[TrackedPrediction]:
    """Read the predictions in the journal of a store, whether its coordinator runs or not.

    Raises:
        BadInput: there is none, or it cannot be read.
    """
    with as_it_is(store) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'forecasts'").fetchone():
            return []
        return read_predictions(db, job=None, kind=kind, last=last, open=False)


def ended_jobs(store: Path, last: int) -> list[Entry]:
    """Read the last jobs that have ended, in the order of their numbers; see ``predictions_of``."""
    with as_it_is(store) as db:
        has = {row[1] for row in db.execute("PRAGMA table_info (jobs)")}
        columns = ", ".join(name if name in has else f"NULL AS {name}" for name in COLUMNS)
        where = f"stage IN ({', '.join('?' * len(FINAL))}) ORDER BY id DESC LIMIT ?"
        rows = db.execute(f"SELECT {columns} FROM jobs WHERE {where}", (*FINAL, last)).fetchall()
    return [entry_of(row) for row in reversed(rows)]


@contextmanager
def as_it_is(store: Path) -> Iterator[sqlite3.Connection]:
    """Open the journal of a store to read only."""
    path = store / file.FILE
    if not path.exists():
        raise BadInput(f"no journal in {store}", "name the coordinator's folder: --home, or TENBIN_HOME")
    try:
        db = file.read_only(path)
        try:
            yield db
        finally:
            db.close()
    except file.UNREADABLE as error:
        raise BadInput(f"{path}: {file.in_a_line(error)}", "start its coordinator: tenbin up") from error


def _whole_rows(entries: Iterable[Entry]) -> Iterator[list[Any]]:
    for row in new_rows(entries):
        yield [*row, *file.sums(row, LAYOUT)]


def _changed_row(entry: Entry) -> list[Any]:
    values = as_row(entry, CHANGING)
    return [*values, file.checksum([entry.id, *values]), entry.id]
