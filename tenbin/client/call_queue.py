"""Calls of functions that wait for their jobs, and the futures of both."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import groupby
from threading import Lock, Thread, main_thread
from typing import Any, TypeVar

from tenbin.client.callbacks import CHECK_S
from tenbin.client.calls import Call, CallFolder, CallOutcome, StoredFunction
from tenbin.client.client import Client
from tenbin.client.futures import Job
from tenbin.errors import TenbinError

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

    def settle(self, found: dict[str, Any]) -> None:
        """Take over what came of the call, now that its job has ended as ``found``."""
        outcome: CallOutcome | None
        try:
            outcome = self.call.outcome()
        except BaseException as error:  # any code may run there; this thread is needed by other futures
            outcome = CallOutcome(None, _unreadable(found, error))
        if outcome is None and (found["stage"] == "cancelled" or self.call.is_withdrawn()):
            super().cancel()
        self.call.discard()
        if not self.set_running_or_notify_cancel():
            return
        if outcome is None:
            self.set_exception(NoResult(_death(found)))
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
            settled = [(self._jobs.pop(found["id"]), found) for found in ended]
            try:
                self._fill()
            except TenbinError:
                pause_s = CHECK_S
            failed, self._failed = self._failed, []
        for future, found in settled:
            future.settle(found)
        for future, error in failed:
            future.fail(error)
        time.sleep(pause_s)

    def _ended(self, ids: list[int], wait_s: float) -> list[dict[str, Any]]:
        try:
            return self.client.ended(ids, wait_s) if ids else []
        except TenbinError as error:
            if error.exit_code == 4:  # the coordinator may be started again
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


def _unreadable(found: dict[str, Any], error: BaseException) -> NoResult:
    """Make the error for a result that cannot be unpickled here."""
    failure = NoResult(f"the result of job {found['id']} ({found['name']}) cannot be read: {error!r}")
    failure.__cause__ = error
    return failure


def _death(found: dict[str, Any]) -> str:
    """Say how a job without a result has ended."""
    reason = f"exit code {found['code']}" if found["code"] is not None else "no exit code"
    job = f"job {found['id']} ({found['name']})"
    return f"{job} is {found['stage']} and has left no result: {found['trouble'] or reason}"
