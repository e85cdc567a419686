"""The files of one attempt to run a job, and their writers.

Written by the coordinator:

    order.json    what to run and where; the first file of all
    request.json  what the coordinator wants now (its number grows); SIGUSR1 announces it
    fence         "go", or "end" if the job runs elsewhere and this attempt must end at once

Written by the supervisor:

    alive         locked while the supervisor lives; the kernel frees it however the supervisor ends
    state.json    what runs now; missing if the job ended within milliseconds
    samples.csv   what the job uses, over time
    group         path of the control group that holds the memory limit, if one does
    ranks/        exchanged with the keepers of ranks on other nodes (``agent.multi_node.ranks``)
    result.json   how the attempt ended; a full disk does not lose it, because its room is reserved with the
                  order; synced to disk after it is published

Written by others:

    claim         made once, by the supervisor that runs the attempt or a coordinator that revokes it; so an
                  attempt runs at most once, however late a supervisor comes
    beat-NODE     a number that grows while NODE renews its lease (``agent.multi_node.lease``)

Beside the folders of a job's attempts, by the coordinator before a second attempt can begin:

    generation    number of the attempt that counts

JSON files are written aside and renamed, so that no reader sees half of one. The job may have damaged them
all the same (``agent.attempts.checked``).
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from agent.attempts import begin, checked
from agent.attempts.checked import Broken
from agent.attempts.records import ENDED, Order, Request, Result, RunState, as_order
from agent.processes import control_groups, tree
from profiles.files.safe_files import is_locked, overwrite, sync

GENERATION = "generation"
MOST_LOG = 65536  # bytes of the end of a supervisor's log that are read
T = TypeVar("T")
JOB_KEY = "TENBIN_JOB_KEY"  # an environment variable whose value no other job has


class Attempt:
    """The folder of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def place(self, order: Order) -> None:
        """Make the private folder with the order and room for the result; no earlier attempt counts then.

        The same order may be placed again.

        Raises:
            OSError: the folder cannot be written.
            FileExistsError: another job's order was placed there, and claimed.
        """
        if not self._make_folder() and self.claimed():
            self._check_same(order)
            return
        if order.attempt > 1:
            self._write_generation(order.attempt)
        os.close(self.reserve())
        self._write("order.json", vars(order))

    def _check_same(self, order: Order) -> None:
        """Raise FileExistsError if the claimed order is another job's."""
        try:
            key = json.loads((self.path / "order.json").read_bytes())["environment"].get(JOB_KEY)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            key = None
        if key is None or key != order.environment.get(JOB_KEY):
            raise FileExistsError(errno.EEXIST, "another job has run in this folder", str(self.path))

    def _write_generation(self, number: int) -> None:
        """Write the number that counts, for ``tenbin.checkpoint`` of an earlier attempt."""
        aside = self.path / f".{GENERATION}"
        aside.write_text(f"{number}\n")
        aside.replace(self.path.parent / GENERATION)

    def _make_folder(self) -> bool:
        """Make the folder; return false if it is there."""
        try:
            self.path.mkdir(0o700, parents=True)
        except FileExistsError:
            if not self.path.is_dir():
                raise
            return False
        return True

    def order(self) -> Order:
        """Read the order."""
        return as_order(json.loads((self.path / "order.json").read_text()))

    def claim(self) -> bool:
        """Return whether the caller is the first to claim the attempt, and so may run or revoke it."""
        return begin.claim(str(self.path))

    def claimed(self) -> bool:
        return (self.path / "claim").exists()

    def begun(self) -> bool:
        """Return whether a supervisor has come; a claim without one is of a coordinator that revoked it."""
        return (self.path / "alive").exists()

    @property
    def fence(self) -> Path:
        """The file by which the attempt is ended wherever it runs; see ``agent.multi_node.lease``."""
        return self.path / "fence"

    def fence_off(self) -> None:
        """End the attempt, wherever it runs."""
        overwrite(self.fence, begin.FENCED, len(begin.FENCED))

    def fenced(self) -> bool:
        """Return whether the attempt must end; OSError if its folder cannot be seen."""
        return begin.fenced(str(self.path))

    def lives(self) -> bool:
        """Return whether a supervisor holds the lock of ``alive``."""
        try:
            return is_locked(self.path / "alive")
        except OSError:
            return bool(self.supervisors())

    def supervisors(self) -> list[int]:
        """Find the supervisor among this machine's processes, even without the folder; at most one."""
        state, alive = self.state(), self.path / "alive"
        return (tree.lockers(alive, [state.supervisor_pid]) if state else []) or tree.lockers(alive)

    def write_request(self, request: Request) -> None:
        self._make_folder()  # a request may come before there was room for the order
        self._write("request.json", vars(request))

    def request(self) -> Request | None:
        return self.read(Request, "request.json")

    def write_state(self, state: RunState) -> None:
        self._write("state.json", vars(state))

    def state(self) -> RunState | None:
        return self.read(RunState, "state.json")

    def write_group(self, group: Path) -> None:
        """Note the path of a control group before it is made, so that it is removed whatever happens."""
        (self.path / "group").write_text(str(group))

    def group(self) -> Path | None:
        """Read the path of the attempt's control group, which may be gone."""
        with suppress(Broken):
            group = Path(checked.text(self.path / "group") or "/")
            if control_groups.known(group):
                return group
        return None

    @property
    def samples(self) -> Path:
        """The file of samples, which may not exist."""
        return self.path / "samples.csv"

    def reserve(self) -> int:
        """Reserve room for the result, and return its descriptor; OSError if there is none."""
        return begin.reserve(str(self.path))

    def note(self, reserved: int, result: Result) -> None:
        """Write the result into the reserved room within microseconds, so that it survives the supervisor."""
        content = vars(result) | {"usage": vars(result.usage)}
        os.pwrite(reserved, json.dumps(content).encode().ljust(begin.RESULT_BYTES), 0)

    def publish(self, reserved: int) -> None:
        """Make the noted result visible, not yet durable; OSError if that is not possible now.

        A removed folder is made anew. A folder that is only out of sight (its disk is gone, or it was moved)
        is waited for.
        """
        final, about = self.path / "result.json", os.fstat(reserved)
        try:
            if not _same_file(self._reserved, about):
                if _same_file(final, about):
                    return
                if about.st_nlink and not self.path.is_dir():
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
                self._restore(os.pread(reserved, checked.MOST_BYTES, 0))
            checked.rename(self._reserved, final)
        except PermissionError:
            self.path.chmod(0o700)
            raise

    def _restore(self, result: bytes) -> None:
        if not self.path.is_dir():
            checked.clear(self.path)
        self._make_folder()
        checked.clear(self._reserved)
        self._put(result, self._reserved.name)
        self.claim()

    def make_durable(self, reserved: int) -> None:
        """Sync the result to disk, so that it survives a crash of the machine.

        Its name need not: the note counts as well (``unpublished_result``).
        """
        os.fsync(reserved)
        if not os.fstat(reserved).st_nlink:  # its folder was removed, and made anew
            with suppress(FileNotFoundError):  # and removed again
                sync(self.path)

    def unpublished_result(self) -> Result | None:
        """Read the result that a dead supervisor had noted and not published."""
        with suppress(Broken):
            return _result(self._reserved)
        return None

    def last_log_line(self) -> str:
        """Read why the supervisor failed; "" if its log is empty, because it was killed."""
        with suppress(Broken):
            lines = (checked.text(self.path / begin.LOG, MOST_LOG, last=True) or "").split("\n")
            return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")
        return ""

    def result(self) -> Result | None:
        """Read how the attempt ended; None if it has not, or the file is damaged (``broken_result``).

        A crash of the machine before the sync damages the file.
        """
        with suppress(Broken):
            return _result(self.path / "result.json")
        return None

    def broken_result(self) -> str:
        """Say why ``result.json`` is not a result; "" if it is, or does not exist."""
        try:
            _result(self.path / "result.json")
        except Broken as error:
            return str(error)
        return ""

    def read(self, kind: type[T], name: str) -> T | None:
        """Read the record in one of the files; None if there is no file, or it is damaged."""
        with suppress(Broken):
            return checked.read(kind, self.path / name)
        return None

    @property
    def _reserved(self) -> Path:
        return self.path / ".result.json"

    def _write(self, name: str, content: dict[str, Any]) -> None:
        self._put(json.dumps(content).encode(), name)  # json.dump is the slow encoder

    def _put(self, content: bytes, name: str) -> None:
        aside = self.path / f".{name}.{os.getpid()}"
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(aside, flags, 0o600)
            try:
                if os.write(descriptor, content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(aside))
            finally:
                os.close(descriptor)
            checked.rename(aside, self.path / name)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def retry_until_written(step: Callable[[], None]) -> None:
    """Repeat a step until it raises no OSError, because a result must not be lost."""
    while True:
        try:
            return step()
        except OSError:
            time.sleep(1.0)


def _same_file(path: Path, about: os.stat_result) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.path.samestat(path.lstat(), about)
    return False


def _result(file: Path) -> Result | None:
    """Read a complete result; None if there is no file. Raises as ``checked.read``."""
    result = checked.read(Result, file)
    if result is not None and result.how in ENDED and getattr(result, ENDED[result.how]) is None:
        raise Broken(f"{file.name} cannot be read: {result.how} without {ENDED[result.how]}")
    return result
