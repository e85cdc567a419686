"""Weigh for jobs that may have more or fewer units, and for power caps: what each holds of the machine.

A *way* of a job is a number of units under a cap. It holds a share of the machine: that of its units or
that of its watts in the budget, whichever is larger. Who runs holds at least the fewest units at the lowest
cap. Malleable jobs are given their way anew at every change; moldable ones keep the units of their start, and
only their cap changes. For the turnaround a job is not begun on so few units that its work holds 1.4 times
the share it would on more (a network that is five times as fast on twice as many GPUs), nor does it go back
to so few. But before somebody is stopped, malleable jobs give such units back.

The *own cost* of a way is what a second of work costs the job itself: (1 + price of a joule x watts) / speed.

**Turnaround**: jobs in the order of their index take the way of least

    time left x (own cost + jobs behind x share / speed)

that is free, which is the job's own end, its energy, and what the jobs behind it wait for its share. What is
left over goes to the jobs in that order, where their own cost falls. Where there is room no job takes a way
on which it is 1.6 times slower than on an equal share of the machine (Themis, 2020), whatever energy costs.

**Makespan**: the same for jobs in the order of their weights, (time left + wait) ^ 0.5, where who is behind
counts by its weight over the job's own; so long jobs do not come last and alone. (The program is that of
``parm``, which is answered greedily here.)

**Reservation**: while the oldest job does not fit beside what runs, it has room from when enough units and
watts will have come back: malleable jobs can give back all but their least. Others start where they end
before, where they leave it its room (EASY's rule, on units and watts), or, with a checkpoint, in the hole
until then.

**Turns** (for turnaround): a running job with a checkpoint gives way to one that waits if

    1.5 x (area + what its stop and restart cost of the share that is used) / urgency

is below its own index (costs at their 90 % quantile, times left as believed: at the quantiles of both
half as many give way, and turnarounds are 10 % longer). Who stops soonest gives way first. Waits count over
the whole length here, done or not: a stopped job soon has the lower index, so two do not take turns for long.
The length is that on an equal share of the machine. Who outranks the oldest job so far also starts before it.
One at a time has its room made; it holds the reservation until the others have stopped. Who waits asks again
when it has waited for about twice as long, or when a restart is over.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.model.events import Action, Resume, Start, Suspend, WakeAt
from scheduler.model.jobs import CHECKPOINT, RUNNING, STOPPING, WAITING, JobState, Placement, Pool, instant
from scheduler.model.state import POWER_TOLERANCE_W
from scheduler.policies.base import View
from scheduler.policies.power.parm import changes, configurations
from scheduler.policies.weigh.parameters import WeighParameters
from scheduler.policies.weigh.waiting import FLOOR_S, SOON_S, believed_end, is_unknown, left_s

CHOICES = 64  # numbers of units that are considered for a job
PATIENCE = 0.5  # power of the time left and the wait, for the makespan
MARGIN = 1.5  # who gives way has an index so many times as high
WATTS_PER_KW = 1000.0  # an hour for a kWh is so many joules for a second
SLOWER = 1.6  # than on an equal share of the machine; no job takes such a way where there is room
LOSS = 1.4  # a job is not begun on so few units that it holds them so many times as long for its work
ROUNDING_W = POWER_TOLERANCE_W / 2  # less than the state allows, so that it never refuses what fits


class Way(NamedTuple):
    """Units under a cap, in the order of their shares.

    Attributes:
        own_s: cost to the job itself of a second of work at speed 1: its time, and the price of its energy.
        area: the share for as long as that work takes.
        low_w, low_speed: under the lowest cap, to which it may have to go.
    """

    share: float
    units: int
    watts: float
    cap_w: float | None
    speed: float
    own_s: float
    area: float
    low_w: float
    low_speed: float


NOTHING = Way(
    0.0, units=0, watts=0.0, cap_w=None, speed=0.0, own_s=math.inf, area=0.0, low_w=0.0, low_speed=0.0
)


class Ways(NamedTuple):
    """Ways of a job by their shares, without those that a lesser share is better than.

    Attributes:
        least: what it holds at least. area: the least of any way.
        best: the ways of which each costs least from some number of jobs behind on (``limits``).
    """

    all: tuple[Way, ...]
    least: Way
    area: float
    best: Sequence[Way]
    limits: Sequence[float]

    def speed_of(self, share: float) -> float:
        """Return the speed on such a share of the machine; less than it holds at least is had in turns."""
        if share < self.all[0].share:
            return self.all[0].speed * share / self.all[0].share
        return max(way.speed for way in self.all[: bisect(self.all, share, key=itemgetter(0))])


class Claim(NamedTuple):
    """A job that takes part, and what it may take.

    Attributes:
        fair: its speed on an equal share of the machine.
        hole_s: until it gives back what it has; infinite: until its end.
    """

    state: JobState
    left_s: float
    ways: Ways
    fair: float = 1.0
    hole_s: float = math.inf

    def ends_s(self, way: Way) -> float:
        """Return in how many seconds it gives its units back at the latest, if it takes a way now."""
        if is_unknown(self.state.job):
            return self.hole_s
        return min(self.left_s / self.floor(way).low_speed, self.hole_s)

    def floor(self, way: Way) -> Way:
        """Return the units that it keeps, whatever comes."""
        return self.ways.least if self.state.job.malleable else way


@dataclass
class Machine:
    """Free units and watts of the machine, now and when a reservation begins; ``take`` changes them.

    Attributes:
        units, watts: of the whole. joule_s: price of a joule. thrifty: ``LOSS`` and ``SLOWER`` count.
        jobs: as many share it.
        begins_s: seconds until the reservation. then, then_w: free beside it.
    """

    pool: Pool
    units: int
    watts: float
    joule_s: float = 0.0
    thrifty: bool = False
    jobs: int = 1
    free: int = 0
    free_w: float = 0.0
    begins_s: float = math.inf
    then: int = 0
    then_w: float = 0.0

    def occupied(
        self, view: View, holes: Mapping[int, float]
    ) -> tuple[list[Claim], list[Claim], dict[int, Way]]:
        """Take what those that run hold at least; return the claims of who can change, and of the others."""
        running, fixed = list[Claim](), list[Claim]()
        for state in view.running.values():
            if state.stage is RUNNING and state.works_from_s <= view.now:
                hole_s = holes.get(state.job.id, math.inf) - view.now
                running.append(self.claim(state, left_s(state, view.now, self.pool.name), hole_s))
            else:
                fixed.append(_fixed(state, self.pool, believed_end(state, view, holes) - view.now))
        self.free, self.free_w = self.units, self.watts + ROUNDING_W
        held = {claim.state.job.id: self.take(claim, claim.ways.least) for claim in running + fixed}
        return running, fixed, held

    def has(self, claim: Claim, way: Way, held: Way = NOTHING) -> bool:
        """Tell if there is room for a way in place of another, now and beside the reservation."""
        if way.units - held.units > self.free or way.watts - held.watts > self.free_w:
            return False
        units, watts = self._then(claim, way, held)
        return units <= self.then and watts <= self.then_w

    def improve(self, claim: Claim, held: dict[int, Way], behind: float = 0.0) -> None:
        """Give a job the way of least cost for which there is room, with so many jobs behind."""
        ways, has = claim.ways, held.get(claim.state.job.id, NOTHING)
        if has is NOTHING and (ways.least.units > self.free or ways.least.watts > self.free_w):
            return
        best, floor = ways.best[bisect(ways.limits, behind)], claim.fair / SLOWER * self.thrifty
        if best.speed < floor or not self.has(claim, best, has):
            share = max((has.units + self.free) / self.units, (has.watts + self.free_w) / self.watts)
            able = bisect(ways.all, share * (1 + 1e-9), key=itemgetter(0))  # there is no room for the others
            if not able or ways.all[able - 1] is has:
                return

            def cost(way: Way) -> tuple[bool, float]:
                return way.speed < floor, way.own_s + behind * way.area

            least = cost(has)
            cheaper = sorted((way for way in ways.all[:able] if cost(way) < least), key=cost)
            best = next((way for way in cheaper if self.has(claim, way, has)), has)
        if best is not has:
            held[claim.state.job.id] = self.take(claim, best, has)

    def take(self, claim: Claim, way: Way, held: Way = NOTHING) -> Way:
        units, watts = self._then(claim, way, held)
        self.free -= way.units - held.units
        self.free_w -= way.watts - held.watts
        self.then -= units
        self.then_w -= watts
        return way

    def _then(self, claim: Claim, way: Way, held: Way) -> tuple[int, float]:
        """Return what a job takes more, at the lowest cap, when the reservation begins."""
        units, watts = 0, 0.0
        for sign, taken in ((1, way), (-1, held)) if self.begins_s < math.inf else ():
            if taken.units and claim.ends_s(taken) > self.begins_s:
                units += sign * claim.floor(taken).units
                watts += sign * claim.floor(taken).low_w
        return units, watts

    def reserve(self, claim: Claim, running: Sequence[Claim]) -> None:
        """Keep room for a job as soon as those that run, each at its least now, have left it.

        While nobody knows when, nothing begins beside it.
        """
        then, then_w = self.free - claim.ways.least.units, self.free_w - claim.ways.least.watts
        leasts = [(other, other.ways.least) for other in running]
        ends = sorted((other.ends_s(least), least.units, least.watts) for other, least in leasts)
        for end_s, leaving in groupby(ends, itemgetter(0)):
            for _, units, watts in leaving:
                then += units
                then_w += watts
            if then >= 0 and then_w >= 0:
                known = end_s < math.inf
                self.begins_s, self.then, self.then_w = (end_s, then, then_w) if known else (0.0, 0, 0.0)
                return

    def claim(self, state: JobState, left_s: float, hole_s: float = math.inf) -> Claim:
        """Return the claim of a job: a moldable one that has begun keeps its units."""
        job = state.as_it_runs
        least, most = job.units, min(job.max_units or job.units, self.units)
        if state.stage is not WAITING and not job.malleable:
            least = most = state.place.units
        curves: Any = job.speed, job.power  # a key: they must have a hash, as frozen dataclasses have
        whole, sizes = Whole(self.pool, self.units, self.watts, self.joule_s), (least, max(most, least))
        if self.thrifty:
            kept = state.place.units if state.stage is RUNNING else most
            least = max(least, min(kept, _begun(curves, sizes, whole)))
        ways = _ways(curves, sizes, least, whole)
        return Claim(state, left_s, ways, ways.speed_of(1.0 / self.jobs), hole_s)


class Whole(NamedTuple):
    """The whole machine, and the price of a joule."""

    pool: Pool
    units: int
    watts: float
    joule_s: float


@lru_cache(maxsize=4096)
def _begun(curves: Any, sizes: tuple[int, int], whole: Whole) -> int:
    """Return on how many units a job is begun at least (``LOSS``)."""
    every = configurations(curves, sizes, whole.pool, beta=1.0, counts=CHOICES)
    share = np.maximum(every.units / whole.units, every.watts / whole.watts)
    lowest = len(every) // len(
        whole.pool.caps_w or (None,)
    )  # so many are under the lowest cap, and come first
    areas = np.where(share <= 1, share / every.merit, math.inf)[:lowest]
    return int(every.units[next(at for at in range(lowest) if areas[at] <= LOSS * areas[at:].min())])


@lru_cache(maxsize=4096)
def _ways(curves: Any, sizes: tuple[int, int], floor: int, whole: Whole) -> Ways:
    """List the ways on at least ``floor`` units.

    Args:
        curves: speed and power.
        sizes: fewest and most units.
    """
    every = configurations(curves, sizes, whole.pool, beta=1.0, counts=CHOICES)
    units, watts, speeds = every.units, every.watts, every.merit
    share = np.maximum(units / whole.units, watts / whole.watts)
    own_s = (1.0 + whole.joule_s * watts) / speeds
    lowest = len(every) // len(whole.pool.caps_w or (None,))
    least = int(units[:lowest].searchsorted(floor))
    order = np.lexsort((watts, -speeds, share))
    order = order[order % lowest >= least]
    faster = speeds[order[1:]] > np.maximum.accumulate(speeds[order[:-1]]) * (1 + 1e-9)
    cheaper = own_s[order[1:]] < np.minimum.accumulate(own_s[order[:-1]]) * (1 - 1e-9)
    order = order[np.concatenate(([True], faster | cheaper))]

    def ways(some: NDArray[np.intp]) -> tuple[Way, ...]:
        caps, low = [every.caps_w[at] for at in some], some % lowest
        rest = speeds[some], own_s[some], share[some] / speeds[some], watts[low], speeds[low]
        columns = [column.tolist() for column in (share[some], units[some], watts[some], *rest)]
        return tuple(map(Way, *columns[:3], caps, *columns[3:]))

    kept = dict(zip(order.tolist(), ways(order), strict=True))
    least_way = kept.get(least) or ways(np.array([least]))[0]
    area = min(way.area for way in kept.values())
    return Ways(tuple(kept.values()), least_way, area, *_best(kept.values()))


def _best(ways: Iterable[Way]) -> tuple[list[Way], list[float]]:
    """Return the ways that cost least with some number of jobs behind, and from how many on the next does.

    Own cost + jobs behind x area is a line of each way; these are the lower envelope of all.
    """
    best, limits = list[Way](), list[float]()
    for way in sorted(ways, key=lambda way: (way.own_s, way.area)):
        if best and way.area >= best[-1].area:
            continue
        while best:
            limit = (way.own_s - best[-1].own_s) / (best[-1].area - way.area)
            if not limits or limit > limits[-1]:
                limits.append(limit)
                break
            best.pop()
            limits.pop()
        best.append(way)
    return best, limits


def shares(
    view: View, waiting: Sequence[JobState], holes: dict[int, float], parameters: WeighParameters
) -> list[Action]:
    """Give each job its way.

    Args:
        waiting: jobs that are weighed, beside those that run or are suspended; one is the first of the queue.
        holes: until when some may run; new ones are entered.
    """
    pool = view.cluster.pools[0]
    if not view.in_service[pool.name]:
        return []
    turns = Turns(view, waiting, holes, parameters, thrifty=parameters.aim == "turnaround")
    short = turns.machine.free < 0 or turns.machine.free_w < 0  # budget or nodes are fewer than before
    stops = turns.take()
    if parameters.aim == "turnaround" and (short or stops):
        others = Turns(view, waiting, holes, parameters, thrifty=False)
        if not (fewer := others.take()) or short:  # jobs give units back, so that none need be stopped
            turns, stops = others, fewer
    machine, held = turns.machine, turns.held
    ranked = turns.give_ways()
    wakes = list(turns.asks())
    if parameters.holes and machine.begins_s < math.inf:
        wakes += turns.fill_holes(ranked)
    for claim in ranked:
        if claim.state.job.id in held:  # what is left over
            machine.improve(claim, held)
    places = {job_id: Placement(pool.name, way.units, cap_w=way.cap_w) for job_id, way in held.items()}
    states = [claim.state for claim in turns.running]
    actions = changes(states, [places[state.job.id] for state in states])
    actions += [Start(job_id, place) for job_id, place in places.items() if job_id in view.waiting]
    actions += [Resume(job_id, place) for job_id, place in places.items() if job_id in view.suspended]
    return actions + [Suspend(claim.state.job.id) for claim in stops] + wakes


class Turns:
    """The order in which jobs take room, and the jobs that give way to others."""

    def __init__(
        self,
        view: View,
        waiting: Sequence[JobState],
        holes: dict[int, float],
        parameters: WeighParameters,
        *,
        thrifty: bool,
    ) -> None:
        self.view, self.holes, self.parameters = view, holes, parameters
        pool, now, watts = view.cluster.pools[0], view.now, view.budget_w
        self.machine = machine = Machine(
            pool,
            view.in_service[pool.name],
            math.inf if watts is None else max(watts, ROUNDING_W),
            parameters.kwh_price / WATTS_PER_KW,
            thrifty,
            len(view.waiting) + len(view.running) + len(view.suspended),
        )
        self.running, self.fixed, self.held = machine.occupied(view, holes)
        machine.thrifty = parameters.aim == "turnaround" and machine.free >= 0 and machine.free_w >= 0
        self.queue = [machine.claim(state, left_s(state, now, pool.name)) for state in waiting]
        for state in view.suspended.values():
            restart_s = view.costs.restart_s(state.job, pool.name)
            self.queue.append(machine.claim(state, left_s(state, now, pool.name) + restart_s))
        self.claims = self.running + self.queue
        self._known = dict[int, tuple[float, float]]()  # area and urgency of each job

    def index(self, claim: Claim, paid: float = 0.0) -> float:
        """Return the index of a job; ``paid``: the area that others lose who make room for it."""
        area, urgency = self._known.get(claim.state.job.id) or self._know(claim)
        return (area + paid) / urgency

    def _know(self, claim: Claim) -> tuple[float, float]:
        state, now, whole_s = claim.state, self.view.now, claim.state.job.reference_s(self.machine.pool.name)
        area = claim.left_s * claim.ways.area
        if is_unknown(state.job):
            area, whole_s = claim.left_s, claim.left_s + state.attained_s(now)
        waits = state.waited_s(now) / max(whole_s / claim.fair, FLOOR_S)
        known = self._known[state.job.id] = area, 1.0 + self.parameters.fairness * waits
        return known

    def rank(self, claim: Claim) -> tuple[int, float, int]:
        return -claim.state.job.priority, self.index(claim), claim.state.job.id

    def lost(self, claim: Claim, share: float) -> float:
        """Return the area that a stop and a restart of a job cost at most, in nine of ten cases."""
        pool = self.machine.pool.name
        return share * self.view.costs.move_s(claim.state.job, pool, pool).high

    def outranks(self, claim: Claim, other: Claim) -> bool:
        """Tell if a job comes so far before another that this one gives way, or does not begin."""
        job, its = claim.state.job, other.state.job
        if other.state.stage is STOPPING:
            return True
        gives_way = its.stop is CHECKPOINT and self.parameters.move and self.parameters.aim == "turnaround"
        if not gives_way or job.priority < its.priority:
            return False
        paid = self.lost(other, min(claim.ways.least.share, other.ways.least.share))
        return MARGIN * self.index(claim, paid) < self.index(other)

    def take(self) -> list[Claim]:
        """Take room for the first and who comes before it, or a reservation; return who gives way.

        Who has the reservation or gives way leaves ``claims``.
        """
        machine, queue, running = self.machine, self.queue, self.running
        first = {next(iter(self.view.waiting), None), *self.view.suspended}
        heads = [claim for claim in queue if claim.state.job.id in first]
        head = min(heads, key=lambda claim: (-claim.state.job.priority, claim.state.since_s), default=None)
        leaving = [*running, *self.fixed]

        def turn(claim: Claim) -> tuple[int, tuple[int, float, int]]:
            before = head is not None and claim is not head and self.outranks(claim, head)
            return 1 if claim is head else 0 if before else 2, self.rank(claim)

        for (turn_is, _), claim in sorted(((turn(claim), claim) for claim in queue), key=itemgetter(0)):
            if machine.has(claim, claim.ways.least):
                if turn_is < 2:
                    self.held[claim.state.job.id] = machine.take(claim, claim.ways.least)
                    leaving.append(claim)
            elif (stops := self._stops_for(claim)) or claim is head:
                give_way = [other for other in stops if other in running]
                machine.reserve(claim, [self._stopped(o) if o in give_way else o for o in leaving])
                self.claims = [other for other in self.claims if other is not claim and other not in give_way]
                return give_way
        return []

    @cached_property
    def able(self) -> list[Claim]:
        """List who can give way: first who stops already, then who stops soonest."""
        able = [claim for claim in self.running if claim.state.job.stop is CHECKPOINT]
        able.sort(key=lambda claim: self._stopped(claim).hole_s)
        return [claim for claim in self.fixed if claim.state.stage is STOPPING] + able

    def asks(self) -> Iterator[WakeAt]:
        """Say when those that wait ask again."""
        waits = [claim.state for claim in self.queue if claim.state.job.id not in self.held]
        asks = [_later(state.since_s, self.view.now) for state in waits if self.able]
        asks += [c.state.works_from_s + SOON_S for c in self.fixed if waits and c.state.stage is RUNNING]
        return map(WakeAt, map(instant, asks))

    def _stopped(self, claim: Claim) -> Claim:
        return claim._replace(hole_s=self.view.costs.stop_s(claim.state.job, self.machine.pool.name))

    def _stops_for(self, claim: Claim) -> list[Claim]:
        """Choose the jobs that give way until there is room for another; none if there is not enough."""
        room, stops = NOTHING._replace(low_speed=1.0), list[Claim]()
        for other in self.able:
            if not self.machine.has(claim, claim.ways.least, room) and self.outranks(claim, other):
                least = other.ways.least
                room = room._replace(units=room.units + least.units, watts=room.watts + least.watts)
                stops.append(other)
        return stops if self.machine.has(claim, claim.ways.least, room) else []

    def give_ways(self) -> list[Claim]:
        """Give each job its way in turn, and return them in that order."""
        weights = dict.fromkeys((claim.state.job.id for claim in self.claims), 1.0)
        ranked = sorted(self.claims, key=self.rank)
        if self.parameters.aim == "makespan":
            for claim in self.claims:
                state, now = claim.state, self.view.now
                whole_s = claim.left_s + state.attained_s(now) + state.waited_s(now)
                weights[claim.state.job.id] = whole_s**PATIENCE
            ranked = sorted(self.claims, key=lambda claim: -weights[claim.state.job.id])
        behind = sum(weights.values())
        for claim in ranked:
            weight = weights[claim.state.job.id]
            behind -= weight
            self.machine.improve(claim, self.held, behind / weight)
        return ranked

    def fill_holes(self, ranked: list[Claim]) -> Iterator[WakeAt]:
        """Let jobs run until the reservation begins and stop there; say when."""
        pool, begins_s = self.machine.pool.name, self.machine.begins_s
        for place, claim in enumerate(ranked):
            job = claim.state.job
            stop, restart = self.view.costs.stop_s(job, pool), self.view.costs.restart_s(job, pool)
            works = begins_s - stop - (restart if claim.state.placement is not None else 0.0)
            least_s = 2 * self.view.costs.move_s(job, pool, pool).high
            if job.id in self.held or job.stop is not CHECKPOINT or works <= least_s:
                continue
            ranked[place] = claim._replace(hole_s=begins_s)
            self.machine.improve(ranked[place], self.held)
            if job.id in self.held:
                self.holes[job.id] = instant(self.view.now + begins_s)
                yield WakeAt(instant(self.view.now + begins_s - stop))


def _later(since_s: float, now: float) -> float:
    """Return when a job has waited for about twice as long."""
    return since_s + FLOOR_S * 2.0 ** math.frexp((now - since_s) / FLOOR_S + 0.1)[1]


def _fixed(state: JobState, pool: Pool, end_s: float) -> Claim:
    """Return the claim of a job that runs, and cannot change now."""
    units, cap, watts = state.place.units, state.place.cap_w, pool.power_of(state.job, state.place)
    way = NOTHING._replace(units=units, watts=watts, cap_w=cap, low_w=watts, low_speed=1.0)
    return Claim(state, math.inf, Ways((way,), way, 0.0, (way,), ()), hole_s=end_s)
