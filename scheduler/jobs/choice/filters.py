"""Filters of lists of jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from string import digits
from typing import Any

from scheduler.jobs.entry import Entry, Stage


@dataclass(frozen=True)
class JobFilter:
    """Conditions that a job has to meet, all of them.

    Attributes:
        ids: its number, or that of its array, is one of them; None: any.
        stages: its stage, as shown, is one of them; empty: any.
        name: a pattern (``fit*``) of its name; of a job without a name: of its program.
        user: its owner.
        since_s, until_s: it had not ended before, and was submitted by then; in seconds since 1970.
        place: the pool, device or node that it runs on, or ran on last.
        array: the array that it belongs to.
        single: it belongs to none.
    """

    ids: frozenset[int] | None = None
    stages: frozenset[Stage] = frozenset()
    name: str | None = None
    user: str | None = None
    since_s: float | None = None
    until_s: float | None = None
    place: str | None = None
    array: int | None = None
    single: bool = False

    def matches(self, entry: Entry, user: str) -> bool:
        """Return true if a job meets all conditions; ``user``: whose it is where nothing else is known."""
        return (
            (self.ids is None or entry.id in self.ids or entry.array in self.ids)
            and (not self.stages or entry.shown in self.stages)
            and (self.array is None or entry.array == self.array)
            and not (self.single and entry.array is not None)
            and (self.since_s is None or entry.end_s is None or entry.end_s >= self.since_s)
            and (self.until_s is None or entry.submit_s <= self.until_s)
            and (self.user is None or self.user == owner_of(entry, user))
            and (self.place is None or self.place in places(entry))
            and (self.name is None or fnmatchcase(name_of(entry), self.name))
        )

    def conditions(self, user: str) -> Mapping[str, Any]:
        """Return what SQLite can check cheaply, with its values; ``matches`` has the last word."""
        of_others = self.user if self.user != user else None  # they are named in their specs
        found = {
            "array = ?": self.array,
            "array IS NULL AND ?": self.single or None,
            "end_s >= ?": self.since_s,
            "submit_s <= ?": self.until_s,
            "instr(spec, ?) > 0": of_others and _plain_part(of_others),
            "instr(spec, ?)": self.name and _plain_part(self.name),
            "instr(coalesce(placement, '') || coalesce(hosts, ''), ?)": self.place
            and _plain_part(self.place.rstrip(digits)),
        }
        return {text: value for text, value in found.items() if value is not None and value != ""}


def _plain_part(pattern: str) -> str:
    """Return the longest part of a text, or of a pattern, that is written in JSON as it is."""
    without_sets = re.sub(r"\[.*\]", "*", pattern)
    return max(re.split(r"[^A-Za-z0-9_.-]", without_sets), key=len)


def owner_of(entry: Entry, user: str) -> str:
    """Return whose job it is; ``user``: where nothing else is known."""
    return entry.spec.slurm.user if entry.spec.slurm else user


def name_of(entry: Entry) -> str:
    """Return a job's name, or that of its program."""
    return entry.spec.name or os.path.basename(entry.spec.command[0])  # noqa: PTH119 (any text)


def places(entry: Entry) -> set[str]:
    """Name the pool or device, and the nodes, of a job's last attempt."""
    found = set(entry.hosts or ())
    if entry.placement is not None:
        pool = entry.placement.pool
        found |= {pool, *(f"{pool}{node}" for node, _ in entry.placement.nodes)}
    return found
