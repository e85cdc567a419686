"""The list of jobs, of which a viewer sees a window, and one job as its view shows it."""

from __future__ import annotations

import codecs
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from scheduler.coordinator.journal.reader import job_record
from scheduler.engines.common.job_folders import JobFolders
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.job_list import JobFilter, JobQuery, Order, Whole, as_json, find_rows
from tenbin.page.mirror import READING, Mirror, Row

MOST = 200  # rows of one answer
KEPT = 64  # sorted lists; viewers of one filter share one
WAITING = (Stage.WAITING, Stage.HELD)


class ListWindow(BaseModel):
    """The rows that are asked for.

    Attributes:
        text: is a part of number, name, user, place or trouble; ``*`` makes it a pattern of the name.
        array: only members of this array, each in a row.
        start, count: the window.
    """

    model_config = ConfigDict(extra="forbid")

    stages: list[Stage] = Field(default_factory=list)
    text: Annotated[str, Field(max_length=200)] = ""
    array: int | None = None
    members: bool = False
    sort: Order | Literal["submit_s"] = "queue"  # the latter in addresses that were kept
    down: bool = False
    start: Annotated[int, Field(ge=0, le=10**9)] = 0
    count: Annotated[int, Field(ge=1, le=MOST)] = 50

    def as_query(self) -> JobQuery:
        """Return the list of which this is a window."""
        conditions = JobFilter(stages=frozenset(self.stages), array=self.array, text=self.text)
        members = self.members or self.array is not None
        return JobQuery(conditions, members=members, order=self.sort, reverse=self.down)


class MirrorJobs:
    """The jobs of a mirror at one time, as lists take them.

    Attributes:
        waits: of an array the number of the first member that waits.
    """

    reading = READING
    ranked = True

    def __init__(self, mirror: Mirror) -> None:
        self.version = mirror.version
        self.waits: dict[int, int] = {}
        self._rows = sorted(mirror.rows.values(), key=attrgetter("id"))
        self._members: list[Row] = []
        self._wholes: dict[int, Whole[Row]] = {}
        for row in self._rows:
            if row.array is not None:
                self._members.append(row)
                whole = self._wholes.setdefault(row.array, Whole(row.array, row, Counter()))
                whole.stages[READING.stage(row)] += 1
                if row.stage in WAITING:
                    self.waits.setdefault(row.array, row.id)
        self.has_arrays = bool(self._wholes)

    def find(self, conditions: JobFilter) -> Iterator[Row]:
        """Find jobs, in the order of their numbers."""
        return conditions.choose(self._rows, READING)

    def wholes(self, conditions: JobFilter) -> list[Whole[Row]]:
        """Find the arrays of which a member is meant."""
        arrays = {row.array for row in conditions.choose(self._members, READING)}
        return [array for number, array in self._wholes.items() if number in arrays]


class Lists:
    """Sorted lists of the jobs of a mirror; those that viewers look at are kept until jobs change."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._jobs = MirrorJobs(mirror)
        self._kept: OrderedDict[JobQuery, list[Row | Whole[Row]]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, window: ListWindow) -> list[Row | Whole[Row]]:
        """Return the whole list of which ``window`` is a part."""
        query = window.as_query()
        with self._lock:
            if self._jobs.version != self._mirror.version:
                self._jobs = MirrorJobs(self._mirror)
                self._kept.clear()
            if (rows := self._kept.get(query)) is None:
                rows = self._kept[query] = find_rows(self._jobs, query)
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return rows

    def window(self, window: ListWindow) -> dict[str, Any]:
        """Return the rows that are shown, and how many there are."""
        rows = self.find(window)
        shown = [self.row_as_json(row) for row in rows[window.start : window.start + window.count]]
        return {"total": len(rows), "start": window.start, "rows": shown}

    def row_as_json(self, row: Row | Whole[Row]) -> dict[str, Any]:
        """Return a row as JSON has it; ``asks``: the job to explain, if it waits."""
        if isinstance(row, Whole):
            asks = self._jobs.waits.get(row.id)
            row = replace(row.first, **row.fields())
        else:
            asks = row.id if row.stage in (*WAITING, Stage.SUSPENDED) else None
        return as_json(row) | {"label": row.label, "asks": asks}


# -- one job: what it is, its story, its output, what it uses ----------------------------------------------


TAIL = 64 << 10  # bytes of output that are shown
MOST_POINTS = 400  # of a chart
Stream = Literal["stdout", "stderr"]


def account(store: Path, job_id: int) -> dict[str, Any] | None:
    """Return what the journal has of a job; None if there is none of that number."""
    record = job_record(store, job_id)
    if record is None:
        return None
    entry, folders = record.entry, JobFolders(store)
    return {
        "command": list(entry.spec.command),
        "folder": entry.spec.folder,
        "stdout": str(folders.output(entry, "stdout")),
        "cpus": list(entry.cores),
        "preemptions": entry.preemptions,
        "migrations": entry.migrations,
        "usage": entry.usage,
        "gpus_asked": entry.way.gpus_asked,
        "history": [
            *({"at_s": at, "what": what, "detail": detail} for at, what, detail in record.history),
            *folders.failed_notices(entry.id),
        ],
        "predictions": [prediction.as_json() for prediction in record.predictions],
    }


def output(store: Path, entry: Entry, stream: Stream, start: int | None) -> dict[str, Any]:
    """Return the output from a byte on, or its end; at most ``TAIL`` bytes, to the end of a character.

    Raises:
        OSError: it cannot be read.
    """
    folders = JobFolders(store)
    path = folders.output(entry, stream)
    size = path.stat().st_size if path.exists() else len(folders.packed.content(path) or b"")
    begin = max(size - TAIL, 0) if start is None or start > size else max(start, size - TAIL)
    content = folders.piece(path, begin)[:TAIL]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(content)
    end = begin + len(content) - len(decoder.getstate()[0])  # the rest of a character is yet to be written
    skipped = begin if start is None or begin != start else 0
    return {"start": begin, "end": end, "skipped": skipped, "text": text}


def samples(store: Path, entry: Entry) -> list[dict[str, Any]]:
    """Return what the last attempt used over time: between two points cores, watts and the most memory."""
    rows = JobFolders(store).samples(entry.id, entry.attempt)
    step = len(rows) // MOST_POINTS + 1
    points = []
    for first in range(0, len(rows) - 1, step):
        group = rows[first : first + step + 1]
        before, row = group[0], group[-1]
        passed_s = row.at_s - before.at_s
        if passed_s <= 0:
            continue
        power_w = None
        if row.energy_j is not None and before.energy_j is not None:
            power_w = (row.energy_j - before.energy_j) / passed_s
        points.append(
            {
                "at_s": row.at_s,
                "cores": (row.cpu_s - before.cpu_s) / passed_s,
                "memory_mb": max(sample.memory_mb for sample in group[1:]),
                "power_w": power_w,
                "processes": row.processes,
                "threads": row.threads,
            }
        )
    return points
