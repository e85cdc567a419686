"""Waits for other jobs: the one place that says whether a job may begin, has to wait, or never can.

The four kinds of condition are those of Slurm: afterok, afterany, afternotok and aftercorr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scheduler.jobs.specs import JobSpec

Kind = Literal["after", "after_any", "after_not_ok", "after_corr"]
KINDS: tuple[Kind, ...] = ("after", "after_any", "after_not_ok", "after_corr")
UNTIL: dict[Kind, str] = {
    "after": "to succeed",
    "after_any": "to end",
    "after_not_ok": "to fail",
    "after_corr": "to succeed",
}
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
        label: what users call a member, ``7[3]``; "": they use the number.
    """

    kind: Kind
    number: int
    label: str = ""

    @property
    def name(self) -> str:
        """Return what users call it."""
        return self.label or str(self.number)


@dataclass(frozen=True, slots=True)
class WaitVerdict:
    """Judgement of the conditions of a job.

    Attributes:
        waits: the conditions that do not hold yet; empty: the job may begin.
        hopeless: why one can never hold any more, as a sentence; "": all still can.
    """

    waits: tuple[WaitCondition, ...] = ()
    hopeless: str = ""

    def why(self) -> str:
        """Say what the job waits for; "": it may begin."""
        parts = []
        for until in dict.fromkeys(UNTIL.values()):
            numbers = [each.name for each in self.waits if UNTIL[each.kind] == until]
            parts += [f"for job {', '.join(numbers)} {until}"] if numbers else []
        return "waits " + ", ".join(parts) if parts else ""


def verdict(
    conditions: Iterable[WaitCondition], standing_of: Callable[[int], Standing | None]
) -> WaitVerdict:
    """Judge conditions by how far each job is. None, of which nothing is known, has ended and failed."""
    waits = []
    for condition in conditions:
        standing = standing_of(condition.number) or Standing(True, True)
        if why := _hopeless(condition, standing):
            return WaitVerdict((), why)
        if not standing.ended:
            waits.append(condition)
    return WaitVerdict(tuple(waits))


def _hopeless(condition: WaitCondition, standing: Standing) -> str:
    """Say why a condition cannot hold any more; "": it holds, or still can."""
    if condition.kind in ("after", "after_corr") and standing.failed:
        return f"job {condition.name}, which it waited for, did not succeed"
    if condition.kind == "after_not_ok" and standing.ended and not standing.failed:
        return f"job {condition.name}, which had to fail, succeeded"
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
            yield WaitCondition(kind, member, f"{number}[{index}]")
        else:
            yield WaitCondition(kind, number)


def named(spec: JobSpec) -> list[tuple[Kind, int]]:
    """List the jobs and arrays that a job waits for, as its specification names them."""
    return [(kind, number) for kind in KINDS for number in getattr(spec, kind)]


def by_kind(waits_for: WaitsByPlace) -> dict[int, dict[Kind, tuple[int, ...]]]:
    """Write out that a plain list of places is of ``after``; leave out places that wait for nothing."""
    found = {}
    for place, waits in waits_for.items():
        kinds: Waits = waits if isinstance(waits, Mapping) else {"after": waits}
        if whole := {kind: tuple(others) for kind, others in kinds.items() if others}:
            found[place] = whole
    return found


def places(waits_for: WaitsByPlace) -> dict[int, list[int]]:
    """Return the places that each place waits for, of whatever kind."""
    return {
        place: list(dict.fromkeys(other for others in waits.values() for other in others))
        for place, waits in by_kind(waits_for).items()
    }
