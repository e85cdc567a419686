"""The files of one attempt to run a job, and who may write which.

    order.json    what to run and where; the coordinator, before anything else
    claim         made once, by whoever comes first: the supervisor that runs the attempt, or a coordinator
                  that revokes it; so an attempt runs at most once, however late a supervisor comes
    group         path of the control group that holds its memory limit, if one does; the supervisor
    samples.csv   what it uses, over time; the supervisor
    fence         "go"; a coordinator that runs the job elsewhere says "end": this attempt must end at once
    beat-NODE     a number that grows while it may go on there, by its lease (``agent.multi_node.lease``)
    alive         locked by the supervisor as long as it lives; the kernel frees it however it ends
    request.json  what the coordinator wants now (its number grows); a signal says that there is something new
    state.json    what runs now; the supervisor
    ranks/        between it and the keepers of ranks on other nodes (``agent.multi_node.remote_ranks``)
    result.json   how it ended; the supervisor, last, and then to the disk (who takes it into a journal need
                  not wait for that); its room is reserved with the order, so that a
                  full disk does not lose it

Beside the folders of a job's attempts:

    generation    number of the one that counts; before it can begin, from the second on; the coordinator

JSON files are written aside and renamed: a half-written one is never seen. What lies there when they are
read may be somebody else's all the same, the job's own for instance (``agent.attempts.checked``).
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from agent.attempts import begin, checked
from agent.attempts.checked import Broken
from agent.attempts.records import ENDED, Order, Request, Result, RunState, as_order
from agent.processes import control_groups, tree
from profiles.files import is_locked, overwrite, sync

GENERATION = "generation"
MOST_LOG = 65536  # bytes of the end of a supervisor's log that are looked at
T = TypeVar("T")
JOB_KEY = "TENBIN_JOB_KEY"  # a variable of a job's environment that no other job has so


class Attempt:
    """The folder of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def place(self, order: Order) -> None:
        """Make the folder, readable for its owner only, with room for the result and the order in it.

        From now on no other attempt of the job counts. An order that lies there already may be placed again.

        Raises:
            OSError: it cannot be written; FileExistsError: another order was placed there, and claimed.
        """
        if self.claimed():
            self._check_same(order)
            return
        self._make_folder()
        if order.attempt > 1:
            self._write_generation(order.attempt)
        os.close(self.reserve())
        self._write("order.json", vars(order))

    def _check_same(self, order: Order) -> None:
        """FileExistsError if what was claimed is an order for another job."""
        try:
            found = json.loads((self.path / "order.json").read_bytes())["environment"].get(JOB_KEY)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            found = None
        if found is None or found != order.environment.get(JOB_KEY):
            raise FileExistsError(errno.EEXIST, "another job has run in this folder", str(self.path))

    def _write_generation(self, number: int) -> None:
        """What a program looks at before it makes a checkpoint the newest one
        (``tenbin.checkpoint.generations``)."""
        aside = self.path / f".{GENERATION}"
        aside.write_text(f"{number}\n")
        aside.replace(self.path.parent / GENERATION)

    def _make_folder(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def order(self) -> Order:
        return as_order(json.loads((self.path / "order.json").read_text()))

    def claim(self) -> bool:
        """Whether the caller is the first: only then it may run, or revoke, the attempt."""
        return begin.claim(str(self.path))

    def claimed(self) -> bool:
        return (self.path / "claim").exists()

    @property
    def fence(self) -> Path:
        """The file that ends it, wherever it runs, once that says so; see ``agent.multi_node.lease``."""
        return self.path / "fence"

    def fence_off(self) -> None:
        """Have it end, wherever it runs."""
        overwrite(self.fence, begin.FENCED, len(begin.FENCED))

    def fenced(self) -> bool:
        """Whether it must end. OSError if its folder cannot be seen."""
        return begin.fenced(str(self.path))

    def lives(self) -> bool:
        """Whether a supervisor lives, as far as its sign of life is where it was."""
        try:
            return is_locked(self.path / "alive")
        except OSError:
            return bool(self.supervisors())

    def supervisors(self) -> list[int]:
        """Processes of this machine that supervise it, whatever has become of its folder; at most one."""
        state, alive = self.state(), self.path / "alive"
        return (tree.lockers(alive, [state.supervisor_pid]) if state else []) or tree.lockers(alive)

    def write_request(self, request: Request) -> None:
        self._make_folder()  # it may be asked before there was room to place it
        self._write("request.json", vars(request))

    def request(self) -> Request | None:
        return self.read(Request, "request.json")

    def write_state(self, state: RunState) -> None:
        self._write("state.json", vars(state))

    def state(self) -> RunState | None:
        return self.read(RunState, "state.json")

    def write_group(self, group: Path) -> None:
        """Before a control group is made: where, so that it is removed whatever happens."""
        (self.path / "group").write_text(str(group))

    def group(self) -> Path | None:
        """The control group that was made for it, which may be gone."""
        with suppress(Broken):
            found = Path(checked.text(self.path / "group") or "/")
            if control_groups.known(found):
                return found
        return None

    @property
    def samples(self) -> Path:
        """The file of its samples, which may not be there."""
        return self.path / "samples.csv"

    def reserve(self) -> int:
        """Set room aside for the result; a descriptor to note it with. OSError if there is none."""
        return begin.reserve(str(self.path))

    def note(self, reserved: int, result: Result) -> None:
        """Write the result into the reserved room, in microseconds: it survives the supervisor's death."""
        os.pwrite(reserved, json.dumps(asdict(result)).encode().ljust(begin.RESULT_BYTES), 0)

    def publish(self, reserved: int) -> None:
        """What was noted is the result, for whoever looks; not yet durable. OSError if it cannot be now.

        What the job, or anybody, has removed of the folder is made anew. One that is only out of sight (its
        disk is gone, or it was moved) may come back.
        """
        final, about = self.path / "result.json", os.fstat(reserved)
        try:
            if not _same_file(self._reserved, about):
                if _same_file(final, about):
                    return  # it is already
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
        """The result survives the machine's death."""
        os.fsync(reserved)
        with suppress(FileNotFoundError):  # its owner has removed it
            sync(self.path)

    def unpublished_result(self) -> Result | None:
        """What a dead supervisor had noted and not published."""
        with suppress(Broken):
            return _result(self._reserved)
        return None

    def last_log_line(self) -> str:
        """Why a supervisor that died did so, as it said last; "" if it said nothing: it was killed."""
        with suppress(Broken):
            lines = (checked.text(self.path / begin.LOG, MOST_LOG, last=True) or "").split("\n")
            return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")
        return ""

    def result(self) -> Result | None:
        """How it ended; None if it has not, or what lies there is no result: see ``broken_result``.

        So it is where the machine died before the file was written to its disk.
        """
        with suppress(Broken):
            return _result(self.path / "result.json")
        return None

    def broken_result(self) -> str:
        """Why there is no result though something lies in its place; "" if nothing does."""
        try:
            _result(self.path / "result.json")
        except Broken as error:
            return str(error)
        return ""

    def read(self, kind: type[T], name: str) -> T | None:
        """The record in one of its files; None if there is none, or something else."""
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
            with os.fdopen(os.open(aside, flags, 0o600), "wb") as file:
                file.write(content)
            checked.rename(aside, self.path / name)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def retry_until_written(step: Callable[[], None]) -> None:
    """A result is never lost, however long the folder cannot be written."""
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
    """A result that is whole; None if there is no file. Raises as ``checked.read``."""
    found = checked.read(Result, file)
    if found is not None and found.how in ENDED and getattr(found, ENDED[found.how]) is None:
        raise Broken(f"{file.name} cannot be read: {found.how} without {ENDED[found.how]}")
    return found
