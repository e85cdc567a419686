"""``tenbin.Executor``: Python functions as jobs, in the shape of ``concurrent.futures``."""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from itertools import count, groupby, islice
from pathlib import Path
from threading import Lock, Thread, main_thread
from types import CodeType, TracebackType
from typing import Any, BinaryIO, NamedTuple, ParamSpec, TypeVar, Unpack

import cloudpickle

from tenbin.client.client import FIELDS, Client, Job, check_fields
from tenbin.client.connection import CHECK_S
from tenbin.client.run_function import OWNER, PROTOCOL, exists, opened, own_folder
from tenbin.errors import NO_ANSWER, TenbinError
from tenbin.fields import JobFields

# -- the folder in which calls go to their jobs, and results come back -------------------------------------


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
                value = pickle.load(file)
            except BaseException as error:  # the class of an exception may not take its own arguments
                raise error from (None if is_done else RemoteTraceback(trace))
        if is_done:
            return CallOutcome(value, None)
        value.__cause__ = RemoteTraceback(trace)
        return CallOutcome(None, value)

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


# -- calls that wait for their jobs, and the futures of both -----------------------------------------------


T = TypeVar("T")
MOST_AT_ONCE = 10_000  # jobs of one submission
SHORTEST_WAIT_S = 0.05  # a new job waits as long for the thread to take note of it
PAUSE_S = 100e-6  # for each job that is asked about: to ask about many takes the coordinator longer


class NoResult(TenbinError, BrokenProcessPool):
    """A job has left no result of its function, or none that can be read; also a ``BrokenProcessPool``."""


class FunctionFuture(Future[T]):
    """The future of one job that calls a function.

    Attributes:
        job: the job; None until the call is submitted, which waits where ``max_workers`` run already.
    """

    def __init__(self, queue: CallQueue, call: Call, needs: dict[str, Any]) -> None:
        super().__init__()
        self.job: Job | None = None
        self.call, self.needs = call, needs
        self._queue = queue

    def cancel(self) -> bool:
        """Cancel the call and its job; return False if the function has been called already."""
        if not self.done():
            self._queue.cancel([self])
        return self.cancelled()

    def running(self) -> bool:
        """Return whether the function has been called and has not returned."""
        return not self.done() and self.call.has_begun()

    def withdraw(self) -> bool:
        """Cancel the call only; return False if the function has been called already."""
        return self.call.withdraw() and super().cancel()

    def settle(self, info: dict[str, Any]) -> None:
        """Take over what came of the call, now that its job has ended as ``info``."""
        outcome: CallOutcome | None
        try:
            outcome = self.call.outcome()
        except BaseException as error:  # any code may run there; this thread is needed by other futures
            outcome = CallOutcome(None, _unreadable(info, error))
        if outcome is None and (info["stage"] == "cancelled" or self.call.is_withdrawn()):
            super().cancel()
        self.call.discard()
        if not self.set_running_or_notify_cancel():
            return
        if outcome is None:
            self.set_exception(NoResult(_death(info)))
        elif outcome.error is not None:
            self.set_exception(outcome.error)
        else:
            self.set_result(outcome.value)

    def fail(self, error: Exception) -> None:
        """End without a job, or without news of it; the function is not called any more."""
        self.call.discard()
        if self.set_running_or_notify_cancel():
            self.set_exception(error)


class CallQueue:
    """Submits calls, at most ``most`` at once; a thread runs while there are any.

    Args:
        folder: of the calls; removed when the queue is closed and every call has ended.
    """

    def __init__(self, client: Client, folder: CallFolder, most: int) -> None:
        self.client, self.folder, self._most = client, folder, most
        self._lock = Lock()
        self._held: deque[FunctionFuture[Any]] = deque()
        self._jobs: dict[int, FunctionFuture[Any]] = {}
        self._failed: list[tuple[FunctionFuture[Any], TenbinError]] = []
        self._latest = 0.0
        self._thread: Thread | None = None
        self._is_closed = False

    def add(self, futures: Sequence[FunctionFuture[Any]]) -> None:
        """Submit the calls, or hold them until there is room.

        Raises:
            TenbinError: the coordinator does not answer, or refuses; none of the calls will run.
            RuntimeError: the queue is closed.
        """
        try:
            with self._lock:
                self.check_open()
                self._held.extend(futures)
                self._fill()
        except (TenbinError, RuntimeError):
            self.cancel(futures)
            raise
        finally:
            self._run_thread()

    def check_open(self) -> None:
        """Raise RuntimeError if the queue is closed, or the program is ending."""
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if not main_thread().is_alive():
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def cancel(self, futures: Iterable[FunctionFuture[Any]]) -> None:
        """Cancel those of the calls that have not begun."""
        withdrawn = [future for future in futures if future.withdraw()]
        self._end_jobs([future.job.id for future in withdrawn if future.job is not None])

    def cancel_waiting(self) -> None:
        """Cancel all calls that have not begun."""
        with self._lock:
            futures, held = list(self._jobs.values()), list(self._held)
            self._held.clear()
        self.cancel([*held, *futures])
        for future in held:
            future.set_running_or_notify_cancel()

    def end_all(self) -> None:
        """Cancel all calls, and end the jobs that run."""
        self.cancel_waiting()
        with self._lock:
            ids = list(self._jobs)
        self._end_jobs(ids)

    def close(self) -> None:
        """Take no more calls."""
        with self._lock:
            self._is_closed = True
            if self._thread is None:
                self.folder.remove()

    def join(self) -> None:
        """Wait for the end of every call."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _end_jobs(self, ids: list[int]) -> None:
        if ids:
            with suppress(TenbinError):  # a job whose call was withdrawn does nothing anyway
                self.client.change("cancel", [], ids)

    def _fill(self) -> None:
        """Submit held calls while there is room."""
        while self._held and len(self._jobs) < self._most:
            room = min(self._most - len(self._jobs), MOST_AT_ONCE)
            chosen: list[FunctionFuture[Any]] = []
            while self._held and len(chosen) < room:
                future = self._held.popleft()
                if future.cancelled():
                    future.set_running_or_notify_cancel()
                else:
                    chosen.append(future)
            if chosen:
                self._submit(chosen)

    def _submit(self, futures: list[FunctionFuture[Any]]) -> None:
        try:
            specs, arrays = _specs(futures)
            jobs = self.client.submit_all(specs, arrays=arrays)
        except TenbinError as error:
            if _is_down(error):
                self._held.extendleft(reversed(futures))
            else:  # refused; or there was no answer, and the jobs may exist: their calls are withdrawn
                self._failed += [(future, error) for future in futures]
            raise
        for future, job in zip(futures, jobs, strict=True):
            future.job = job
            self._jobs[job.id] = future
        self._latest = time.monotonic()

    def _run_thread(self) -> None:
        """Start the thread, which is no daemon: a program ends when its calls have ended."""
        with self._lock:
            if self._thread is None and self._has_work():
                self._thread = Thread(target=self._run, name="tenbin-executor")
                self._thread.start()

    def _has_work(self) -> bool:
        return bool(self._jobs or self._held or self._failed)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._has_work():
                    self._thread = None
                    if self._is_closed:
                        self.folder.remove()
                    return
                ids = list(self._jobs)
                age_s = time.monotonic() - self._latest
            self._settle(ids, min(max(age_s / 10, SHORTEST_WAIT_S), CHECK_S))

    def _settle(self, ids: list[int], wait_s: float) -> None:
        """Wait for the end of the first of the jobs; settle the futures of those that have ended."""
        ended, pause_s = self._ended(ids, wait_s), 0.0
        if ended:
            pause_s = min(PAUSE_S * len(ids), CHECK_S)
        with self._lock:
            settled = [(self._jobs.pop(info["id"]), info) for info in ended]
            try:
                self._fill()
            except TenbinError:
                pause_s = CHECK_S
            failed, self._failed = self._failed, []
        for future, info in settled:
            future.settle(info)
        for future, error in failed:
            future.fail(error)
        time.sleep(pause_s)

    def _ended(self, ids: list[int], wait_s: float) -> list[dict[str, Any]]:
        try:
            return self.client.ended(ids, wait_s) if ids else []
        except TenbinError as error:
            if error.exit_code == NO_ANSWER:  # the coordinator may be started again
                time.sleep(CHECK_S)
            else:  # it does not know the jobs any more
                with self._lock:
                    self._failed += [(self._jobs.pop(job_id), error) for job_id in ids]
            return []


def _specs(futures: list[FunctionFuture[Any]]) -> tuple[list[dict[str, Any]], dict[int, list[int]]]:
    """Make the specifications: an array of neighbours that share a function, and the indices by its place."""
    specs: list[dict[str, Any]] = []
    arrays: dict[int, list[int]] = {}
    for function, group in groupby(futures, lambda future: future.call.function or future):
        several = list(group)
        if len(several) == 1 or not isinstance(function, StoredFunction):
            specs += [future.call.spec(future.needs) for future in several]
            continue
        arrays[len(specs)] = [future.call.number for future in several]
        specs.append({**several[0].needs, "command": several[0].call.command})
    return specs, arrays


def _is_down(error: TenbinError) -> bool:
    """Return whether nobody has heard the call."""
    return isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError)


def _unreadable(info: dict[str, Any], error: BaseException) -> NoResult:
    """Make the error for a result that cannot be unpickled here."""
    failure = NoResult(f"the result of job {info['id']} ({info['name']}) cannot be read: {error!r}")
    failure.__cause__ = error
    return failure


def _death(info: dict[str, Any]) -> str:
    """Say how a job without a result has ended."""
    reason = f"exit code {info['code']}" if info["code"] is not None else "no exit code"
    job = f"job {info['id']} ({info['name']})"
    return f"{job} is {info['stage']} and has left no result: {info['trouble'] or reason}"


# -- the executor ------------------------------------------------------------------------------------------


P = ParamSpec("P")
FOLDER = "functions"  # in the coordinator's home
NEEDS = FIELDS - {"array_index", "mpi"}  # a function is one process


class Executor(concurrent.futures.Executor):
    """Calls functions in jobs, one job for each call; a ``concurrent.futures.Executor``.

    A job may take any node, so functions and results go by files. Functions without a module that can be
    imported (lambdas, those of ``__main__`` or of a notebook) go by value, with cloudpickle.

    Args:
        max_workers: the most jobs that are submitted and have not ended; None: the coordinator decides alone
            what runs when.
        client: the coordinator to submit to; None: that of ``home``.
        home: the coordinator's folder; None: as for ``Client``.
        shared_folder: where functions and results are kept, in a folder of the executor's own; this process
            and all jobs must see it. None: ``functions`` in the coordinator's folder.
        needs: fields of each job (cores, time_s, device, ...), as of ``Client.submit``, but ``mpi`` and
            ``array_index``.

    Raises:
        ValueError: ``max_workers`` is less than 1.
        UnknownField: there is no such field.
        TenbinError: the coordinator does not answer, or is reached by TCP and ``shared_folder`` is missing;
            or functions cannot be kept there.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        client: Client | None = None,
        home: Path | str | None = None,
        shared_folder: Path | str | None = None,
        **needs: Unpack[JobFields],
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        check_fields(needs, "Executor", NEEDS | {"max_workers", "client", "home", "shared_folder"})
        self.client = client or Client(home)
        self._needs = {"folder": str(Path.cwd()), **needs}
        self.client.call("GET", "/status")
        self._folder = CallFolder(_parent(self.client, shared_folder))
        self._queue = CallQueue(self.client, self._folder, max_workers or sys.maxsize)
        weakref.finalize(self, self._queue.close)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> FunctionFuture[T]:
        """Submit a job that calls ``fn``; return its future.

        Raises:
            RuntimeError: the executor is shut down.
            TenbinError: the coordinator does not answer, or refuses the job.
        """
        self._queue.check_open()
        future: FunctionFuture[T] = self._future(fn)
        if self._write(future, (fn, args, kwargs)):
            self._queue.add([future])
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Call ``fn`` for each tuple of arguments; all jobs are submitted together. As the built-in ``map``.

        Args:
            timeout: seconds from now on until which the last result must be there.
            chunksize: calls of one job.

        Raises:
            ValueError: ``chunksize`` is less than 1.
            TimeoutError: from the iterator; a result is not there in time.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        self._queue.check_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        tuples = zip(*iterables, strict=False)
        chunks = iter(lambda: list(islice(tuples, chunksize)), [])
        return _results(self._submit_chunks(fn, chunks), deadline)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls.

        Args:
            wait: return when every call has ended.
            cancel_futures: cancel the calls whose functions have not been called yet.
        """
        self._queue.close()
        if cancel_futures:
            self._queue.cancel_waiting()
        if wait:
            self._queue.join()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Shut down and wait; after Ctrl-C end the jobs first, as Ctrl-C ends a pool's processes."""
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._queue.close()
            self._queue.end_all()
        self.shutdown()

    def _future(self, fn: Callable[..., Any]) -> FunctionFuture[Any]:
        name = getattr(fn, "__qualname__", type(fn).__qualname__)[:200]
        return FunctionFuture(self._queue, self._folder.call(), {"name": name, **self._needs})

    def _submit_chunks(
        self, fn: Callable[..., T], chunks: Iterable[list[tuple[Any, ...]]]
    ) -> list[FunctionFuture[list[T]]]:
        """Submit a job for each chunk; the function is written once for all of them."""
        function: StoredFunction | Exception
        try:
            function = self._folder.store(fn)
        except Exception as error:
            function = error
        futures: list[FunctionFuture[list[T]]] = []
        written: list[FunctionFuture[list[T]]] = []
        for chunk in chunks:
            futures.append(self._future(fn))
            if isinstance(function, Exception):
                futures[-1].fail(function)
            elif self._write(futures[-1], chunk, function):
                written.append(futures[-1])
        self._queue.add(written)
        return futures

    def _write(
        self, future: FunctionFuture[Any], body: object, function: StoredFunction | None = None
    ) -> bool:
        """Write the call; return False if its objects cannot be pickled, which the future tells then."""
        try:
            self._folder.write(future.call, body, function)
        except Exception as error:
            future.fail(error)
            return False
        return True


def _results(futures: list[FunctionFuture[list[T]]], deadline: float | None) -> Iterator[T]:
    """Yield the results in order, and keep none; cancel what is left when nobody asks any more."""
    futures.reverse()
    try:
        while futures:
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            chunk = futures[-1].result(left_s)
            futures.pop()
            chunk.reverse()
            while chunk:
                yield chunk.pop()
    finally:
        for future in futures:
            future.cancel()


def _parent(client: Client, shared_folder: Path | str | None) -> Path:
    if shared_folder is not None:
        return Path(shared_folder)
    if client.is_remote:
        raise TenbinError(
            "functions and results go by files: name a folder that this machine and the jobs see "
            "(Executor(shared_folder=...))",
            2,
        )
    return client.home / FOLDER
