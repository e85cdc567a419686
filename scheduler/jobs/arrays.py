"""Progress and limits of arrays of jobs. An array has a number of its own, its members follow with theirs."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from scheduler.jobs.dependencies import Standing
from scheduler.jobs.entry import Entry, Stage

# An array's stage is the first of these that a member has.
PRECEDENCE = (
    *(Stage.RUNNING, Stage.STOPPING, Stage.SUSPENDED, Stage.WAITING, Stage.HELD),
    *(Stage.FAILED, Stage.KILLED, Stage.CANCELLED, Stage.DONE),
)


def array_stage(members: Mapping[str, int] | Mapping[Stage, int]) -> Stage:
    """Return the stage of an array as a whole, which is always the stage of a member.

    A filter that finds members by their stage thus finds every array that is shown with that stage.

    Args:
        members: how many are in each stage.
    """
    return next(stage for stage in PRECEDENCE if members.get(stage))


class Arrays:
    """The members of each array: how many have ended in each final stage, and how many have not ended.

    Args:
        counts: array, stage and number of its members in that stage.
    """

    def __init__(self, counts: Iterable[tuple[int, str, int]] = ()) -> None:
        self._ended: dict[int, Counter[Stage]] = {}
        self._open: Counter[int] = Counter()
        for array, name, count in counts:
            ended, stage = self._ended.setdefault(array, Counter()), Stage(name)
            if stage.final:
                ended[stage] += count
            else:
                self._open[array] += count

    def __contains__(self, number: int) -> bool:
        return number in self._ended

    def add(self, array: int, members: int) -> None:
        """Take in a new array."""
        self._ended.setdefault(array, Counter())
        self._open[array] += members

    def end(self, array: int, stage: Stage) -> None:
        """Note the end of a member."""
        self._open[array] -= 1
        self._ended[array][stage] += 1

    def run_again(self, array: int, stage: Stage) -> None:
        """Note that a member that had ended in this stage runs again."""
        self._open[array] += 1
        self._ended[array][stage] -= 1

    def __iter__(self) -> Iterator[int]:
        return iter(self._ended)

    def open(self, array: int) -> int:
        """Count the members that have not ended."""
        return self._open[array]

    def members(self, array: int) -> int:
        """Count all members."""
        return self._open[array] + self._ended[array].total()

    def ended(self, array: int) -> Counter[Stage]:
        """Count the members that have ended, by their final stage."""
        return self._ended[array]

    def failed(self, array: int) -> int:
        """Count the members that have ended without success."""
        ended = self._ended[array]
        return ended.total() - ended[Stage.DONE]

    def standing(self, array: int) -> Standing:
        """Return how far the whole is for those that wait for it."""
        return Standing(not self._open[array], self.failed(array) > 0)


class ArrayLimits:
    """The members of arrays with a limit that have a place, and those that wait for one.

    At most so many members of an array are admitted and have not ended. This rule stands before the admission
    by memory and before all policies.

    1. A member takes a place of its array when it is admitted, and gives it back when it ends.
    2. A paused member keeps its place, because its processes are there. One that its owner suspends before it
       has begun gives its place up.
    3. Members without a place wait in the order of their numbers.

    Guarantee: of an array with limit N never more than N members have a place. If members wait, N have one.
    Cost: O(log members) for each admission and each end.
    Source: own; the same limit as ``%N`` of sbatch.
    """

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

    def ahead(self, job_id: int) -> list[int]:
        """List the members that have the places for which the job waits."""
        entry = self._waiting.get(job_id)
        return [] if entry is None or entry.array is None else sorted(self._placed.get(entry.array, ()))

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
