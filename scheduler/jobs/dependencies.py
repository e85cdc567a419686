"""Conditions for the begin of a job: its waits for others, its deadline, its next attempt after a failure.

Whether a job may begin, has to wait, or never can is said here and nowhere else. The four kinds of condition
are those of Slurm: afterok, afterany, afternotok and aftercorr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal, NamedTuple, Protocol

from agent.attempts.records import Result
from profiles.errors import BadInput
from profiles.quantities import stamp
from scheduler.jobs.specs import JobRefused, JobSpec

Kind = Literal["after", "after_any", "after_not_ok", "after_corr"]
KINDS: tuple[Kind, ...] = ("after", "after_any", "after_not_ok", "after_corr")
UNTIL: dict[Kind, str] = {
    "after": "to succeed",
    "after_any": "to end",
    "after_not_ok": "to fail",
    "after_corr": "to succeed",
}
LONGEST_PAUSE_S = 3600.0  # before the next attempt
SIGNALLED = 128  # a shell's exit code of a program that a signal has killed: 128 + signal
Waits = Mapping[Kind, Sequence[int]]  # what a job waits for, by kind
WaitsByPlace = Mapping[int, Waits | Sequence[int]]  # of jobs submitted together; a sequence is of "after"


class Standing(NamedTuple):
    """Progress of a job or an array: whether all of it has ended, and whether a part did not succeed."""

    ended: bool
    failed: bool


class WaitCondition(NamedTuple):
    """A job or an array that must have come so far.

    Attributes:
        number: of ``after_corr`` that of the member.
    """

    kind: Kind
    number: int


@dataclass(frozen=True, slots=True)
class WaitVerdict:
    """Judgement of the conditions of a job.

    Attributes:
        waits: the conditions that do not hold yet; empty: the job may begin.
        hopeless: why one can never hold any more, as a sentence; "": all still can.
        name_of: what users call a job or an array.
    """

    waits: tuple[WaitCondition, ...] = ()
    hopeless: str = ""
    name_of: Callable[[int], str] = str

    def why(self) -> str:
        """Say what the job waits for; "": it may begin."""
        parts = []
        for until in dict.fromkeys(UNTIL.values()):
            waits = [condition for condition in self.waits if UNTIL[condition.kind] == until]
            names = [self.name_of(condition.number) for condition in waits]
            parts += [f"for job {', '.join(names)} {until}"] if names else []
        return "waits " + ", ".join(parts) if parts else ""


def verdict(
    conditions: Iterable[WaitCondition],
    standing_of: Callable[[int], Standing | None],
    name_of: Callable[[int], str] = str,
) -> WaitVerdict:
    """Judge conditions by how far each job is. None, of which nothing is known, has ended and failed."""
    waits = []
    for condition in conditions:
        standing = standing_of(condition.number) or Standing(True, True)
        if why := _hopeless(condition, standing, name_of):
            return WaitVerdict((), why)
        if not standing.ended:
            waits.append(condition)
    return WaitVerdict(tuple(waits), name_of=name_of)


def _hopeless(condition: WaitCondition, standing: Standing, name_of: Callable[[int], str]) -> str:
    """Say why a condition cannot hold any more; "": it holds, or still can."""
    if condition.kind in ("after", "after_corr") and standing.failed:
        return f"job {name_of(condition.number)}, which it waited for, did not succeed"
    if condition.kind == "after_not_ok" and standing.ended and not standing.failed:
        return f"job {name_of(condition.number)}, which had to fail, succeeded"
    return ""


def conditions(
    spec: JobSpec, index: int | None, members: Callable[[int], Mapping[int, int]]
) -> Iterator[WaitCondition]:
    """List the conditions of a job.

    Args:
        index: its own, in its array. members: the numbers of an array's members, by index.
    """
    for kind, number in named(spec):
        if kind == "after_corr" and index is not None and (member := members(number).get(index)) is not None:
            yield WaitCondition(kind, member)
        else:
            yield WaitCondition(kind, number)


def named(spec: JobSpec) -> list[tuple[Kind, int]]:
    """List the jobs and arrays that a job waits for, as its specification names them."""
    return [(kind, number) for kind in KINDS for number in getattr(spec, kind)]


def by_kind(waits_for: WaitsByPlace) -> dict[int, dict[Kind, tuple[int, ...]]]:
    """Write out that a plain list of places is of ``after``; leave out places that wait for nothing."""
    by_place = {}
    for place, waits in waits_for.items():
        kinds: Waits = waits if isinstance(waits, Mapping) else {"after": waits}
        if whole := {kind: tuple(others) for kind, others in kinds.items() if others}:
            by_place[place] = whole
    return by_place


def places(waits_for: WaitsByPlace) -> dict[int, list[int]]:
    """Return the places that each place waits for, of whatever kind."""
    return {
        place: list(dict.fromkeys(other for others in waits.values() for other in others))
        for place, waits in by_kind(waits_for).items()
    }


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
    _check_order(places(waits_for), jobs)
    for place, waits in by_kind(waits_for).items():
        for other in waits.get("after_corr", ()):
            try:
                _correspond(arrays.get(place), arrays.get(other), f"job {other + 1} of these")
            except BadInput as error:
                raise JobRefused(error, place, jobs) from error


def _check_order(waits_for: Mapping[int, Sequence[int]], jobs: int) -> None:
    """Refuse a place that there is not, or that waits for itself in the end."""
    places = {*waits_for, *(other for others in waits_for.values() for other in others)}
    if not places <= set(range(jobs)):
        raise BadInput(f"waits_for: of {jobs} jobs the places are 0 to {jobs - 1}", "mend the list")
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        circle = " -> ".join(str(place + 1) for place in error.args[1])
        raise BadInput(f"jobs wait for each other: {circle}", "take one of the waits out") from error


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


def tried_again(spec: JobSpec, retried: int, result: Result) -> bool:
    """Return true if a job that ended like this is tried again, after ``retried`` such attempts.

    The job has failed by itself: by its exit code, or by a signal. Limits of time and memory are kept, a
    command that cannot be started stays so.
    """
    code = result.code or (SIGNALLED + result.signal if result.signal else 0)
    if result.how not in ("exited", "signalled") or not code or retried >= spec.retries:
        return False
    return not spec.retry_codes or code in spec.retry_codes


def pause_s(spec: JobSpec, retried: int) -> float:
    """Return the pause before the next attempt: it doubles each time, up to an hour."""
    return min(spec.retry_pause_s * 2.0 ** min(retried, 64), LONGEST_PAUSE_S)
