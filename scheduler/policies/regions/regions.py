"""The machine divided into regions, each for jobs of some sizes, and divided anew at intervals.

Algorithm, at the end of each period, from the jobs of the period:

1. In each region the longest wait less the shortest is compared with ``target_s``. If it is lower in all
   regions there will be one region fewer, else one more (1 to ``most``). Waits of started jobs count, and so
   far those of waiting jobs; with fewer than two jobs a region is lower.
2. Bounds and sizes follow from the jobs submitted in the period (``layout``). A job weighs its units x
   the time it ran; if it has not ended, its estimate; if that is unknown, the time it has run.

A job belongs to the region of its size; inside, jobs start by fcfs, EASY or first fit. When regions change,
running jobs keep their units. They are charged to the region of the job's size while it has room, then to
other regions, and are free for their new owners when the job ends. The first period has one region. A job too
large for its region divides the machine anew at once. Periods begin at multiples of ``interval_s``. After a
restart the rule knows only those jobs of the period that still wait or run.
Guarantee: no region holds more units than it has. Jobs of one region never wait for those of another, except
for those that ran before the regions changed.
Cost: that of the queues inside; O(running + waiting) when regions change.
Source: Takayama, Sekizawa, Suzuki, Yamamoto, Oguchi, DEIM 2021. The target is the operator's; 20 h is ours.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from profiles.errors import BadInput
from scheduler.model import events
from scheduler.model.jobs import Cluster, Job, JobState, Placement, Region, instant
from scheduler.policies.backfill.availability import Availability, start_in_turn
from scheduler.policies.backfill.queue import QUEUES, FcfsQueue
from scheduler.policies.base import Policy, Reason, View, only_counted_pool, units

# -- repartitioning ----------------------------------------------------------------------------------------


WEEK_S, HOUR_S = 7 * 86_400.0, 3600.0


@dataclass(frozen=True)
class RepartitionParameters:
    """Rule for the regions of a machine.

    Attributes:
        interval_s: length of a period; 7 days in the paper.
        target_s: spread of waits that the operator accepts.
        most: largest number of regions.
        fixed: constant number of regions (from the second period on); None: by the rule.
        largest: units of the largest job to expect; None: the largest seen so far.
        bounds, sizes: a fixed layout, like ``bounds=31/1000,sizes=193/9023``.
    """

    interval_s: float = WEEK_S
    target_s: float = 20 * HOUR_S
    most: int = 5
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

    def given(self) -> RegionLayout | None:
        """Return the fixed layout, if one is given."""
        if not self.bounds and not self.sizes:
            return None
        try:
            return RegionLayout(_numbers(self.bounds), _numbers(self.sizes))
        except ValueError as error:
            raise ValueError("write bounds and sizes as whole numbers: 31/1000") from error


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("/")) if text else ()


class Repartitioner:
    """The figures of the current period, and the layout that follows from the last period.

    After a restart it knows only those jobs of the period that still wait or run. The layout stays as it was,
    unless another layout is given now or the number of units has changed.

    Attributes:
        layout: the present layout.
        period_end_s: when to call ``end_period``; infinite for a fixed layout.
        cuts: number of layouts so far.

    Raises:
        BadInput: the given layout needs more units than there are.
    """

    def __init__(self, rule: RepartitionParameters, view: View, pool: str) -> None:
        self._rule, self._pool, self._given = rule, pool, rule.given()
        self._units = view.cluster[pool].units
        if self._given and sum(self._given.sizes) > self._units:
            what = f"sizes={rule.sizes}: regions of {sum(self._given.sizes)} units, {pool} has {self._units}"
            raise BadInput(what, "make them smaller")
        self._largest = max([rule.largest or 1, *(job.units for job in _jobs(view))])
        current = view.regions.get(pool, ())
        there = (state.place.region for state in view.running.values())
        names = [*(region.name for region in current), *filter(None, there)]
        self.cuts = max(map(cut_of, names), default=0)  # above 0 at a restart
        self.layout = RegionLayout(tuple(r.max_units for r in current), tuple(r.units for r in current))
        stands = self.layout == self._given if self._given else sum(self.layout.sizes) == self._units
        if not stands:
            self._cut(self._given or RegionLayout((self._largest,), (self._units,)))
        self._began = {state.job.id: state.since_s for state in view.running.values()}
        self._begin_period(view)

    def regions(self) -> tuple[Region, ...]:
        """Name the regions of the layout apart from those of all earlier layouts."""
        rows = enumerate(zip(self.layout.bounds, self.layout.sizes, strict=True), 1)
        return tuple(Region(region_name(self.cuts, number), size, bound) for number, (bound, size) in rows)

    def region_of(self, job: Job) -> int:
        """Return the index of the job's region."""
        return region_of(job.units, self.layout.bounds)

    # -- events of a period ---------------------------------------------------------------------

    def submitted(self, job: Job) -> None:
        self._largest = max(self._largest, job.units)
        if self._given is None:
            self._submitted[job.id] = (job, None)

    def started(self, job: Job, view: View) -> None:
        """Note a start, before the job shows as started in the view."""
        self._began[job.id] = view.now
        if view.state(job.id).start_s is None:  # else it failed, and starts again
            self._waited(job, view.now)

    def left(self, job: Job, now: float, ended: bool) -> None:
        """Note that the job runs no more; ``ended`` is False if it failed."""
        ran_s = max(now - self._began.pop(job.id), 0.0)  # the clock may have been set back
        if ended and job.id in self._submitted:
            self._submitted[job.id] = (job, ran_s)

    def _waited(self, job: Job, until_s: float) -> None:
        region, wait_s = self.region_of(job), max(until_s - job.submit_s, 0.0)
        shortest, longest, n = self._waits.get(region, (math.inf, 0.0, 0))
        self._waits[region] = min(shortest, wait_s), max(longest, wait_s), n + 1

    # -- the rule -------------------------------------------------------------------------------------

    def end_period(self, view: View) -> bool:
        """Choose the number of regions, divide anew, begin the next period; True if anything changed."""
        for job in view.waiting.values():
            self._waited(job, view.now)
        count, changed = self._rule.fixed, False
        if count is None:
            below = not any(
                n > 1 and high - low >= self._rule.target_s for low, high, n in self._waits.values()
            )
            count = min(max(len(self.layout.bounds) + (-1 if below else 1), 1), self._rule.most)
        if self._submitted:
            changed = self.cut_anew(view, count)
        self._begin_period(view)
        return changed

    def cut_anew(self, view: View, count: int) -> bool:
        """Divide into ``count`` regions, or as many as fit; return True if anything changed."""
        new = layout(self._work(view), self._largest, count, self._units)
        if new == self.layout:
            return False
        self._cut(new)
        return True

    def _cut(self, new: RegionLayout) -> None:
        self.layout = new
        self.cuts += 1
        # shortest and longest wait of the jobs that started in the period, and their number, by region
        self._waits: dict[int, tuple[float, float, int]] = {}

    def _begin_period(self, view: View) -> None:
        """Begin a period, or go on with it after a restart, with the jobs that are still here."""
        # the jobs submitted in the period, and how long those ran that have ended
        self._submitted: dict[int, tuple[Job, float | None]] = {}
        self._waits = {}
        if self._given is not None:
            self.period_end_s = math.inf
            return
        interval = self._rule.interval_s
        begin = instant(math.floor(view.now / interval) * interval)
        self.period_end_s = instant(begin + interval)
        if self.period_end_s <= view.now:  # the division's rounding
            begin, self.period_end_s = self.period_end_s, instant(begin + 2 * interval)
        if begin < view.now:
            self._submitted = {job.id: (job, None) for job in _jobs(view) if job.submit_s >= begin}
            for state in view.running.values():
                if state.start_s is not None and state.start_s >= begin:
                    self._waited(state.job, state.start_s)

    def _work(self, view: View) -> Iterator[PastWork]:
        """Yield what each job of the period took, or is believed to take."""
        for job, ran_s in self._submitted.values():
            seconds = job.estimate_on(self._pool) if ran_s is None else ran_s
            if seconds == math.inf:
                seconds = view.now - self._began.get(job.id, view.now)
            yield PastWork(job.units, job.units * seconds)


def _jobs(view: View) -> Iterator[Job]:
    """Yield the jobs that wait or run."""
    yield from view.waiting.values()
    yield from (state.job for state in view.running.values())


def size_range(bounds: Sequence[int], index: int) -> str:
    """Write ``"32 to 177"``, the sizes of the jobs of one region."""
    return f"{bounds[index - 1] + 1 if index else 1} to {bounds[index]}"


# -- the policy --------------------------------------------------------------------------------------------


CUT = "regions"  # tag of the timer


@dataclass(frozen=True)
class RegionsParameters(RepartitionParameters):
    """``inside``: the queue discipline inside a region; the others: ``RepartitionParameters``."""

    inside: Literal["fcfs", "easy", "first-fit"] = "fcfs"


@dataclass
class _RegionQueue:
    """One region, its free units, and its queue."""

    region: Region
    free: int
    queue: FcfsQueue


class Regions(Policy):
    """Regions of one counted pool, by the jobs of the last period."""

    Parameters = RegionsParameters
    suits = frozenset({"counted"})
    fences = True
    parameters: RegionsParameters

    def refuses(self, job: Job, cluster: Cluster) -> str:
        given = self.parameters.given()
        if given is None:
            return ""
        size = given.sizes[region_of(job.units, given.bounds)]
        return f"it needs {cluster.amount(job.units)}, its region has {size}" if job.units > size else ""

    def begin(self, view: View) -> None:
        self._pool = only_counted_pool(view, "regions")
        self._repartitioner = Repartitioner(self.parameters, view, self._pool)
        self._orders: list[events.Action] = []  # to be sent with the next decision
        if view.regions.get(self._pool) != self._repartitioner.regions():
            self._orders.append(events.Repartition(self._pool, self._repartitioner.regions()))
        if self.parameters.given() is None:
            self._orders.append(events.WakeAt(self._repartitioner.period_end_s, CUT))
        self._settle(view)

    def decide(self, view: View, event: events.Event) -> Sequence[events.Action]:
        self._note(view, event)
        orders, self._orders = self._orders, []
        if view.upcoming is None:
            orders.extend(self._starts(view))
        return orders

    def why(self, job: Job, view: View) -> Reason:
        index = self._repartitioner.region_of(job)
        part = self._parts[index]
        soon = instant(view.now + 1e-6)
        held = [
            (max(view.state(other).expected_end_s, soon), held)
            for other, charges in self._held.items()
            for region, held in charges
            if region == index
        ]
        plan = Availability.beside(held, part.region.units, view.now)
        at = start_in_turn(job, part.queue.waiting.values(), {self._pool: plan}, view.now)
        before = list(part.queue.waiting).index(job.id)
        of_size = size_range(self._repartitioner.layout.bounds, index)
        where = "" if len(self._parts) == 1 else f" in the region for {of_size} {view.cluster.unit}s"
        turn = "is next" if before == 0 else f"behind {before} job{'s' * (before > 1)}"
        has = f"{part.free} of {part.region.units} free"
        return Reason(f"waits for {units(job, view.cluster)}{where} ({has}); {turn}", at)

    # -- events ---------------------------------------------------------------------------------

    def _note(self, view: View, event: events.Event) -> None:
        """Apply the event to queues, charges and the period's figures."""
        if isinstance(event, events.Submitted):
            self._submitted(view, event.job)
        elif isinstance(event, events.Finished | events.Failed):
            self._free(event.job.id)
            self._repartitioner.left(event.job, view.now, isinstance(event, events.Finished))
            if isinstance(event, events.Failed):
                index = self._repartitioner.region_of(event.job)
                self._parts[index].queue.add_first(event.job)
                self._stirred.add(index)
        elif isinstance(event, events.Timer) and event.tag == CUT:
            if self._repartitioner.end_period(view):
                self._move(view)
            self._orders.append(events.WakeAt(self._repartitioner.period_end_s, CUT))
        else:
            self._stir_all()

    def _submitted(self, view: View, job: Job) -> None:
        self._repartitioner.submitted(job)
        index = self._repartitioner.region_of(job)
        self._parts[index].queue.add(job)
        self._stirred.add(index)
        if job.units > self._parts[index].region.units and self._repartitioner.cut_anew(
            view, len(self._parts)
        ):
            self._move(view)

    def _free(self, job_id: int) -> None:
        for index, held in self._held.pop(job_id):
            self._parts[index].free += held
            self._parts[index].queue.ended(job_id)
            self._stirred.add(index)

    def _stir_all(self) -> None:
        for index, part in enumerate(self._parts):
            part.queue.changed()
            self._stirred.add(index)

    def _starts(self, view: View) -> Iterator[events.Start]:
        """Start jobs region by region; if too few units are in service, the first regions come first."""
        left = view.free[self._pool]
        if left < sum(part.free for part in self._parts):
            self._stir_all()
        for index in sorted(self._stirred):
            part = self._parts[index]
            most = min(part.region.units, view.in_service[self._pool])
            for job in part.queue.choose(view.now, min(part.free, left), most):
                part.free -= job.units
                left -= job.units
                self._held[job.id] = ((index, job.units),)
                self._repartitioner.started(job, view)
                yield events.Start(job.id, Placement(self._pool, job.units, region=part.region.name))
        self._stirred.clear()

    # -- new regions ---------------------------------------------------------------------------------

    def _move(self, view: View) -> None:
        self._orders.append(events.Repartition(self._pool, self._repartitioner.regions()))
        self._settle(view)

    def _settle(self, view: View) -> None:
        """Make queues and charges anew from the view."""
        kind, regions = QUEUES[self.parameters.inside], self._repartitioner.regions()
        self._parts = [_RegionQueue(region, region.units, kind(self._pool)) for region in regions]
        self._stirred = set(range(len(regions)))
        self._held: dict[int, tuple[tuple[int, int], ...]] = {}  # running job: (region, units) ...
        numbers = {region.name: index for index, region in enumerate(regions)}
        homeless = []
        for state in view.running.values():
            index = numbers.get(state.place.region)
            if index is None:
                homeless.append(state)
            else:
                self._charge(state, [index])
        for state in homeless:
            home = self._repartitioner.region_of(state.job)
            self._charge(state, [home, *(i for i in range(len(regions)) if i != home)])
        for job in view.waiting.values():
            self._parts[self._repartitioner.region_of(job)].queue.add(job)

    def _charge(self, state: JobState, order: Sequence[int]) -> None:
        """Charge a running job to these regions in turn, to each as much as is free, until all is charged."""
        needed, charges = state.place.units, []
        for index in order:
            part = self._parts[index]
            held = min(needed, part.free)
            if held:
                needed -= held
                part.free -= held
                part.queue.hold(state.job.id, held, state.expected_end_s)
                charges.append((index, held))
        self._held[state.job.id] = tuple(charges)


# -- bounds and sizes --------------------------------------------------------------------------------------
#
# Bounds: with k regions for jobs of ``lo`` to ``hi`` units, the i-th takes jobs up to the largest whole b
# with b^k <= lo^(k-i) * hi^i. So the ratio of the smallest to the largest job is about the same in each
# region. Sizes: in proportion to the unit-seconds of each region's jobs. A region that would get no more than
# twice its largest job gets twice its largest job plus one. The others share the rest, until none is too
# small.


class PastWork(NamedTuple):
    """Work of an earlier job: its units, and its unit-seconds (or the believed ones)."""

    units: int
    unit_s: float


class RegionLayout(NamedTuple):
    """Upper bound on a job's units (inclusive) and number of units of each region, smallest jobs first."""

    bounds: tuple[int, ...]
    sizes: tuple[int, ...]


def region_name(cut: int, number: int) -> str:
    """Name region ``number`` (from 1 on) of the ``cut``-th layout: "3.1"."""
    return f"{cut}.{number}"


def number_of(region: str) -> int:
    """Return the number of a region in its layout, from 1 on; 0 for no region ("")."""
    return int(region.partition(".")[2] or 0)


def cut_of(region: str) -> int:
    """Return the number of a region's layout, from 1 on."""
    return int(region.partition(".")[0])


def region_bounds(hi: int, k: int, lo: int = 1) -> tuple[int, ...]:
    """Compute upper bounds of the k regions for jobs of ``lo`` to ``hi`` units; equal ones are merged."""
    if not 1 <= lo <= hi or k < 1:
        raise ValueError(f"{k} regions for jobs of {lo} to {hi} units")
    powers: list[int] = [lo ** (k - i) * hi**i for i in range(1, k + 1)]
    bounds = [_root(power, k) for power in powers]
    return tuple(sorted(set(bounds)))


def _root(value: int, k: int) -> int:
    """Return the largest b with b^k <= value."""
    b = int(value ** (1.0 / k))
    while b**k > value:
        b -= 1
    while (b + 1) ** k <= value:
        b += 1
    return b


def region_sizes(unit_s: Sequence[float], bounds: Sequence[int], units: int) -> tuple[int, ...] | None:
    """Compute the units of each region by the work of its jobs; None if the machine is too small.

    Whole units by largest remainder (ties: the smaller jobs' region). One region has the whole machine.
    Without any work all weigh the same.
    """
    k = len(bounds)
    if k == 1:
        return (units,)
    least = [2 * bound + 1 for bound in bounds]
    if sum(least) > units:
        return None
    weights = [Fraction(work) for work in unit_s]
    if not any(weights):
        weights = [Fraction(1)] * k
    sizes: dict[int, int] = {}
    while True:  # ends, because the rest is always enough for all remaining regions, so one of them stays
        open_ = [i for i in range(k) if i not in sizes]
        rest, total = units - sum(sizes.values()), sum(weights[i] for i in open_)
        shares = {i: weights[i] * rest / total if total else Fraction(rest, len(open_)) for i in open_}
        small = [i for i in open_ if shares[i] < least[i]]
        if not small:
            break
        sizes.update((i, least[i]) for i in small)
    sizes.update((i, int(share)) for i, share in shares.items())
    by_remainder = sorted(shares, key=lambda i: (int(shares[i]) - shares[i], i))
    for i in by_remainder[: units - sum(sizes.values())]:
        sizes[i] += 1
    return tuple(sizes[i] for i in range(k))


def region_of(units: int, bounds: Sequence[int]) -> int:
    """Return the index of the region for jobs of so many units; the last also takes larger ones."""
    return min(bisect_left(bounds, units), len(bounds) - 1)


def layout(jobs: Iterable[PastWork], hi: int, k: int, units: int) -> RegionLayout:
    """Cut the machine into k regions, or as many as fit; jobs have up to ``hi`` units."""
    work = list(jobs)
    for count in range(k, 1, -1):
        bounds = region_bounds(hi, count)
        sums = [0.0] * len(bounds)
        for job in work:
            sums[region_of(job.units, bounds)] += job.unit_s
        sizes = region_sizes(sums, bounds, units)
        if sizes is not None:
            return RegionLayout(bounds, sizes)
    return RegionLayout((hi,), (units,))
