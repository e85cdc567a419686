"""The files of jobs, the same under each engine: their folders, and what was packed of them."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import sqlite3
import stat
import threading
import zlib
from collections.abc import Container, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agent.attempts import checked
from agent.attempts.folder import GENERATION, Attempt
from agent.attempts.records import RunState
from agent.notifier import FAILURES
from agent.processes.samples import Sample, parse, read
from profiles.errors import BadInput
from profiles.files.safe_files import is_locked, read_plain, write_whole
from scheduler.engines.common.supervisor_orders import Files
from scheduler.jobs.entry import Entry
from scheduler.jobs.files import expand

# -- packed files ------------------------------------------------------------------------------------------
#
# The files of jobs that ended long ago, in one file: ``jobs.sqlite``, beside the folders in ``jobs/``.
#
# A job leaves eight files or more, most of them small. What is packed is durable before a file is removed,
# and a file in its folder goes before what was packed of it. So packing may be killed anywhere, and begun
# again.


OF_A_JOB = ("stdout", "stderr", GENERATION, checked.PHASES, FAILURES)  # the rest is its program's
PIECE = 4 << 20  # bytes of an output that are read at once
LARGEST = 1 << 20  # bytes; a larger file stays where it is
ROWS_BYTES = 2048  # of a file of samples, with its last rows
SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (job INTEGER PRIMARY KEY, row BLOB);
CREATE TABLE IF NOT EXISTS files
    (job INTEGER, name TEXT, content BLOB, PRIMARY KEY (job, name)) WITHOUT ROWID;
"""


class PackedFile(NamedTuple):
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
        taken = {number: list(_packable(self.folder / str(number))) for number in rows}
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
                        file.path.relative_to(self.folder / str(number)).as_posix(),
                        zlib.compress(file.content),
                    )
                    for number, of_job in taken.items()
                    for file in of_job
                ]
                db.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", files)
        for number, of_job in taken.items():
            _remove_packed(self.folder / str(number), of_job)

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


def _packable(folder: Path) -> Iterator[PackedFile]:
    """Read the files of a job that are tenbin's; of an attempt that somebody still supervises none."""
    paths = [folder / name for name in OF_A_JOB]
    for attempt in folder.glob("attempt-*"):
        if (attempt / "alive").exists() and is_locked(attempt / "alive"):
            continue
        paths += [Path(place, name) for place, _, names in os.walk(attempt) for name in names]
    for path in paths:
        with suppress(OSError):  # none, larger, or no plain file
            about = path.lstat()
            yield PackedFile(path, read_plain(path, LARGEST), about)


def _remove_packed(folder: Path, taken: list[PackedFile]) -> None:
    """Remove what was packed, unless it has changed since, and the folders that are empty then."""
    for file in taken:
        with suppress(FileNotFoundError):
            about = file.path.lstat()
            if (about.st_size, about.st_mtime_ns) == (file.about.st_size, file.about.st_mtime_ns):
                file.path.unlink()
    for place, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # not empty
            Path(place).rmdir()


SCRIPTS = "scripts"  # folder of the store
_one_at_a_time = threading.Lock()  # keeps or drops a script


class JobFolders:
    """The files of jobs; job 7 has ``store/jobs/7``, until its files are packed."""

    def __init__(self, store: Path) -> None:
        self.store, self.packed = store, PackedJobs(store)

    def folder(self, job_id: int) -> Path:
        """Return the folder of a job's output and attempts."""
        return self.packed.folder / str(job_id)

    def keep_script(self, name: str, content: bytes) -> Path:
        """Keep a script that jobs run, once for each content and name, until ``drop_scripts``.

        Raises:
            OSError: the script cannot be written.
        """
        path = self.store / SCRIPTS / sha256(content).hexdigest()[:32] / name
        with _one_at_a_time:
            if path.exists():
                os.utime(path)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content, mode=0o700)
        return path

    def drop_scripts(self, but: Container[str], before_s: float) -> None:
        """Remove kept scripts, all names of a content, that were last submitted before a time.

        Args:
            but: names of the folders that stay.
        """
        for folder in (self.store / SCRIPTS).glob("*/"):
            with _one_at_a_time:
                last_s = max((path.lstat().st_mtime for path in folder.iterdir()), default=0.0)
                if folder.name not in but and last_s < before_s:
                    shutil.rmtree(folder)

    def attempt(self, job: Entry) -> Attempt:
        """Return the folder of the current attempt."""
        return self._attempt(job.id, job.attempt)

    def _attempt(self, job_id: int, number: int) -> Attempt:
        return Attempt(self.packed.folder.joinpath(str(job_id), f"attempt-{number}"))

    def files(self, job: Entry) -> Files:
        """Name the files of a job for its supervisor."""
        return Files(self.folder(job.id), self.output(job, "stdout"), self.output(job, "stderr"))

    def output(self, job: Entry, stream: Literal["stdout", "stderr"]) -> Path:
        """Name the file with the job's output."""
        named: str = getattr(job.spec, stream)
        if named:
            return Path(job.spec.folder, expand(named, job))
        return self.packed.folder.joinpath(str(job.id), stream)

    def piece(self, path: Path, start: int, last: int | None = None) -> bytes:
        """Read at most 4 MiB of a job's file from ``start``, or its ``last`` bytes; nothing without a file.

        Raises:
            OSError: it cannot be read again (a pipe, a terminal), or not at all.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            content = self.packed.content(path) or b""
            return content[start:][:PIECE] if last is None else content[-last:]
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a file that can be read again")
            file.seek(start if last is None else max(status.st_size - last, 0))
            return file.read(last or PIECE)

    def state(self, job: Entry) -> RunState | None:
        """Return what runs of the current attempt, None before it has started."""
        return self.attempt(job).state()

    def samples(self, job_id: int, attempt: int) -> list[Sample]:
        """Return what an attempt has used over time."""
        path = self._attempt(job_id, attempt).samples
        rows = read(path)
        with suppress(OSError):
            rows = rows or parse(self.packed.content(path) or b"")
        return rows

    def last_sample(self, job_id: int, attempt: int) -> Sample | None:
        """Return what an attempt that runs has used so far; None before its first sample."""
        rows = read(self._attempt(job_id, attempt).samples, ROWS_BYTES)
        return rows[-1] if rows else None

    def order(self, job_id: int, attempt: int) -> dict[str, Any]:
        """Return the order of an attempt; empty if it cannot be read."""
        path = self._attempt(job_id, attempt).path / "order.json"
        with suppress(OSError, ValueError):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                content = self.packed.content(path) or b""
            order = json.loads(content)
            return order if isinstance(order, dict) else {}
        return {}

    def failed_notices(self, job_id: int) -> list[dict[str, Any]]:
        """Return the notices of a job that could not be told, as ``at_s``, ``what`` and ``detail``."""
        path = self.folder(job_id) / FAILURES
        with suppress(OSError, ValueError):
            content = read_plain(path, LARGEST) if path.exists() else self.packed.content(path) or b""
            return [json.loads(line) for line in content.splitlines()]
        return []

    def phases(self, job: Entry) -> list[checked.Phase]:
        """Return what the job's program has noted of its checkpoints, in all attempts."""
        return checked.read_phases(self.folder(job.id))


def folders_on_disk(store: Path) -> dict[int, Path]:
    """Return the folders of jobs, by the job's number."""
    try:
        paths = list((store / "jobs").iterdir())
    except FileNotFoundError:
        return {}
    return {int(path.name): path for path in paths if path.name.isascii() and path.name.isdecimal()}


def attempts_on_disk(folder: Path) -> list[int]:
    """Return the numbers of the attempts that have a folder in that of their job."""
    names = [path.name.removeprefix("attempt-") for path in folder.glob("attempt-*")]
    return [int(name) for name in names if name.isascii() and name.isdecimal()]


# -- attempts whose folders are not as they should be: one job's stop no other -----------------------------


NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
log = logging.getLogger("tenbin")


@contextmanager
def job_errors_logged(job_id: int, room: bool = True) -> Iterator[None]:
    """Log an OSError of one job's folder, which is tried again later.

    Args:
        room: a full disk, and whatever else goes wrong, counts as well; else it is raised.
    """
    try:
        yield
    except OSError as error:
        if not room and error.errno in NO_ROOM:
            raise
        log.error("job %d: %s", job_id, error)
    except Exception:
        if not room:
            raise
        log.exception("a fault of tenbin's: job %d", job_id)


def revoked(attempt: Attempt) -> bool:
    """Claim an attempt that has not begun; true if it will never begin, also because its folder is gone.

    OSError if that cannot be known now: all folders are out of sight.
    """
    try:
        return attempt.claim()
    except (FileNotFoundError, NotADirectoryError):
        if not attempt.path.parents[1].is_dir():
            raise
        return True


def no_result_reason(attempt: Attempt) -> str:
    """Name the reason why an attempt has no result; "": its supervisor was killed."""
    if spoiled := attempt.broken_result():
        return spoiled
    if not attempt.claimed():
        return f"the files of its attempt were removed from {attempt.path}"
    said = attempt.last_log_line()
    return f"its supervisor failed: {said}" if said else ""


def end_supervisor(attempt: Attempt) -> None:
    """Kill who supervises it on this machine, also who is stopped: the job's main process dies with it."""
    for pid in attempt.supervisors():
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)  # now it cannot turn to another attempt
                still = pid in attempt.supervisors()
                signal.pidfd_send_signal(pidfd, signal.SIGKILL if still else signal.SIGCONT)
            finally:
                os.close(pidfd)
