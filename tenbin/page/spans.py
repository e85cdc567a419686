"""The times in which a job held its place, made from the journal's events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from scheduler.coordinator.journal.reader import JournalEvent
from scheduler.engines.common.job_folders import JobFolders
from tenbin.page.rows import ENDED, Row

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
