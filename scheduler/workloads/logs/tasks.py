"""Task traces: comma-separated tables of data centres.

The tasks that count are gathered (a few hundred bytes each), sorted by their submission and numbered from 1.
Run times are not known to a scheduler unless ``estimate=exact``; the tasks may be paused and resumed
unless ``stop`` says otherwise (the traces' own systems kill and start anew).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

from profiles.errors import BadInput
from scheduler.model.jobs import EstimateKind, Job, Stop, instant
from scheduler.simulator.trace import Arrival
from scheduler.workloads.logs.files import lines_of


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
