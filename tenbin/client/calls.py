"""The folder in which calls of functions go to their jobs, and results come back."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from itertools import count
from pathlib import Path
from types import CodeType
from typing import Any, BinaryIO, NamedTuple

import cloudpickle

from tenbin.client.run_function import OWNER, PROTOCOL

RUNNER = str(Path(__file__).with_name("run_function.py"))
NO_FILE_NAME = "<dynamic-code>"  # in place of a file's name, in cloudpickle from 3.1.3 on
SUFFIXES = ("call", "started", "partial", "result")


class RemoteTraceback(Exception):
    """The traceback of an exception in a job, as its cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class CallOutcome(NamedTuple):
    """The result of a call, or its exception."""

    value: Any
    error: BaseException | None


class StoredFunction:
    """A function that many calls have; its file goes with the last of them."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        weakref.finalize(self, path.unlink, missing_ok=True)


class Call:
    """One call in a folder.

    Attributes:
        function: the function that the call shares with others, if any.
        command: the command of a job that finds the call's number in ``TENBIN_ARRAY_INDEX``.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.function: StoredFunction | None = None
        self.number, self.name = number, f"{folder}/{number}"
        self.command = [sys.executable, "-P", RUNNER, str(folder)]

    def spec(self, needs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the specification of a job for this call alone."""
        return {**needs, "command": [*self.command, str(self.number)]}

    def has_begun(self) -> bool:
        """Return whether the job has taken the call."""
        return Path(f"{self.name}.started").exists()

    def withdraw(self) -> bool:
        """Take the call away from its job; return False if the job has begun with the call."""
        with suppress(FileNotFoundError):
            Path(f"{self.name}.call").unlink()
        return not self.has_begun()

    def is_withdrawn(self) -> bool:
        """Return whether the caller has taken the call away."""
        return not Path(f"{self.name}.call").exists() and not self.has_begun()

    def outcome(self) -> CallOutcome | None:
        """Read what came of the call; None if its job has left nothing.

        Raises:
            BaseException: whatever the unpickling of the result raises; its cause is the job's traceback.
        """
        try:
            file = Path(f"{self.name}.result").open("rb")  # noqa: SIM115
        except FileNotFoundError:
            return None
        with file:
            is_done, trace = pickle.load(file)
            try:
                found = pickle.load(file)
            except BaseException as error:  # the class of an exception may not take its own arguments
                raise error from (None if is_done else RemoteTraceback(trace))
        if is_done:
            return CallOutcome(found, None)
        found.__cause__ = RemoteTraceback(trace)
        return CallOutcome(None, found)

    def discard(self) -> None:
        """Remove the files of the call."""
        for suffix in SUFFIXES:
            with suppress(FileNotFoundError):
                Path(f"{self.name}.{suffix}").unlink()
        self.function = None


class CallFolder:
    """A folder of its own in ``parent``, made for one caller."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(mode=0o700, exist_ok=True)
        remove_left_behind(parent)
        self.path = Path(tempfile.mkdtemp(dir=parent)).absolute()
        self._numbers = count()
        self._owner = (self.path / ".owner").open("w")
        with suppress(OSError):  # without locks the folders of crashed callers stay
            flock(self._owner, LOCK_EX | LOCK_NB)
        self._owner.write(os.uname().nodename)
        self._owner.flush()
        (self.path / ".owner").rename(self.path / OWNER)

    def call(self) -> Call:
        """Name a new call."""
        return Call(self.path, next(self._numbers))

    def write(self, call: Call, body: object, function: StoredFunction | None = None) -> None:
        """Write a call: (function, args, kwargs), or the arguments of several calls of ``function``.

        Raises:
            Exception: what pickle raises for an object that cannot be pickled, and OSError.
        """
        places = [os.path.abspath(place) for place in sys.path]  # noqa: PTH100 (no link is followed)
        call.function = function
        head = partial(pickle.dump, (places, function.name if function else ""))
        try:
            _write(f"{call.name}.call", head, partial(_dump, body))
        except BaseException:
            call.discard()
            raise

    def store(self, function: Callable[..., Any]) -> StoredFunction:
        """Write a function for many calls.

        Raises:
            Exception: as ``write``.
        """
        path = self.path / f"{next(self._numbers)}.function"
        _write(str(path), partial(_dump, function))
        return StoredFunction(path)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()


def _with_file_name(code: CodeType) -> tuple[Any, ...]:
    """Reduce code as cloudpickle does, and keep the name of its file, so that tracebacks show its lines."""
    make, values = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if value == NO_FILE_NAME else value for value in values)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _with_file_name})


def _dump(value: object, file: BinaryIO, protocol: int) -> None:
    _Pickler(file, protocol=protocol).dump(value)


def _write(path: str, *dumps: Callable[..., None]) -> None:
    with open(path, "wb") as file:  # noqa: PTH123
        for dump in dumps:
            dump(file, protocol=PROTOCOL)


def remove_left_behind(parent: Path) -> None:
    """Remove the folders of callers on this node that have ended without doing so."""
    for folder in _folders(parent):
        with suppress(OSError), (folder / OWNER).open() as owner:
            if owner.read() == os.uname().nodename:
                flock(owner, LOCK_EX | LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _folders(parent: Path) -> Iterable[Path]:
    return [path for path in parent.iterdir() if path.is_dir()]
