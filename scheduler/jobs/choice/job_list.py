"""One list of jobs for API, ``tenbin jobs``, ``tenbin top`` and page: filter, order, arrays as one row.

The jobs are the coordinator's records, with those of its journal that have ended, or the rows that the page
has made of a journal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, Literal, Protocol

from scheduler.jobs.arrays import PRECEDENCE, array_stage
from scheduler.jobs.choice.filters import J, JobFilter, Reading, cores_of, name_of, owner_of
from scheduler.jobs.choice.job_rows import JobRow
from scheduler.jobs.entry import FINAL, Entry, Stage

GROUPS = {stage: 2 if stage.final else 0 if stage.begun else 1 for stage in Stage}  # of the order ``queue``
RANKS = {stage: rank for rank, stage in enumerate(PRECEDENCE)}
Order = Literal["queue", "id", "name", "user", "stage", "cores", "place", "since"]


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The rows of a list.

    Attributes:
        filter: which jobs are meant; of an array, if one of its members is.
        members: each member of an array is a row; else the array is one.
        order: "queue": jobs that run, then those that wait, by priority, then those that have ended, what
            ended last first (an array: by its first member). Rows that are equal in another order stay in
            this one.
    """

    filter: JobFilter
    members: bool = False
    order: Order | Literal["submit_s"] = "queue"
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Whole(Generic[J]):
    """An array in a list of jobs, with its first member, and how many members are in each stage."""

    id: int
    first: J
    stages: Counter[Stage]

    @property
    def stage(self) -> Stage:
        return array_stage(self.stages)

    def fields(self) -> dict[str, Any]:
        """Return the fields of its row that are not those of its first member."""
        total, done = self.stages.total(), self.stages[Stage.DONE]
        lost = sum(self.stages[stage] for stage in FINAL) - done
        return {
            "id": self.id,
            "array": self.id,
            "array_index": None,
            "stage": self.stage,
            "members": total,
            "stages": {stage: self.stages[stage] for stage in PRECEDENCE if self.stages[stage]},
            "start_s": None,
            "end_s": None,
            "code": 0 if done == total else None,
            "trouble": f"{lost:,} of {total:,} did not succeed" if lost else "",
        }


class Jobs(Protocol[J]):
    """All jobs that a list may show.

    Attributes:
        ranked: a job had a priority. has_arrays: some belong to arrays.
    """

    reading: Reading[J]
    ranked: bool
    has_arrays: bool

    def find(self, conditions: JobFilter) -> Iterable[J]:
        """Find jobs, in the order of their numbers."""

    def wholes(self, conditions: JobFilter) -> Iterable[Whole[J]]:
        """Find the arrays of which a member is meant."""


def find_rows(jobs: Jobs[J], query: JobQuery) -> list[J | Whole[J]]:
    """Find the rows of a list, in its order."""
    rows: list[J | Whole[J]] = []
    wholes = jobs.has_arrays and not query.members
    if wholes:
        rows += jobs.find(replace(query.filter, single=True))
        rows += jobs.wholes(query.filter)
        rows.sort(key=attrgetter("id"))
    else:
        rows += jobs.find(query.filter)
    if query.order == "id":
        return rows[::-1] if query.reverse else rows
    stage = stage_of(jobs.reading, wholes=wholes)
    rows = _queue(rows, stage, ranked=jobs.ranked)
    if query.order == "stage":
        rows.sort(key=lambda row: RANKS[stage(row)], reverse=query.reverse)
    elif query.order != "queue":
        rows.sort(key=_key(query.order, jobs.reading, wholes=wholes), reverse=query.reverse)
    elif query.reverse:
        rows.reverse()
    return rows


def _queue(
    rows: list[J | Whole[J]], stage: Callable[[J | Whole[J]], Stage], *, ranked: bool
) -> list[J | Whole[J]]:
    """Return rows that are sorted by their numbers in the order of the queue."""
    groups: tuple[list[J | Whole[J]], ...] = [], [], []
    for row in rows:
        groups[GROUPS[stage(row)]].append(row)
    begun, waiting, ended = groups
    if ranked:
        waiting.sort(key=lambda row: -_job(row).priority)
    ended.reverse()
    ended.sort(key=lambda row: -(_job(row).end_s or 0.0))
    return begun + waiting + ended


def stage_of(reading: Reading[J], *, wholes: bool) -> Callable[[J | Whole[J]], Stage]:
    """Return what tells the stage of a row; ``wholes``: arrays are among the rows."""
    read: Callable[[Any], Stage] = reading.stage
    if wholes:
        return lambda row: row.stage if isinstance(row, Whole) else read(row)
    return read


def _key(order: str, reading: Reading[J], *, wholes: bool) -> Callable[[J | Whole[J]], Any]:
    """Return the key of an order; without arrays among the rows it is that of the jobs."""
    if order == "since":
        return _since_s
    keys: dict[str, Callable[[Any], Any]] = {
        "name": reading.name,
        "user": reading.user,
        "cores": reading.cores,
        "place": reading.nodes,
        "submit_s": attrgetter("submit_s"),
    }
    key = keys[order]
    return (lambda row: key(_job(row))) if wholes else key


def _job(row: J | Whole[J]) -> J:
    return row.first if isinstance(row, Whole) else row


def _since_s(row: J | Whole[J]) -> float:
    """Return the instant of the end, else of the start, else of the submission; as the rows have them."""
    return row.first.submit_s if isinstance(row, Whole) else row.end_s or row.start_s or row.submit_s


def row_of(entry: Entry, user: str) -> JobRow:
    """Make the row of a job; ``user``: whose it is where nothing else is known."""
    return JobRow(
        id=entry.id,
        name=name_of(entry),
        array=entry.array,
        array_index=entry.array_index,
        stage=entry.shown,
        slurm=entry.spec.slurm.id if entry.spec.slurm else None,
        user=owner_of(entry, user),
        held_by_user=entry.held_by_user,
        cores=cores_of(entry),
        priority=entry.priority,
        place=None if entry.placement is None else entry.placement.pool,
        submit_s=entry.submit_s,
        start_s=entry.start_s,
        end_s=entry.end_s,
        time_limit_s=time_limit_s(entry),
        code=entry.code,
        trouble=entry.trouble,
    )


def time_limit_s(entry: Entry) -> float | None:
    """Return the job's limit now; None: it has none."""
    limit_s = entry.spec.time_s if entry.limit_s is None else entry.limit_s
    return None if limit_s is None or math.isinf(limit_s) else limit_s
