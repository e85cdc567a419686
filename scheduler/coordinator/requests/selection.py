"""The jobs that selectors mean, ended or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from profiles.errors import BadInput
from scheduler.coordinator.job_table import JobTable
from scheduler.jobs.selectors import Selector, Span, read_selector


@dataclass
class Selection:
    """The numbers of jobs, and of arrays as a whole.

    Attributes:
        named: by a number, an index or ``last``: a change of them is refused if one has ended.
        among: by a range or ``all``: a change leaves out those that have ended.
        notes: sentences for the user.
    """

    named: list[int] = field(default_factory=list)
    among: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def select(table: JobTable, words: Iterable[str], *, members: bool) -> Selection:
    """Find the jobs that the words mean.

    Args:
        members: give the members of an array, in the order of their indices, in place of its number.

    Raises:
        BadInput: a word selects nothing.
    """
    found = Selection()
    for word in words:
        selector = read_selector(word)
        if selector.word == "all":
            found.among += sorted(table.entries)
        elif selector.word == "last":
            found.named += _last_submission(table)
        elif selector.array is not None:
            for span in selector.spans:
                _add_members(table, selector.array, span, found)
        else:
            _add_numbers(table, selector, found)
    if members:
        found.named = _with_members(table, found.named)
        found.among = _with_members(table, found.among)
    return found


def _last_submission(table: JobTable) -> list[int]:
    """Return the last job, or the array that it belongs to; empty before the first."""
    return [entry.array or entry.id for entry in table.journal.entries(1)]


def _add_members(table: JobTable, array: int, span: Span, found: Selection) -> None:
    if array not in table.arrays:
        what = "there is no array" if table.stage(array) is None else "a job and no array has the number"
        raise BadInput(f"{what} {array}", "see: tenbin jobs --all")
    ids = table.journal.members(array, span.low, span.high)
    if not ids:
        which = str(span.low) if span.single else f"{span.low}-{span.high}"
        least, most = table.journal.index_range(array)
        raise BadInput(f"array {array} has no index {which}", f"its indices lie from {least} to {most}")
    (found.named if span.single else found.among).extend(ids)


def _add_numbers(table: JobTable, selector: Selector, found: Selection) -> None:
    (span,) = selector.spans
    if span.single:
        found.named.append(span.low)
        return
    last = max((entry.id for entry in table.journal.entries(1)), default=0)
    if span.low > last or span.high < 1:
        raise BadInput(f"there are no jobs {span.low}-{span.high}", "see: tenbin jobs --all")
    if span.high > last:
        found.notes.append(f"the last job is {last}")
    numbers = range(max(span.low, 1), min(span.high, last) + 1)
    arrays = [array for array in table.arrays if array in numbers]
    of_arrays = {array + place for array in arrays for place in range(1, table.arrays.members(array) + 1)}
    found.among += [number for number in numbers if number not in of_arrays]


def _with_members(table: JobTable, numbers: list[int]) -> list[int]:
    """Put the members of each array in its place; each job once."""
    ids: list[int] = []
    for number in numbers:
        ids += table.journal.members(number) if number in table.arrays else [number]
    return list(dict.fromkeys(ids))
