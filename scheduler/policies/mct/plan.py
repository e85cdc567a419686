"""Plans of one job for MET, MCT, MCTB, MCTM and MCTBM, on free units over time; and what these keep of jobs.

A plan is a list of parts, each a stay on one class. The classes of a job are in its own order, the one on
which it runs fastest first; indices below are places in that order. Times lie on the grid of
``model.instant``, and a part is as long as an engine will find it: the restart (if the job has run before),
then work, then the checkpoint (if another part follows).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from scheduler.model.jobs import NEVER, PAUSE, STOPPING, WAITING, Job, JobState, instant, record
from scheduler.policies.backfill.availability import Availability
from scheduler.policies.base import View

MOMENT_S = 1e-6  # step of the grid of time, and least length of a part


@record
class Stay:
    """A part: a stay on one class. ``stop_s``: begin of its checkpoint (infinite: the job ends there)."""

    pool: str
    start_s: float
    stop_s: float
    end_s: float


Stays = tuple[Stay, ...]
Interval = tuple[float, float]  # an interval in which enough units are free


@dataclass(slots=True)
class PoolPlan:
    """The plan of one class.

    Attributes:
        availability: its free units over time. last_start_s: the last start that is reserved on it.
        slack_until_s: end of the last reservation that was given up early and may have left a gap.
        price: of a unit-second.
    """

    name: str
    units: int
    availability: Availability
    last_start_s: float
    slack_until_s: float = -math.inf
    price: float = 0.0

    def take(self, part: Stay, units: int) -> None:
        """Reserve a part, and mark its start."""
        self.availability.reserve(part.start_s, part.end_s, units)
        if part.start_s > self.last_start_s:
            self.mark(part, units)

    def mark(self, part: Stay, units: int) -> None:
        """Let later jobs start no earlier; a job with too few units in service stops no others."""
        if part.start_s > self.last_start_s and (part.start_s < math.inf or units <= self.units):
            self.last_start_s = part.start_s


@dataclass(frozen=True)
class MctParameters:
    """The member of the family; the names of the registry set the first four.

    Attributes:
        fastest: MET: each job where it runs fastest, of the classes with enough units, however long it waits.
        backfill: MCTB: a job may fill a hole before the end of a class's queue.
        migrate: MCTM: a job may be cut into parts; with ``backfill``: MCTBM.
        priced: plans are compared with what they take from others (see ``mct``).
        literal: the printed steps 6 and 7, which keep plans even if the job ends later.
        tries: number of jobs that are planned again when units are free early.
    """

    fastest: bool = False
    backfill: bool = False
    migrate: bool = False
    priced: bool = False
    literal: bool = False
    tries: int = 5

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ValueError("tries must be at least 1")
        if self.fastest and (self.backfill or self.migrate or self.priced or self.literal):
            raise ValueError("met neither backfills nor migrates")
        if self.literal and not self.migrate:
            raise ValueError("literal is about migration")
        if self.priced and (self.literal or not self.backfill):
            raise ValueError("priced needs backfill, and is not literal")


@dataclass(slots=True)
class RemainingJob:
    """All of a job, or the rest of it, that is to be planned.

    Attributes:
        pool_plans: the classes that it can run on, best first.
        run_s, stop_s, restart_s: on each of them, of the whole job.
        now: time of planning. ready_s: from then on the job can start anywhere.
        stoppable: it may be cut into parts. tied: all parts must be on one class.
        stint: least share of its work that a part does, unless it is the last part.
        done: share of its work that is done. begun: a further start is a restart.
        here: index of the class it runs on now (-1: it does not run). It can stay there at no cost.
            ``ready_s`` contains the stop that it needs before it goes on elsewhere.
        works_s: begin of its progress there. stays_s: until then it is not stopped there.
    """

    units: int
    pool_plans: Sequence[PoolPlan]
    run_s: Sequence[float]
    stop_s: Sequence[float]
    restart_s: Sequence[float]
    now: float
    ready_s: float
    stoppable: bool = False
    tied: bool = False
    stint: float = 0.0
    done: float = 0.0
    begun: bool = False
    here: int = -1
    works_s: float = 0.0
    stays_s: float = 0.0

    def regions(self, k: int) -> list[Interval]:
        """List the maximal intervals with enough free units on class ``k``; none where no job can queue."""
        pool_plan = self.pool_plans[k]
        if pool_plan.last_start_s == math.inf:
            return []
        return pool_plan.availability.regions(self.units, self.now if k == self.here else self.ready_s)

    def works(self, k: int, start: float) -> float:
        """Compute when a job that has run before makes progress in a part that starts then."""
        if k == self.here and start == self.now:
            return self.works_s
        return instant(start + self.restart_s[k]) if self.restart_s[k] else start

    def last(self, k: int, start: float, end: float) -> Stay:
        """Make a part that runs to the job's ``end``."""
        return Stay(self.pool_plans[k].name, start, math.inf, end)

    def end(self, k: int, start: float, done: float, begun: bool) -> float:
        """Compute when a part ends that runs to the job's end."""
        works = self.works(k, start) if begun else start
        end = instant(works + (1.0 - done) * self.run_s[k])
        # Shares of the work are rounded, and no part is shorter than a moment.
        return instant(end + MOMENT_S) if done or end <= start else end

    def earliest_end(self) -> float:
        """Bound the end of all plans from below: where the job runs fastest, now, without a stop."""
        return self.now + (1.0 - self.done) * self.run_s[0]

    def whole(self, k: int, start: float) -> Stays:
        """Plan all that is left of the job on one class."""
        return self.moved([self.last(k, start, self.end(k, start, self.done, self.begun))])

    def length(self, k: int) -> float:
        """Return how long the rest of the job takes on another class than its own."""
        length = self.run_s[k]
        if self.begun or self.done:
            length = (1.0 - self.done) * length + (2 * MOMENT_S if self.done else 0.0)
            length += self.restart_s[k] if self.begun else 0.0
        return length if length > MOMENT_S else MOMENT_S

    def moved(self, parts: list[Stay]) -> Stays:
        """Put the stop before the parts that a running job needs, unless it stays where it is."""
        if self.here >= 0 and (
            parts[0].start_s > self.now or parts[0].pool != self.pool_plans[self.here].name
        ):
            parts = [Stay(self.pool_plans[self.here].name, self.now, self.stays_s, self.ready_s), *parts]
        return tuple(parts)


def plan(rest: RemainingJob, rules: MctParameters) -> Stays:
    """Plan the parts in which the job runs; the part starts at infinity where no start can be said."""
    regions: list[list[Interval]] = []
    starts: list[float] = []
    second, best_s, queue_s = 0, math.inf, math.inf  # the paper's r'', its end and its start
    for k in range(len(rest.pool_plans)):
        if rules.backfill:
            regions.append(rest.regions(k))
        start = _end_of_queue(rest, k, regions)
        starts.append(start)
        end = rest.end(k, start, rest.done, rest.begun)
        if end < best_s or (end == best_s and start < queue_s):
            second, best_s, queue_s = k, end, start
    if rules.fastest:
        large = (k for k, pool_plan in enumerate(rest.pool_plans) if pool_plan.units >= rest.units)
        k = next(large, 0)
        return rest.whole(k, starts[k])
    if rules.priced:
        return _cheapest(rest, rules, regions, starts)
    if rules.literal and rest.stoppable:
        split = _split(rest, rules, second, regions, starts=starts, before_s=math.inf)
        return split or rest.moved([rest.last(second, queue_s, best_s)])
    best: Stay | None = None
    if rules.backfill:
        for hole in _holes(rest, regions, starts):
            if hole.end_s < best_s:
                best, best_s = hole, hole.end_s
    if rules.migrate and rest.stoppable and best_s > rest.earliest_end():
        split = _split(rest, rules, second, regions, starts=starts, before_s=best_s)
        if split is not None and split[-1].end_s < best_s:
            return split
    return rest.moved([best or rest.last(second, queue_s, best_s)])


def _cheapest(
    rest: RemainingJob, rules: MctParameters, regions: Sequence[list[Interval]], starts: Sequence[float]
) -> Stays:
    """Choose the plan of the least end plus price of what it takes; of unknown ends the first to start."""
    plans = [rest.whole(k, start) for k, start in enumerate(starts)]
    plans += [rest.moved([part]) for part in _holes(rest, regions, starts)]
    if rest.stoppable:
        splits = (
            _split(rest, rules, k, regions, starts=starts, before_s=math.inf) for k in range(len(starts))
        )
        plans += [parts for parts in splits if parts is not None]
    price = {pool_plan.name: pool_plan.price * rest.units for pool_plan in rest.pool_plans}
    return min(plans, key=lambda parts: _cost(parts, price))


def _cost(parts: Stays, price: dict[str, float]) -> tuple[float, float]:
    if parts[-1].end_s == math.inf:
        return math.inf, parts[0].start_s
    return parts[-1].end_s + sum(price[part.pool] * (part.end_s - part.start_s) for part in parts), 0.0


def _gap(regions: Sequence[Interval], length: float, after: float) -> float:
    """Return when the first region of ``length`` begins, from ``after`` on; infinite: never."""
    for start, end in regions:
        begin = start if start > after else after
        if end - begin >= length:
            return begin
    return math.inf


def _end_of_queue(rest: RemainingJob, k: int, regions: Sequence[list[Interval]]) -> float:
    """Compute W: from when on the units stay free, after all starts reserved on the class.

    The job that runs there already may stay, if no other job has reserved its units. Known
    ``regions`` are not searched for again.
    """
    pool_plan = rest.pool_plans[k]
    if k == rest.here:
        stay = rest.end(k, rest.now, rest.done, True) - rest.now
        if pool_plan.availability.earliest(rest.units, stay, rest.now) == rest.now:
            return rest.now
    if pool_plan.last_start_s == math.inf:
        return math.inf
    length = rest.length(k)
    after = pool_plan.last_start_s if pool_plan.last_start_s > rest.ready_s else rest.ready_s
    if regions:
        return _gap(regions[k], length, after)
    return pool_plan.availability.earliest(rest.units, length, after)


def _holes(rest: RemainingJob, regions: Sequence[list[Interval]], starts: Sequence[float]) -> list[Stay]:
    """Place the whole job in the first region long enough on each class, before its queue's end (MCTB)."""
    holes = []
    for k, run_s in enumerate(rest.run_s):
        least, queue_s = (1.0 - rest.done) * run_s - MOMENT_S, starts[k]
        for start, until in regions[k]:
            if start >= queue_s:
                break
            if until - start >= least and (end := rest.end(k, start, rest.done, rest.begun)) <= until:
                holes.append(rest.last(k, start, end))
                break
    return holes


def _split(
    rest: RemainingJob,
    rules: MctParameters,
    second: int,
    regions: Sequence[list[Interval]],
    *,
    starts: Sequence[float],
    before_s: float,
) -> Stays | None:
    """Take regions in the order of their starts, and the rest at the end of ``second``'s queue (steps 2-7).

    None where the printed test of step 7 (if ``literal``) drops the parts, there are none, or they would not
    end before ``before_s``.
    """
    rest_from = starts[second]
    spans = _spans(rest, rules, second, regions, starts=starts, before_s=before_s)
    if not spans:
        return None
    cuts = _cuts(rest, spans, second, rest_from)
    parts: list[Stay] = []
    done, at, begun = rest.done, rest.now, rest.begun
    for region_start, k, region_end in spans:
        if region_end <= at:
            continue
        start, end = region_start if region_start > at else at, region_end
        stays = k == rest.here and start == rest.now
        run_s, cut_at = rest.run_s[k], cuts[k]
        if cut_at:
            cut = bisect_left(cut_at, rest.ready_s if stays else start)
            if cut < len(cut_at) and cut_at[cut] <= end:
                end = cut_at[cut]
        if start >= end:
            continue
        works = rest.works(k, start) if begun else start
        if end - works >= (1.0 - done) * run_s - MOMENT_S:
            whole = rest.end(k, start, done, begun)
            if whole <= end:
                return rest.moved([*parts, rest.last(k, start, whole)])
        stop = _stop(end, rest.stop_s[k]) if end - rest.stop_s[k] > works else works
        least = max(rest.stint * run_s, 2 * MOMENT_S)  # in a moment between two jobs, one moves
        if stop <= works or (not stays and stop - works < least):
            continue  # too short to be worth its costs
        parts.append(Stay(rest.pool_plans[k].name, start, stop, end))
        done, at, begun = done + (stop - works) / run_s, end, True
    after = rest_from if rest_from > at else at
    if not parts or after >= before_s:
        return None
    if rules.literal and rest.run_s[second] * (done - rest.done) < rest.restart_s[second]:
        return None
    start = _start_of_rest(rest, second, regions, done, after=after, rest_from=rest_from)
    parts.append(rest.last(second, start, rest.end(second, start, done, True)))
    return rest.moved(parts)


def _start_of_rest(
    rest: RemainingJob,
    second: int,
    regions: Sequence[list[Interval]],
    done: float,
    *,
    after: float,
    rest_from: float,
) -> float:
    """Compute from when on the units of class ``second`` stay free for the rest of the job."""
    length = (1.0 - done) * rest.run_s[second] + rest.restart_s[second] + 2 * MOMENT_S
    if after == rest_from and second != rest.here and length <= rest.length(second):
        return after  # all of the job had room there
    if regions:
        return _gap(regions[second], length, after)
    return rest.pool_plans[second].availability.earliest(rest.units, length, after)


def _spans(
    rest: RemainingJob,
    rules: MctParameters,
    second: int,
    regions: Sequence[list[Interval]],
    *,
    starts: Sequence[float],
    before_s: float,
) -> list[tuple[float, int, float]]:
    """List the regions that count, as (start, class, end), in the order in which they are taken.

    Unbounded ones count on worse classes than ``second`` only. What starts after the end of the queue of
    ``second`` is never reached, because that takes the whole rest; the printed steps look at it all the same.
    Of equal starts the better class comes first: a region of it that starts just there counts.
    """
    spans: list[tuple[float, int, float]] = []
    rest_from = starts[second]
    until = last = min(rest_from, before_s)
    if rules.literal:
        last = math.inf
    for k in range(len(rest.pool_plans)):
        if rest.tied and k != second:
            continue
        if rules.backfill:
            for start, end in regions[k]:
                if start >= last and not (k < second and start == rest_from < before_s):
                    break
                if end < math.inf or (k > second and start < until):
                    spans.append((start, k, end))
        elif k > second and starts[k] < until:
            spans.append((starts[k], k, math.inf))
    spans.sort()
    return spans


def _cuts(
    rest: RemainingJob, spans: Sequence[tuple[float, int, float]], second: int, rest_from: float
) -> list[list[float]]:
    """List for each class when the regions of better classes begin that are long enough to be of use."""
    cuts: list[list[float]] = [[]]
    better: list[float] = []
    for k in range(len(rest.pool_plans) - 1):
        overhead = rest.stop_s[k] + rest.restart_s[k]
        better += [a for a, i, b in spans if i == k and b - a > overhead]
        if k == second:
            better.append(rest_from)
        cuts.append(sorted(better))
    return cuts


def _stop(end: float, cost_s: float) -> float:
    """Compute when a checkpoint has to begin so that it is written by ``end``."""
    stop = instant(end - cost_s)
    if stop + cost_s <= end or instant(stop + cost_s) <= end:
        return stop
    return instant(stop - MOMENT_S)


# -- what the policies keep of jobs ------------------------------------------------------------------------


LATE_SHARE = 0.1
LATE_LEAST_S = 1.0
LATE_STOP_S = 0.05
STINT = 0.1  # least share of its work that a job does between two stops, once plans could not be kept


@dataclass(slots=True)
class PlannedJob:
    """A job and its parts to come, the first of them under way while the job runs.

    ``version`` counts the changes, because due times of earlier versions are void. ``counts_on``: the class
    on which it counts as waiting; "": on none.
    """

    job: Job
    parts: tuple[Stay, ...] = ()
    running: bool = False
    stopping: bool = False
    version: int = 0
    counts_on: str = ""

    @property
    def end_s(self) -> float:
        return self.parts[-1].end_s

    def could_use(self, pool: str, now: float) -> bool:
        """Tell if the job waits (for any class) and could run on free units of that class."""
        return self.job.runs_on(pool) and self.parts[-1].start_s > now


class DueQueue:
    """Due times of the next stop or start of each job.

    Attributes:
        heap: (due time, order of addition, version of the plan, job), the first first. After ``collect``
            that one is neither past nor void.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int, PlannedJob]] = []
        self._places = count()

    def add(self, planned: PlannedJob, due: float) -> None:
        heappush(self.heap, (due, next(self._places), planned.version, planned))

    def collect(self, now: float) -> tuple[list[PlannedJob], list[PlannedJob]]:
        """Take the jobs to be stopped and those to be started now."""
        stops: list[PlannedJob] = []
        starts: list[PlannedJob] = []
        heap = self.heap
        while heap:
            due, _, version, planned = heap[0]
            if planned.version == version:
                if due > now:
                    break
                (stops if planned.running else starts).append(planned)
            heappop(heap)
        return stops, starts


def remaining_job(
    view: View,
    pool_plans: Mapping[str, PoolPlan],
    migrate: bool,
    planned: PlannedJob,
    *,
    state: JobState | None = None,
    stint: float = 0.0,
) -> RemainingJob:
    """Describe what is left to plan of a job, on the classes on which it can run."""
    job, costs = planned.job, view.costs
    tied = job.stop is PAUSE
    known: Container[str] = job.estimates_s or pool_plans
    if tied and state is not None and state.stage is not WAITING:
        known = (state.place.pool,)
    times = {name: job.estimate_on(name) for name in pool_plans if name in known}
    names = sorted(times, key=times.__getitem__)  # of equal times the better rank comes first
    stoppable = migrate and job.stop is not NEVER
    counts = stoppable or state is not None
    rest = RemainingJob(
        units=job.units,
        pool_plans=[*map(pool_plans.__getitem__, names)],
        run_s=[*map(times.__getitem__, names)],
        stop_s=[costs.stop_s(job, name) for name in names] if counts else [0.0] * len(names),
        restart_s=[costs.restart_s(job, name) for name in names] if counts else [0.0] * len(names),
        now=view.now,
        ready_s=view.now,
        stoppable=stoppable,
        tied=tied,
        stint=stint,
    )
    if state is not None:
        _go_on(rest, planned, state)
    return rest


def stays_until(state: JobState, view: View) -> float:
    """Compute until when a running job holds its units if nothing is done to it."""
    now = view.now
    end = state.expected_end_s
    if state.stage is STOPPING:
        end = instant(state.since_s + view.costs.stop_s(state.job, state.place.pool))
    if end <= now and state.stage is STOPPING:
        end = instant(now + max(LATE_STOP_S, now - state.since_s))
    elif end <= now:
        end = instant(now + max(LATE_LEAST_S, LATE_SHARE * state.attained_s(now)))
    return end if end == math.inf or not state.done else instant(end + MOMENT_S)


def in_order(view: View) -> list[JobState]:
    """List all jobs in the system, by priority and then in the order of submission."""
    states = [*view.running.values(), *view.suspended.values(), *map(view.state, view.waiting)]
    return sorted(states, key=lambda state: (-state.job.priority, state.job.submit_s, state.job.id))


def _go_on(rest: RemainingJob, planned: PlannedJob, state: JobState) -> None:
    """Subtract from the rest what a job that may have run has done already."""
    now = rest.now
    rest.begun = state.served_s > 0.0 or state.stage is not WAITING
    rest.done = state.done_by(now)
    if planned.stopping:
        rest.ready_s = planned.parts[0].end_s
    elif planned.running:
        rest.here = [pool_plan.name for pool_plan in rest.pool_plans].index(state.place.pool)
        rest.works_s = max(now, instant(state.works_from_s))
        rest.stays_s = now
        if rest.stint:
            rest.stays_s = max(now, instant(state.works_from_s + rest.stint * rest.run_s[rest.here]))
        rest.ready_s = max(rest.stays_s + MOMENT_S, instant(rest.stays_s + rest.stop_s[rest.here]))
