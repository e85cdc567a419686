"""How many units of a class are free at each future time: a step function that plans are made on.

Arrays with room to grow, so that every operation is a few vector instructions however long the plan is:
about 5-15 us on a plan of 10 to 1,000 steps. Times are seconds on the grid of ``model.instant``; an interval
holds its start and not its end; the last step lasts for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from scheduler.model import Job, instant
from scheduler.policy import View


class Availability:
    """Free units of one class over time.

    Args:
        units: how many are free, for ever from ``now`` on.
        now: begin of the plan.
    """

    __slots__ = ("_free", "_n", "_times")

    def __init__(self, units: int, now: float = 0.0) -> None:
        self._times = np.empty(64)
        self._free = np.empty(64, dtype=np.int64)
        self._times[0], self._free[0] = now, units
        self._n = 1

    def __len__(self) -> int:
        """Number of steps."""
        return self._n

    def steps(self) -> Iterator[tuple[float, float, int]]:
        """(start, end, free units) of each step; the last end is infinite."""
        times = [*self._times[: self._n].tolist(), math.inf]
        for (start, end), free in zip(pairwise(times), self._free[: self._n].tolist(), strict=True):
            yield start, end, free

    def at(self, time_s: float) -> int:
        """Free units at one time (the first step's before the plan begins)."""
        return int(self._free[self._step(time_s)])

    def least(self, start_s: float, end_s: float) -> int:
        """The fewest units that are free at any time of the interval."""
        first = self._step(start_s)
        last = int(self._times[: self._n].searchsorted(end_s, "left"))
        return int(self._free[first : max(last, first + 1)].min())

    def peaks(self) -> tuple[list[float], list[int]]:
        """When the most units free so far rises, and to how many: ascending times, ascending units."""
        most = np.maximum.accumulate(self._free[: self._n])
        rises = np.flatnonzero(most[1:] > most[:-1]) + 1
        return [float(self._times[0]), *self._times[rises].tolist()], [int(most[0]), *most[rises].tolist()]

    def earliest(self, units: int, duration_s: float, after_s: float) -> float:
        """The earliest time from ``after_s`` on from which ``units`` stay free for ``duration_s``.

        Infinite when there is none. A duration of 0 asks for one moment.
        """
        first = self._step(after_s)
        blocked = np.flatnonzero(self._free[first : self._n] < units)
        if not len(blocked):
            return max(after_s, float(self._times[first]))
        if blocked[0] > 0 and self._times[first + blocked[0]] - after_s >= duration_s:
            return max(after_s, float(self._times[first]))
        # The gap after each blocked step reaches to the next blocked one (zero, if that follows at once).
        starts = self._times[first + 1 :][blocked[:-1]]
        gaps = self._times[first:][blocked[1:]] - starts
        wide = np.flatnonzero((gaps >= duration_s) & (gaps > 0))
        if len(wide):
            return float(starts[wide[0]])
        last = first + int(blocked[-1]) + 1
        return float(self._times[last]) if last < self._n else math.inf

    def regions(self, units: int, after_s: float) -> list[tuple[float, float]]:
        """The maximal intervals from ``after_s`` on with at least ``units`` free, as (start, end)."""
        first = self._step(after_s)
        free = self._free[first : self._n] >= units
        turns = np.flatnonzero(free[1:] != free[:-1])
        edges = self._times[first + 1 :][turns].tolist()
        if free[0]:
            edges.insert(0, max(after_s, float(self._times[first])))
        if free[-1]:
            edges.append(math.inf)
        return list(zip(edges[::2], edges[1::2], strict=True))

    def reserve(self, start_s: float, end_s: float, units: int) -> None:
        """``units`` fewer are free in the interval; whether they were free is the caller's business."""
        self._add(start_s, end_s, -units)

    def release(self, start_s: float, end_s: float, units: int) -> None:
        """``units`` more are free in the interval."""
        self._add(start_s, end_s, units)

    def move_up(self, start_s: float, end_s: float, units: int, after_s: float) -> float:
        """Move the reservation of an interval to the earliest start (from ``after_s`` on); returns that."""
        first, last = self._edge(start_s), self._edge(end_s)
        own = self._free[first:last]
        own += units
        found = self.earliest(units, end_s - start_s, after_s)
        if found >= start_s:
            own -= units
            found = start_s
        self._merge(last)
        self._merge(first)
        if found < start_s:
            self.reserve(found, instant(found + end_s - start_s), units)
        return found

    def trim(self, now: float) -> None:
        """Forget what is past."""
        first = self._step(now)
        if first:
            n = self._n - first
            self._times[:n] = self._times[first : self._n]
            self._free[:n] = self._free[first : self._n]
            self._n = n
        self._times[0] = max(self._times[0], now)

    def _step(self, time_s: float) -> int:
        """Index of the step that holds ``time_s``."""
        return max(int(self._times[: self._n].searchsorted(time_s, "right")) - 1, 0)

    def _edge(self, time_s: float) -> int:
        """Index of the step that begins at ``time_s``, made if there is none; the end for infinity."""
        if time_s == math.inf:
            return self._n
        n = self._n
        i = int(self._times[:n].searchsorted(time_s, "left"))
        if i < n and self._times[i] == time_s:
            return i
        if i == 0:
            return 0  # before the plan begins
        if n == len(self._times):
            self._times = np.concatenate((self._times, np.empty(n)))
            self._free = np.concatenate((self._free, np.empty(n, dtype=np.int64)))
        times, free = self._times, self._free
        times[i + 1 : n + 1] = times[i:n]
        free[i + 1 : n + 1] = free[i:n]
        times[i] = time_s
        free[i] = free[i - 1]
        self._n = n + 1
        return i

    def _merge(self, i: int) -> None:
        """Join step ``i`` to the one before it if they are alike."""
        n = self._n
        if 0 < i < n and self._free[i] == self._free[i - 1]:
            self._times[i : n - 1] = self._times[i + 1 : n]
            self._free[i : n - 1] = self._free[i + 1 : n]
            self._n = n - 1

    def _add(self, start_s: float, end_s: float, units: int) -> None:
        if end_s <= start_s or end_s <= self._times[0]:
            return
        first, last = self._edge(start_s), self._edge(end_s)
        self._free[first:last] += units
        self._merge(last)
        self._merge(first)


def of_running(view: View, pool: str) -> Availability:
    """The plan of a counted pool as the running jobs make it, by their expected ends.

    A job that takes longer than expected is taken to end any moment, but not now.
    """
    plan = Availability(view.in_service[pool], view.now)
    soon = instant(view.now + 1e-6)
    for state in view.running.values():
        if state.placement is not None and state.placement.pool == pool:
            plan.reserve(view.now, max(state.expected_end_s, soon), state.placement.units)
    return plan


def expected_start(job: Job, view: View, pool: str) -> float | None:
    """When a waiting job would start if nobody passed those before it; None: it cannot be said."""
    plan = of_running(view, pool)
    after = view.now
    for other in view.waiting.values():
        length = other.estimate_on(pool)
        after = plan.earliest(other.units, length, after)
        if other.id == job.id or after == math.inf:
            break
        plan.reserve(after, after + length, other.units)
    return None if after == math.inf else after
