"""The journal's file: held by one, opened only if it is whole, and laid out as this version has it.

SQLite takes much for whole that is not: it drops what follows a damaged place of its log in silence, and has
no checksums of what is in the file itself. So each row has one (a job's has two, because what was asked for
never changes), the header has the version twice, and the tally beside the file says how much there must be.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from profiles.errors import BadInput, Busy
from profiles.files.safe_files import sync, write_whole
from scheduler.jobs.rows import Damaged
from scheduler.prediction.predictions import UNITS, Kind, TrackedPrediction

# -- rows of the other tables ------------------------------------------------------------------------------
#
# Their columns, predictions, and tags of timers.


PREDICTION = tuple(field.name for field in fields(TrackedPrediction))
# Of each table whose rows have a checksum, the columns that it is of.
SUMMED = {
    "events": ("at_s", "job", "kind", "detail"),
    "timers": ("at_s", "tag"),
    "regions": ("pool", "name", "units", "max_units"),
    "forecasts": PREDICTION,
}


def insertion(table: str) -> str:
    """Return the statement that adds a row, or replaces one, with its checksum."""
    columns = SUMMED[table]
    values = ", ".join(f"?{place}" for place in range(1, len(columns) + 1))
    return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}, sum) VALUES ({values}, row_sum({values}))"


INSERT = {table: insertion(table) for table in SUMMED}


def read_predictions(
    db: sqlite3.Connection, *, job: int | None, kind: Kind | None, last: int | None, open: bool
) -> list[TrackedPrediction]:
    """See ``Journal.predictions``."""
    where = [f"{name} = ?" for name, value in (("job", job), ("kind", kind)) if value is not None]
    where += ["measured IS NULL AND void = ''"] if open else []
    query = f"SELECT {', '.join(PREDICTION)} FROM forecasts WHERE {' AND '.join(where) or 'true'}"
    values = [value for value in (job, kind) if value is not None]
    latest_first = []
    for row in db.execute(f"{query} ORDER BY number DESC LIMIT ?", [*values, -1 if last is None else last]):
        latest_first.append(prediction_of(row))
    return latest_first[::-1]


def prediction_row(prediction: TrackedPrediction) -> list[Any]:
    values = (getattr(prediction, name) for name in PREDICTION)
    return [json.dumps(value) if isinstance(value, dict) else value for value in values]


def prediction_of(row: Sequence[Any]) -> TrackedPrediction:
    """Make the prediction of a row; Damaged if the row is."""
    named = dict(zip(PREDICTION, row, strict=True))
    try:
        named["emulated"], named["detail"] = bool(named["emulated"]), json.loads(named["detail"])
    except (ValueError, TypeError) as error:
        raise Damaged(f"the journal is damaged: prediction {row[0]}: {error}") from error
    return TrackedPrediction(**named)


def thaw(tag: object) -> object:
    """Make a timer's tag hashable again, because JSON has no tuples."""
    return tuple(map(thaw, tag)) if isinstance(tag, list) else tag


# -- the tally beside the journal --------------------------------------------------------------------------
#
# The count of commits and jobs that the journal must hold.
#
# The journal counts its commits in a table; here the count is written again after each commit, before
# anybody is told of it. So the journal never holds less, unless it was damaged: after a crash at any
# instant it holds as much, or one commit more. The file need not be as durable as the journal: one that is
# behind is lawful.


TALLY = "journal.tally"
WIDTH = 96  # bytes, always the same: it is written over the one before, within a sector


class Tally(NamedTuple):
    """Commits so far, jobs in the journal, and the highest number that a job has had."""

    commits: int = 0
    jobs: int = 0
    last: int = 0


class TallyFile:
    """The tally beside the journal of a store, to write."""

    def __init__(self, store: Path, tally: Tally) -> None:
        """Write the file for the first time, or again.

        Raises:
            BadInput: it cannot be written.
        """
        path = store / TALLY
        try:
            if not path.exists():
                write_whole(path, _line(tally), 0o600)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            self.note(tally)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}", "free some space there") from error

    def note(self, tally: Tally) -> None:
        """Write the tally, not yet durably. If that raises OSError, the last tally stays, which is lawful."""
        os.pwrite(self._descriptor, _line(tally), 0)

    def settle(self) -> None:
        """Make the last tally durable."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def read_tally(store: Path) -> Tally | None:
    """Read the tally of a store, None if it has none.

    Raises:
        BadInput: it is damaged.
    """
    path = store / TALLY
    try:
        words = path.read_bytes().split()
        tally = Tally(*map(int, words[:3]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    if words != _line(tally).split():
        raise BadInput(f"{path} is damaged")
    return tally


def _line(tally: Tally) -> bytes:
    text = f"{tally.commits} {tally.jobs} {tally.last}"
    return f"{text} {crc32(text.encode()):08x}".encode().ljust(WIDTH - 1) + b"\n"


# -- the file ----------------------------------------------------------------------------------------------


FILE = "journal.sqlite"
LOCK_HINT = "use that one, or stop it with: tenbin down"
REPLACEMENT = "journal-recovered"  # folder of a new journal that is whole, and is to take this one's place
APPLICATION_ID = 0x74620000  # in SQLite's header, mixed with the version, which is there too
SUMMED_SINCE = 10  # version that has checksums in all tables, and its number twice
NUMBER = "('real', 'integer')"
# What no row of the other tables is, where they have no checksums; ``functions`` gives what is used here.
BROKEN = {
    "environments": "key(variables) IS NOT key OR NOT json(variables)",
    "events": f"typeof(at_s) NOT IN {NUMBER} OR typeof(job) != 'integer' OR NOT text(kind, detail)",
    "timers": f"typeof(at_s) NOT IN {NUMBER} OR NOT json(tag)",
    "regions": "NOT text(pool, name) OR typeof(units) != 'integer' "
    "OR typeof(max_units) NOT IN ('integer', 'null')",
    "forecasts": f"typeof(job) != 'integer' OR typeof(attempt) != 'integer' OR typeof(at_s) NOT IN {NUMBER} "
    f"OR kind NOT IN ({', '.join(map(repr, UNITS))}) OR typeof(predicted) IN ('text', 'blob') "
    "OR typeof(measured) IN ('text', 'blob') OR NOT text(void) OR NOT json(detail)",
}


class Layout(NamedTuple):
    """The layout that this version writes.

    Attributes:
        columns: of a job; those from ``changing`` on are written more than once.
        bring_forward: enters what earlier versions did not note, in their rows.
    """

    version: int
    schema: str
    columns: tuple[str, ...]
    changing: int
    bring_forward: Callable[[sqlite3.Connection], None]


def hold(store: Path) -> int:
    """Lock a store for oneself: a descriptor to keep open. Busy if a coordinator runs there."""
    descriptor = os.open(store / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
        os.close(descriptor)
        raise Busy(f"a coordinator already runs on {store}: pid {pid}", LOCK_HINT) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


# Of a damaged file; the second where SQLite quotes bytes of it that are no text.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)


def open_file(store: Path, layout: Layout) -> sqlite3.Connection:
    """Open the journal of a store, made if there is none.

    Raises:
        BadInput: it is damaged, lacks what it has held, is of another version, or cannot be written; it was
            not changed.
    """
    path = store / FILE
    version = check(store, layout)
    try:
        if 0 < version < layout.version:
            set_aside(store, f"journal-version-{version}")
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        for file in (path, *store.glob(f"{FILE}-*")):  # SQLite makes its log with the file's mode
            file.chmod(0o600)
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        functions(db)
        if version < layout.version:
            _upgrade(db, layout)
    except (OSError, sqlite3.Error) as error:
        raise BadInput(
            f"{path}: {in_a_line(error)}", "free some space there, or choose another --home"
        ) from error
    return db


def _upgrade(db: sqlite3.Connection, layout: Layout) -> None:
    """Lay out a new journal, or add what an older version lacks, all or nothing."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        has = _columns(db, "jobs")
        for column in (*layout.columns, "asked", "sum") if has else ():
            if column not in has:
                db.execute(f"ALTER TABLE jobs ADD COLUMN {column}")
        for table in SUMMED:
            if (has := _columns(db, table)) and "sum" not in has:
                db.execute(f"ALTER TABLE {table} ADD COLUMN sum")
        for statement in layout.schema.split(";"):
            db.execute(statement)
        for table, columns in SUMMED.items():
            db.execute(f"UPDATE {table} SET sum = row_sum({', '.join(columns)}) WHERE sum IS NULL")
        layout.bring_forward(db)
        if db.execute("SELECT 1 FROM tally").fetchone() is None:
            db.execute("INSERT INTO tally SELECT 1, count(*), coalesce(max(id), 0) FROM jobs")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID ^ layout.version}")
        db.execute(f"PRAGMA user_version = {layout.version}")


def set_aside(store: Path, name: str) -> Path:
    """Copy the journal to a folder of its store, there whole or not at all; one before is replaced."""
    made, copy = store / ".journal-copy", store / name
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    for path in store.glob("journal.*"):
        shutil.copy2(path, made / path.name)
        sync(made / path.name)
    sync(made)
    shutil.rmtree(copy, ignore_errors=True)
    made.rename(copy)
    sync(store)
    return copy


def check(store: Path, layout: Layout) -> int:
    """Look whether the journal is whole, and change nothing; return its version, 0 if there is none.

    Raises:
        Damaged: it is not whole.
        BadInput: it is of a later version, or a recovery was interrupted.
    """
    path = store / FILE
    if (store / REPLACEMENT).exists():
        what = f"{store}: a recovery was interrupted before {REPLACEMENT} was in the journal's place"
        raise BadInput(what, "finish it: tenbin up --recover")
    try:
        known = read_tally(store)
    except BadInput as error:
        raise Damaged(error.what) from None
    if not _size(path):
        if known is not None or _size(path.with_name(f"{FILE}-wal")):
            raise Damaged(f"{path} is gone, or empty")
        return 0
    try:
        with closing(read_only(path)) as db:
            fault = db.execute("PRAGMA integrity_check (1)").fetchone()[0]
            if fault != "ok":
                raise Damaged(f"{path} is damaged: {' '.join(fault.split())}")
            version = _version(db, path)
            if version > layout.version:
                what = f"{path} is of version {version}, this tenbin writes {layout.version}"
                raise BadInput(what, "use that tenbin")
            _check_tally(db, path, known)
            if known is not None:
                _check_rows(db, path, layout, older=version < layout.version)
            return version
    except UNREADABLE as error:
        raise Damaged(f"{path}: {in_a_line(error)}") from error


def _version(db: sqlite3.Connection, path: Path) -> int:
    version, again = (
        int(db.execute(f"PRAGMA {of}").fetchone()[0]) for of in ("user_version", "application_id")
    )
    if again != (APPLICATION_ID ^ version if version >= SUMMED_SINCE else 0):
        raise Damaged(f"{path} is damaged: its header says version {version}, and otherwise")
    return version


def _check_tally(db: sqlite3.Connection, path: Path, known: Tally | None) -> None:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    held = Tally()
    if "tally" in tables:
        rows = db.execute("SELECT commits, jobs, last FROM tally").fetchall()
        if len(rows) != 1 or not all(isinstance(value, int) for value in rows[0]):
            raise Damaged(f"{path} is damaged: it does not tell how many jobs it has")
        held = Tally(*rows[0])
    if known is None and held.commits > 1:
        raise Damaged(f"{path.with_name(TALLY)} is gone: nothing tells whether {path.name} is whole")
    if known is not None and held.commits < known.commits:
        lost = f"the last {known.commits - held.commits} of {known.commits} changes are lost"
        jobs = f"of {known.jobs} jobs it has {held.jobs}"
        raise Damaged(f"{path}, or its log {path.name}-wal, is damaged: {lost}; {jobs}")
    if "jobs" in tables and held.commits:
        jobs, last = db.execute("SELECT count(*), coalesce(max(id), 0) FROM jobs").fetchone()
        if jobs != held.jobs or last > held.last:
            raise Damaged(f"{path} is damaged: it has {jobs} of {held.jobs} jobs")


def _check_rows(db: sqlite3.Connection, path: Path, layout: Layout, older: bool) -> None:
    """``older``: what this version has added may be missing."""
    for row in db.execute(f"SELECT {', '.join(columns_of(db, layout, older))} FROM jobs"):
        if not sound(row, layout):
            raise Damaged(f"{path} is damaged: what it says of job {row[0]}")
    functions(db)
    for table in BROKEN:
        if older and not _columns(db, table):
            continue
        fault = db.execute(f"SELECT rowid FROM {table} WHERE {broken(db, table)}").fetchone()
        if fault is not None:
            raise Damaged(f"{path} is damaged: row {fault[0]} of its {table}")
    lacking = (
        "SELECT id FROM jobs WHERE stage NOT IN ('done', 'failed', 'cancelled', 'killed') "
        "AND environment NOT IN (SELECT key FROM environments)"
    )
    if (fault := db.execute(lacking).fetchone()) is not None:
        raise Damaged(f"{path} is damaged: the environment of job {fault[0]} is not there")


def broken(db: sqlite3.Connection, table: str) -> str:
    """Return the condition that no whole row of a table fulfils; ``functions`` gives what it uses."""
    if "sum" in _columns(db, table):
        return f"row_sum({', '.join(SUMMED[table])}) IS NOT sum"
    return BROKEN[table]


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table, none if there is no such table."""
    return {row[1] for row in db.execute(f"PRAGMA table_info ({table})")}


def columns_of(db: sqlite3.Connection, layout: Layout, older: bool) -> list[str]:
    """List the columns of a job and its checksums; ``older``: nothing for columns that are not there."""
    has = _columns(db, "jobs")
    names = (*layout.columns, "asked", "sum")
    return [name if name in has or not older else f"NULL AS {name}" for name in names]


def read_only(path: Path, *, any_thread: bool = False) -> sqlite3.Connection:
    """Open the journal to read only: its log is neither carried over nor deleted.

    Args:
        any_thread: threads may use it, one at a time.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(address, uri=True, check_same_thread=not any_thread)


def functions(db: sqlite3.Connection) -> None:
    """Give ``broken`` and the rows their functions; text that cannot be decoded is an error for each."""
    db.create_function("row_sum", -1, row_sum, deterministic=True)
    db.create_function("json", 1, _is_json, deterministic=True)
    db.create_function("key", 1, key_of, deterministic=True)
    db.create_function("text", -1, lambda *texts: all(isinstance(text, str) for text in texts))


def key_of(text: str) -> str:
    """By which an environment is known."""
    return sha256(text.encode()).hexdigest()


def sums(row: Sequence[Any], layout: Layout) -> tuple[int, int]:
    """Checksums of a job's row: of what was asked for, and of what changes.

    What is not there does not count: a row stays sound when a later version adds columns.
    """
    return checksum(row[: layout.changing]), checksum([row[0], *row[layout.changing :]])


def checksum(values: Iterable[Any]) -> int:
    return crc32("\0".join([str(value) for value in values if value is not None]).encode())


def row_sum(*values: Any) -> int:
    """Checksum of a row of another table; a number counts alike as SQLite takes it and as it returns it."""
    return checksum(float(value) if isinstance(value, (int, float)) else value for value in values)


def sound(row: Sequence[Any], layout: Layout) -> bool:
    """Check a row by its checksums; a row of an older version has none."""
    *values, sum_of_request, changing = row
    computed = sums(values, layout)
    return sum_of_request in (None, computed[0]) and changing in (None, computed[1])


def _is_json(text: object) -> bool:
    try:
        json.loads(text)  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def in_a_line(error: Exception) -> str:
    """Format an error of SQLite, which may quote a whole table, as one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]
