"""``tenbin.Executor``: Python functions as jobs, in the shape of ``concurrent.futures``."""

from __future__ import annotations

import concurrent.futures
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from tenbin.client.call_queue import CallQueue, FunctionFuture
from tenbin.client.calls import CallFolder, StoredFunction
from tenbin.client.client import Client
from tenbin.client.fields import FIELDS, check_fields
from tenbin.errors import TenbinError
from tenbin.fields import JobFields

P = ParamSpec("P")
T = TypeVar("T")
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
    if client.address != str(client.home):
        raise TenbinError(
            "functions and results go by files: name a folder that this machine and the jobs see "
            "(Executor(shared_folder=...))",
            2,
        )
    return client.home / FOLDER
