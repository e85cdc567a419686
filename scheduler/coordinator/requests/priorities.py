"""Priorities of jobs that have not ended, changed by their owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.coordinator import events as ev
from scheduler.jobs.choice.left_out import LeftOut
from scheduler.model.events import Timer

if TYPE_CHECKING:
    from scheduler.coordinator.coordinator import Coordinator


def set_priority(
    coordinator: Coordinator, job_ids: Sequence[int], priority: int, where_possible: Sequence[int] = ()
) -> tuple[dict[int, list[int]], dict[int, LeftOut]]:
    """Give jobs another priority, as if they had been submitted with it; arguments as of ``suspend``.

    Returns:
        The jobs by their priority before, and those left out with the reason.

    Raises:
        BadInput: one has ended or never was. NoRoom: see ``Coordinator.settle``.
    """
    coordinator.set_clock()
    table, state, handlers = coordinator.job_table, coordinator.state, coordinator.handlers
    entries, left_out = table.choose(job_ids, where_possible)
    before: dict[int, list[int]] = {}
    waiting = []
    for entry in entries:
        before.setdefault(entry.priority, []).append(entry.id)
        if entry.priority == priority:
            continue
        table.record(entry, state.now, "priority", f"{priority}, {entry.priority} before")
        job = table.prioritize(entry, priority)
        handlers.memory.prioritize(entry.id, priority)
        if entry.id in state.waiting:
            waiting.append(job)
        elif entry.id in state.running or entry.id in state.suspended:
            state.reconsider(job)
    state.prioritize(waiting)
    handlers.admit_by_memory()
    handlers.stale = True  # no event tells a policy of another order
    coordinator.queue.put(ev.Applied(Timer(state.now)))
    coordinator.settle()
    return before, left_out
