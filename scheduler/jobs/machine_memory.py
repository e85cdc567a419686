"""The memory of the machine, which an attempt has from its start to its end, also while it is paused.

A policy that places on nodes plans with their memory; others know of none, and nobody plans with what paused
jobs keep. So one rule stands behind all of them:

1. A job starts only if the memory that it asks for is free. Else it is *short*: it leaves the policy's queue,
   and comes back when it would fit.
2. Short jobs come back by priority, then by number.
3. A job passes the first short one only while all jobs that have passed leave room for that one.

Guarantee: the sum of what is set aside never exceeds the total. A short job fits at the latest when all jobs
that have started before it have ended.
Cost: O(jobs that have memory + sizes) for a start and an end; O(waiting jobs) for a start that is refused.
Source: own; rule 3 is EASY's rule of spare units (Lifka 1995) without its reserved time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from scheduler.jobs.literals import memory_text

TOLERANCE_MB = 1e-6


class Claim(NamedTuple):
    """The memory that a job asks for; a smaller claim comes first."""

    minus_priority: int
    job_id: int
    mb: float

    @property
    def turn(self) -> tuple[int, int]:
        """Its place among the claims of all jobs; those of one job, in its alternatives, have the same."""
        return self.minus_priority, self.job_id


class MachineMemory:
    """The memory that is set aside for jobs, and the jobs that are short of theirs.

    Args:
        total_mb: what all jobs together may have; infinite: memory is not limited here.
    """

    def __init__(self, total_mb: float) -> None:
        self.total_mb = total_mb
        self._held: dict[int, Claim] = {}
        self._held_mb = 0.0
        self._short: dict[int, Claim] = {}  # refused, and not started since
        self._turns: list[Claim] = []  # the same, in order
        self._sizes: Counter[float] = Counter()  # the same, by size
        self._away: set[int] = set()  # of these, who is not in the policy's queue

    @property
    def free_mb(self) -> float:
        """Memory that is not set aside."""
        return self.total_mb - self._held_mb

    def is_held(self, job_id: int) -> bool:
        """Return true if memory is set aside for the job."""
        return job_id in self._held

    def holds_other(self, claim: Claim) -> bool:
        """Return true if other memory is set aside for the job than it claims."""
        return self._held.get(claim.job_id, claim).mb != claim.mb

    def is_short(self, job_id: int) -> bool:
        """Return true if the job was refused its memory, and has not started since."""
        return job_id in self._short

    def waits(self, job_id: int) -> bool:
        """Return true if the job waits outside the policy's queue until its memory is free."""
        return job_id in self._away

    def contended(self, claims: Iterable[Claim]) -> bool:
        """Return true if a job is short, or the claims cannot all be met at once."""
        more_mb = sum(claim.mb for claim in claims if claim.job_id not in self._held)
        return bool(self._short) or more_mb > self.free_mb + TOLERANCE_MB

    def why(self, job_id: int, name_of: Callable[[int], str] = str) -> str:
        """Name the reason why the job waits for memory, as a clause; "": the job does not wait for memory."""
        if job_id not in self._away:
            return ""
        first, claim = self._turns[0], self._short[job_id]
        room = f"{memory_text(self.free_mb)} of {memory_text(self.total_mb)} are free"
        behind = "" if first == claim else f", and job {name_of(first.job_id)} has the first turn"
        return f"waits for {memory_text(claim.mb)} of memory; {room}{behind}"

    def lacking(self, claims: Iterable[Claim]) -> list[Claim]:
        """Choose the claims that cannot be met now, each by itself."""
        free_mb, spare_mb = self.free_mb + TOLERANCE_MB, self._spare_mb()
        first = next(iter(self._turns), None)
        return [
            claim
            for claim in claims
            if claim.mb > (free_mb if first is None or claim.turn <= first.turn else min(free_mb, spare_mb))
            and claim.job_id not in self._held
        ]

    def wait(self, claim: Claim) -> None:
        """Let a job that is short wait outside the policy's queue."""
        self._drop(claim.job_id)
        self._short[claim.job_id] = claim
        self._sizes[claim.mb] += 1
        insort(self._turns, claim)
        self._away.add(claim.job_id)

    def hold(self, claim: Claim) -> bool:
        """Set memory aside for a job, also beyond the total; whether others may gain: it was short."""
        if claim.mb and claim.job_id not in self._held:
            self._held[claim.job_id] = claim
            self._held_mb += claim.mb
        return self._drop(claim.job_id)

    def release(self, job_id: int) -> bool:
        """Set no memory aside for the job any more, and let it wait no longer; whether others may gain."""
        short, held = self._drop(job_id), self._held.pop(job_id, None)
        if held is not None:  # no rounding error outlives the jobs
            self._held_mb = self._held_mb - held.mb if self._held else 0.0
        return short or held is not None

    def prioritize(self, job_id: int, priority: int) -> None:
        """Change the turn of a job, whether it waits for memory or has it."""
        if job_id in self._held:
            self._held[job_id] = self._held[job_id]._replace(minus_priority=-priority)
        elif job_id in self._short:
            away, claim = job_id in self._away, self._short[job_id]
            self.wait(claim._replace(minus_priority=-priority))
            if not away:
                self._away.remove(job_id)

    def admit(self) -> list[int]:
        """Choose who comes back to the policy's queue, in the order of their turns."""
        admitted: list[int] = []
        free_mb, spare_mb = self.free_mb + TOLERANCE_MB, self._spare_mb()
        least_mb = min(self._sizes, default=math.inf)
        for place, claim in enumerate(self._turns):
            room_mb = min(free_mb, spare_mb) if place else free_mb
            if place and room_mb < least_mb:
                break
            if claim.job_id in self._away and claim.mb <= room_mb:
                free_mb -= claim.mb
                spare_mb -= claim.mb if place else 0.0
                admitted.append(claim.job_id)
        self._away.difference_update(admitted)
        return admitted

    def _spare_mb(self) -> float:
        """Return what those that have passed the first short job leave beside it (rule 3)."""
        if not self._turns:
            return math.inf
        first = self._turns[0]
        passed_mb = sum(claim.mb for claim in self._held.values() if claim > first)
        return self.total_mb - first.mb - passed_mb + TOLERANCE_MB

    def _drop(self, job_id: int) -> bool:
        """Count a job among the short ones no more; whether it was one."""
        claim = self._short.pop(job_id, None)
        if claim is None:
            return False
        self._away.discard(job_id)
        del self._turns[bisect_left(self._turns, claim)]
        self._sizes -= Counter([claim.mb])  # without those of which none is left
        return True
