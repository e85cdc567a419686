"""Task traces: comma-separated tables of data centres.

The tasks that count are gathered (a few hundred bytes each), sorted by their submission and numbered from 1.
Run times are not known to a scheduler unless ``estimate=exact``; the tasks may be paused and resumed
unless ``stop`` says otherwise (the traces' own systems kill and start anew).
"""

from __future__ import annotations

import gzip
import math
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

from profiles.errors import BadInput
from scheduler.model.jobs import EstimateKind, Job, Stop, instant
from scheduler.model.speed_bounds import SpeedRatios, estimates_on_all
from scheduler.simulator.trace import Arrival

# Lines of plain or compressed files, and arrivals put in order.


WINDOW = 4096  # jobs that may be out of order
BLOCK = 2**18  # bytes of lines that are read at a time
SUBMISSION = attrgetter("job.submit_s")


def lines_of(path: Path) -> Iterator[str]:
    """Read lines of a plain or compressed file; bytes that are no text become replacement characters."""
    return chain.from_iterable(blocks_of(path))


def blocks_of(path: Path) -> Iterator[list[str]]:
    """Read many lines at a time: faster than line by line."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        opened = gzip.open if compressed else open
        with opened(path, "rt", encoding="utf-8-sig", errors="replace") as lines:
            while block := lines.readlines(BLOCK):
                yield block
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(
            f"{path}: the compressed file is damaged or cut short ({error})", "fetch it again"
        ) from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}", "name a file that can be read") from error


def whole(text: str) -> int:
    """Read a whole number, also one that is written as ``1.0``; ValueError for anything else."""
    if text.isdecimal():
        return int(text)
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


def in_order(blocks: Iterable[list[Arrival]], skipped: Counter[str]) -> Iterator[Arrival]:
    """Sort the arrivals by submission, ties in their order, within a window of ``WINDOW`` jobs."""
    return chain.from_iterable(_sorted(blocks, skipped))


def _sorted(blocks: Iterable[list[Arrival]], skipped: Counter[str]) -> Iterator[list[Arrival]]:
    held: list[Arrival] = []
    last = -math.inf
    for block in blocks:
        held += block
        held.sort(key=SUBMISSION)  # in no time if they are in order
        late = bisect_left(held, last, key=SUBMISSION)
        if late:
            skipped[f"out of order by more than {WINDOW} jobs"] += late
        settled = held[late:-WINDOW]
        if settled:
            last = settled[-1].job.submit_s
            yield settled
            held = held[-WINDOW:]
        else:
            del held[:late]
    yield held


@dataclass(frozen=True)
class TaskParameters:
    """Options for a trace of tasks.

    Attributes:
        every: about one task in so many, chosen by a hash of the task's name: the same ones however the trace
            is cut, and no table of all tasks is needed.
        limit: the first so many of these; None: all.
        estimate: what a scheduler knows of the run time: "none", or "exact".
        stop: what may be done to a running task: "pause", "checkpoint" or "never".
        strict: stop at the first line that cannot be used instead of skipping it.
    """

    every: int = 1
    limit: int | None = None
    estimate: Literal["none", "exact"] = "none"
    stop: Literal["pause", "checkpoint", "never"] = "pause"
    strict: bool = False

    def __post_init__(self) -> None:
        if self.every < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError("every and limit must be at least 1")


class TraceTask(NamedTuple):
    """A task that counts; ``demand`` is that of each of its ``units``."""

    submit_s: float
    run_s: float
    demand: tuple[float, ...]
    units: int = 1
    user: str = ""
    memory_mb: float | None = None


class TraceTable:
    """The lines of a comma-separated file as fields; those that cannot be used are counted, or an error.

    Attributes:
        line: number of the line that is being looked at.
    """

    def __init__(self, path: Path, strict: bool, skipped: Counter[str]) -> None:
        self.path = path
        self.line = 0
        self._strict = strict
        self._skipped = skipped

    def rows(self, columns: int) -> Iterator[list[str]]:
        """Yield the fields of lines that have as many as they should; empty lines do not count."""
        for line, text in enumerate(lines_of(self.path), 1):
            self.line = line
            fields = text.rstrip("\r\n").split(",")
            if len(fields) == columns:
                yield fields
            elif text.strip():
                self.skip(f"{len(fields)} fields instead of {columns}")

    def skip(self, reason: str) -> None:
        """Count the line at hand as one that cannot be used; with ``strict`` raise BadInput."""
        if self._strict:
            raise BadInput(
                f"{self.path}, line {self.line}: {reason}", "mend the line, or read without strict"
            )
        self.leave_out(reason)

    def leave_out(self, reason: str) -> None:
        """Count the line at hand as one that is in order, but gives no job."""
        self._skipped[reason] += 1


def number(text: str) -> float:
    """Read a finite number; ValueError for anything else."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def chosen(name: str, every: int, count: int = 1) -> int:
    """Return how many of ``count`` things of that name are taken, one in ``every`` on average."""
    return (count + crc32(name.encode()) % every) // every


def share(thing: str, every: int) -> str:
    """Write ``"each task"``, ``"about one task in 16"``."""
    return f"each {thing}" if every == 1 else f"about one {thing} in {every}"


def arrivals(tasks: Iterable[TraceTask], parameters: TaskParameters) -> Iterator[Arrival]:
    """Yield the tasks as jobs, in the order of their submission."""
    ordered = sorted(tasks, key=lambda task: task.submit_s)
    exact, stop = parameters.estimate == "exact", Stop(parameters.stop)
    for position, task in enumerate(islice(ordered, parameters.limit), 1):
        job = Job(
            id=position,
            submit_s=instant(task.submit_s),
            units=task.units,
            estimate_s=task.run_s if exact else None,
            user=task.user,
            memory_mb=task.memory_mb,
            estimate_kind=EstimateKind.EXACT if exact else EstimateKind.LIMIT,
            stop=stop,
            demand=task.demand,
        )
        yield Arrival(job, task.run_s)


# Jobs that state no run time, or none on some classes: what policies take in its place.


def estimated_on_all(arrivals: Iterable[Arrival], ratios: SpeedRatios) -> Iterator[Arrival]:
    """Yield the arrivals, with finite run times on all classes that a job can run on, where one is finite."""
    for arrival in arrivals:
        job = arrival.job
        if math.inf in job.estimates_s.values():
            job = replace(job, estimates_s=estimates_on_all(job.estimates_s, ratios))
            yield arrival._replace(job=job)
        else:
            yield arrival


@dataclass
class Unstated:
    """A substitute for run times that jobs do not state.

    Attributes:
        actual: the job's own run time. time_s: the same for all; jobs may take longer. Neither: unknown.
        jobs: how many states no run time, of those that were read so far.
    """

    actual: bool = False
    time_s: float | None = None
    jobs: int = 0

    def filled(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """Yield the arrivals, with the substitute where a job states no run time."""
        for arrival in arrivals:
            job = arrival.job
            if job.estimate_s is not None or job.estimates_s:
                yield arrival
                continue
            self.jobs += 1
            if self.actual:
                run_s = None if arrival.runs_s else arrival.run_s
                job = replace(
                    job, estimate_s=run_s, estimates_s=arrival.runs_s, estimate_kind=EstimateKind.EXACT
                )
            elif self.time_s is not None:
                job = replace(job, estimate_s=self.time_s, estimate_kind=EstimateKind.PREDICTED)
            yield arrival._replace(job=job)
