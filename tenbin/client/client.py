"""A light client of the coordinator, for programs: ``import tenbin``; only the standard library.

job = tenbin.submit(["./simulate", "--steps", "1000"], cores=4, time_s=600)
job.result()
"""

from __future__ import annotations

import base64
import codecs
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypedDict, Unpack

from tenbin.client.connection import CHECK_S, Connection, run_callback
from tenbin.errors import TenbinError
from tenbin.fields import TYPES, JobFields

# -- arguments: a misspelt field is refused before anything is submitted -----------------------------------


FIELDS = frozenset(TYPES)


class UnknownField(TenbinError, TypeError):
    """There is no such field of a job; also a ``TypeError``."""


class NoCommand(TenbinError, TypeError):
    """A command is no list of words; also a ``TypeError``."""


def words_of(command: object) -> list[str]:
    """Return the words of a command; paths among them as text.

    Raises:
        NoCommand: it is a text, or has words that are no texts.
    """
    if isinstance(command, str | bytes):
        text = os.fsdecode(command)
        remedy = f"write {text.split()!r}, or for a shell ['sh', '-c', {text!r}]"
        raise NoCommand(f"command {text!r} is one text, and no list of words; {remedy}", 2)
    if not isinstance(command, Iterable):
        raise NoCommand(f"command {command!r} is no list of words; write for instance ['sleep', '10']", 2)
    words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
    for place, word in enumerate(words):
        if not isinstance(word, str):
            raise NoCommand(f"command[{place}] is {word!r}, and no text; write str({word!r})", 2)
    return words


def check_fields(given: Iterable[str], of: str, known: frozenset[str] = FIELDS) -> None:
    """Refuse names that are no fields of a job.

    Args:
        of: the call that they were given to, for the message.

    Raises:
        UnknownField: one is not among ``known``; the text names near ones.
    """
    for name in given:
        if name not in known:
            near = get_close_matches(name, sorted(known), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(known))}"
            raise UnknownField(f"{of} has no argument {name!r}; {hint}", 2)


# -- jobs in the shape of ``concurrent.futures`` -----------------------------------------------------------


POLL_S = 30.0
FINAL = frozenset({"done", "failed", "cancelled", "killed"})


class Cancelled(TenbinError, CancelledError):
    """The job was cancelled; also a ``concurrent.futures.CancelledError``."""


class Changes(TypedDict, total=False):
    """The fields of a job that ``Job.update`` changes."""

    time_s: float | None
    more_s: float
    priority: int


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
        rows: list[dict[str, Any]] = self.client.call("GET", f"/jobs/{self.id}/samples")
        return rows

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

    def output(
        self, stream: str = "stdout", follow: bool = False, tail: int | None = None
    ) -> Iterator[bytes]:
        """Yield what the job has written, in pieces; for the arguments see ``logs`` and ``pieces``."""
        return pieces(
            lambda start: bytes(self.client.call("GET", f"/jobs/{self.id}/{stream}?start={start}")),
            self.done,
            follow,
            tail,
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
        info = self.wait(timeout)
        if info["stage"] == "cancelled":
            raise Cancelled(f"job {self.id} was cancelled" + (f": {info['trouble']}" * bool(info["trouble"])))
        if info["stage"] != "done" and not info["code"]:
            return TenbinError(f"job {self.id} is {info['stage']}: {info['trouble']}")
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

    def update(self, **changes: Unpack[Changes]) -> None:
        """Change the job's limit of run time (``time_s``, None: none; ``more_s``: longer), or priority.

        Raises:
            TenbinError: the job has ended, or cannot have that limit.
        """
        self.client.call("POST", "/update", {"ids": [self.id], **changes})

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

    def _keep(self, info: dict[str, Any]) -> dict[str, Any]:
        if info["stage"] in FINAL:
            self._final = info
        return info


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
    for job, info in _ends(waiting, deadline, return_when == ALL_COMPLETED):
        done.add(job)
        enough = return_when == FIRST_COMPLETED
        if enough or (return_when == FIRST_EXCEPTION and (info["stage"] != "done")):
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
            for info in client.ended(list(waiting), min(longest, _left(deadline)), all):
                yield waiting.pop(info["id"]), info
            if not waiting:
                del by_client[address]
        if not _left(deadline):
            return


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


# -- the output of a job, as it is written -----------------------------------------------------------------


LOOK_S = 0.2  # between two looks at the output of a job that runs


def pieces(
    read: Callable[[int], bytes],
    has_ended: Callable[[], bool],
    follow: bool = False,
    tail: int | None = None,
) -> Iterator[bytes]:
    """Yield what a job has written.

    Args:
        read: reads a piece from a byte on; empty where there is no more.
        has_ended: whether the job has ended.
        follow: go on until it has.
        tail: begin with so many of the lines that are there now.
    """
    start, end = 0, b""
    while True:
        is_last = not follow or has_ended()
        while piece := read(start):
            start += len(piece)
            if tail is None:
                yield piece
            else:
                end = _last_lines(end + piece, tail)
        if end:
            yield end
        tail, end = None, b""
        if is_last:
            return
        time.sleep(LOOK_S)


def _last_lines(content: bytes, count: int) -> bytes:
    """Return the last lines of a text; what stands behind its last line feed is one of them."""
    parts = content.split(b"\n")
    return b"\n".join(parts[-count - (not parts[-1]) :])


def lines(parts: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of UTF-8 text, each with its end; what is not UTF-8 is replaced."""
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for part in parts:
        *whole, rest = (rest + decoder.decode(part)).split("\n")
        yield from (f"{line}\n" for line in whole)
    if rest := rest + decoder.decode(b"", final=True):
        yield rest


# -- the client --------------------------------------------------------------------------------------------


class Client(Connection):
    """Submits jobs to one coordinator. Threads may share a client; for the arguments see ``Connection``."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass

    def submit(self, command: Sequence[str | os.PathLike[str]], **needs: Unpack[JobFields]) -> Job:
        """Submit one job; ``needs`` are its fields (tasks, cores, time_s, after, ...: docs/job-files.md).

        Raises:
            NoCommand: the command is no list of words.
            UnknownField: there is no such field.
            TenbinError: the coordinator does not answer, or refuses the job.
        """
        check_fields(needs, "submit")
        needs.setdefault("folder", str(Path.cwd()))
        return self.submit_all([{"command": command, **needs}])[0]

    def submit_all(
        self,
        specs: Sequence[dict[str, Any]],
        environment: dict[str, str] | None = None,
        waits_for: Mapping[int, Sequence[int] | Mapping[str, Sequence[int]]] | None = None,
        arrays: Mapping[int, Sequence[int]] | None = None,
    ) -> list[Job]:
        """Submit jobs, all or none; the jobs of ``hand_over``. Its remarks are warnings."""
        answer = self.hand_over(specs, environment, waits_for=waits_for, arrays=arrays)
        for text in answer.get("remarks", ()):
            warnings.warn(text, stacklevel=3)
        return [Job(self, job_id) for job_id in answer["ids"]]

    def hand_over(
        self,
        specs: Sequence[dict[str, Any]],
        environment: dict[str, str] | None = None,
        *,
        waits_for: Mapping[int, Sequence[int] | Mapping[str, Sequence[int]]] | None = None,
        arrays: Mapping[int, Sequence[int]] | None = None,
        script: bytes | None = None,
        dry_run: bool = False,
    ) -> dict[str, list[Any]]:
        """Submit jobs, all or none; return their numbers (``ids``), and those of the ``arrays`` among them.

        Raises:
            NoCommand: a command is no list of words.

        Args:
            specs: each a JobSpec of the API. environment: of all of them; None: this process's.
            waits_for: which of the specs wait for which others of them, by their places from 0 on: a list
                (``after``), or lists by kind, ``{"after_any": [0]}``.
            arrays: the indices of each spec that is an array, by its place.
            script: content of the script that each runs; its name stands first in each command.
            dry_run: only check them, and return when the first ones would start (``jobs``).
        """
        body: dict[str, Any] = {
            "specs": [{**spec, "command": words_of(spec.get("command"))} for spec in specs],
            "environment": dict(os.environ) if environment is None else environment,
            "waits_for": dict(waits_for or {}),
            "arrays": {place: list(indices) for place, indices in (arrays or {}).items()},
        }
        if script is not None:
            body["script"] = base64.b64encode(script).decode()
        try:
            answer: dict[str, list[Any]] = self.call("POST", "/forecast" if dry_run else "/jobs", body)
        except TenbinError as error:
            if len(specs) > 1 or error.place is None:
                raise
            raise TenbinError(error.reason, error.exit_code, error.place, error.reason) from None
        return answer

    def job(self, job_id: int) -> Job:
        """Return a job by its number."""
        return Job(self, job_id)

    def output(self, job_id: int, stream: str = "stdout", start: int = 0) -> bytes:
        """Read a job's stdout or stderr, from a byte on; at most 4 MiB at once."""
        content: bytes = self.call("GET", f"/jobs/{job_id}/{stream}?start={start}")
        return content


def submit(command: Sequence[str | os.PathLike[str]], **needs: Unpack[JobFields]) -> Job:
    """Submit one job to the coordinator of this user; as ``Client.submit``."""
    return Client().submit(command, **needs)


def job(job_id: int) -> Job:
    """Return a job of this user's coordinator by its number."""
    return Client().job(job_id)
