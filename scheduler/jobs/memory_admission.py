"""Admission by memory: a job enters the policy's queue when the memory that it asks for is free.

Policies decide about cores, devices, packages or nodes. On one machine this rule stands before all of them.

1. A job's memory is set aside from its admission to its end. A paused job keeps its memory, because its
   processes do.
2. Jobs whose memory is not free wait by priority, then by number. They are admitted in that order.
3. A job may pass the first of them only while all jobs that have passed leave room for the first one.
4. A job of a higher priority takes the memory of admitted jobs that have never started. Those wait again.

Guarantee: the sum of what is set aside never exceeds the total. A waiting job is admitted at the latest when
all jobs that were admitted before it have ended.
Cost: O(different sizes of memory) for each admission and each end.
Source: own; rule 3 is EASY's rule of spare units (Lifka 1995) without its reserved time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from scheduler.jobs.literals import memory_text

TOLERANCE_MB = 1e-6


class Turn(NamedTuple):
    """A place in the queue: a smaller one comes first."""

    minus_priority: int
    job_id: int


class MemoryAdmission:
    """The memory that is set aside for jobs, and the jobs that wait for theirs.

    Args:
        total_mb: what all jobs together may have; infinite: memory is not limited here.
    """

    def __init__(self, total_mb: float) -> None:
        self.total_mb = total_mb
        self._held: dict[int, tuple[Turn, float]] = {}
        self._held_mb = 0.0
        self._priorities: Counter[int] = Counter()  # of those held, by ``Turn.minus_priority``
        self._waiting: dict[int, tuple[Turn, float]] = {}
        self._by_size: dict[float, list[Turn]] = {}  # heaps; who waits no longer leaves when first
        self._first: Turn | None = None  # for which _passed_mb was counted
        self._passed_mb = 0.0

    @property
    def free_mb(self) -> float:
        """Memory that is not set aside."""
        return self.total_mb - self._held_mb

    def is_held(self, job_id: int) -> bool:
        """Return true if memory is set aside for the job."""
        return job_id in self._held

    def waits(self, job_id: int) -> bool:
        """Return true if the job waits for memory."""
        return job_id in self._waiting

    def contended(self) -> bool:
        """Return true if any job waits for memory."""
        return bool(self._waiting)

    def why(self, job_id: int) -> str:
        """Name the reason why the job waits for memory, as a clause; "": the job does not wait for memory."""
        if job_id not in self._waiting:
            return ""
        turn, needed_mb = self._waiting[job_id]
        room = f"{memory_text(self.free_mb)} of {memory_text(self.total_mb)} are free"
        first = self._first_waiting()
        if first == turn or first is None:
            return f"waits for {memory_text(needed_mb)} of memory; {room}"
        return (
            f"waits for {memory_text(needed_mb)} of memory; {room}, and job {first.job_id} has the first turn"
        )

    def hold(self, job_id: int, priority: int, needed_mb: float) -> None:
        """Set memory aside for a job that has it already, also if that exceeds the total."""
        if job_id in self._held or not needed_mb:
            return
        turn = Turn(-priority, job_id)
        self._held[job_id] = turn, needed_mb
        self._held_mb += needed_mb
        self._priorities[turn.minus_priority] += 1
        if self._first is not None and turn > self._first:
            self._passed_mb += needed_mb

    def wait(self, job_id: int, priority: int, needed_mb: float) -> None:
        """Let a job wait for memory; ``admit`` says whether its turn has come."""
        turn = Turn(-priority, job_id)
        self._waiting[job_id] = turn, needed_mb
        heapq.heappush(self._by_size.setdefault(needed_mb, []), turn)

    def release(self, job_id: int) -> bool:
        """Set no memory aside for the job any more, and let it wait no longer; whether others may gain."""
        waited = self._waiting.pop(job_id, None) is not None
        turn, held_mb = self._held.pop(job_id, (None, 0.0))
        if turn is None:
            return waited
        self._priorities -= Counter([turn.minus_priority])  # without those of which none is left
        self._held_mb = self._held_mb - held_mb if self._held else 0.0  # no rounding error outlives the jobs
        if self._first is not None and turn > self._first:
            self._passed_mb -= held_mb
        return True

    def prioritize(self, job_id: int, priority: int) -> None:
        """Change the turn of a job, whether it waits for memory or has it."""
        for known, again in ((self._waiting, self.wait), (self._held, self.hold)):
            if job_id in known:
                needed_mb = known[job_id][1]
                self.release(job_id)
                again(job_id, priority, needed_mb)
                return

    def admit(self) -> list[int]:
        """Set memory aside for those whose turn has come; their numbers, in the order of their turns."""
        admitted = []
        while (first := self._first_waiting()) is not None:
            self._count_passed(first)
            room = self.free_mb
            if self._waiting[first.job_id][1] > room + TOLERANCE_MB:
                room = min(room, self.total_mb - self._waiting[first.job_id][1] - self._passed_mb)
            turn = min(self._turns(room + TOLERANCE_MB), default=None)
            if turn is None:
                break
            needed_mb = self._waiting.pop(turn.job_id)[1]
            self.hold(turn.job_id, -turn.minus_priority, needed_mb)
            admitted.append(turn.job_id)
        return admitted

    def in_the_way(self, may_wait: Callable[[int], bool]) -> list[int]:
        """Choose the jobs that give their memory up to the first that waits (rule 4).

        They are as few as make room for it, the last ones first; none if they do not make room.

        Args:
            may_wait: whether a job that has memory has never started.
        """
        first = self._first_waiting()
        if first is None or max(self._priorities, default=first.minus_priority) <= first.minus_priority:
            return []
        lower = [held for held in self._held.values() if held[0].minus_priority > first.minus_priority]
        missing_mb, job_ids = self._waiting[first.job_id][1] - self.free_mb, []
        for turn, held_mb in sorted(lower, reverse=True):
            if missing_mb <= TOLERANCE_MB:
                break
            if may_wait(turn.job_id):
                missing_mb -= held_mb
                job_ids.append(turn.job_id)
        return job_ids if missing_mb <= TOLERANCE_MB else []

    def _count_passed(self, first: Turn) -> None:
        if first != self._first:
            self._first = first
            self._passed_mb = sum(held_mb for turn, held_mb in self._held.values() if turn > first)

    def _first_waiting(self) -> Turn | None:
        return min(self._turns(float("inf")), default=None)

    def _turns(self, most_mb: float) -> Iterable[Turn]:
        """Yield the first turn of each size of memory up to ``most_mb``."""
        for needed_mb in [mb for mb in self._by_size if mb <= most_mb]:
            heap = self._by_size[needed_mb]
            while heap and self._waiting.get(heap[0].job_id) != (heap[0], needed_mb):
                heapq.heappop(heap)
            if heap:
                yield heap[0]
            else:
                del self._by_size[needed_mb]
