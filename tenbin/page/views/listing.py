"""The window of the list of jobs that a viewer sees."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from scheduler.jobs.entry import Stage
from scheduler.jobs.job_list import JobFilter, JobQuery, Order, Whole, as_json, find_rows
from tenbin.page.mirror import Mirror
from tenbin.page.rows import READING, Row

MOST = 200  # rows of one answer
KEPT = 64  # sorted lists; viewers of one filter share one
WAITING = (Stage.WAITING, Stage.HELD)


class Asked(BaseModel):
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

    def find(self, asked: Asked) -> list[Row | Whole[Row]]:
        """Return the whole list of which ``asked`` is a window."""
        query = asked.as_query()
        with self._lock:
            if self._jobs.version != self._mirror.version:
                self._jobs = MirrorJobs(self._mirror)
                self._kept.clear()
            if (rows := self._kept.get(query)) is None:
                rows = self._kept[query] = find_rows(self._jobs, query)
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return rows

    def window(self, asked: Asked) -> dict[str, Any]:
        """Return the rows that are shown, and how many there are."""
        rows = self.find(asked)
        shown = [self.told(row) for row in rows[asked.start : asked.start + asked.count]]
        return {"total": len(rows), "start": asked.start, "rows": shown}

    def told(self, row: Row | Whole[Row]) -> dict[str, Any]:
        """Return a row as JSON has it; ``asks``: the job to explain, if it waits."""
        if isinstance(row, Whole):
            asks = self._jobs.waits.get(row.id)
            row = replace(row.first, **row.fields())
        else:
            asks = row.id if row.stage in (*WAITING, Stage.SUSPENDED) else None
        return as_json(row) | {"label": row.label, "asks": asks}
