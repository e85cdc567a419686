"""Lists of jobs, in which an array may be one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.arrays import PRECEDENCE, array_stage
from scheduler.jobs.choice.filters import JobFilter
from scheduler.jobs.entry import FINAL, Entry, Stage
from tenbin.server.descriptions import brief
from tenbin.server.job_filters import Listed, ended_jobs, open_jobs


class Whole(NamedTuple):
    """An array in a list of jobs, with its first member, and how many members are in each stage."""

    id: int
    first: Entry
    stages: Counter[str]

    @property
    def shown(self) -> Stage:
        return array_stage(self.stages)


Row = Entry | Whole


def list_jobs(coordinator: Coordinator, wanted: Listed) -> list[dict[str, Any]]:
    """List the jobs that are meant, a row each; to a limit the last ones, and every one that runs."""
    found = find_rows(coordinator, wanted)
    if wanted.limit is not None:
        begun = [row for row in found[: -wanted.limit] if row.shown.begun]
        found = begun + found[-wanted.limit :]
    return [describe_row(coordinator, row) for row in found]


def find_rows(coordinator: Coordinator, wanted: Listed) -> list[Row]:
    """Find the rows of a list in the order of their numbers; the limit is of those that have ended."""
    check = wanted.as_filter()
    found: list[Row] = [*open_jobs(coordinator, check)]
    has_arrays = not wanted.members and any(coordinator.job_table.arrays)
    if has_arrays:
        found = [row for row in found if isinstance(row, Entry) and row.array is None]
        found += _wholes(coordinator, wanted, check)
    if wanted.ended:
        single = check if wanted.members else replace(check, single=True)
        found += ended_jobs(coordinator, single, wanted.limit)
    if has_arrays or wanted.ended:
        found.sort(key=attrgetter("id"))
    return found


def _wholes(coordinator: Coordinator, wanted: Listed, check: JobFilter) -> Iterator[Whole]:
    """Find the arrays of which a member is meant."""
    table = coordinator.job_table
    members = [(entry.array, entry) for entry in table.entries.values() if entry.array is not None]
    stages: dict[int, Counter[str]] = {array: Counter() for array, _ in members}
    for (array, stage), count in Counter((array, entry.shown.value) for array, entry in members).items():
        stages[array][stage] = count
    arrays = {*stages}
    if check != JobFilter():
        arrays = {array for array, entry in members if check.matches(entry, table.user)}
    older = _ended_arrays(coordinator, check, arrays, wanted.limit) if wanted.ended else ()
    for number in (*arrays, *older):
        yield _whole(coordinator, number, stages.get(number, Counter()))


def _ended_arrays(
    coordinator: Coordinator, check: JobFilter, found: Container[int], limit: int | None
) -> Iterable[int]:
    """Find the last arrays of which a member that has ended is meant, without those ``found``."""
    arrays = reversed(list(coordinator.job_table.arrays))
    older = (n for n in arrays if n not in found and _ended_member(coordinator, n, check))
    return islice(older, limit)


def _ended_member(coordinator: Coordinator, array: int, check: JobFilter) -> bool:
    """Return true if a member that has ended meets the conditions."""
    table = coordinator.job_table
    ended = {stage for stage, count in table.arrays.ended(array).items() if count}
    if not ended or (check.stages and not check.stages & ended) or check.array not in (None, array):
        return False
    if check == JobFilter(stages=check.stages):
        return True
    found = table.journal.ended(replace(check, array=array), table.user)
    return any(check.matches(entry, table.user) for entry in found)


def _whole(coordinator: Coordinator, number: int, open: Counter[str]) -> Whole:
    """Return an array; ``open``: of its members that have not ended, how many are in each stage."""
    ended = coordinator.job_table.arrays.ended(number)
    first = coordinator.job_table.entry(number + 1)  # members have the numbers after the array's
    assert first is not None
    return Whole(number, first, open + Counter({stage.value: count for stage, count in ended.items()}))


def count_with_arrays(coordinator: Coordinator, *, all: bool) -> int:
    """Count the rows of a list in which arrays are one row, without a limit."""
    table = coordinator.job_table
    if all:
        return coordinator.journal.count_single_jobs() + len(list(table.arrays))
    open = table.entries.values()
    return len({entry.id if entry.array is None else entry.array for entry in open})


def describe_row(coordinator: Coordinator, row: Row) -> dict[str, Any]:
    """Describe a job, or an array as one with ``members`` and ``stages``: how many are in each stage."""
    if isinstance(row, Entry):
        return brief(coordinator, row)
    total, done = row.stages.total(), row.stages[Stage.DONE]
    lost = sum(row.stages[stage] for stage in FINAL) - done
    return {
        **brief(coordinator, row.first),
        "id": row.id,
        "array": row.id,
        "array_index": None,
        "stage": row.shown.value,
        "members": total,
        "stages": {stage.value: row.stages[stage] for stage in PRECEDENCE if row.stages[stage]},
        "start_s": None,
        "end_s": None,
        "code": 0 if done == total else None,
        "trouble": f"{lost:,} of {total:,} did not succeed" if lost else "",
    }


def array_summary(coordinator: Coordinator, number: int) -> dict[str, Any]:
    """Describe an array: how many of its members are in each stage, and what they share."""
    table = coordinator.job_table
    members = (entry for entry in table.entries.values() if entry.array == number)
    array = _whole(coordinator, number, Counter(entry.shown.value for entry in members))
    return {
        **describe_row(coordinator, array),
        "failed": table.journal.failed_members(number),
        "spec": array.first.spec.model_dump(mode="json"),
        "signal": None,
    }
