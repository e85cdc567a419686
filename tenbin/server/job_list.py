"""Lists of jobs in the API: ``GET /jobs``, and ``GET /queue``, a window for those who look often."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from pydantic import BaseModel, ConfigDict, Field, Strict, TypeAdapter

from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.choice.filters import JobFilter, entry_reading
from scheduler.jobs.choice.job_list import GROUPS, JobQuery, Order, Whole, find_rows, row_of, stage_of
from scheduler.jobs.choice.job_rows import ArrayRow, JobRow, as_json
from scheduler.jobs.entry import Entry, Stage
from tenbin.server.bodies import LARGEST
from tenbin.server.descriptions import state
from tenbin.server.node_table import in_use
from tenbin.server.refusals import OF_VALUES

MOST_ROWS = 1000
Number = Annotated[int, Field(ge=1, le=LARGEST)]
Instant = Annotated[float, Field(allow_inf_nan=False)]
ROWS = TypeAdapter(list[ArrayRow | JobRow])


class Conditions(BaseModel):
    """The jobs to tell of: those that meet all conditions, the last ones up to the limit."""

    model_config = ConfigDict(extra="forbid")

    stages: list[Annotated[Stage, Strict(False)]] = Field(default_factory=list)
    name: str | None = None
    user: str | None = None
    since_s: Instant | None = None
    until_s: Instant | None = None
    place: str | None = None
    array: Number | None = None
    limit: Number | None = None

    def as_filter(self) -> JobFilter:
        """Return the conditions as the journal takes them."""
        names = ("name", "user", "since_s", "until_s", "place", "array")
        return JobFilter(stages=frozenset(self.stages), **{name: getattr(self, name) for name in names})


class Listed(Conditions):
    """The jobs to list.

    Attributes:
        all: also those that have ended. Final ``stages`` and ``since_s`` ask for them too.
        members: each member of an array is a row; else the array is one, if one of its members is meant.
    """

    all: bool = False
    members: bool = True

    @property
    def ended(self) -> bool:
        """Jobs that have ended are meant too."""
        return self.all or self.since_s is not None or any(stage.final for stage in self.stages)


class Window(Listed):
    """The rows ``start`` to ``start + rows - 1`` of a sorted list; ``limit`` is of the jobs that have ended.

    The order ``queue``: jobs that run, then those that wait, by priority, then those that have ended, the
    last ones first.
    """

    order: Order = "queue"
    reverse: bool = False
    start: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    rows: Annotated[int, Field(ge=0, le=MOST_ROWS)] = 50


class CoordinatorJobs:
    """The jobs of a coordinator, as lists take them.

    Args:
        waiting: also jobs that have not begun.
        ended: also jobs that have ended; of these, and of arrays that have, the last ones up to the
            ``limit``, by their numbers.
    """

    def __init__(
        self, coordinator: Coordinator, *, waiting: bool = True, ended: bool = True, limit: int | None = None
    ) -> None:
        self._table = coordinator.job_table
        self._waiting, self._ended, self._limit = waiting, ended, limit
        self.reading = entry_reading(self._table.user)
        self.ranked = coordinator.cluster.ranked
        self.has_arrays = any(self._table.arrays)  # their numbers

    def find(self, conditions: JobFilter) -> Iterable[Entry]:
        """Find jobs, in the order of their numbers."""
        open: Iterable[Entry] = self._table.entries.values()
        if not self._waiting:
            open = (entry for entry in open if entry.shown.begun)
        jobs = conditions.choose(open, self.reading)
        if not self._ended:
            return jobs
        older = islice(self._find_ended(conditions), self._limit)
        return sorted(chain(jobs, older), key=attrgetter("id"))

    def _find_ended(self, conditions: JobFilter) -> Iterator[Entry]:
        """Find jobs that have ended, the last ones first."""
        ended = self._table.journal.ended(conditions, self._table.user)
        older = (entry for entry in ended if entry.id not in self._table.entries)
        return conditions.choose(older, self.reading)

    def wholes(self, conditions: JobFilter) -> Iterator[Whole[Entry]]:
        """Find the arrays of which a member is meant."""
        members = [entry for entry in self._table.entries.values() if entry.array is not None]
        open: dict[int | None, Counter[Stage]] = defaultdict(Counter)
        for (array, stage), count in Counter((entry.array, entry.shown) for entry in members).items():
            open[array][stage] = count
        arrays = {array: None for entry in conditions.choose(members, self.reading) if (array := entry.array)}
        if self._ended:
            others = (array for array in open if array and array not in arrays)
            arrays |= {array: None for array in others if self._ended_member(array, conditions)}
            older = (array for array in reversed([*self._table.arrays]) if array not in open)
            meant = (array for array in older if self._ended_member(array, conditions))
            arrays |= dict.fromkeys(islice(meant, self._limit))
        for array in arrays:
            yield self._whole(array, open[array])

    def _ended_member(self, array: int, conditions: JobFilter) -> bool:
        """Return true if a member that has ended meets the conditions."""
        ended = {stage for stage, count in self._table.arrays.ended(array).items() if count}
        if (
            not ended
            or (conditions.stages and not conditions.stages & ended)
            or conditions.array not in (None, array)
        ):
            return False
        if conditions == JobFilter(stages=conditions.stages):
            return True
        members = self._table.journal.ended(replace(conditions, array=array), self._table.user)
        return any(True for _ in conditions.choose(members, self.reading))

    def whole(self, number: int) -> Whole[Entry]:
        """Return an array."""
        members = (entry for entry in self._table.entries.values() if entry.array == number)
        return self._whole(number, Counter(entry.shown for entry in members))

    def _whole(self, number: int, open: Counter[Stage]) -> Whole[Entry]:
        """Return an array; ``open``: of its members that have not ended, how many are in each stage."""
        first = self._table.entry(number + 1)  # members have the numbers after the array's
        assert first is not None
        return Whole(number, first, open + self._table.arrays.ended(number))

    def row(self, job: Entry | Whole[Entry]) -> JobRow:
        """Return the row of a job, or of an array."""
        if isinstance(job, Whole):
            return ArrayRow(**as_json(row_of(job.first, self._table.user)) | job.fields())
        return row_of(job, self._table.user)


def add_lists(api: FastAPI, coordinator: Coordinator) -> None:
    """Add the routes that list jobs."""

    @api.get("/jobs", responses=OF_VALUES, response_model=list[dict[str, Any]])
    async def jobs(wanted: Annotated[Listed, Query()]) -> Response:
        """List the jobs that have not ended, or all, by conditions; to a limit the last, and all that run.

        ``members``: each member of an array is a row; else the array is one.
        """
        return Response(ROWS.dump_json(list_jobs(coordinator, wanted)), media_type="application/json")

    @api.get("/queue", responses=OF_VALUES)
    async def queue(wanted: Annotated[Window, Query()]) -> dict[str, Any]:
        """Show a window of the sorted list of jobs, how many are in the list, and the coordinator's state."""
        return window(coordinator, wanted)

    @api.get("/jobs/count", responses=OF_VALUES)
    async def count(all: bool = False, members: bool = True) -> dict[str, int]:
        """Count the jobs that have not ended, or all; ``members`` as in the list of jobs."""
        return {"count": count_rows(coordinator, all=all, members=members)}


def list_jobs(coordinator: Coordinator, wanted: Listed) -> list[JobRow]:
    """List the jobs that are meant, a row each; to a limit the last ones, and every one that runs."""
    jobs = CoordinatorJobs(coordinator, ended=wanted.ended, limit=wanted.limit)
    rows = find_rows(jobs, JobQuery(wanted.as_filter(), wanted.members, "id"))
    if wanted.limit is not None:
        stage = stage_of(jobs.reading, wholes=jobs.has_arrays)
        begun = [row for row in rows[: -wanted.limit] if not GROUPS[stage(row)]]
        rows = begun + rows[-wanted.limit :]
    return [jobs.row(row) for row in rows]


def window(coordinator: Coordinator, wanted: Window) -> dict[str, Any]:
    """Describe the rows of a window, how long the list is, and the state of the coordinator."""
    jobs = CoordinatorJobs(coordinator, ended=wanted.ended, limit=wanted.limit)
    rows = find_rows(jobs, JobQuery(wanted.as_filter(), wanted.members, wanted.order, wanted.reverse))
    shown = [as_json(jobs.row(row)) for row in rows[wanted.start : wanted.start + wanted.rows]]
    return {**state(coordinator), "in_use": in_use(coordinator), "total": len(rows), "rows": shown}


def count_rows(coordinator: Coordinator, *, all: bool, members: bool) -> int:
    """Count the rows of a list without conditions and limit."""
    table, journal = coordinator.job_table, coordinator.journal
    if members:
        return journal.count() if all else len(table.entries)
    if all:
        return journal.count_single_jobs() + len(list(table.arrays))
    return len({entry.id if entry.array is None else entry.array for entry in table.entries.values()})


def array_summary(coordinator: Coordinator, number: int) -> dict[str, Any]:
    """Describe an array: how many of its members are in each stage, and what they share."""
    jobs = CoordinatorJobs(coordinator)
    array = jobs.whole(number)
    return {
        **as_json(jobs.row(array)),
        "failed": coordinator.journal.failed_members(number),
        "spec": array.first.spec.model_dump(mode="json"),
        "signal": None,
    }
