"""The files of jobs that ended long ago, in one file: ``jobs.sqlite``, beside the folders in ``jobs/``.

A job leaves eight files or more, most of them small. What is packed is durable before a file is removed, and
a file in its folder goes before what was packed of it. So packing may be killed anywhere, and begun again.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from agent.attempts import phases
from agent.attempts.folder import GENERATION
from profiles.errors import BadInput
from profiles.files.safe_files import is_locked, read_plain

OF_A_JOB = ("stdout", "stderr", GENERATION, phases.NAME)  # all else in its folder is its program's
LARGEST = 1 << 20  # bytes; a larger file stays where it is
SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (job INTEGER PRIMARY KEY, row BLOB);
CREATE TABLE IF NOT EXISTS files
    (job INTEGER, name TEXT, content BLOB, PRIMARY KEY (job, name)) WITHOUT ROWID;
"""


class Taken(NamedTuple):
    """A file as it was when it was packed."""

    path: Path
    content: bytes
    about: os.stat_result


class PackedJobs:
    """The packed files of a coordinator's jobs; contents are compressed, which also tells a damaged one."""

    def __init__(self, store: Path) -> None:
        self.folder, self.file = store / "jobs", store / "jobs.sqlite"

    def content(self, path: Path) -> bytes | None:
        """Return what was packed of a file; None if it was not packed.

        Raises:
            OSError: the packed files cannot be read.
        """
        if not path.is_relative_to(self.folder):
            return None
        number, _, name = path.relative_to(self.folder).as_posix().partition("/")
        with self._reading() as db:
            query = "SELECT content FROM files WHERE job = ? AND name = ?"
            row = None if db is None else db.execute(query, (number, name)).fetchone()
            return None if row is None else zlib.decompress(row[0])

    def numbers(self) -> set[int]:
        """Return the numbers of the jobs; BadInput if that cannot be read."""
        return set(self._jobs("''"))

    def rows(self) -> dict[int, str]:
        """Return the row of each job, as the journal had it; BadInput if that cannot be read."""
        return {number: zlib.decompress(row).decode() for number, row in self._jobs("row").items()}

    def _jobs(self, column: str) -> dict[int, Any]:
        try:
            with self._reading() as db:
                return {} if db is None else dict(db.execute(f"SELECT job, {column} FROM jobs").fetchall())
        except OSError as error:
            what = f"{self.file}: {error.strerror}"
            raise BadInput(what, "bring a copy back, or move it away: it has files of ended jobs") from error

    def pack(self, rows: Mapping[int, str]) -> None:
        """Pack the files of jobs that have ended, and remove them; what a supervisor has open still stays.

        Args:
            rows: of each job, as the journal has it.

        Raises:
            OSError, sqlite3.Error: nothing was packed, or not all was removed.
        """
        taken = {number: list(_take(self.folder / str(number))) for number in rows}
        os.close(os.open(self.file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(self.file, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            with db:
                db.executescript(f"BEGIN IMMEDIATE; {SCHEMA}")
                packed = [(number, zlib.compress(row.encode())) for number, row in rows.items()]
                db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?)", packed)
                files = [
                    (
                        number,
                        one.path.relative_to(self.folder / str(number)).as_posix(),
                        zlib.compress(one.content),
                    )
                    for number, of_job in taken.items()
                    for one in of_job
                ]
                db.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", files)
        for number, of_job in taken.items():
            _remove(self.folder / str(number), of_job)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Open the file, whose log is carried over at the end; None if there is none, or none whole yet."""
        if not self.file.exists():
            yield None
            return
        try:
            with closing(sqlite3.connect(f"{self.file.absolute().as_uri()}?mode=rw", uri=True)) as db:
                begun = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'files'").fetchone()
                yield db if begun else None
        except (sqlite3.Error, zlib.error, UnicodeDecodeError) as error:
            raise OSError(errno.EIO, " ".join(str(error).split())[:200], str(self.file)) from error


def _take(folder: Path) -> Iterator[Taken]:
    """Read the files of a job that are tenbin's; of an attempt that somebody still supervises none."""
    paths = [folder / name for name in OF_A_JOB]
    for attempt in folder.glob("attempt-*"):
        if (attempt / "alive").exists() and is_locked(attempt / "alive"):
            continue
        paths += [Path(place, name) for place, _, names in os.walk(attempt) for name in names]
    for path in paths:
        with suppress(OSError):  # none, larger, or no plain file
            about = path.lstat()
            yield Taken(path, read_plain(path, LARGEST), about)


def _remove(folder: Path, taken: list[Taken]) -> None:
    """Remove what was packed, unless it has changed since, and the folders that are empty then."""
    for one in taken:
        with suppress(FileNotFoundError):
            about = one.path.lstat()
            if (about.st_size, about.st_mtime_ns) == (one.about.st_size, one.about.st_mtime_ns):
                one.path.unlink()
    for place, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # not empty
            Path(place).rmdir()
