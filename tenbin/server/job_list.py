"""Lists of jobs in the API.

``GET /jobs``, or ``POST /list`` for many numbers; ``GET /queue``, a window for those who look often;
``POST /history``: what jobs used.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

from fastapi import FastAPI, Query, Response
from pydantic import BaseModel, ConfigDict, Field, Strict
from pydantic_core import to_json

from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.job_list import (
    GROUPS,
    ArrayRow,
    GpuJobRow,
    JobFilter,
    JobQuery,
    JobRow,
    Order,
    Whole,
    as_json,
    entry_reading,
    find_rows,
    row_of,
    stage_of,
)
from scheduler.policies.base import Reason
from tenbin.server.bodies import BODY, LARGEST, OF_BODIES, OF_VALUES
from tenbin.server.descriptions import brief, gpu_use, hosts, state, why_fields

MOST_ROWS = 1000
Number = Annotated[int, Field(ge=1, le=LARGEST)]
Instant = Annotated[float, Field(allow_inf_nan=False)]


class Conditions(BaseModel):
    """The jobs to tell of: those that meet all conditions, the last ones up to the limit.

    ``ids``: one is that a job, or the array that it belongs to, is one of these.
    """

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[list[Annotated[Number, Strict(False)]], Field(max_length=1_000_000)] | None = None
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
        ids = None if self.ids is None else frozenset(self.ids)
        return JobFilter(ids, frozenset(self.stages), **{name: getattr(self, name) for name in names})


class Listed(Conditions):
    """The jobs to list.

    Attributes:
        all: also those that have ended. Final ``stages`` and ``since_s`` ask for them too.
        members: each member of an array is a row; else the array is one, if one of its members is meant.
        order: "queue": jobs that run, then those that wait, by priority, those that are held, and those that
            have ended, the last ones first.
    """

    all: bool = False
    members: bool = True
    order: Order = "id"

    @property
    def ended(self) -> bool:
        """Jobs that have ended are meant too."""
        return self.all or self.since_s is not None or any(stage.final for stage in self.stages)


class Window(Listed):
    """The rows ``start`` to ``start + rows - 1`` of a sorted list; ``limit`` is of the jobs that have ended.

    The rows ``detail_start`` to ``detail_start + details - 1`` have what ``Details`` says.
    """

    order: Order = "queue"
    reverse: bool = False
    start: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    rows: Annotated[int, Field(ge=0, le=MOST_ROWS)] = 50
    detail_start: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    details: Annotated[int, Field(ge=0, le=MOST_ROWS)] = 0


class JobList(Listed):
    """The jobs to list, by default without the reasons of their waits."""

    reasons: bool = False


class JobListBody(JobList):
    """The jobs to list, in the body of a request."""

    model_config = BODY


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
        self._coordinator, self._table = coordinator, coordinator.job_table
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
        of_array = replace(conditions, array=array)
        members = self._table.journal.ended(of_array, self._table.user)
        return any(True for _ in of_array.choose(members, self.reading))

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
        row = row_of(job, self._table.user)
        if self._table.unit.gpus and row.gpus_asked:
            return GpuJobRow(**as_json(row) | gpu_use(self._coordinator.engine.gpus, job))
        return row


def add_lists(api: FastAPI, coordinator: Coordinator) -> None:
    """Add the routes that list jobs."""

    @api.get("/jobs", responses=OF_VALUES, response_model=list[dict[str, Any]])
    async def jobs(query: Annotated[JobList, Query()]) -> Response:
        """List the jobs that have not ended, or all, by conditions; to a limit, and all that run.

        By number the last ones, in another order the first ones. ``members``: each member of an array is a
        row; else the array is one. ``reasons``: each row says why it waits, and when it should start; those
        for which there is no time have no ``why``.
        """
        content = to_json(list_jobs(coordinator, query))
        return Response(content, media_type="application/json")

    @api.post("/list", responses=OF_BODIES, response_model=list[dict[str, Any]])
    async def listed(query: JobListBody) -> Response:
        """List jobs as ``GET /jobs`` does, by more ``ids`` than an address may have."""
        return Response(to_json(list_jobs(coordinator, query)), media_type="application/json")

    @api.get("/queue", responses=OF_VALUES)
    async def queue(query: Annotated[Window, Query()]) -> dict[str, Any]:
        """Show a window of the sorted list of jobs, how many are in the list, and the coordinator's state."""
        return window(coordinator, query)

    @api.get("/jobs/count", responses=OF_VALUES)
    async def count(all: bool = False, members: bool = True) -> dict[str, int]:
        """Count the jobs that have not ended, or all; ``members`` as in the list of jobs."""
        return {"count": count_rows(coordinator, all=all, members=members)}


def list_jobs(coordinator: Coordinator, query: JobList) -> list[JobRow] | list[dict[str, Any]]:
    """List the jobs that are meant, a row each; to a limit, and every one that runs."""
    jobs = CoordinatorJobs(coordinator, ended=query.ended, limit=query.limit)
    rows = find_rows(jobs, JobQuery(query.as_filter(), query.members, query.order))
    if query.limit is not None:
        stage, by_number = stage_of(jobs.reading, wholes=jobs.has_arrays), query.order == "id"
        shown = rows[-query.limit :] if by_number else rows[: query.limit]
        rest = rows[: -query.limit] if by_number else rows[query.limit :]
        begun = [row for row in rest if not GROUPS[stage(row)]]
        rows = begun + shown if by_number else shown + begun
    if not query.reasons:
        return [jobs.row(row) for row in rows]
    until = time.monotonic() + DETAILS_S
    unknown = why_fields(Reason(""))
    return [
        as_json(jobs.row(row)) | (_why(coordinator, row) if time.monotonic() < until else unknown)
        for row in rows
    ]


def window(coordinator: Coordinator, query: Window) -> dict[str, Any]:
    """Describe the rows of a window, how long the list is, and the state of the coordinator."""
    jobs = CoordinatorJobs(coordinator, ended=query.ended, limit=query.limit)
    rows = find_rows(jobs, JobQuery(query.as_filter(), query.members, query.order, query.reverse))
    window = rows[query.start : query.start + query.rows]
    shown = [as_json(jobs.row(row)) for row in window]
    first = max(query.detail_start - query.start, 0)
    until = time.monotonic() + DETAILS_S
    for row, fields in list(zip(window, shown, strict=True))[first : first + query.details]:
        if isinstance(row, Entry):
            fields.update(details(coordinator, row)._asdict())
        else:
            fields.update(_why(coordinator, row))
        if time.monotonic() > until:
            break
    return {**state(coordinator), "total": len(rows), "rows": shown}


DETAILS_S = 0.1  # after so long the other rows of a window stay without details


class Details(NamedTuple):
    """A job's wait and use; None: not known, or not so now.

    Attributes:
        why: cause of the wait; empty: it does not wait. start_low_s, start_high_s: as ``Reason`` has them.
        cpu_s: processor time of its last attempt. memory_mb: in use now, or the most of a job that has ended.
        gpus: the GPUs that it has, by number, or the pool of its devices.
    """

    why: str
    expected_start_s: float | None
    start_low_s: float | None
    start_high_s: float | None
    cpu_s: float | None
    memory_mb: float | None
    gpus: list[str]


def details(coordinator: Coordinator, entry: Entry) -> Details:
    """Return what changes while a job waits or runs."""
    cpu_s = memory_mb = None
    if usage := entry.usage:
        cpu_s, memory_mb = usage["user_s"] + usage["system_s"], usage.get("peak_memory_mb") or None
    elif entry.alive and (sample := coordinator.folders.last_sample(entry.id, entry.attempt)):
        cpu_s, memory_mb = sample.cpu_s, sample.memory_mb
    gpus = [entry.placement.pool] if entry.devices and entry.placement else []
    if not coordinator.cluster.cluster.pools[0].kind:
        gpus = list(map(str, entry.devices))
    return Details(**_why(coordinator, entry), cpu_s=cpu_s, memory_mb=memory_mb, gpus=gpus)


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
        **_why(coordinator, array),
        "failed": coordinator.journal.failed_members(number),
        "spec": array.first.spec.model_dump(mode="json"),
        "signal": None,
    }


def _why(coordinator: Coordinator, row: Entry | Whole[Entry]) -> dict[str, Any]:
    """Say why a job waits, and until when; of an array the first member that waits."""
    if isinstance(row, Whole):
        return why_fields(coordinator.why_array(row.id))
    return why_fields(Reason("") if row.stage.final else coordinator.why(row.id))


# -- CPU time, memory, energy and place of jobs that have begun or ended -----------------------------------


class Wanted(Conditions):
    """Conditions in the body of a request."""

    model_config = BODY


def add_history(api: FastAPI, coordinator: Coordinator) -> None:
    """Add the route that tells what jobs used."""

    @api.post("/history", responses=OF_BODIES)
    async def history(query: Wanted) -> list[dict[str, Any]]:
        """Tell what jobs used that have begun or ended, in the order of their numbers."""
        jobs = CoordinatorJobs(coordinator, waiting=False, limit=query.limit)
        entries = list(jobs.find(query.as_filter()))
        return [used(coordinator, entry) for entry in entries[-(query.limit or 0) :]]


def used(coordinator: Coordinator, entry: Entry) -> dict[str, Any]:
    """Describe what a job asked for and used; CPU time and memory are of its last attempt."""
    usage = entry.usage or {}
    running_s, cpu_s, peak_mb = usage.get("running_s"), None, usage.get("peak_memory_mb") or None
    energy_j = usage.get("energy_j")
    if usage:
        cpu_s = usage["user_s"] + usage["system_s"]
    if entry.alive and (rows := coordinator.folders.samples(entry.id, entry.attempt)):
        stay_s = rows[-1].at_s - (entry.since_s or rows[0].at_s)  # below 0 while it is paused
        running_s = entry.served_s - entry.kept_s + max(stay_s, 0.0)
        cpu_s, energy_j = rows[-1].cpu_s, rows[-1].energy_j
        peak_mb = max(row.memory_mb for row in rows)
    end_s = time.time() if entry.end_s is None else entry.end_s
    asked_mb = entry.way.memory_mb and entry.way.memory_mb * coordinator.job_table.tasks(entry)
    fields, gpus = brief(coordinator, entry), gpu_use(coordinator.engine.gpus, entry)
    cpu_share = None
    if cpu_s is not None and running_s and running_s > 0:
        cpu_share = cpu_s / (running_s * fields["cores"])
    gpu_share = None
    if gpus["gpus_asked"] and gpus["gpus_used"] is not None:
        gpu_share = gpus["gpus_used"] / gpus["gpus_asked"]
    return {
        **fields,
        "elapsed_s": None if entry.start_s is None else end_s - entry.start_s,
        "running_s": running_s,
        "cpu_s": cpu_s,
        "cpu_efficiency": cpu_share,
        "memory_asked_mb": asked_mb,
        "peak_memory_mb": peak_mb,
        "memory_efficiency": peak_mb / asked_mb if peak_mb and asked_mb else None,
        "energy_j": energy_j,
        "emulated": bool(usage.get("emulated")),
        "hosts": hosts(coordinator, entry),
        "attempts": entry.attempt,
        "migrations": entry.migrations,
        "preemptions": entry.preemptions,
        "signal": entry.signal,
        **gpus,
        "gpu_efficiency": gpu_share,
    }
