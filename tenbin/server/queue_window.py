"""``GET /queue``: a window of the sorted list of jobs, for those who look at it again and again."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from pydantic import Field

from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.arrays import PRECEDENCE
from scheduler.jobs.choice.filters import name_of, owner_of
from scheduler.jobs.entry import Entry, Stage
from tenbin.server.descriptions import cores_of, place_of, state
from tenbin.server.job_filters import LARGEST, Listed
from tenbin.server.job_list import Row, Whole, describe_row, find_rows
from tenbin.server.node_table import in_use
from tenbin.server.refusals import OF_VALUES

MOST_ROWS = 1000
GROUPS = {stage: 2 if stage.final else 0 if stage.begun else 1 for stage in Stage}  # of the order ``queue``

Order = Literal["queue", "id", "name", "user", "stage", "cores", "place", "since"]


class Window(Listed):
    """The rows ``start`` to ``start + rows - 1`` of a sorted list; ``limit`` is of the jobs that have ended.

    The order ``queue``: jobs that run, then those that wait, by priority, then those that have ended, the
    last ones first.
    """

    order: Order = "queue"
    reverse: bool = False
    start: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    rows: Annotated[int, Field(ge=0, le=MOST_ROWS)] = 50


def add_queue(api: FastAPI, coordinator: Coordinator) -> None:
    """Add the route that shows a window of the list of jobs."""

    @api.get("/queue", responses=OF_VALUES)
    async def queue(wanted: Annotated[Window, Query()]) -> dict[str, Any]:
        """Show a window of the sorted list of jobs, how many are in the list, and the coordinator's state."""
        return window(coordinator, wanted)


def window(coordinator: Coordinator, wanted: Window) -> dict[str, Any]:
    """Describe the rows of a window, how long the list is, and the state of the coordinator."""
    found = _in_queue(coordinator, wanted)
    if wanted.order != "queue":
        found.sort(key=_keys(coordinator)[wanted.order], reverse=wanted.reverse)
    elif wanted.reverse:
        found.reverse()
    rows = [describe_row(coordinator, row) for row in found[wanted.start : wanted.start + wanted.rows]]
    return {**state(coordinator), "in_use": in_use(coordinator), "total": len(found), "rows": rows}


def _in_queue(coordinator: Coordinator, wanted: Window) -> list[Row]:
    """Find the rows of the list in the order of the queue; the list may be long."""
    groups: tuple[list[Row], ...] = [], [], []
    for row in find_rows(coordinator, wanted):
        groups[GROUPS[row.shown]].append(row)
    if coordinator.state.ranked:
        groups[1].sort(key=lambda row: -_entry(row).priority)
    return groups[0] + groups[1] + groups[2][::-1]


def _keys(coordinator: Coordinator) -> dict[str, Callable[[Row], Any]]:
    """Return the key of each order; rows that are equal stay in the order of the queue."""
    user = coordinator.job_table.user
    return {
        "id": attrgetter("id"),
        "name": lambda row: name_of(_entry(row)),
        "user": lambda row: owner_of(_entry(row), user),
        "stage": lambda row: PRECEDENCE.index(row.shown),
        "cores": lambda row: cores_of(_entry(row)),
        "place": lambda row: place_of(_entry(row)) or "",
        "since": _since_s,
    }


def _entry(row: Row) -> Entry:
    return row.first if isinstance(row, Whole) else row


def _since_s(row: Row) -> float:
    """Return the instant of the end, else of the start, else of the submission; as the rows have them."""
    return row.first.submit_s if isinstance(row, Whole) else row.end_s or row.start_s or row.submit_s
