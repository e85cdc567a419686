"""MCT and its family written down a second time: lists of reservations, exact fractions, microseconds.

Estimates and costs being exact, a schedule follows from the jobs in their order alone: each is planned when
it is submitted, beside the parts of those before it, and nothing is changed afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from scheduler.model.costs import Costs
from scheduler.model.jobs import Cluster, Job
from scheduler.simulator.trace import Arrival

SECOND = 1_000_000


class Stay(NamedTuple):
    """A job holds units of a class from ``start`` to ``end`` (microseconds)."""

    pool: str
    start: float
    end: float
    units: int


def micro(seconds: float | Fraction) -> int:
    return round(Fraction(seconds) * SECOND)


@dataclass
class Machine:
    """The reservations on each class."""

    units: dict[str, int]
    stays: list[Stay] = field(default_factory=list)

    def free(self, pool: str, time: float) -> int:
        return self.units[pool] - sum(
            s.units for s in self.stays if s.pool == pool and s.start <= time < s.end
        )

    def turns(self, pool: str, after: float) -> list[float]:
        """``after``, and every later time at which something changes."""
        edges = {t for s in self.stays if s.pool == pool for t in (s.start, s.end)}
        return [after, *sorted(t for t in edges if t > after)]

    def regions(self, pool: str, units: int, after: float) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        begun = None
        for time in self.turns(pool, after):
            if self.free(pool, time) >= units:
                begun = time if begun is None else begun
            elif begun is not None:
                found.append((begun, time))
                begun = None
        return found if begun is None else [*found, (begun, math.inf)]

    def end_of_queue(self, pool: str, units: int, now: float) -> float:
        """From when the units stay free, but not before a start that is reserved."""
        begin = max([now, *(s.start for s in self.stays if s.pool == pool)])
        return max(begin, self.regions(pool, units, begin)[-1][0])


@dataclass
class Planner:
    """The readings, one job at a time."""

    cluster: Cluster
    costs: Costs
    backfill: bool = False
    migrate: bool = False
    literal: bool = False

    def run(self, arrivals: tuple[Arrival, ...]) -> dict[int, list[Stay]]:
        self.machine = Machine({pool.name: pool.units for pool in self.cluster.pools})
        plans: dict[int, list[Stay]] = {}
        for arrival in arrivals:
            plans[arrival.job.id] = self._plan(arrival.job)
            self.machine.stays += plans[arrival.job.id]
        return plans

    def _plan(self, job: Job) -> list[Stay]:
        now = micro(job.submit_s)
        large = [pool for pool in job.estimates_s if self.cluster[pool].units >= job.units]
        self.order = sorted(large, key=lambda p: (job.estimates_s[p], self.cluster[p].rank))
        ends = {}
        for pool in self.order:
            start = self.machine.end_of_queue(pool, job.units, now)
            ends[pool] = Stay(pool, start, micro(start / Fraction(SECOND) + _run(job, pool)), job.units)
        mct = min(ends.values(), key=lambda stay: (stay.end, stay.start))
        split = (
            self._split(job, now, mct, {p: stay.start for p, stay in ends.items()}) if self.migrate else []
        )
        if self.literal:
            return split or [mct]
        best = [mct]
        if self.backfill:
            for pool in self.order:
                hole = self._hole(job, pool, now)
                best = [hole] if hole.end < best[0].end else best
        return split if split and split[-1].end < best[0].end else best

    def _hole(self, job: Job, pool: str, now: int) -> Stay:
        for start, end in self.machine.regions(pool, job.units, now):
            stay = Stay(pool, start, micro(start / Fraction(SECOND) + _run(job, pool)), job.units)
            if stay.end <= end:
                return stay
        raise AssertionError("the last region has no end")

    def _better(self, pool: str, than: str) -> bool:
        return self.order.index(pool) < self.order.index(than)

    def _looked_at(
        self, job: Job, now: int, mct: Stay, queues: dict[str, float]
    ) -> list[tuple[float, float, str]]:
        found = []
        for pool in self.order:
            regions = [(queues[pool], math.inf)]
            if self.backfill:
                regions = self.machine.regions(pool, job.units, now)
            for start, end in regions:
                counts = self._better(mct.pool, pool) if end == math.inf else True
                first = start < mct.start or (start == mct.start and self._better(pool, mct.pool))
                if counts and (first or (self.literal and end < math.inf)):
                    found.append((start, end, pool))
        return sorted(found, key=lambda region: (region[0], self.order.index(region[2])))

    def _split(self, job: Job, now: int, mct: Stay, queues: dict[str, float]) -> list[Stay]:
        regions = self._looked_at(job, now, mct, queues)
        stop = {p: micro(self.costs.stop_s(job, p)) for p in self.order}
        restart = {p: micro(self.costs.restart_s(job, p)) for p in self.order}
        stays: list[Stay] = []
        done, at = Fraction(0), float(now)
        for begin, until, pool in regions:
            start = max(begin, at)
            cuts = [
                b
                for b, e, p in [*regions, (mct.start, math.inf, mct.pool)]
                if self._better(p, pool) and e - b > stop[p] + restart[p] and start <= b <= until
            ]
            end = min([until, *cuts])
            if start >= end:
                continue
            works = start + (restart[pool] if stays else 0)
            last = _end(works, done, job, pool)
            if last <= end:
                return [*stays, Stay(pool, start, last, job.units)]
            useful = end - stop[pool] - works
            if useful > 0:
                stays.append(Stay(pool, start, end, job.units))
                done, at = done + Fraction(useful) / SECOND / _run(job, pool), end
        if not stays:
            return []
        if self.literal and _run(job, mct.pool) * done < Fraction(restart[mct.pool], SECOND):
            return []
        start = max(mct.start, at)
        while any(self.machine.free(mct.pool, t) < job.units for t in self.machine.turns(mct.pool, start)):
            start = self.machine.turns(mct.pool, start)[1]
        return [
            *stays,
            Stay(mct.pool, start, _end(start + restart[mct.pool], done, job, mct.pool), job.units),
        ]


def _run(job: Job, pool: str) -> Fraction:
    return Fraction(job.estimates_s[pool])


def _end(works: float, done: Fraction, job: Job, pool: str) -> int:
    """Return the end; a job that is not new is planned 1 us longer, for the rounding of its shares."""
    end = micro(Fraction(works) / SECOND + (1 - done) * _run(job, pool))
    return end + (1 if done else 0)
