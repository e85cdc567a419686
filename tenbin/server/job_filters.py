"""Conditions of requests that list jobs, and the jobs that meet them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict

from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.choice.filters import JobFilter
from scheduler.jobs.entry import Entry, Stage

LARGEST = (1 << 63) - 1  # what SQLite counts with
# Of the bodies of requests: true and "3" are no numbers. In a query all values are text.
BODY = ConfigDict(extra="forbid", strict=True)
Number = Annotated[int, Field(ge=1, le=LARGEST)]
Instant = Annotated[float, Field(allow_inf_nan=False)]


class Conditions(BaseModel):
    """The jobs to tell of: those that meet all conditions, the last ones up to the limit."""

    model_config = ConfigDict(extra="forbid")

    stages: list[Annotated[Stage, Strict(False)]] = Field(default_factory=list)
    name: str | None = None
    user: str | None = None
    since_s: Instant | None = None
    until_s: Instant | None = None
    place: str | None = None
    array: Number | None = None
    limit: Number | None = None

    def as_filter(self) -> JobFilter:
        """Return the conditions as the journal takes them."""
        names = ("name", "user", "since_s", "until_s", "place", "array")
        return JobFilter(stages=frozenset(self.stages), **{name: getattr(self, name) for name in names})


class Listed(Conditions):
    """The jobs to list.

    Attributes:
        all: also those that have ended. Final ``stages`` and ``since_s`` ask for them too.
        members: each member of an array is a row; else the array is one, if one of its members is meant.
    """

    all: bool = False
    members: bool = True

    @property
    def ended(self) -> bool:
        """Jobs that have ended are meant too."""
        return self.all or self.since_s is not None or any(stage.final for stage in self.stages)


def find(
    coordinator: Coordinator,
    wanted: JobFilter,
    limit: int | None = None,
    *,
    waiting: bool = True,
    ended: bool = True,
) -> list[Entry]:
    """Find the last jobs that meet the conditions, and all of these that run, in the order of their numbers.

    Args:
        waiting, ended: also jobs that have not begun, and that have ended.
    """
    found = open_jobs(coordinator, wanted, waiting=waiting)
    if ended:
        found += ended_jobs(coordinator, wanted, limit)
    found.sort(key=lambda entry: entry.id)
    if limit is None or len(found) <= limit:
        return found
    return [entry for entry in found[:-limit] if entry.shown.begun] + found[-limit:]


def open_jobs(coordinator: Coordinator, wanted: JobFilter, *, waiting: bool = True) -> list[Entry]:
    """Find the jobs that meet the conditions and have not ended; not ``waiting``: and have begun."""
    table = coordinator.job_table
    found = [entry for entry in table.entries.values() if waiting or entry.shown.begun]
    if wanted != JobFilter():
        found = [entry for entry in found if wanted.matches(entry, table.user)]
    return found


def ended_jobs(coordinator: Coordinator, wanted: JobFilter, limit: int | None = None) -> Iterable[Entry]:
    """Find the last jobs that meet the conditions and have ended, the last ones first."""
    table = coordinator.job_table
    older = (
        entry
        for entry in coordinator.journal.ended(wanted, table.user)
        if entry.id not in table.entries and wanted.matches(entry, table.user)
    )
    return islice(older, limit)
