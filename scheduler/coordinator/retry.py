"""Jobs that did not succeed run again, under the same number, because their owner asks for it."""

from __future__ import annotations

from collections.abc import Iterable

from profiles.errors import BadInput
from scheduler.coordinator.job_table import JobTable
from scheduler.jobs.choice.left_out import LeftOut
from scheduler.jobs.entry import UNKNOWN, Entry, Stage


def choose_ended(
    table: JobTable, job_ids: Iterable[int], where_possible: Iterable[int], now: float
) -> tuple[list[Entry], dict[int, LeftOut]]:
    """Return the jobs that can run again, by number, and why others are left out.

    Args:
        job_ids: jobs that must not be left out. where_possible: jobs that may be. An array stands for its
            members that did not succeed.

    Raises:
        BadInput: one of ``job_ids`` has succeeded, has not ended, is past its deadline, or does not exist.
    """
    chosen: dict[int, Entry] = {}
    left_out: dict[int, LeftOut] = {}
    for number in dict.fromkeys(job_ids):
        chosen.update((entry.id, entry) for entry in _without_success(table, number, now))
    for number in dict.fromkeys(where_possible):
        if number not in chosen:
            try:
                chosen.update((entry.id, entry) for entry in _without_success(table, number, now))
            except BadInput as error:
                left_out[number] = table.omit(number, error)
    return [chosen[number] for number in sorted(chosen)], left_out


def _without_success(table: JobTable, number: int, now: float) -> list[Entry]:
    """Return the job, or the members of the array, that ended without success."""
    if number in table.arrays:
        found = table.journal.unsuccessful_members(number)
        if not found:
            raise BadInput(f"array {number} has no job that ended without success", f"tenbin info {number}")
        _before_deadline(f"array {number}", found[0], now)
        return found
    entry = table.entry(number)
    if entry is None:
        raise BadInput(f"there is no job {number}", "see: tenbin jobs --all")
    if not entry.stage.final:
        raise BadInput(f"job {entry.label} is {entry.shown} and has not ended", "see: tenbin jobs")
    if entry.stage is Stage.DONE:
        raise BadInput(f"job {entry.label} has succeeded", "to run it once more, submit it")
    if entry.spec.external:
        raise BadInput(f"job {entry.label} is of the cluster's own scheduler", "submit it there once more")
    _before_deadline(f"job {entry.label}", entry, now)
    return [entry]


def _before_deadline(name: str, entry: Entry, now: float) -> None:
    """Raise BadInput if a job would be ended as soon as it began."""
    if entry.spec.deadline_s is not None and entry.spec.deadline_s <= now:
        raise BadInput(f"{name} is past its deadline", "submit it anew, with a later one")


def renew(entry: Entry, now: float) -> None:
    """Make an ended job one that waits: from its last checkpoint, with failures counted anew."""
    entry.stage, entry.since_s, entry.job = Stage.HELD, now, UNKNOWN
    entry.done, entry.served_s = entry.kept, entry.kept_s
    entry.alive, entry.want, entry.held_by_user, entry.goals = False, "", False, ()
    entry.placement, entry.cores, entry.devices, entry.tasks, entry.hosts = None, (), (), None, None
    entry.start_s = entry.end_s = entry.code = entry.signal = entry.usage = None
    entry.trouble, entry.failures = "", 0
    entry.retried, entry.not_before_s = 0, None
