"""Limits of arrays: at most so many members of an array are admitted and have not ended.

This rule stands before the admission by memory and before all policies.

1. A member takes a place of its array when it is admitted, and gives it back when it ends.
2. A paused member keeps its place, because its processes are there. One that its owner suspends before it has
   begun gives its place up.
3. Members without a place wait in the order of their numbers.

Guarantee: of an array with limit N never more than N members have a place. If members wait, N have one.
Cost: O(log members) for each admission and each end.
Source: own; the same limit as ``%N`` of sbatch.
"""

from __future__ import annotations

import heapq

from scheduler.jobs.entry import Entry


class ArrayLimits:
    """The members of arrays with a limit that have a place, and those that wait for one."""

    def __init__(self) -> None:
        self._placed: dict[int, set[int]] = {}
        self._waiting: dict[int, Entry] = {}
        self._queues: dict[int, list[int]] = {}  # heaps; who waits no longer leaves when first

    def waits(self, job_id: int) -> bool:
        """Return true if the job waits for a place."""
        return job_id in self._waiting

    def why(self, job_id: int) -> str:
        """Name the reason why the job waits, as a clause; "": it does not wait for a place."""
        entry = self._waiting.get(job_id)
        return "" if entry is None else f"at most {entry.spec.array_limit} of array {entry.array} run at once"

    def hold(self, entry: Entry) -> None:
        """Give a place to a member that has one already, also if that exceeds the limit."""
        if entry.array is not None and entry.spec.array_limit is not None:
            self._placed.setdefault(entry.array, set()).add(entry.id)

    def must_wait(self, entry: Entry) -> bool:
        """Give the job its place (False), or let it wait for one."""
        array, limit = entry.array, entry.spec.array_limit
        if array is None or limit is None:
            return False
        placed = self._placed.setdefault(array, set())
        if entry.id not in placed and len(placed) >= limit:
            self._waiting[entry.id] = entry
            heapq.heappush(self._queues.setdefault(array, []), entry.id)
            return True
        placed.add(entry.id)
        return False

    def release(self, entry: Entry) -> list[Entry]:
        """Take a job's place, and let it wait no longer; return the members that have places now."""
        self._waiting.pop(entry.id, None)
        array, limit = entry.array, entry.spec.array_limit
        if array is None or limit is None or entry.id not in self._placed.get(array, ()):
            return []
        placed, queue, admitted = self._placed[array], self._queues.get(array, []), []
        placed.discard(entry.id)
        while queue and len(placed) < limit:
            job_id = heapq.heappop(queue)
            if member := self._waiting.pop(job_id, None):
                placed.add(job_id)
                admitted.append(member)
        if not placed:
            self._placed.pop(array), self._queues.pop(array, None)
        return admitted
