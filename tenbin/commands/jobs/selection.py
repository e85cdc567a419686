"""Selection of jobs on the command line, and the jobs that a change has left out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tenbin.client.client import Client


class Chosen(NamedTuple):
    """The numbers of the jobs that were selected.

    Attributes:
        named: by a number or ``last``: a change of them is refused if one has ended.
        among: by a range or ``all``: a change leaves out those that have ended.
    """

    named: list[int]
    among: list[int]

    @property
    def ids(self) -> list[int]:
        """List all of them, each once."""
        return list(dict.fromkeys((*self.named, *self.among)))


def select(client: Client, which: Iterable[str], *, members: bool = True) -> Chosen:
    """Find the numbers that selectors mean; the coordinator knows.

    Args:
        members: give the members of an array in place of its number.
    """
    found = client.call("POST", "/select", {"words": list(which), "members": members})
    for note in found["notes"]:
        print(f"tenbin: {note}", file=sys.stderr)
    return Chosen(found["named"], found["among"])


def tell_left_out(answer: Mapping[str, Any]) -> None:
    """Say which jobs of ranges and ``all`` a change did not apply to."""
    for line in left_out_lines(answer):
        print(f"tenbin: {line}", file=sys.stderr)


def left_out_lines(answer: Mapping[str, Any]) -> list[str]:
    """Write which jobs a change did not apply to; one line for each reason."""
    earlier = {reason: [job] for job, reason in answer["left_out"].items()}  # of a coordinator of before
    reasons = answer.get("reasons", earlier)
    return [f"left out {job_ranges(labels)}: {reason}" for reason, labels in reasons.items()]


def job_ranges(labels: Iterable[str]) -> str:
    """Write jobs as people do: ``1-3, 7, 9[2-5,8]``."""
    arrays: dict[str, list[int]] = {}
    for label in labels:
        array, _, index = label.removesuffix("]").rpartition("[")
        arrays.setdefault(array, []).append(int(index))
    single = ranges(arrays.pop("", ()))
    parts = [f"{array}[{ranges(found).replace(' ', '')}]" for array, found in arrays.items()]
    return ", ".join([*([single] if single else []), *parts])


def ranges(ids: Iterable[int]) -> str:
    """Write numbers as people do: ``1-3, 7``."""
    parts = []
    for _, group in groupby(enumerate(sorted(ids)), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in group]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ", ".join(parts)
