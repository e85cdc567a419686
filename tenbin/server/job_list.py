"""Lists of jobs, in which an array may be one row."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.entry import FINAL, Stage
from scheduler.jobs.filters import JobFilter
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
    table, check = coordinator.job_table, wanted.as_filter()
    single = replace(check, single=True)
    singles = {entry.id: entry for entry in find(coordinator, single, wanted.limit, ended=wanted.ended)}
    begun = {number for number, entry in singles.items() if entry.shown.begun}
    stages: dict[int, Counter[str]] = {}
    arrays: set[int] = set()
    for entry in table.entries.values():
        if entry.array is None:
            continue
        stages.setdefault(entry.array, Counter())[entry.shown.value] += 1
        if entry.array not in arrays and check.matches(entry, table.user):
            arrays.add(entry.array)
    begun |= {array for array in arrays if any(Stage(stage).begun for stage in stages[array])}
    if wanted.ended:
        older = (
            n
            for n in reversed(list(table.arrays))
            if n not in arrays and _ended_member(coordinator, n, check)
        )
        arrays |= {*islice(older, wanted.limit)}
    numbers = sorted({*singles, *arrays})
    if wanted.limit is not None:
        numbers = sorted(begun | {*numbers[-wanted.limit :]})
    return [
        brief(coordinator, singles[number])
        if number in singles
        else array_row(coordinator, number, stages.get(number, Counter()))
        for number in numbers
    ]


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
    stage = next((each for each in SHOWN_FIRST if open[each]), "waiting")
    if not arrays.open(number):
        stage = "cancelled" if ended[Stage.CANCELLED] == total else arrays.stage(number).value
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
