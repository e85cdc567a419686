"""Selection of jobs on the command line, and the jobs that a change has left out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from profiles.errors import BadInput

if TYPE_CHECKING:
    from tenbin.client.client import Client

MOST_DIGITS = 18  # of the number of a job


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


def select(client: Client, which: Iterable[str]) -> Chosen:
    """Find the numbers that selectors mean."""
    chosen = Chosen([], [])
    for word in which:
        low, dash, high = word.partition("-")
        if word == "all":
            chosen.among.extend(job["id"] for job in client.call("GET", "/jobs"))
        elif word == "last":
            chosen.named.extend(_last(client))
        elif not _is_number(low) or (dash and not _is_number(high)):
            raise BadInput(f"{word!r} is no job", "give a number, 3-9, last or all")
        elif dash:
            chosen.among.extend(_range(client, int(low), int(high)))
        else:
            chosen.named.append(int(low))
    return chosen


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) <= MOST_DIGITS


def _last(client: Client) -> list[int]:
    """Return the number of the last job; empty before the first."""
    return [job["id"] for job in client.call("GET", "/jobs?all=true&limit=1")][-1:]


def _range(client: Client, low: int, high: int) -> range:
    """Return the existing jobs from ``low`` to ``high``, and say which do not exist."""
    if low > high:
        raise BadInput(f"{low}-{high} has no jobs", f"write {high}-{low}")
    last = max(_last(client), default=0)
    if low > last or high < 1:
        raise BadInput(f"there are no jobs {low}-{high}", "see: tenbin jobs --all")
    if high > last:
        print(f"tenbin: the last job is {last}", file=sys.stderr)
    return range(max(low, 1), min(high, last) + 1)


def tell_left_out(left_out: Mapping[str, str]) -> None:
    """Say which jobs of ranges and ``all`` a change did not apply to; one line for each reason."""
    reasons: dict[str, list[int]] = {}
    for job, sentence in left_out.items():
        reasons.setdefault(sentence.removeprefix(f"job {job} "), []).append(int(job))
    for reason, ids in reasons.items():
        print(f"tenbin: left out {ranges(ids)}: {reason}", file=sys.stderr)


def ranges(ids: Iterable[int]) -> str:
    """Write numbers as people do: ``1-3, 7``."""
    parts = []
    for _, group in groupby(enumerate(sorted(ids)), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in group]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ", ".join(parts)
