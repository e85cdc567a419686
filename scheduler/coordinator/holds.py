"""The jobs that are held: for other jobs or for a time; and when to look at them again."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from profiles.instants import stamp
from scheduler.coordinator.job_table import JobTable
from scheduler.jobs.dependencies import Standing, WaitCondition, WaitVerdict, conditions, verdict
from scheduler.jobs.entry import Entry, Phase, Stage


class Holds:
    """Knows of each held job which others it waits for, and has an alarm for each begin and deadline.

    All of it follows from the job table, so a new coordinator makes it anew.
    """

    def __init__(self, job_table: JobTable) -> None:
        self.job_table = job_table
        self._followers: dict[int, dict[int, None]] = {}  # job or array -> jobs that are held for it
        # What each held job waits for, by the number of the other.
        self._pending: dict[int, dict[int, list[WaitCondition]]] = {}
        self._alarms: list[tuple[float, int]] = []
        self._set: set[tuple[float, int]] = set()

    # -- other jobs -----------------------------------------------------------------------------------

    def verdict(self, entry: Entry) -> WaitVerdict:
        """Judge what a job waits for; one that has begun before waits for no other job any more."""
        if entry.attempt:
            return WaitVerdict()
        asked = conditions(entry.spec, entry.array_index, self.job_table.members)
        return verdict(asked, self.job_table.standing)

    def hold(self, entry: Entry, told: WaitVerdict) -> None:
        """Let a job wait until its conditions hold, or cannot any more."""
        pending: dict[int, list[WaitCondition]] = {}
        for condition in told.waits:
            pending.setdefault(condition.number, []).append(condition)
            self._followers.setdefault(condition.number, {})[entry.id] = None
        self._pending[entry.id] = pending

    def followers(self, ended: Entry) -> Iterator[Entry]:
        """Yield the jobs for which the end of a job decides: they may begin now, or never.

        A job that waits for many others is looked at once for each of them, whatever their number.
        """
        yield from self._decided(ended.id)
        array = ended.array
        if array is not None and array in self._followers:
            arrays = self.job_table.arrays
            first_failure = ended.stage is not Stage.DONE and arrays.failed(array) == 1
            if first_failure or arrays.standing(array).ended:
                yield from self._decided(array)

    def _decided(self, number: int) -> Iterator[Entry]:
        """Yield the jobs for which it decides how far a job or an array is now."""
        standing: Standing | None = self.job_table.standing(number)
        for job_id in self._followers.pop(number, {}):
            entry, pending = self.job_table.entries.get(job_id), self._pending.get(job_id, {})
            if entry is None or entry.phase is not Phase.HELD:
                continue  # if it is resumed, it is judged anew
            told = verdict(pending.pop(number, ()), lambda _: standing)
            if told.waits:
                pending[number] = list(told.waits)
                self._followers.setdefault(number, {})[job_id] = None
            if told.hopeless or not pending:
                self._pending.pop(job_id, None)
                yield entry

    def waited_for(self, entry: Entry) -> bool:
        """Return true if other jobs are held for a job, or for its array."""
        followers = (*self._followers.get(entry.id, ()), *self._followers.get(entry.array or 0, ()))
        others = (self.job_table.entries.get(job_id) for job_id in followers)
        return any(other is not None and other.stage is Stage.HELD for other in others)

    # -- times ----------------------------------------------------------------------------------------

    def alarm(self, entry: Entry, at_s: float | None) -> None:
        """Have a job looked at again at a time; None: at none."""
        if at_s is not None and (at_s, entry.id) not in self._set:
            self._set.add((at_s, entry.id))
            heapq.heappush(self._alarms, (at_s, entry.id))

    def clear_alarms(self) -> None:
        """Forget when jobs are to be looked at."""
        self._alarms.clear()
        self._set.clear()

    def due(self, now: float) -> list[Entry]:
        """Take the jobs whose time has come and that have not ended."""
        found = {}
        while self._alarms and self._alarms[0][0] <= now:
            alarm = heapq.heappop(self._alarms)
            self._set.remove(alarm)
            entry = self.job_table.entries.get(alarm[1])
            if entry is not None:
                found[entry.id] = entry
        return list(found.values())

    def next_s(self) -> float | None:
        """Return when the next job is to be looked at, in seconds since 1970."""
        return self._alarms[0][0] if self._alarms else None


def not_before_s(entry: Entry) -> float | None:
    """Return the time before which a job may not start; None: there is none."""
    times = [at for at in (entry.spec.begin_s, entry.not_before_s) if at is not None]
    return max(times, default=None)


def why(entry: Entry, told: WaitVerdict, now: float) -> str:
    """Say why a job is held, as a sentence."""
    parts = [told.why()] if told.waits else []
    if entry.not_before_s is not None and entry.not_before_s > now:
        parts.append(f"{entry.trouble}; tried again at {stamp(entry.not_before_s)}, {left(entry)}")
    elif entry.spec.begin_s is not None and entry.spec.begin_s > now:
        parts.append(f"begins at {stamp(entry.spec.begin_s)}")
    return ", ".join(parts)


def left(entry: Entry) -> str:
    """Say how often a job will still be tried again if it goes on failing."""
    return f"{entry.spec.retries - entry.retried} of {entry.spec.retries} left"
