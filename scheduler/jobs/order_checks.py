"""Checks of what jobs wait for, before they are accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from profiles.errors import BadInput
from profiles.instants import stamp
from scheduler.jobs.dependencies import Standing, WaitsByPlace, by_kind, named, places
from scheduler.jobs.specs import JobRefused, JobSpec, check_order


class JobTableView(Protocol):
    """The part of a job table that the checks need."""

    def standing(self, number: int) -> Standing | None: ...

    def members(self, array: int) -> dict[int, int]: ...


def check_waits(spec: JobSpec, indices: Sequence[int] | None, job_table: JobTableView) -> None:
    """Check the numbers that a job waits for.

    Args:
        indices: of its members, if it is an array.

    Raises:
        BadInput: there is no such job or array, or an array has no member for one of this job's.
    """
    for kind, number in named(spec):
        if job_table.standing(number) is None:
            raise BadInput(f"there is no job {number} to wait for", "see: tenbin jobs")
        if kind == "after_corr":
            own = [spec.array_index] if indices is None and spec.array_index is not None else indices
            _correspond(own, job_table.members(number) or None, f"array {number}")


def check_places(waits_for: WaitsByPlace, arrays: Mapping[int, Sequence[int]], jobs: int) -> None:
    """Check that jobs that are submitted together can wait for each other like this, by their places.

    Raises:
        BadInput: there is no such place, one waits for itself in the end, or an array lacks a member.
    """
    check_order(places(waits_for), jobs)
    for place, waits in by_kind(waits_for).items():
        for other in waits.get("after_corr", ()):
            try:
                _correspond(arrays.get(place), arrays.get(other), f"job {other + 1} of these")
            except BadInput as error:
                raise JobRefused(error, place, jobs) from error


def check_times(spec: JobSpec, now: float) -> None:
    """Check that a job can begin before its deadline.

    Raises:
        BadInput: it cannot.
    """
    if spec.deadline_s is None:
        return
    if spec.deadline_s <= now:
        what = f"deadline {stamp(spec.deadline_s)} has passed"
        raise BadInput(what, "name a later one, for instance now+1h")
    if spec.begin_s is not None and spec.deadline_s <= spec.begin_s:
        what = f"deadline {stamp(spec.deadline_s)} is not after begin"
        raise BadInput(what, f"name one after {stamp(spec.begin_s)}")


def _correspond(own: Iterable[int] | None, others: Iterable[int] | None, other: str) -> None:
    """Refuse a wait of members for members that are not there."""
    if own is None:
        raise BadInput("after_corr: the job is no array", "use after, or submit an array")
    if others is None:
        raise BadInput(f"after_corr: there is no {other}", "name an array, or use after")
    if missing := set(own).difference(others):
        raise BadInput(
            f"after_corr: {other} has no member {min(missing)}", "give both arrays the same indices"
        )
