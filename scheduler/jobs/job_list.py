"""One list of jobs for API, ``tenbin jobs``, ``top`` and page: filter, order, arrays as one row; selectors.

The jobs are the coordinator's records, with those of its journal that have ended, or the rows that the page
has made of a journal.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from operator import attrgetter
from string import digits
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from profiles.errors import BadInput
from scheduler.jobs.arrays import PRECEDENCE, array_stage
from scheduler.jobs.entry import FINAL, Entry, Stage


@dataclass(slots=True)  # frozen it takes several times as long: tests/benchmarks/jobs/test_long_queue.py
class JobRow:
    """One job, or an array as one; times in seconds since 1970.

    Attributes:
        slurm: number of the job of Slurm that it is.
        cores: how many it has, or asks for before it runs. gpus_asked: likewise; None: none.
        place: the pool or device of its last attempt.
    """

    id: int
    name: str
    array: int | None
    array_index: int | None
    stage: str
    slurm: str | None
    user: str
    held_by_user: bool
    cores: int
    gpus_asked: int | None
    priority: int
    place: str | None
    submit_s: float
    start_s: float | None
    end_s: float | None
    time_limit_s: float | None
    code: int | None
    trouble: str

    @property
    def label(self) -> str:
        """The job as people name it: ``12``, or ``7[3]`` for the member 3 of array 7."""
        member = self.array is not None and self.array_index is not None
        return f"{self.array}[{self.array_index}]" if member else str(self.id)


@dataclass(slots=True)
class ArrayRow(JobRow):
    """An array as one row.

    Attributes:
        members: how many jobs it has. stages: how many of them are in each stage.
    """

    members: int
    stages: Mapping[str, int]


@dataclass(slots=True)
class GpuJobRow(JobRow):
    """A job with GPUs.

    Attributes:
        gpus_used: how many of them have worked on average so far; None: not known, as the rest.
        peak_gpu_memory_mb: the most memory in use there. gpu_energy_j: of them. gpus_emulated: they are.
    """

    gpus_used: float | None
    peak_gpu_memory_mb: float | None
    gpu_energy_j: float | None
    gpus_emulated: bool


def as_json(row: JobRow) -> dict[str, Any]:
    """Return the fields of a row by name."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


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
        values = {
            "array = ?": self.array,
            "array IS NULL AND ?": self.single or None,
            "end_s >= ?": self.since_s,
            "submit_s <= ?": self.until_s,
            "instr(spec, ?) > 0": of_others and _plain_part(of_others),
            "instr(spec, ?)": self.name and _plain_part(self.name),
            "instr(coalesce(placement, '') || coalesce(hosts, ''), ?)": self.place
            and _plain_part(self.place.rstrip(digits)),
        }
        return {text: value for text, value in values.items() if value is not None and value != ""}


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
    return len(entry.cores) or entry.way.tasks * entry.way.cores


def nodes_of(entry: Entry) -> tuple[str, ...]:
    """Name the nodes of a job's last attempt, else the pool or device; () before the first."""
    placement = entry.placement
    if entry.hosts or placement is None:
        return tuple(entry.hosts or ())
    return tuple(f"{placement.pool}{node}" for node, _ in placement.nodes) or (placement.pool,)


def places(entry: Entry) -> set[str]:
    """Name the pool or device, and the nodes, of a job's last attempt."""
    names = set(entry.hosts or ())
    if entry.placement is not None:
        pool = entry.placement.pool
        names |= {pool, *(f"{pool}{node}" for node, _ in entry.placement.nodes)}
    return names


GROUPS = {stage: 3 if stage.final else 0 if stage.begun else 1 for stage in Stage}  # of the order ``queue``
GROUPS[Stage.HELD] = 2
RANKS = {stage: rank for rank, stage in enumerate(PRECEDENCE)}
Order = Literal["queue", "id", "name", "user", "stage", "cores", "place", "since"]


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The rows of a list.

    Attributes:
        filter: which jobs are meant; of an array, if one of its members is.
        members: each member of an array is a row; else the array is one.
        order: "queue": jobs that run, then those that wait, by priority, then those that are held, then
            those that have ended, what ended last first (an array: by its first member). Rows that are equal
            in another order stay in this one.
    """

    filter: JobFilter
    members: bool = False
    order: Order | Literal["submit_s"] = "queue"
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Whole(Generic[J]):
    """An array in a list of jobs, with its first member, and how many members are in each stage."""

    id: int
    first: J
    stages: Counter[Stage]

    @property
    def stage(self) -> Stage:
        return array_stage(self.stages)

    def fields(self) -> dict[str, Any]:
        """Return the fields of its row that are not those of its first member."""
        total, done = self.stages.total(), self.stages[Stage.DONE]
        lost = sum(self.stages[stage] for stage in FINAL) - done
        return {
            "id": self.id,
            "array": self.id,
            "array_index": None,
            "stage": self.stage,
            "members": total,
            "stages": {stage: self.stages[stage] for stage in PRECEDENCE if self.stages[stage]},
            "start_s": None,
            "end_s": None,
            "code": 0 if done == total else None,
            "trouble": f"{lost:,} of {total:,} did not succeed" if lost else "",
        }


class Jobs(Protocol[J]):
    """All jobs that a list may show.

    Attributes:
        ranked: a job had a priority. has_arrays: some belong to arrays.
    """

    reading: Reading[J]
    ranked: bool
    has_arrays: bool

    def find(self, conditions: JobFilter) -> Iterable[J]:
        """Find jobs, in the order of their numbers."""

    def wholes(self, conditions: JobFilter) -> Iterable[Whole[J]]:
        """Find the arrays of which a member is meant."""


def find_rows(jobs: Jobs[J], query: JobQuery) -> list[J | Whole[J]]:
    """Find the rows of a list, in its order."""
    rows: list[J | Whole[J]] = []
    wholes = jobs.has_arrays and not query.members
    if wholes:
        rows += jobs.find(replace(query.filter, single=True))
        rows += jobs.wholes(query.filter)
        rows.sort(key=attrgetter("id"))
    else:
        rows += jobs.find(query.filter)
    if query.order == "id":
        return rows[::-1] if query.reverse else rows
    stage = stage_of(jobs.reading, wholes=wholes)
    rows = _queue(rows, stage, ranked=jobs.ranked)
    if query.order == "stage":
        rows.sort(key=lambda row: RANKS[stage(row)], reverse=query.reverse)
    elif query.order != "queue":
        rows.sort(key=_key(query.order, jobs.reading, wholes=wholes), reverse=query.reverse)
    elif query.reverse:
        rows.reverse()
    return rows


def _queue(
    rows: list[J | Whole[J]], stage: Callable[[J | Whole[J]], Stage], *, ranked: bool
) -> list[J | Whole[J]]:
    """Return rows that are sorted by their numbers in the order of the queue."""
    groups: tuple[list[J | Whole[J]], ...] = [], [], [], []
    for row in rows:
        groups[GROUPS[stage(row)]].append(row)
    begun, waiting, held, ended = groups
    for group in (waiting, held) if ranked else ():
        group.sort(key=lambda row: -_job(row).priority)
    ended.reverse()
    ended.sort(key=lambda row: -(_job(row).end_s or 0.0))
    return begun + waiting + held + ended


def stage_of(reading: Reading[J], *, wholes: bool) -> Callable[[J | Whole[J]], Stage]:
    """Return what tells the stage of a row; ``wholes``: arrays are among the rows."""
    read: Callable[[Any], Stage] = reading.stage
    if wholes:
        return lambda row: row.stage if isinstance(row, Whole) else read(row)
    return read


def _key(order: str, reading: Reading[J], *, wholes: bool) -> Callable[[J | Whole[J]], Any]:
    """Return the key of an order; without arrays among the rows it is that of the jobs."""
    if order == "since":
        return _since_s
    keys: dict[str, Callable[[Any], Any]] = {
        "name": reading.name,
        "user": reading.user,
        "cores": reading.cores,
        "place": reading.nodes,
        "submit_s": attrgetter("submit_s"),
    }
    key = keys[order]
    return (lambda row: key(_job(row))) if wholes else key


def _job(row: J | Whole[J]) -> J:
    return row.first if isinstance(row, Whole) else row


def _since_s(row: J | Whole[J]) -> float:
    """Return the instant of the end, else of the start, else of the submission; as the rows have them."""
    return row.first.submit_s if isinstance(row, Whole) else row.end_s or row.start_s or row.submit_s


def row_of(entry: Entry, user: str) -> JobRow:
    """Make the row of a job; ``user``: whose it is where nothing else is known."""
    return JobRow(
        id=entry.id,
        name=name_of(entry),
        array=entry.array,
        array_index=entry.array_index,
        stage=entry.shown,
        slurm=entry.spec.slurm.id if entry.spec.slurm else None,
        user=owner_of(entry, user),
        held_by_user=entry.held_by_user,
        cores=cores_of(entry),
        gpus_asked=entry.way.gpus_asked or None,
        priority=entry.priority,
        place=None if entry.placement is None else entry.placement.pool,
        submit_s=entry.submit_s,
        start_s=entry.start_s,
        end_s=entry.end_s,
        time_limit_s=entry.way.time_s,
        code=entry.code,
        trouble=entry.trouble,
    )


# -- selectors, the words by which users name jobs: ``7``, ``7[3]``, ``7[1,5-9]``, ``3-9`` -----------------


MOST_DIGITS = 18  # of a number of a job, or of an index
NUMBER = rf"\d{{1,{MOST_DIGITS}}}"
SPAN = rf"{NUMBER}(?:-{NUMBER})?"
PART = re.compile(rf"({NUMBER})\[({SPAN}(?:,{SPAN})*)\]")
REMEDY = "give a number, 3-9, 7[3] or 7[1,5-9] of array 7, last or all"


class Span(NamedTuple):
    """Numbers, or indices, from ``low`` to ``high``; ``single`` if it was written as one number."""

    low: int
    high: int
    single: bool


class Selector(NamedTuple):
    """One word, read.

    Attributes:
        word: "all" or "last"; "": numbers.
        array: the array whose indices ``spans`` are; None: they are numbers.
    """

    word: str = ""
    array: int | None = None
    spans: tuple[Span, ...] = ()


def read_selector(word: str) -> Selector:
    """Read one word.

    Raises:
        BadInput: it selects nothing.
    """
    if word in ("all", "last"):
        return Selector(word)
    part = PART.fullmatch(word)
    if part:
        return Selector(array=int(part[1]), spans=tuple(map(_span, part[2].split(","))))
    if not re.fullmatch(SPAN, word):
        raise BadInput(f"{word[:100]!r} is no job", REMEDY)
    return Selector(spans=(_span(word),))


def _span(text: str) -> Span:
    low, dash, high = text.partition("-")
    span = Span(int(low), int(high or low), not dash)
    if span.low > span.high:
        raise BadInput(f"{text} has no jobs", f"write {high}-{low}")
    return span


class LeftOut(NamedTuple):
    """A job, or an array, to which a change does not apply, and on which its user did not insist.

    Attributes:
        label: what users call it. reason: why, as a clause or a sentence without the label.
        sentence: all of it.
    """

    label: str
    reason: str
    sentence: str
