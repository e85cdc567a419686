"""The folder in which calls of functions go to their jobs, and results come back."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from itertools import count
from pathlib import Path
from types import CodeType
from typing import Any, BinaryIO, NamedTuple

import cloudpickle

from tenbin.client.run_function import OWNER, PROTOCOL, exists, opened, own_folder
from tenbin.errors import TenbinError

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


class Folder:
    """An open folder: files in it are its own, whatever becomes of its name."""

    def __init__(self, path: Path) -> None:
        self.path, self.descriptor = path, own_folder(str(path))
        weakref.finalize(self, os.close, self.descriptor)

    def open(self, name: str, flags: int = os.O_RDONLY) -> BinaryIO:
        return opened(self.descriptor, name, flags)

    def has(self, name: str) -> bool:
        return exists(self.descriptor, name)

    def unlink(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def write(self, name: str, *dumps: Callable[..., None]) -> None:
        with self.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            for dump in dumps:
                dump(file, protocol=PROTOCOL)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        with suppress(OSError):
            with os.scandir(self.descriptor) as files:
                for file in files:
                    self.unlink(file.name)
            self.path.rmdir()


class StoredFunction:
    """A function that many calls have; its file goes with the last of them."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.name = name
        weakref.finalize(self, folder.unlink, name)


class Call:
    """One call in a folder.

    Attributes:
        function: the function that the call shares with others, if any.
        command: the command of a job that finds the call's number in ``TENBIN_ARRAY_INDEX``.
    """

    def __init__(self, folder: Folder, number: int) -> None:
        self.function: StoredFunction | None = None
        self.number, self._folder = number, folder
        self.command = [sys.executable, "-P", RUNNER, str(folder.path)]

    def spec(self, needs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the specification of a job for this call alone."""
        return {**needs, "command": [*self.command, str(self.number)]}

    def has_begun(self) -> bool:
        """Return whether the job has taken the call."""
        return self._folder.has(f"{self.number}.started")

    def withdraw(self) -> bool:
        """Take the call away from its job; return False if the job has begun with the call."""
        self._folder.unlink(f"{self.number}.call")
        return not self.has_begun()

    def is_withdrawn(self) -> bool:
        """Return whether the caller has taken the call away."""
        return not self._folder.has(f"{self.number}.call") and not self.has_begun()

    def outcome(self) -> CallOutcome | None:
        """Read what came of the call; None if its job has left nothing.

        Raises:
            BaseException: whatever the unpickling of the result raises; its cause is the job's traceback.
        """
        try:
            file = self._folder.open(f"{self.number}.result")
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
            self._folder.unlink(f"{self.number}.{suffix}")
        self.function = None


class CallFolder:
    """A folder of its own in ``parent``, made for one caller.

    Raises:
        TenbinError: others may write to ``parent``, or it cannot be made or written to; what is in it is run.
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(mode=0o700, exist_ok=True)
            os.close(own_folder(str(parent.resolve())))
        except OSError as error:
            remedy = "functions that are read there are run: name a folder of your own (mkdir -m 700)"
            raise TenbinError(f"shared_folder {parent}: {error.strerror}; {remedy}", 2) from error
        remove_left_behind(parent)
        try:
            self.path = Path(tempfile.mkdtemp(dir=parent)).absolute()
            self._folder = Folder(self.path)
            self._numbers = count()
            self._owner = self._folder.open(".owner", os.O_WRONLY | os.O_CREAT)
            with suppress(OSError):  # without locks the folders of crashed callers stay
                flock(self._owner, LOCK_EX | LOCK_NB)
            self._owner.write(os.uname().nodename.encode())
            self._owner.flush()
            folder = self._folder.descriptor
            os.rename(".owner", OWNER, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            what = f"shared_folder {parent}: nothing can be written there ({error.strerror})"
            raise TenbinError(f"{what}; name another, for instance in your home", 2) from error

    def call(self) -> Call:
        """Name a new call."""
        return Call(self._folder, next(self._numbers))

    def write(self, call: Call, body: object, function: StoredFunction | None = None) -> None:
        """Write a call: (function, args, kwargs), or the arguments of several calls of ``function``.

        Raises:
            Exception: what pickle raises for an object that cannot be pickled, and OSError.
        """
        places = [os.path.abspath(place) for place in sys.path]  # noqa: PTH100 (no link is followed)
        call.function = function
        head = partial(pickle.dump, (places, function.name if function else ""))
        try:
            self._folder.write(f"{call.number}.call", head, partial(_dump, body))
        except BaseException:
            call.discard()
            raise

    def store(self, function: Callable[..., Any]) -> StoredFunction:
        """Write a function for many calls.

        Raises:
            Exception: as ``write``.
        """
        name = f"{next(self._numbers)}.function"
        self._folder.write(name, partial(_dump, function))
        return StoredFunction(self._folder, name)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        self._folder.remove()
        self._owner.close()


def _with_file_name(code: CodeType) -> tuple[Any, ...]:
    """Reduce code as cloudpickle does, and keep the name of its file, so that tracebacks show its lines."""
    make, values = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if value == NO_FILE_NAME else value for value in values)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _with_file_name})


def _dump(value: object, file: BinaryIO, protocol: int) -> None:
    _Pickler(file, protocol=protocol).dump(value)


def remove_left_behind(parent: Path) -> None:
    """Remove the folders of callers on this node that have ended without doing so."""
    for path in parent.iterdir():
        with suppress(OSError):  # among them what is no folder of this user
            folder = Folder(path)
            with folder.open(OWNER) as owner:
                if owner.read() == os.uname().nodename.encode():
                    flock(owner, LOCK_EX | LOCK_NB)
                    folder.remove()
