"""All jobs of one journal in memory, brought up to date from the file."""

from __future__ import annotations

import gc
import json
import math
import posixpath
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from profiles.files.safe_files import user_name
from scheduler.coordinator.journal.reader import Changes, JournalEvent, JournalReader
from scheduler.engines.common.job_folders import JobFolders
from scheduler.jobs.entry import FINAL, Stage
from scheduler.jobs.job_list import JobRow, Reading
from scheduler.jobs.specs import count_gpus

# -- jobs: light, all of them in memory, made from the journal's rows --------------------------------------


COLUMNS = (
    *("id", "spec", "array", "array_index", "stage", "held_by_user", "placement", "cores", "hosts"),
    *("submit_s", "start_s", "since_s", "end_s", "limit_s", "predicted", "code", "trouble", "attempt"),
    *("done", "served_s", "blocked", "new_priority"),
)
STAGES = {stage.value: stage for stage in Stage}
BEGUN = frozenset(stage for stage in Stage if stage.begun)
ENDED = frozenset(FINAL)
USER = user_name()  # whose jobs those are that name nobody


@dataclass(frozen=True, slots=True)
class Expected:
    """A run time in seconds: the middle, and the 10 and 90 % quantiles where they are known."""

    run_s: float
    low_s: float | None
    high_s: float | None
    basis: str


@dataclass(slots=True)
class Row(JobRow):
    """One job of the page, or an array as one.

    Attributes:
        lane: where it runs or ran last: the nodes, else the pool; () before its first start.
        cap_w: of all its units there; None: uncapped. region: that it is charged to.
        expected: its run time; None: nothing is known.
        members, stages: of an array how many jobs it has, and how many are in each stage.
    """

    lane: tuple[str, ...]
    since_s: float
    expected: Expected | None
    attempt: int
    served_s: float
    cap_w: float | None = None
    region: str = ""
    members: int | None = None
    stages: Mapping[str, int] | None = None


READING: Reading[Row] = Reading(
    stage=attrgetter("stage"),
    name=attrgetter("name"),
    user=attrgetter("user"),
    cores=attrgetter("cores"),
    trouble=attrgetter("trouble"),
    nodes=attrgetter("lane"),
    places=lambda row: (row.place or "", *row.lane),
)


class _ListedSpec(NamedTuple):
    """The parts of a specification that lists show."""

    name: str
    slurm: str | None
    user: str
    cores: int
    gpus: int | None
    priority: int
    time_s: float | None
    expect_s: dict[str, float]
    member: int | None


@lru_cache(maxsize=256)
def _listed_spec(text: str, way: int = 0) -> _ListedSpec:
    """Read a specification, as one of its alternatives has it; the members of an array share one."""
    spec = json.loads(text)
    if way:
        own = spec["alternatives"][way - 1]
        spec |= {"tasks": 1, "cores": 1, "expect_s": {}, "gpus": None, "gpu_kind": "", "gpu_memory_mb": None}
        spec |= {name: value for name, value in own.items() if value is not None}
    slurm = spec.get("slurm") or {}
    gpus = count_gpus(*map(spec.get, ("gpus", "gpu_kind", "gpu_memory_mb", "nodes")))
    return _ListedSpec(
        name=spec.get("name") or posixpath.basename(spec["command"][0]),
        slurm=slurm.get("id"),
        user=slurm.get("user") or USER,
        cores=spec.get("tasks", 1) * spec.get("cores", 1),
        gpus=gpus or None,
        priority=spec.get("priority", 0),
        time_s=spec.get("time_s"),
        expect_s=spec.get("expect_s") or {},
        member=spec.get("array_index"),
    )


def row_of(values: Sequence[Any]) -> Row:
    """Make the row of a job from ``COLUMNS``."""
    record = dict(zip(COLUMNS, values, strict=True))
    array, index = record["array"], record["array_index"]
    pool, units, nodes, cap_w, region, more = "", 1, list[list[int]](), None, "", list[Any]()
    if record["placement"] not in (None, "null"):
        pool, units, nodes, cap_w, region, *more = json.loads(record["placement"])
    spec = _listed_spec(record["spec"], *more[1:])  # after the binding: the alternative
    hosts = _listed(record["hosts"]) or [f"{pool}{node}" for node, _ in nodes]
    stage, held = STAGES[record["stage"]], bool(record["held_by_user"])
    limit_s = spec.time_s if record["limit_s"] is None else record["limit_s"]
    return Row(
        id=record["id"],
        name=spec.name,
        array=array,
        array_index=spec.member if index is None else index,
        stage=Stage.SUSPENDED if stage is Stage.HELD and held else stage,
        slurm=spec.slurm,
        user=spec.user,
        held_by_user=held,
        cores=len(_listed(record["cores"])) or spec.cores,
        gpus_asked=spec.gpus,
        priority=spec.priority if record["new_priority"] is None else record["new_priority"],
        place=pool or None,
        submit_s=record["submit_s"],
        start_s=record["start_s"],
        end_s=record["end_s"],
        time_limit_s=None if limit_s is None or math.isinf(limit_s) else limit_s,
        code=record["code"],
        trouble=record["blocked"] or record["trouble"] or "",
        lane=tuple(hosts) or ((pool,) if pool else ()),
        since_s=record["since_s"],
        expected=_expected(spec, record["predicted"], pool),
        attempt=record["attempt"],
        served_s=record["served_s"] or 0.0,
        cap_w=None if cap_w is None else cap_w * units,
        region=region,
    )


def _listed(text: str | None) -> list[Any]:
    return [] if text in (None, "null", "[]") else json.loads(text)


def _expected(spec: _ListedSpec, predicted: str | None, pool: str) -> Expected | None:
    """Return the run time that the owner states, else what earlier runs say, on the job's pool."""
    if spec.expect_s:
        run_s = spec.expect_s.get(pool, next(iter(spec.expect_s.values())))
        return Expected(run_s, None, None, "stated by the user")
    by_pool = {} if predicted in (None, "null") else (json.loads(predicted).get("run_s") or {})
    if not by_pool:
        return None
    prediction = by_pool.get(pool) or next(iter(by_pool.values()))
    return Expected(prediction["middle"], prediction["low"], prediction["high"], prediction["rule"])


# -- the times in which a job held its place, made from the journal's events -------------------------------


# A paused job has no place; one that is stopping still has it.
ENDS = ENDED | {"suspended", "checkpointed", "taken back", "lost", "failed"}


class Span(NamedTuple):
    """One stay of a job at its place; times in seconds since 1970.

    Attributes:
        end_s: None: it is there still.
        how: the event that ended it.
        lane: names of the places; None: those of the job's row.
    """

    attempt: int
    start_s: float
    end_s: float | None = None
    how: str = ""
    lane: tuple[str, ...] | None = None


Spans = dict[int, list[Span]]


def extend(spans: Spans, events: Iterable[JournalEvent], rows: dict[int, Row]) -> None:
    """Add what events tell; ``rows``: the jobs as they were before these events."""
    for event in events:
        of_job = spans.setdefault(event.job, [])
        last = of_job[-1] if of_job else None
        if event.kind == "start":
            if last is not None and last.end_s is None:
                of_job[-1] = last._replace(end_s=event.at_s, how="lost")
            of_job.append(Span(last.attempt + 1 if last else 1, event.at_s))
        elif event.kind in ENDS and last is not None and last.end_s is None:
            before = rows.get(event.job)
            lane = before.lane if before is not None and before.attempt == last.attempt else None
            of_job[-1] = last._replace(end_s=event.at_s, how=event.kind, lane=lane)


def go_on(spans: Spans, row: Row) -> None:
    """Note that a paused job runs again as the same attempt, of which no event tells."""
    of_job = spans.get(row.id)
    if not of_job or row.stage not in ("running", "stopping"):
        return
    last = of_job[-1]
    if last.end_s is not None and row.since_s >= last.end_s and last.attempt <= row.attempt:
        of_job.append(Span(row.attempt, row.since_s))


def earlier_lane(store: Path, job_id: int, attempt: int) -> tuple[str, ...] | None:
    """Return the places of an earlier attempt, as its folder tells; None: it does not."""
    try:
        row = JobFolders(store).order(job_id, attempt)["journalled"]
        pool, _, nodes, *_ = json.loads(row["placement"])
        return tuple(json.loads(row.get("hosts") or "[]") or [f"{pool}{node}" for node, _ in nodes] or [pool])
    except (OSError, ValueError, KeyError, TypeError):
        return None


# -- the mirror --------------------------------------------------------------------------------------------


REMEMBERED = 20_000  # events, and changes of jobs, for viewers that are behind


class Mirror:
    """The jobs of a store as the page shows them. One thread refreshes; others may read meanwhile.

    Attributes:
        rows: all jobs by number. spans: when each held its place.
        number: of the last event, which is the id of what viewers are told.
        version: counts the changes. epoch: counts the journals, because ``up --recover`` makes a new one.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.rows: dict[int, Row] = {}
        self.spans: Spans = {}
        self.number = self.version = self.epoch = 0
        self._reader = JournalReader(store, COLUMNS, row_of)
        self._counts: tuple[int, Counter[str]] = -1, Counter()
        self._events: deque[JournalEvent] = deque(maxlen=REMEMBERED)
        self._changed: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)  # version, job

    def close(self) -> None:
        self._reader.close()

    def refresh(self) -> bool:
        """Read what has changed; True if something has.

        Raises:
            BadInput: the journal cannot be read; all is as before.
        """
        gc.disable()  # the rows stay: to look for garbage in them takes long
        try:
            changes = self._reader.changes()
        finally:
            gc.enable()
        if changes is None:
            return False
        if changes.anew:
            self._begin(changes)
        else:
            extend(self.spans, changes.events, self.rows)
            self._note(changes)
        self.number = changes.number
        self.version += 1
        return True

    def _begin(self, changes: Changes[Row]) -> None:
        made: Spans = {}
        extend(made, changes.events, {})
        for row in changes.jobs:
            go_on(made, row)
            for place, span in enumerate(made.get(row.id, ())):
                if span.attempt < row.attempt:
                    lane = earlier_lane(self.store, row.id, span.attempt)
                    made[row.id][place] = span._replace(lane=lane)
        self.rows, self.spans = {row.id: row for row in changes.jobs}, made
        self._events.clear()
        self._events.extend(changes.events[-REMEMBERED:])
        self._changed.clear()
        self.epoch += 1

    def _note(self, changes: Changes[Row]) -> None:
        for row in changes.jobs:
            self.rows[row.id] = row
            go_on(self.spans, row)
        self._events.extend(changes.events)
        jobs = {event.job for event in changes.events} | {row.id for row in changes.jobs}
        self._changed.extend((self.version + 1, job) for job in jobs)

    def events_since(self, number: int) -> list[JournalEvent] | None:
        """List the events after one; None: it is too long ago, or of another journal."""
        if number >= self.number:
            return [] if number == self.number else None
        later = [event for event in list(self._events) if event.number > number]
        return later if later and later[0].number == number + 1 else None

    def changed_since(self, version: int) -> list[int] | None:
        """List the jobs that changed after a version; None: they are too many to remember."""
        changed = list(self._changed)
        if len(changed) == REMEMBERED and changed[0][0] > version + 1:
            return None
        return sorted({job for at, job in changed if at > version})

    def counts(self) -> dict[str, int]:
        """Count the jobs by stage."""
        if self._counts[0] != self.version:
            self._counts = self.version, Counter(row.stage for row in list(self.rows.values()))
        return dict(self._counts[1])
