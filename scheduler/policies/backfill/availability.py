"""Free units of a class at each future time, as a step function that plans are made on.

Times are seconds on the grid of ``jobs.instant``. An interval holds its start and not its end. The last step
lasts for ever. Searches and changes work on whole stretches of an array, and take 1-3 us on a plan of 10 to
1,000 steps.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from scheduler.model.jobs import Job, JobState, instant
from scheduler.policies.backfill.queue import HALF_STEP_S
from scheduler.policies.base import View

SHORT = 40  # steps, up to which Python finds the least faster than numpy
WHOLE = np.dtype(np.int64)
STEP = WHOLE.itemsize
SEARCHED = 640  # steps searched at first, then four times as many at a time


@cache
def whole(number: int) -> NDArray[np.int64]:
    """Return the number as a numpy scalar, cached because numpy takes it in half the time."""
    return np.array(number, WHOLE)


class Availability:
    """Free units of one class over time.

    Args:
        units: number of free units, for ever from ``now`` on.
        now: begin of the plan.
    """

    __slots__ = ("_free", "_times")

    def __init__(self, units: int, now: float = 0.0) -> None:
        self._times = [now, math.inf]  # the begin of each step, and the end of the last
        self._free = array("q", (units,))

    @classmethod
    def beside(cls, held: Iterable[tuple[float, int]], units: int, now: float) -> Availability:
        """Return what is left of ``units`` beside what is held now, given as (until when, units)."""
        plan = cls(units, now)
        times, free = [now], [units]
        for end, more in sorted(held):
            free[0] -= more
            if end > times[-1]:
                times.append(end)
                free.append(more)
            elif end > now:
                free[-1] += more
            else:
                free[0] += more
        if times[-1] == math.inf:
            free.pop()
        else:
            times.append(math.inf)
        plan._times = times
        plan._free = array("q", accumulate(free))
        return plan

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self._free)

    def steps(self) -> Iterator[tuple[float, float, int]]:
        """Yield (start, end, free units) of each step; the last end is infinite."""
        for (start, end), free in zip(pairwise(self._times), self._free.tolist(), strict=True):
            yield start, end, free

    def at(self, time_s: float) -> int:
        """Free units at one time (the first step's before the plan begins)."""
        return self._free[self._step(time_s)]

    def least(self, start_s: float, end_s: float) -> int:
        """Return the fewest units that are free at any time of the interval."""
        first = self._step(start_s)
        last = max(bisect_left(self._times, end_s), first + 1)
        if last - first <= SHORT:
            return min(self._free[first:last])
        return int(np.frombuffer(self._free, WHOLE)[first:last].min())

    def peaks(self) -> tuple[list[float], list[int]]:
        """List when the most units free so far rises, and to how many: ascending times, ascending units."""
        most = np.maximum.accumulate(np.frombuffer(self._free, WHOLE))
        rises = np.flatnonzero(most[1:] > most[:-1]) + 1
        times = map(self._times.__getitem__, rises.tolist())
        return [self._times[0], *times], [self._free[0], *most[rises].tolist()]

    def stairs(self, until_s: float) -> list[tuple[int, float]]:
        """List how many units stay free from the begin of the plan on, and for how many seconds.

        Few units for long come first. Nothing is said of the time from ``until_s`` on.
        """
        times, free, stairs, step = self._times, self._free, [], 0
        begin, most, steps = times[0], free[0], len(free)
        while most > 0:
            while step < steps and free[step] >= most:
                step += 1
            until = min(times[step], until_s)
            if until > begin:
                stairs.append((most, until - begin + HALF_STEP_S))
            if until == until_s:
                break
            most = free[step]
        stairs.reverse()
        return stairs

    def earliest(self, units: int, duration_s: float, after_s: float) -> float:
        """Return the earliest time from ``after_s`` on from which ``units`` stay free for ``duration_s``.

        Infinite when there is none. A duration of 0 asks for one moment.
        """
        step = self._step(after_s)
        return self._search(
            step, len(self._free), max(after_s, self._times[step]), units, duration_s=duration_s
        )

    def _search(self, step: int, last: int, begin: float, units: int, *, duration_s: float) -> float:
        """Return the begin of the first gap in the steps ``step`` to before ``last`` that is long enough.

        The units may be free from ``begin`` on. If there is none: since when they are free at the end.
        """
        times, levels, length = self._times, np.frombuffer(self._free, WHOLE), SEARCHED
        needed = whole(units)
        while step < last:
            after = min(step + length, last)
            free = (levels[step:after] >= needed).tobytes()  # 1: so many are
            at = 0
            while (blocked := free.find(0, at)) >= 0:
                end = times[step + blocked]
                if end - begin >= duration_s and end > begin:
                    return begin
                at = free.find(1, blocked)
                if at < 0:
                    begin = times[after]
                    break
                begin = times[step + at]
            else:
                if after == last or times[after] - begin >= duration_s:
                    return begin
            step, length = after, 4 * length
        return begin

    def regions(self, units: int, after_s: float) -> list[tuple[float, float]]:
        """List the maximal intervals from ``after_s`` on with at least ``units`` free, as (start, end)."""
        first, times, regions = self._step(after_s), self._times, []
        levels = np.frombuffer(self._free, WHOLE, -1, STEP * first)
        free = (levels >= whole(units)).tobytes()  # 1: so many are
        begin = free.find(1)
        while begin >= 0:
            end = free.find(0, begin)
            if end < 0:
                regions.append((times[first + begin], math.inf))
                break
            regions.append((times[first + begin], times[first + end]))
            begin = free.find(1, end)
        if regions and regions[0][0] < after_s:
            regions[0] = after_s, regions[0][1]
        return regions

    def reserve(self, start_s: float, end_s: float, units: int) -> None:
        """Make ``units`` fewer free in the interval; the caller checks that they were free."""
        times, free = self._times, self._free
        if end_s <= start_s or end_s <= times[0]:
            return
        first = bisect_left(times, start_s)
        if first and times[first] != start_s:  # before the plan begins there is nothing
            times.insert(first, start_s)
            free.insert(first, free[first - 1])
        last = bisect_left(times, end_s, first)
        if times[last] != end_s:
            times.insert(last, end_s)
            free.insert(last, free[last - 1])
        levels = np.frombuffer(free, WHOLE, last - first, STEP * first)
        levels -= whole(units)
        del levels  # while it is kept the plan cannot shrink
        if last < len(free) and free[last] == free[last - 1]:
            del times[last], free[last]
        if first and free[first] == free[first - 1]:
            del times[first], free[first]

    def release(self, start_s: float, end_s: float, units: int) -> None:
        """Make ``units`` more free in the interval."""
        self.reserve(start_s, end_s, -units)

    def move_up(self, start_s: float, end_s: float, units: int, after_s: float) -> float:
        """Move the reservation of an interval to the earliest start (from ``after_s`` on); returns that."""
        step, last = self._step(after_s), bisect_left(self._times, start_s)
        begin = max(after_s, self._times[step])
        earlier_s = self._search(step, last, begin, units, duration_s=end_s - start_s)
        if earlier_s >= start_s:
            return start_s
        end = instant(earlier_s + end_s - start_s)
        if end > start_s and self.least(start_s, end) < 0:  # its own units are free for it, and only these
            return start_s
        self.release(start_s, end_s, units)
        self.reserve(earlier_s, end, units)
        return earlier_s

    def trim(self, now: float) -> None:
        """Forget what is past."""
        first = self._step(now)
        if first:
            del self._times[:first], self._free[:first]
        self._times[0] = max(self._times[0], now)

    def _step(self, time_s: float) -> int:
        """Return the index of the step that holds ``time_s``."""
        after = bisect_right(self._times, time_s, 0, len(self._free))
        return after - 1 if after else 0


def of_running(view: View, pool: str) -> Availability:
    """Plan a counted pool as the running jobs make it, by their expected ends.

    A job that takes longer than expected is taken to end any moment, but not now.
    """
    held = [
        (believed_end_s(state, view.now), place.units)
        for state in view.running.values()
        for place in state.places
        if place.pool == pool
    ]
    return Availability.beside(held, view.in_service[pool], view.now)


def awaited(job: Job, view: View, order: Iterable[Job] | None = None) -> tuple[float | None, list[int]]:
    """Predict when a waiting job starts if no job passes another, and name the jobs whose ends let it.

    Args:
        order: of the waiting jobs; None: that of the queue.
    """
    plans = {pool.name: of_running(view, pool.name) for pool in view.cluster.pools}
    ends = {number: believed_end_s(state, view.now) for number, state in view.running.items()}
    at = start_in_turn(job, order or view.waiting.values(), plans, view.now, ends=ends)
    return at, [number for number, end in ends.items() if end == at]


def believed_end_s(state: JobState, now: float) -> float:
    """Return when a running job is taken to end: as expected, or any moment, but not now."""
    return max(state.expected_end_s, instant(now + 1e-6))


def start_in_turn(
    job: Job,
    waiting: Iterable[Job],
    plans: Mapping[str, Availability],
    now: float,
    *,
    ends: dict[int, float] | None = None,
) -> float | None:
    """Predict the start of one of the jobs ``waiting`` for the units of ``plans``, which are used up.

    Args:
        ends: gets the end of each job before it.
    """
    after = now
    for other in waiting:
        end, after, (pool, way) = earliest_end(other, plans, after)
        if other.id == job.id or after == math.inf:
            break
        plans[pool].reserve(after, end, way.units)
        if ends is not None:
            ends[other.id] = end
    return None if after == math.inf else after


def earliest_end(
    job: Job, plans: Mapping[str, Availability], after_s: float
) -> tuple[float, float, tuple[str, Job]]:
    """Return (end, start, (class, way)) where the job would end first, starting from ``after_s`` on.

    Equal ends: the earlier start, then the class that comes first in ``plans``. Where no start can be found
    it is infinite, and the class "" if there is none at all.
    """
    best = math.inf, math.inf, ("", job)
    for way in job.ways:
        for pool, plan in plans.items():
            if way.runs_on(pool):
                length = way.estimate_on(pool)
                start = plan.earliest(way.units, length, after_s)
                end = instant(start + length)
                if end < best[0] or (end == best[0] and start < best[1]):
                    best = end, start, (pool, way)
    return best
