"""Changes that users ask for while the journal cannot be written are not called done."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.job_table import NoRoom
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit


@contextmanager
def full(coordinator: Coordinator) -> Iterator[None]:
    def commit(*_: object, **__: object) -> NoReturn:
        raise sqlite3.OperationalError("database or disk is full")

    before = coordinator.journal.commit
    coordinator.journal.commit = commit  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        coordinator.journal.commit = before  # type: ignore[method-assign]


def priority(coordinator: Coordinator, job_ids: list[int]) -> None:
    coordinator.set_priority(job_ids, 5)


def change(name: str) -> Callable[[Coordinator, list[int]], Any]:
    return priority if name == "priority" else getattr(Coordinator, name)


@pytest.mark.parametrize(
    ("first", "name", "after"),
    [
        ("", "cancel", "cancelled"),
        ("", "suspend", "suspended"),
        ("suspend", "resume", "waiting"),
        ("cancel", "retry", "waiting"),
        ("", "priority", "waiting"),
    ],
)
@pytest.mark.parametrize("killed", [False, True])
def test_a_change_is_told_to_be_open_until_it_is_durable(
    first: str, name: str, *, after: str, killed: bool, tmp_path: Path
) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        _, job = submit(coordinator), submit(coordinator)
        if first:
            change(first)(coordinator, [job])
        before = shown(coordinator, job)
        with full(coordinator), pytest.raises(NoRoom, match="the journal cannot be written"):
            change(name)(coordinator, [job])
        if not killed:
            coordinator.turn()
    with engine.coordinator(tmp_path) as coordinator:
        assert shown(coordinator, job) == (before if killed else [after])
        entry = coordinator.job_table.entry(job)
        assert entry is not None
        assert entry.priority == (5 if name == "priority" and not killed else 0)


def test_a_job_that_cannot_be_placed_holds_up_no_change(tmp_path: Path) -> None:
    """The journal has it."""
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator)
        engine.full = True
        submit(coordinator)
        engine.full = True
        coordinator.cancel([job])
        assert engine.asks == [(job, "end")]
