"""The machine is cut into regions, each for the jobs of some sizes, and cut anew at intervals.

Algorithm, at the end of each period, from what happened in it:

1. In each region the longest wait less the shortest is compared with ``target_s``. If it is below that in
   all of them there will be one region fewer, else one more (1 to ``most``). Waits of the jobs that started
   in the period count, and of waiting ones what they have waited so far; fewer than two jobs are below.
2. Bounds and sizes follow from the jobs submitted in the period (``scheduler/partition.py``). A job weighs
   its units x the time it ran; if it has not ended, its estimate; if that is unknown, the time it has run.

A job belongs to the region of its size; inside, jobs start by fcfs, EASY or first fit. When regions move,
running jobs keep their units: those are charged to the region of the job's size as far as there is room, the
rest to the other regions, and come free for their new owners when the job ends. The first period has one
region. A job too large for its region cuts the machine anew at once. Periods begin at multiples of
``interval_s``. After a restart the rule knows of the period's jobs only those that still wait or run.
Guarantee: no region ever holds more units than it has; jobs of one region never wait for those of another,
except for those that ran before the regions moved.
Cost: that of the line inside; O(running + waiting) when regions move.
Source: Takayama, Sekizawa, Suzuki, Yamamoto, Oguchi, DEIM 2021. The target is the operator's; 20 h is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scheduler.actions import Action, Repartition, Start, WakeAt
from scheduler.availability import Availability, start_in_turn
from scheduler.events import Event, Failed, Finished, Started, Submitted, Timer
from scheduler.lines import LINES, Line
from scheduler.model import Cluster, Job, Placement, Region, instant
from scheduler.partition import Layout, Work, layout, region_of
from scheduler.policies.easy import only_counted_pool
from scheduler.policy import Policy, Reason, View, units
from scheduler.state import JobState

WEEK_S, HOUR_S = 7 * 86_400.0, 3600.0
CUT = "regions"  # tag of the timer


@dataclass(frozen=True)
class RegionsParameters:
    """How to cut the machine.

    Attributes:
        interval_s: length of a period; the paper takes jobs of 7 days.
        target_s: the spread of waits that the operator accepts.
        most: regions there may be.
        inside: who starts next inside a region.
        fixed: always so many regions (from the second period on); None: by the rule.
        largest: units of the largest job to expect; None: the largest seen so far.
        bounds, sizes: cut once, like this, and never again: ``bounds=31/1000,sizes=193/9023``.
    """

    interval_s: float = WEEK_S
    target_s: float = 20 * HOUR_S
    most: int = 5
    inside: Literal["fcfs", "easy", "first-fit"] = "fcfs"
    fixed: int | None = None
    largest: int | None = None
    bounds: str = ""
    sizes: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.interval_s < math.inf or not self.target_s >= 0:
            raise ValueError("interval_s must be above 0 and target_s not negative")
        if self.most < 1 or (self.fixed is not None and self.fixed < 1):
            raise ValueError("most and fixed must be at least 1")
        if self.largest is not None and self.largest < 1:
            raise ValueError("largest must be at least 1")
        given = self.given()
        if given and (len(given.bounds) != len(given.sizes) or min(given.bounds + given.sizes) < 1):
            raise ValueError("bounds and sizes must both be given, one of each for each region, from 1 on")
        if given and list(given.bounds) != sorted(set(given.bounds)):
            raise ValueError("bounds must ascend")

    def given(self) -> Layout | None:
        """The layout that never changes, if one is given."""
        if not self.bounds and not self.sizes:
            return None
        try:
            return Layout(_numbers(self.bounds), _numbers(self.sizes))
        except ValueError as error:
            raise ValueError("write bounds and sizes as whole numbers: 31/1000") from error


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("/")) if text else ()


@dataclass
class Period:
    """What the rule has to know of one period.

    Attributes:
        submitted: the jobs submitted in it, and how long those ran that have ended.
        waits: shortest and longest wait of the jobs that started in it, and their number, by region.
    """

    submitted: dict[int, tuple[Job, float | None]] = field(default_factory=dict)
    waits: dict[int, tuple[float, float, int]] = field(default_factory=dict)

    def waited(self, region: int, wait_s: float) -> None:
        """A job of that region waited so long."""
        shortest, longest, n = self.waits.get(region, (math.inf, 0.0, 0))
        self.waits[region] = min(shortest, wait_s), max(longest, wait_s), n + 1

    def spreads_stay_below(self, target_s: float) -> bool:
        """Whether that is so in each region."""
        return not any(n > 1 and high - low >= target_s for low, high, n in self.waits.values())


@dataclass
class _Part:
    """One region: what is free of it, and who waits for it."""

    region: Region
    free: int
    line: Line


class Regions(Policy):
    """Regions of one counted pool, cut by what the jobs of the last period were."""

    Parameters = RegionsParameters
    suits = frozenset({"counted"})
    ignores = frozenset({Started})
    parameters: RegionsParameters

    def refuses(self, job: Job, cluster: Cluster) -> str:
        given = self.parameters.given()
        if given is None:
            return ""
        size = given.sizes[region_of(job.units, given.bounds)]
        return f"it needs {job.units} units, its region has {size}" if job.units > size else ""

    def begin(self, view: View) -> None:
        self._pool = only_counted_pool(view, "regions")
        self._units = view.cluster[self._pool].units
        self._largest = self.parameters.largest or 1
        for job in _jobs(view):
            self._largest = max(self._largest, job.units)
        self._cuts = 0
        self._period = Period()
        self._orders: list[Action] = []  # to be sent with the next decision
        current = view.regions.get(self._pool, ())
        if current:
            self._cuts = int(current[0].name.partition(".")[0])
            self._settle(view, current)
        else:
            first = self.parameters.given() or Layout((self._largest,), (self._units,))
            self._cut(view, first)
        if self.parameters.given() is None:
            self._begin_period(view)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        self._note(view, event)
        orders, self._orders = self._orders, []
        if view.upcoming is None:
            orders.extend(self._starts(view))
        return orders

    def why(self, job: Job, view: View) -> Reason:
        index = self._index(job)
        part = self._parts[index]
        soon = instant(view.now + 1e-6)
        held = [
            (max(view.state(other).expected_end_s, soon), held)
            for other, charges in self._held.items()
            for region, held in charges
            if region == index
        ]
        plan = Availability.beside(held, part.region.units, view.now)
        at = start_in_turn(job, part.line.waiting.values(), plan, self._pool, view.now)
        before = list(part.line.waiting).index(job.id)
        where = "" if len(self._parts) == 1 else f" in the region for {self._range(index)} units"
        turn = "is next" if before == 0 else f"{before} job{'s' * (before > 1)} before it"
        has = f"{part.free} of {part.region.units} free"
        return Reason(f"waits for {units(job)}{where}: {has}, {turn}", at)

    # -- what happens ---------------------------------------------------------------------------------

    def _note(self, view: View, event: Event) -> None:
        """Keep the lines, the charges and the period's figures up to date."""
        if isinstance(event, Submitted):
            self._submitted(view, event.job)
        elif isinstance(event, Finished | Failed):
            self._free(event.job.id)
            ran_s = view.now - self._began.pop(event.job.id)
            if isinstance(event, Failed):
                index = self._index(event.job)
                self._parts[index].line.add_first(event.job)
                self._stirred.add(index)
            elif event.job.id in self._period.submitted:
                self._period.submitted[event.job.id] = (event.job, ran_s)
        elif isinstance(event, Timer) and event.tag == CUT:
            self._end_period(view)
        else:
            self._stir_all()

    def _submitted(self, view: View, job: Job) -> None:
        self._largest = max(self._largest, job.units)
        if self.parameters.given() is None:
            self._period.submitted[job.id] = (job, None)
        index = self._index(job)
        self._parts[index].line.add(job)
        self._stirred.add(index)
        if job.units > self._parts[index].region.units:
            self._cut(view, self._layout(view, len(self._parts)))

    def _free(self, job_id: int) -> None:
        for index, held in self._held.pop(job_id):
            self._parts[index].free += held
            self._parts[index].line.ended(job_id)
            self._stirred.add(index)

    def _stir_all(self) -> None:
        for index, part in enumerate(self._parts):
            part.line.changed()
            self._stirred.add(index)

    def _starts(self, view: View) -> Iterator[Start]:
        """Who starts, region by region; without enough units in service the first regions come first."""
        left = view.free[self._pool]
        if left < sum(part.free for part in self._parts):
            self._stir_all()
        for index in sorted(self._stirred):
            part = self._parts[index]
            most = min(part.region.units, view.in_service[self._pool])
            for job in part.line.choose(view.now, min(part.free, left), most):
                part.free -= job.units
                left -= job.units
                self._held[job.id] = ((index, job.units),)
                self._began[job.id] = view.now
                if view.state(job.id).start_s is None:  # else it failed, and starts again
                    self._period.waited(index, view.now - job.submit_s)
                yield Start(job.id, Placement(self._pool, job.units, region=part.region.name))
        self._stirred.clear()

    def _index(self, job: Job) -> int:
        return region_of(job.units, self._bounds)

    def _range(self, index: int) -> str:
        low = self._bounds[index - 1] + 1 if index else 1
        return f"{low} to {self._bounds[index]}"

    # -- the rule -------------------------------------------------------------------------------------

    def _begin_period(self, view: View) -> None:
        """A period begins, or goes on after a restart: then it knows the jobs that are still here."""
        interval = self.parameters.interval_s
        begin = instant(math.floor(view.now / interval) * interval)
        end = instant(begin + interval)
        if end <= view.now:
            begin, end = end, instant(end + interval)
        self._orders.append(WakeAt(end, CUT))
        self._period = Period()
        if begin < view.now:
            for job in _jobs(view):
                if job.submit_s >= begin:
                    self._period.submitted[job.id] = (job, None)
            for state in view.running.values():
                if state.start_s is not None and state.start_s >= begin:
                    self._period.waited(self._index(state.job), state.start_s - state.job.submit_s)

    def _end_period(self, view: View) -> None:
        """Count the regions that there will be, cut, and begin the next period."""
        for index, part in enumerate(self._parts):
            for job in part.line.waiting.values():
                self._period.waited(index, view.now - job.submit_s)
        count = self.parameters.fixed
        if count is None:
            fewer = self._period.spreads_stay_below(self.parameters.target_s)
            count = min(max(len(self._parts) + (-1 if fewer else 1), 1), self.parameters.most)
        if self._period.submitted:
            new = self._layout(view, count)
            if new != Layout(self._bounds, tuple(part.region.units for part in self._parts)):
                self._cut(view, new)
        self._begin_period(view)

    def _layout(self, view: View, count: int) -> Layout:
        return layout(self._work(view), self._largest, count, self._units)

    def _work(self, view: View) -> Iterator[Work]:
        """What each job of the period took, or is believed to take."""
        for job, ran_s in self._period.submitted.values():
            seconds = ran_s
            if seconds is None:
                seconds = job.estimate_on(self._pool)
            if seconds == math.inf:
                seconds = view.now - self._began.get(job.id, view.now)
            yield Work(job.units, job.units * seconds)

    # -- regions move ---------------------------------------------------------------------------------

    def _cut(self, view: View, new: Layout) -> None:
        """Other regions from now on. Their names are new, so that no running job is taken for theirs."""
        self._cuts += 1
        self._period.waits.clear()  # they were those of other regions
        regions = tuple(
            Region(f"{self._cuts}.{number}", size, bound)
            for number, (bound, size) in enumerate(zip(new.bounds, new.sizes, strict=True), 1)
        )
        self._orders.append(Repartition(self._pool, regions))
        self._settle(view, regions)

    def _settle(self, view: View, regions: tuple[Region, ...]) -> None:
        """Lines and charges anew, from the view."""
        kind = LINES[self.parameters.inside]
        self._parts = [_Part(region, region.units, kind(self._pool)) for region in regions]
        self._bounds = tuple(region.max_units for region in regions)
        self._stirred = set(range(len(regions)))
        self._held: dict[int, tuple[tuple[int, int], ...]] = {}  # running job: (region, units) ...
        self._began: dict[int, float] = {}
        numbers = {region.name: index for index, region in enumerate(regions)}
        guests = []
        for state in view.running.values():
            assert state.placement is not None
            self._began[state.job.id] = state.since_s
            index = numbers.get(state.placement.region)
            if index is None:
                guests.append(state)
            else:
                self._charge(state, [index])
        for state in guests:
            home = self._index(state.job)
            self._charge(state, [home, *(i for i in range(len(regions)) if i != home)])
        for job in view.waiting.values():
            self._parts[self._index(job)].line.add(job)

    def _charge(self, state: JobState, order: Sequence[int]) -> None:
        """A running job holds units of these regions, of each as many as there are, until it has its own."""
        assert state.placement is not None
        needed, charges = state.placement.units, []
        for index in order:
            part = self._parts[index]
            held = min(needed, part.free)
            if held:
                needed -= held
                part.free -= held
                part.line.hold(state.job.id, held, state.expected_end_s)
                charges.append((index, held))
        self._held[state.job.id] = tuple(charges)


def _jobs(view: View) -> Iterator[Job]:
    """The jobs that wait or run."""
    yield from view.waiting.values()
    yield from (state.job for state in view.running.values())
