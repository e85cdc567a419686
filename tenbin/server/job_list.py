"""Lists of jobs, in which an array may be one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.choice.filters import JobFilter
from scheduler.jobs.entry import FINAL, Stage
from tenbin.server.descriptions import brief
from tenbin.server.job_filters import Listed, find

SHOWN_FIRST = ("running", "stopping", "suspended", "waiting", "held")  # stage of an array that has not ended


def list_jobs(coordinator: Coordinator, wanted: Listed) -> list[dict[str, Any]]:
    """List the jobs that are meant, a row each; to a limit the last ones, and every one that runs."""
    if not wanted.members:
        return list_with_arrays(coordinator, wanted)
    found = find(coordinator, wanted.as_filter(), wanted.limit, ended=wanted.ended)
    return [brief(coordinator, entry) for entry in found]


def list_with_arrays(coordinator: Coordinator, wanted: Listed) -> list[dict[str, Any]]:
    """List with one row for an array of which a member is meant; its row counts all members."""
    check = wanted.as_filter()
    single = replace(check, single=True)
    singles = {entry.id: entry for entry in find(coordinator, single, wanted.limit, ended=wanted.ended)}
    begun = {number for number, entry in singles.items() if entry.shown.begun}
    stages, arrays = open_arrays(coordinator, check)
    begun |= {array for array in arrays if any(Stage(stage).begun for stage in stages[array])}
    if wanted.ended:
        arrays |= {*ended_arrays(coordinator, check, arrays, wanted.limit)}
    numbers = sorted({*singles, *arrays})
    if wanted.limit is not None:
        numbers = sorted(begun | {*numbers[-wanted.limit :]})
    return [
        brief(coordinator, singles[number])
        if number in singles
        else array_row(coordinator, number, stages.get(number, Counter()))
        for number in numbers
    ]


def open_arrays(coordinator: Coordinator, check: JobFilter) -> tuple[dict[int, Counter[str]], set[int]]:
    """Count the members that have not ended by array and stage; and find the arrays of which one is meant."""
    table = coordinator.job_table
    members = [(entry.array, entry) for entry in table.entries.values() if entry.array is not None]
    stages: dict[int, Counter[str]] = {array: Counter() for array, _ in members}
    for (array, stage), count in Counter((array, entry.shown.value) for array, entry in members).items():
        stages[array][stage] = count
    if check == JobFilter():
        return stages, {*stages}
    return stages, {array for array, entry in members if check.matches(entry, table.user)}


def ended_arrays(
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


def count_with_arrays(coordinator: Coordinator, *, all: bool) -> int:
    """Count the rows of ``list_with_arrays`` without a limit."""
    table = coordinator.job_table
    if all:
        return coordinator.journal.count_single_jobs() + len(list(table.arrays))
    open = table.entries.values()
    return len({entry.id if entry.array is None else entry.array for entry in open})


def array_row(coordinator: Coordinator, number: int, open: Counter[str]) -> dict[str, Any]:
    """Describe an array as a job in a list, with ``members`` and ``stages``: how many are in each stage.

    Args:
        open: of its members that have not ended, how many are in each stage.
    """
    arrays = coordinator.job_table.arrays
    ended, total = arrays.ended(number), arrays.members(number)
    stages = open + Counter({stage.value: count for stage, count in ended.items()})
    first = coordinator.job_table.entry(number + 1)  # members have the numbers after the array's
    assert first is not None
    stage = array_stage(coordinator, number, open)
    lost = ended.total() - ended[Stage.DONE]
    return {
        **brief(coordinator, first),
        "id": number,
        "array": number,
        "array_index": None,
        "stage": stage,
        "members": total,
        "stages": {each: stages[each] for each in (*SHOWN_FIRST, *FINAL) if stages[each]},
        "start_s": None,
        "end_s": None,
        "code": 0 if ended[Stage.DONE] == total else None,
        "trouble": f"{lost:,} of {total:,} did not succeed" if lost else "",
    }


def array_stage(coordinator: Coordinator, number: int, open: Counter[str]) -> str:
    """Return the stage of an array as a whole: that of the member that is furthest, until all have ended."""
    arrays = coordinator.job_table.arrays
    if arrays.open(number):
        return next((each for each in SHOWN_FIRST if open[each]), "waiting")
    ended = arrays.ended(number)
    return "cancelled" if ended[Stage.CANCELLED] == ended.total() else arrays.stage(number).value


def array_summary(coordinator: Coordinator, number: int) -> dict[str, Any]:
    """Describe an array: how many of its members are in each stage, and what they share."""
    table = coordinator.job_table
    entries = (entry for entry in table.entries.values() if entry.array == number)
    open = Counter(entry.shown.value for entry in entries)
    first = table.entry(number + 1)
    assert first is not None
    return {
        **array_row(coordinator, number, open),
        "failed": table.journal.failed_members(number),
        "spec": first.spec.model_dump(mode="json"),
        "signal": None,
    }
