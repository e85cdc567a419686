"""Filters of lists of jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from string import digits
from typing import Any, Generic, Protocol, TypeVar

from scheduler.jobs.entry import Entry, Stage


class Job(Protocol):
    """The part that is alike in the journal's record of a job and in a row of a list."""

    @property
    def id(self) -> int: ...
    @property
    def array(self) -> int | None: ...
    @property
    def label(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def submit_s(self) -> float: ...
    @property
    def start_s(self) -> float | None: ...
    @property
    def end_s(self) -> float | None: ...


J = TypeVar("J", bound=Job)


@dataclass(frozen=True, slots=True)
class Reading(Generic[J]):
    """Functions that read the rest of what lists filter and sort by.

    Attributes:
        stage: as shown.
        name: of a job without a name that of its program.
        nodes: that it runs on, or ran on last; else the pool or device; (): none yet.
        places: these, and the pool or device, by all their names.
    """

    stage: Callable[[J], Stage]
    name: Callable[[J], str]
    user: Callable[[J], str]
    cores: Callable[[J], int]
    trouble: Callable[[J], str]
    nodes: Callable[[J], tuple[str, ...]]
    places: Callable[[J], Collection[str]]


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
        text: a part of number, name, user, nodes or trouble, large letters or small; with ``*`` a pattern of
            the name.
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
    text: str = ""

    def choose(self, jobs: Iterable[J], reading: Reading[J]) -> Iterator[J]:
        """Yield the jobs that meet all conditions."""
        ids, since_s, until_s = self.ids, self.since_s, self.until_s
        if self.single:
            jobs = (job for job in jobs if job.array is None)
        if self.array is not None:
            jobs = (job for job in jobs if job.array == self.array)
        if ids is not None:
            jobs = (job for job in jobs if job.id in ids or job.array in ids)
        if self.stages:
            jobs = (job for job in jobs if reading.stage(job) in self.stages)
        if since_s is not None:
            jobs = (job for job in jobs if job.end_s is None or job.end_s >= since_s)
        if until_s is not None:
            jobs = (job for job in jobs if job.submit_s <= until_s)
        if self.user is not None:
            jobs = (job for job in jobs if reading.user(job) == self.user)
        if self.place is not None:
            jobs = (job for job in jobs if self.place in reading.places(job))
        for pattern in (self.name, self.text if "*" in self.text else None):
            if pattern is not None:
                jobs = _named(jobs, reading, pattern)
        if self.text and "*" not in self.text:
            jobs = _with_text(jobs, reading, self.text.casefold())
        return iter(jobs)

    def conditions(self, user: str) -> Mapping[str, Any]:
        """Return what SQLite can check cheaply, with its values; ``choose`` has the last word."""
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


def _named(jobs: Iterable[J], reading: Reading[J], pattern: str) -> Iterator[J]:
    return (job for job in jobs if fnmatchcase(reading.name(job), pattern))


def _with_text(jobs: Iterable[J], reading: Reading[J], text: str) -> Iterator[J]:
    return (
        job
        for job in jobs
        if text in reading.name(job).casefold()
        or text in job.label
        or text in reading.user(job).casefold()
        or text in ", ".join(reading.nodes(job)).casefold()
        or text in reading.trouble(job).casefold()
    )


def entry_reading(user: str) -> Reading[Entry]:
    """Return how the journal's records are read; ``user``: whose a job is where nothing else is known."""
    return Reading(
        stage=attrgetter("shown"),
        name=name_of,
        user=lambda entry: owner_of(entry, user),
        cores=cores_of,
        trouble=attrgetter("trouble"),
        nodes=nodes_of,
        places=places,
    )


def owner_of(entry: Entry, user: str) -> str:
    """Return whose job it is; ``user``: where nothing else is known."""
    return entry.spec.slurm.user if entry.spec.slurm else user


def name_of(entry: Entry) -> str:
    """Return a job's name, or that of its program."""
    return entry.spec.name or os.path.basename(entry.spec.command[0])  # noqa: PTH119 (any text)


def cores_of(entry: Entry) -> int:
    """Count the cores that a job has, or asks for before it runs."""
    return len(entry.cores) or entry.spec.tasks * entry.spec.cores


def nodes_of(entry: Entry) -> tuple[str, ...]:
    """Name the nodes of a job's last attempt, else the pool or device; () before the first."""
    placement = entry.placement
    if entry.hosts or placement is None:
        return tuple(entry.hosts or ())
    return tuple(f"{placement.pool}{node}" for node, _ in placement.nodes) or (placement.pool,)


def places(entry: Entry) -> set[str]:
    """Name the pool or device, and the nodes, of a job's last attempt."""
    found = set(entry.hosts or ())
    if entry.placement is not None:
        pool = entry.placement.pool
        found |= {pool, *(f"{pool}{node}" for node, _ in entry.placement.nodes)}
    return found
