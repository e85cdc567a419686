"""A submitted job in the shape of ``concurrent.futures``: ``Job``, ``wait``, ``as_completed``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tenbin.client.callbacks import CHECK_S, run_callback
from tenbin.client.output import lines, pieces
from tenbin.errors import TenbinError

if TYPE_CHECKING:  # commands need only FINAL of this module, and not http.client
    from tenbin.client.connection import Connection

POLL_S = 30.0
FINAL = frozenset({"done", "failed", "cancelled", "killed"})


class Cancelled(TenbinError, CancelledError):
    """The job was cancelled; also a ``concurrent.futures.CancelledError``."""


class Job:
    """A submitted job. Jobs of one coordinator with the same number are equal.

    Every method asks the coordinator and may raise ``TenbinError`` (nobody answers: exit code 4).
    """

    def __init__(self, client: Connection, job_id: int) -> None:
        self.client, self.id = client, job_id
        self._final: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Job({self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, int]:
        return self.client.address, self.id

    def info(self, *, sooner: bool = False) -> dict[str, Any]:
        """Return everything that is known of the job; with ``sooner`` also what would start it sooner."""
        return self._keep(self.client.call("GET", f"/jobs/{self.id}{'?sooner=true' if sooner else ''}"))

    def samples(self) -> list[dict[str, Any]]:
        """Return what the job has used over time, about a row a second (``GET /jobs/{job_id}/samples``)."""
        found: list[dict[str, Any]] = self.client.call("GET", f"/jobs/{self.id}/samples")
        return found

    def stdout(self) -> str:
        """Return what the job has written to its standard output so far; what is not UTF-8 is replaced."""
        return b"".join(self.output("stdout")).decode(errors="replace")

    def stderr(self) -> str:
        """Return what the job has written to its standard error so far; what is not UTF-8 is replaced."""
        return b"".join(self.output("stderr")).decode(errors="replace")

    def logs(self, follow: bool = False, stream: str = "stdout") -> Iterator[str]:
        """Yield the lines that the job has written, each with its end; what is not UTF-8 is replaced.

        Args:
            follow: go on until the job has ended.
            stream: ``"stdout"`` or ``"stderr"``.
        """
        return lines(self.output(stream, follow))

    def output(self, stream: str = "stdout", follow: bool = False) -> Iterator[bytes]:
        """Yield what the job has written, in pieces; for the arguments see ``logs``."""
        return pieces(
            lambda start: bytes(self.client.call("GET", f"/jobs/{self.id}/{stream}?start={start}")),
            self.done,
            follow,
        )

    def done(self) -> bool:
        """Return True if the job has ended, with success or without."""
        return self._stage() in FINAL

    def running(self) -> bool:
        """Return True if the job runs (not if it waits or is paused)."""
        return self._stage() in {"running", "stopping"}

    def cancelled(self) -> bool:
        """Return True if the job has ended because it was cancelled."""
        return self._stage() == "cancelled"

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the end of the job at most ``timeout`` seconds; return its ``info``.

        Raises:
            TimeoutError: the job has not ended by then.
        """
        deadline = _deadline(timeout)
        while self._final is None:
            span = min(POLL_S, _left(deadline))
            path = f"/jobs/{self.id}?wait_s={span}"
            self._keep(self.client.call("GET", path, timeout_s=span + 30))
            if self._final is None and not _left(deadline):
                raise TimeoutError(f"job {self.id} has not ended within {timeout:g} s")
        return self._final

    def result(self, timeout: float | None = None) -> int:
        """Wait for the end of the job; return its exit code.

        Raises:
            Cancelled: the job was cancelled.
            TenbinError: the job has no exit code, or one of 0 although it did not succeed: at its limit or
                deadline.
            TimeoutError: the job has not ended by then.
        """
        failure = self.exception(timeout)
        if failure is not None:
            raise failure
        return int(self.wait()["code"] or 0)

    def exception(self, timeout: float | None = None) -> TenbinError | None:
        """Wait for the end of the job; return why it has no exit code of its own, or None if it has one.

        Raises:
            Cancelled: the job was cancelled.
            TimeoutError: the job has not ended by then.
        """
        found = self.wait(timeout)
        if found["stage"] == "cancelled":
            raise Cancelled(
                f"job {self.id} was cancelled" + (f": {found['trouble']}" * bool(found["trouble"]))
            )
        if found["stage"] != "done" and not found["code"]:
            return TenbinError(f"job {self.id} is {found['stage']}: {found['trouble']}")
        return None

    def cancel(self) -> bool:
        """End the job, also while it runs; return False if it has ended already."""
        try:
            self.client.call("POST", "/cancel", {"ids": [self.id]})
        except TenbinError:
            if self.done():
                return False
            raise
        return True

    def suspend(self) -> None:
        """Pause the job."""
        self.client.call("POST", "/suspend", {"ids": [self.id]})

    def resume(self) -> None:
        """Let the job go on."""
        self.client.call("POST", "/resume", {"ids": [self.id]})

    def retry(self) -> None:
        """Run the job again under the same number, because it did not succeed; of an array, such members.

        This object asks for the outcome anew; other objects of the same job keep the outcome that they know.

        Raises:
            TenbinError: the job has succeeded, or has not ended.
        """
        self.client.call("POST", "/retry", {"ids": [self.id]})
        self._final = None

    def migrate(self, to: str) -> None:
        """Move the job to another device or node: checkpoint here, restart there."""
        self.client.call("POST", "/migrate", {"ids": [self.id], "to": to})

    def set_priority(self, priority: int) -> None:
        """Change the job's priority, as if it had been submitted with it."""
        self.client.call("POST", "/priority", {"ids": [self.id], "priority": priority})

    def add_done_callback(self, callback: Callable[[Job], object]) -> None:
        """Call ``callback`` with the job when the job has ended, in a thread; at once if it has ended.

        Exceptions of the callback are logged. The thread does not keep the program alive.
        """
        call = partial(callback, self)
        if self.done():
            run_callback(self.id, call)
        else:
            self.client.callbacks.add(self.id, call)

    def _stage(self) -> str:
        return str((self._final or self.info())["stage"])

    def _keep(self, found: dict[str, Any]) -> dict[str, Any]:
        if found["stage"] in FINAL:
            self._final = found
        return found


class DoneAndNotDone(NamedTuple):
    """The result of ``wait``."""

    done: set[Job]
    not_done: set[Job]


def wait(
    jobs: Iterable[Job], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDone:
    """Wait for jobs, as ``concurrent.futures.wait`` does.

    Args:
        timeout: in seconds; jobs that have not ended by then are in ``not_done``.
        return_when: ``FIRST_COMPLETED``, ``FIRST_EXCEPTION`` (the first that did not succeed, or all) or
            ``ALL_COMPLETED``, also from ``concurrent.futures``.
    """
    if return_when not in (FIRST_COMPLETED, FIRST_EXCEPTION, ALL_COMPLETED):
        raise ValueError(f"return_when={return_when!r}")
    done: set[Job] = set()
    waiting, deadline = set(jobs), _deadline(timeout)
    for job, found in _ends(waiting, deadline, return_when == ALL_COMPLETED):
        done.add(job)
        enough = return_when == FIRST_COMPLETED
        if enough or (return_when == FIRST_EXCEPTION and (found["stage"] != "done")):
            break
    return DoneAndNotDone(done, waiting - done)


def as_completed(jobs: Iterable[Job], timeout: float | None = None) -> Iterator[Job]:
    """Yield the jobs in the order in which they end.

    Raises:
        TimeoutError: some have not ended so many seconds after the first was asked for.
    """
    waiting = set(jobs)
    for job, _ in _ends(set(waiting), _deadline(timeout)):
        waiting.discard(job)
        yield job
    if waiting:
        raise TimeoutError(f"{len(waiting)} jobs have not ended within {timeout:g} s")


def _ends(jobs: set[Job], deadline: float, all: bool = False) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Yield each job and its outcome as the jobs end, or when all have ended, until the deadline."""
    by_client: dict[str, dict[int, Job]] = {}
    for job in jobs:
        by_client.setdefault(job.client.address, {})[job.id] = job
    longest = POLL_S if len(by_client) <= 1 else CHECK_S / len(by_client)
    while by_client:
        for address, waiting in list(by_client.items()):
            client = next(iter(waiting.values())).client
            for found in client.ended(list(waiting), min(longest, _left(deadline)), all):
                yield waiting.pop(found["id"]), found
            if not waiting:
                del by_client[address]
        if not _left(deadline):
            return


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)
