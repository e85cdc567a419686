"""Moves of running jobs that their owners ask for."""

from __future__ import annotations

from scheduler.coordinator.handlers import Handlers
from scheduler.jobs.entry import Entry
from scheduler.jobs.policy_view import bound_to_node, results_differ
from scheduler.model.jobs import Placement


def why_it_stays(handlers: Handlers, entry: Entry, target: Placement, to: str) -> str:
    """Say as a clause why a job's owner cannot have it moved; "" if there only has to be room."""
    if bound_to_node(entry):
        return entry.fixed or f"its program stays on its device of {', '.join(entry.hosts or ())}"
    if not _may_move(handlers, entry, target.pool):
        return f"it does not run on {to}"
    here = handlers.state.state(entry.id).place
    return "it runs there already" if (target.pool, target.nodes) == (here.pool, here.nodes) else ""


def _may_move(handlers: Handlers, entry: Entry, pool: str) -> bool:
    """Tell if a job's owner may have it moved to a class, also to one where a trial had other results."""
    if pool not in results_differ(entry):
        return handlers.job_table.job(entry).runs_on(pool)
    kinds = [each.kind for each in handlers.state.cluster.pools if each.name == pool]
    return bool(kinds) and entry.spec.device in ("any", pool, *kinds)
