"""The journal as another process follows it: opened to read only, and read only where it has changed."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from profiles.errors import BadInput
from scheduler.coordinator.journal import journal_file as file
from scheduler.coordinator.journal.journal import MARKS, VERSION, as_it_is
from scheduler.coordinator.journal.journal_file import read_predictions
from scheduler.jobs.entry import FINAL, Entry
from scheduler.jobs.job_list import read_selector
from scheduler.jobs.rows import COLUMNS, entry_of
from scheduler.prediction.predictions import TrackedPrediction

T = TypeVar("T")
SCAN_SHARE = 0.05  # of the time may go into the search for changes that no event tells


class JournalEvent(NamedTuple):
    """One line of the journal's history; ``number`` counts over all jobs."""

    number: int
    at_s: float
    job: int
    kind: str


class Changes(NamedTuple, Generic[T]):
    """The difference to what was read before.

    Attributes:
        anew: it is another file than before; all of it is here.
        number: of the last event.
        jobs: new and changed jobs, each as the reader's ``view`` has it.
    """

    anew: bool
    number: int
    events: list[JournalEvent]
    jobs: list[T]


class JobRecord(NamedTuple):
    """All that the journal has of one job."""

    entry: Entry
    history: list[tuple[float, str, str]]
    predictions: list[TrackedPrediction]


class JournalReader(Generic[T]):
    """Follows the journal of a store, whether its coordinator runs or not.

    A coordinator is never held up: each reading is one short transaction.

    Args:
        columns: of a job's row, those that are read.
        view: makes what is kept of a job from these; a whole ``Entry`` of each would take too long.
    """

    def __init__(self, store: Path, columns: Sequence[str], view: Callable[[Sequence[Any]], T]) -> None:
        self._path, self._view = store / file.FILE, view
        self._select = f"SELECT {', '.join(columns)} FROM jobs"
        self._db: sqlite3.Connection | None = None
        self._inode, self._version, self._number = 0, -1, 0
        self._sums: dict[int, int | None] = {}  # of the jobs that have not ended
        self._scan_at, self._unscanned = 0.0, False

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def changes(self) -> Changes[T] | None:
        """Read what has changed since the last call; None: nothing.

        Raises:
            BadInput: there is no journal, or it cannot be read.
        """
        try:
            inode = self._path.stat().st_ino
            anew = self._db is None or inode != self._inode
            if anew:
                self._open(inode)
            assert self._db is not None
            version = self._db.execute("PRAGMA data_version").fetchone()[0]
            if version == self._version and not self._unscanned and not anew:
                return None
            self._db.execute("BEGIN")
            try:
                changes = self._all() if anew else self._new()
            finally:
                self._db.execute("ROLLBACK")
        except OSError as error:
            raise BadInput(f"{self._path}: {error.strerror}", "start its coordinator: tenbin up") from error
        except (*file.UNREADABLE, ValueError, TypeError, KeyError) as error:  # the latter: of ``view``
            self.close()
            raise BadInput(f"{self._path}: {file.in_a_line(error)}", "see: tenbin up") from error
        self._version = version
        return changes

    def _open(self, inode: int) -> None:
        self.close()
        db = file.read_only(self._path, any_thread=True)
        db.isolation_level = None
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            db.close()
            what = f"{self._path} is of version {version}, this tenbin reads {VERSION}"
            raise BadInput(what, "start its coordinator with this tenbin: tenbin up")
        self._db, self._inode, self._number = db, inode, 0
        self._sums.clear()

    def _all(self) -> Changes[T]:
        assert self._db is not None
        events = self._events()
        jobs = list(map(self._view, self._db.execute(f"{self._select} ORDER BY id")))
        self._sums = self._open_sums()
        return Changes(True, self._number, events, jobs)

    def _new(self) -> Changes[T] | None:
        """Read the jobs that events name; now and then also look for others that have changed."""
        events = self._events()
        ids = {event.job for event in events}
        self._unscanned = time.monotonic() < self._scan_at
        if not self._unscanned:
            began = time.monotonic()
            sums = self._open_sums()
            ids |= {job_id for job_id, value in sums.items() if self._sums.get(job_id, ...) != value}
            ids |= self._sums.keys() - sums.keys()
            self._sums = sums
            self._scan_at = time.monotonic() + (time.monotonic() - began) / SCAN_SHARE
        return Changes(False, self._number, events, self._rows(ids)) if events or ids else None

    def _events(self) -> list[JournalEvent]:
        assert self._db is not None
        query = "SELECT number, at_s, job, kind FROM events WHERE number > ? ORDER BY number"
        events = [JournalEvent(*row) for row in self._db.execute(query, (self._number,))]
        self._number = events[-1].number if events else self._number
        return events

    def _open_sums(self) -> dict[int, int | None]:
        """Return the checksum of each job that has not ended, by which a change of it is seen."""
        assert self._db is not None
        return dict(self._db.execute(f"SELECT id, sum FROM jobs WHERE stage NOT IN ({MARKS})", FINAL))

    def _rows(self, ids: Iterable[int]) -> list[T]:
        assert self._db is not None
        query = f"{self._select} WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
        return list(map(self._view, self._db.execute(query, (json.dumps(sorted(ids)),))))


def job_record(store: Path, job_id: int) -> JobRecord | None:
    """Read one job; None if there is none of that number.

    Raises:
        BadInput: the journal cannot be read.
    """
    with as_it_is(store) as db, suppress(OverflowError):  # SQLite knows 64 bits
        row = db.execute(f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            return None
        query = "SELECT at_s, kind, detail FROM events WHERE job = ? ORDER BY number"
        history = db.execute(query, (job_id,)).fetchall()
        predictions = read_predictions(db, job=job_id, kind=None, last=None, open=False)
        return JobRecord(entry_of(row), history, predictions)
    return None


def jobs_named(store: Path, word: str) -> list[Entry]:
    """Read the jobs that a word means, whether their coordinator runs or not; of an array its members.

    Raises:
        BadInput: there are none, or the journal cannot be read.
    """
    selector, submission = read_selector(word), "coalesce(array, id)"
    values: list[object] = []
    spans = [bound for span in selector.spans for bound in (span.low, span.high)]
    if selector.word == "all":
        where, values = f"stage NOT IN ({MARKS})", [*FINAL]
    elif selector.word == "last":
        where = f"{submission} = (SELECT {submission} FROM jobs ORDER BY id DESC LIMIT 1)"
    elif selector.array is not None:
        among = " OR ".join("array_index BETWEEN ? AND ?" for _ in selector.spans)
        where, values = f"array = ? AND ({among})", [selector.array, *spans]
    else:
        where, values = "id BETWEEN ? AND ? OR array BETWEEN ? AND ?", [*spans, *spans]
    with as_it_is(store) as db:
        rows = db.execute(f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE {where} ORDER BY id", values)
        entries = list(map(entry_of, rows))
    if not entries:
        raise BadInput(f"there is no job {word}", "see: tenbin jobs --all")
    return entries
