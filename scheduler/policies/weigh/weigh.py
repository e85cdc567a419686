"""Weigh: every job where it ends first, when what it takes from others is paid for.

**Index**: the least first. That of a job is its area (time left x units / units of the class, where that is
least) over 1 + ``fairness`` x (its wait / its time left). So short and small jobs come first, and who has
waited for many times its own length comes before all that have not. It decides nothing about the first job
of the queue, which comes before all others. Behind it come wide jobs, of more than a quarter of a class, that
have waited at least 0.8 times as long, and longer than they will run: small ones would keep them waiting
until they are the first themselves. (Narrow ones not: else a burst would hold up all that comes later.)

**Price** of a class: the number of jobs that would wait for it, over its units. A job that holds a unit for
a second makes each of them wait for 1 / units of a second more, so an hour of a unit costs so many hours of
turnaround of others. A job counts for the class that is cheapest for it at these prices, or in parts for
several that cost nearly the same. Prices are found by iteration, half damped, from those of the decision
before. (Counted by the class on which each is fastest, all count for the fast class, and large jobs drown
the slow ones.) The job itself is counted too, as if one like it came later: without that ``reproduce weigh``
has longer turnarounds on two classes. So a job that waits alone and takes much of a class may take the class
where it ends later. Where sizes are weighed two more are counted on each class, those that come while a
larger size is held; not where energy has a price, which makes larger sizes dear by itself.

**Candidates** of a job: to start on each class as soon as its units are free for as long as it takes; of a
running one: to stay, or to move to another class now; to begin on a class of which units are free until a
better one has them. The cost is its end, plus price x units x seconds of all that it holds; the least is
taken. Whatever is free now beats any later start of a job whose end is not known. Alternatives of a job are
weighed on each class; that of the least area ranks it. Where jobs on one class may have more or fewer units,
or there is a power budget, it runs in the first. On several classes sizes are weighed likewise: the fewest
units, twice as many, and so on. A job with a checkpoint may change its size as it moves, also within a class.

**Giving way**: on several classes a running job with a checkpoint is stopped for one of much lower index that
waits, if that saves more than this one takes, its stop and its restart (at the 90 % quantile, with what
others pay for them). A first job that could be stopped itself comes behind jobs for which it would be.

**Reservation**: the first job in the order above that cannot start now on the class that it has chosen
holds its place there, one for each class. Others start only where they fit now and delay none of these.

**Unknown run times**: such a job counts for the index as a minute of a whole class, or as long again as it
has had, so that its wait alone ranks it. On one class, or on nodes, no end of it is believed: nobody passes
while the start of the first job depends on one, and it passes itself only in units that stay spare. So where
no run time is known jobs start as under EASY, in the order of their submission.

**Holes**: a job with a checkpoint may run in units that are free until a reservation begins, and is stopped
then, where that gains more than its stop and restart cost.

**Quantiles**: a move, a hole and a start on the way must gain more than they cost, gains at the 10 %
quantile, costs at the 90 %. The run times on both classes are taken to be short together, or long.

**Sizes and caps** on one class: see ``malleable``, and ``ahead`` for the makespan. On several classes watts
are a resource that these share: a candidate has a cap, needs watts free beside units, and pays for them, see
``watts``. **Nodes**: see ``on_nodes``, ``turns``
for jobs of unknown run time there, and ``on_shared_nodes`` where it is known how programs slow each other
down.

Guarantee: the first job of the queue starts no later than its reservation when no job takes longer than its
estimate. It has one from the first decision on that begins with it as the first. So no job starves: each is
the first of its priority at some time. (Where jobs give way, see ``malleable``, one with a checkpoint may
start later; its index falls without end while it waits, so it has its turn.)
Cost: O(waiting) and ``depth`` candidates for each class in a decision; nothing where nothing is
free.
Source: the auction of prices is that of Bertsekas, "Auction algorithms", 1991, in the small; the
reservation is EASY's (``easy``); the parts of a job follow the paper's MCTM (``mct``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.model.events import (
    Action,
    BudgetChanged,
    Event,
    Failed,
    Finished,
    Migrate,
    NodeDown,
    NodeUp,
    Resume,
    Start,
    Submitted,
    Suspend,
    WakeAt,
)
from scheduler.model.interference import NoSlowdowns
from scheduler.model.jobs import (
    CHECKPOINT,
    PAUSE,
    RUNNING,
    WAITING,
    Cluster,
    Job,
    JobState,
    Placement,
    counted,
    instant,
)
from scheduler.model.quantiles import Quantiles
from scheduler.policies.backfill import on_nodes
from scheduler.policies.backfill.availability import Availability, awaited
from scheduler.policies.base import Policy, Reason, View, fits_now, in_turn, waits_for, would_delay
from scheduler.policies.power.parm import too_hungry
from scheduler.policies.weigh.ahead import Ahead
from scheduler.policies.weigh.malleable import MARGIN, WATTS_PER_KW, shares
from scheduler.policies.weigh.on_shared_nodes import SharedWeigh
from scheduler.policies.weigh.parameters import WeighParameters
from scheduler.policies.weigh.turns import NodeTurns
from scheduler.policies.weigh.waiting import (
    FLOOR_S,
    SOON_S,
    Rank,
    Rows,
    believed_end,
    index_of,
    is_unknown,
    least_area,
    left_quantiles,
    left_s,
    lengths_of,
)
from scheduler.policies.weigh.watts import NANO, Watts

LATER = 2.0  # jobs that come while a larger size is held, and would wait for it


class Candidate(NamedTuple):
    """A way to run what is left of a job (``state``); the order is that of the first five fields.

    Attributes:
        waits: for units, of a job whose end is not known. on_the_way: a class on which it runs until then.
    """

    waits: bool
    cost_s: float
    start_s: float
    end_s: float
    pool: str
    state: JobState
    on_the_way: str = ""


def ways_of(state: JobState, *, with_sizes: bool, watts: Watts | None = None) -> list[JobState]:
    """Return the job as it would be in each of its alternatives, and of these, if asked for, on each size.

    One that has begun keeps to its alternative, and without a checkpoint to its size. Where watts count, run
    times are those under the caps for which it is planned.
    """
    job, waits = state.job, state.stage is WAITING
    if not job.alternatives and not (with_sizes and job.speed):
        return [state]
    ways = job.ways if waits else (job.way(state.place),)
    if not with_sizes:
        return [replace(state, job=way) for way in ways]
    sizes = None if waits or job.stop is CHECKPOINT else (state.place.units,)
    return [replace(state, job=on(way, units, watts)) for way in ways for units in sizes or sizes_of(way)]


def as_on(state: JobState, place: Placement, watts: Watts | None = None) -> JobState:
    """Return the job as it is in a place: in its alternative there, on as many units."""
    way = on(state.job.way(place), place.units, watts)
    return state if way is state.job else replace(state, job=way)


def sizes_of(job: Job) -> Iterator[int]:
    """Yield the fewest units, twice as many and so on, and the most; of these the ones that are faster."""
    most, best = job.max_units or job.units, 0.0
    doubled = (job.units << step for step in range((most // job.units).bit_length()))
    for units in dict.fromkeys((*doubled, most)):
        speed = 1.0 if job.speed is None else job.speed(units, None)
        if speed > best:
            yield units
            best = speed


def on(job: Job, units: int, watts: Watts | None = None) -> Job:
    """Return the job as it is on so many units, uncapped or as it is planned where watts count."""
    if job.speed is None:
        return job
    if watts is not None:
        return watts.on(job, units)
    speed = job.speed(units, None)
    return replace(
        job,
        units=units,
        max_units=None,
        speed=None,
        estimate_s=None if job.estimate_s is None else job.estimate_s / speed,
        estimates_s={pool: run_s / speed for pool, run_s in job.estimates_s.items()},
        quantiles_s={
            pool: Quantiles(*(run_s / speed for run_s in run)) for pool, run in job.quantiles_s.items()
        },
    )


class Weigh(Policy):
    """Weigh on counted pools; on nodes ``NodeTurns`` decides, or ``SharedWeigh`` if slow-downs are known."""

    Parameters = WeighParameters
    suits = frozenset({"counted", "classes", "nodes", "power", "sharing"})
    parameters: WeighParameters

    def begin(self, view: View) -> None:
        self._nodes = self._on_nodes(view)
        self.resumes = not isinstance(self._nodes, SharedWeigh) or len(view.cluster.pools) > 1
        if self._nodes is not None:
            return
        self._pools = tuple(pool.name for pool in view.cluster.pools)
        self._joule_s = self.parameters.kwh_price / WATTS_PER_KW
        self._rows = self._table(view)
        self._holes: dict[int, float] = {}  # until when running jobs may use a hole
        self._ahead = Ahead(self._joule_s) if self.parameters.aim == "makespan" else None
        self._new = set[int]()  # have come since sizes or caps were chosen
        self._changed = True  # something else since then
        jobs = [*view.waiting.values(), *(state.job for state in view.running.values())]
        self._sized = any(job.speed is not None for job in jobs)

    @property
    def most(self) -> int:
        """Jobs a node that they share."""
        return self.parameters.most

    @property
    def _later(self) -> float:
        """Jobs counted beside those that wait: where sizes are weighed, unless energy has a price."""
        return LATER if self._sized and len(self._pools) > 1 and not self._joule_s else 0.0

    def _on_nodes(self, view: View) -> NodeTurns | SharedWeigh | None:
        """Return who decides on nodes; None: the pools are counted."""
        pools = view.cluster.pools
        if all(pool.capacity for pool in pools) and not isinstance(view.slowdowns, NoSlowdowns):
            return SharedWeigh(view, self.parameters)
        return on_nodes.queue(view, lambda pools: NodeTurns(pools, self.parameters), "weigh")

    def refuses(self, job: Job, cluster: Cluster) -> str:
        ways = job.ways if len(cluster.pools) > 1 else (job,)
        return min((too_hungry(way, cluster) for way in ways), key=len)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if self._nodes is not None:
            return self._nodes.decide(view, event)
        if isinstance(event, Submitted):
            self._sized = self._sized or event.job.speed is not None
            self._new.add(event.job.id)
        else:
            self._changed = True
        if isinstance(event, NodeDown | NodeUp | BudgetChanged):
            self._rows = self._table(view, self._rows.prices)
        elif isinstance(event, Submitted | Failed):
            self._enter(view.state(event.job.id), view)
        elif isinstance(event, Finished):
            self._rows.drop(event.job.id)
        if view.upcoming is not None:
            return ()
        if len(self._rows) != len(view.waiting):
            self._rows.clear()
            for job_id in view.waiting:
                self._enter(view.state(job_id), view)
        share = len(self._pools) == 1 and (self._sized or view.budget_w is not None)
        # Who runs in a hole, or draws too much, stops first; then all is decided again.
        actions = self._ends_of_holes(view) or (self._watts.stops(view) if self._watts is not None else [])
        actions = actions or (self._share(view) if share else self._decide(view))
        if self._watts is not None:
            actions = self._watts.with_caps(view, actions)
        for action in actions:
            if isinstance(action, Start):
                self._rows.drop(action.job_id)
        return actions

    def prices(self) -> Mapping[str, Mapping[str, float]]:
        if self._nodes is not None:
            return self._nodes.prices()
        if len(self._pools) == 1:
            self._rows.form_prices(self.parameters.price, self._later)
        rows = (self._rows.prices * bool(len(self._rows))).tolist()
        return {name: {"": row[0]} for name, row in zip(self._pools, rows, strict=True)}

    def _table(self, view: View, prices: NDArray[np.float64] | None = None) -> Rows:
        """Return an empty table for the machine as it is now, with the prices of before."""
        sizes = np.array([[max(1.0, view.in_service[pool])] for pool in self._pools])
        self._watts = Watts.of(view, self._joule_s) if len(self._pools) > 1 else None
        shared = None
        if self._watts is not None:  # those of a unit are one
            sizes = np.hstack((sizes, sizes))
            portions = [NANO * self._watts.unit_w.get(pool, 0.0) for pool in self._pools]
            shared = np.array(portions) / max(1, self._watts.budget)
        rows = Rows(sizes, shared)
        if prices is not None and prices.shape == sizes.shape:
            rows.prices = prices
        return rows

    def _enter(self, state: JobState, view: View) -> None:
        several, watts = len(self._pools) > 1, self._watts
        ways = [
            (way.job, self._lengths(state, way, view))
            for way in ways_of(state, with_sizes=several, watts=watts)
        ]
        job, lengths = ways[0]
        if len(ways) > 1:
            job, lengths = min(ways, key=lambda way: least_area(way[0], way[1], self._rows.sizes))
            # On a class where it cannot run so, it may in another way.
            shortest = map(min, zip(*(of_way for _, of_way in ways), strict=True))
            lengths = [its if its < math.inf else other for its, other in zip(lengths, shortest, strict=True)]
        self._rows.add(job, lengths, amounts=self._amounts(state.job, [way for way, _ in ways]))

    def _amounts(self, job: Job, ways: Sequence[Job]) -> tuple[float, ...]:
        """Return the units that a job takes at least, and where they count, its watts as units."""
        units, watts = min(way.units for way in ways), self._watts
        if watts is None:
            return (units,)
        places = ((way, pool) for way in ways for pool in self._pools if way.runs_on(pool))
        return units, min(watts.units(watts.need(job, way, pool), pool) for way, pool in places)

    def _lengths(self, state: JobState, way: JobState, view: View) -> list[float]:
        """List the time left on each class in a way; infinite where the budget does not carry it."""
        lengths, watts = lengths_of(way, view, self._pools), self._watts
        if watts is None:
            return lengths
        return [
            length if length == math.inf or watts.need(state.job, way.job, pool) <= watts.budget else math.inf
            for length, pool in zip(lengths, self._pools, strict=True)
        ]

    def why(self, job: Job, view: View) -> Reason:
        if self._nodes is not None:
            return self._nodes.why(job, view)
        first, several = next(iter(view.waiting.values())), len(self._pools) > 1
        plain = not self._sized and view.budget_w is None
        waits = waits_for(job, view, job.ways if plain or several else ())
        if self._watts is not None and view.budget_w is not None:
            waits += f", {max(0.0, self._watts.free(view) / NANO):.4g} of {view.budget_w:g} W free"
        if several and (job.id != first.id or self._watts is not None):
            sentence, at = waits + (in_turn(job, view) or "; first in the queue"), None
        else:
            at, ends = awaited(job, view, self._in_order(first, view))
            sentence = waits + ("; first in the queue" if job.id == first.id else in_turn(job, view, ends))
        if several or not plain:  # else prices decide nothing
            sentence = "; ".join((sentence, *self._prices_for(job)))
        elif job.id != first.id and fits_now(job, view):
            sentence = would_delay(first).sentence
        return Reason(sentence, at)

    def _prices_for(self, job: Job) -> Iterator[str]:
        for name, row in self.prices().items():
            if row[""] and job.runs_on(name):
                yield f"an hour of {name} costs others {row['']:.2g} h of waiting"

    def _in_order(self, first: Job, view: View) -> Iterator[Job]:
        """Yield the first of the queue, then the others by their indices."""
        yield first
        for job_id in self._rows.order(self._weights(view)):
            if job_id != first.id and job_id in view.waiting:
                yield view.waiting[job_id]

    def _share(self, view: View) -> list[Action]:
        """Decide for jobs that may have more or fewer units, or under power caps."""
        ranks = self._ranks(view.in_service, view)[0] if view.waiting else []
        waits = dict.fromkeys([*islice(view.waiting, 1), *(job_id for _, job_id in ranks)])
        if not self._changed and self._new.isdisjoint(waits):
            return []
        self._changed, self._new = False, set()
        states = [view.state(job_id) for job_id in waits]
        actions = self._ahead.starts(view, states, self._holes) if self._ahead is not None else None
        return shares(view, states, self._holes, self.parameters) if actions is None else actions

    # -- a decision -------------------------------------------------------------------------------

    def _decide(self, view: View) -> list[Action]:
        left = dict(view.free)
        self._new.clear()
        moves = self.parameters.move and len(self._pools) > 1
        gives = self._gives_way(view) if moves else []
        if max(left.values()) <= 0 and not gives:
            return []
        movers = list(self._movers(view, left)) if moves else []
        free_w = 0 if self._watts is None else self._watts.free(view)
        ranked = self._ranked(view, left, movers, free_w, stops=bool(gives))
        if not ranked:
            return []
        more = [
            (
                lengths_of(state, view, self._pools),
                self._amounts(view.running[state.job.id].job, [state.job]),
            )
            for state in movers
        ]
        self._rows.form_prices(self.parameters.price, self._later, more)
        prices = dict(zip(self._pools, self._rows.prices[:, 0].tolist(), strict=True))
        end_of = believed_end if self._watts is None else self._planned_end
        ends = {job_id: end_of(state, view, self._holes) for job_id, state in view.running.items()}
        plans, watts_plan = self._plans(view, ends)
        decision = Decision(view, left, prices, plans, ends, gives, self.parameters.fairness)
        if self._watts is not None and watts_plan is not None:
            by_class = zip(self._pools, self._rows.prices[:, 1].tolist(), strict=True)
            price = max(price * self._watts.units(1, pool) for pool, price in by_class)
            decision.power = PowerLeft(self._watts, price + self._joule_s / NANO, watts_plan, free_w)
        self._weigh(decision, ranked)
        return decision.actions

    def _weigh(self, decision: Decision, ranked: Iterable[JobState]) -> None:
        """Start, move or reserve for the jobs in their order."""
        view, left, reserved = decision.view, decision.left, set[str]()
        waits: list[JobState] = []
        for job_state in ranked:
            if max(left.values()) <= 0 and not decision.gives:
                return
            if job_state.job.id in view.running:
                decision.move(job_state)
                continue
            best = decision.best(job_state)
            if best is None:
                continue
            state = best.state
            if best.start_s <= view.now:
                decision.start(state, best.pool, best.end_s)
                continue
            if decision.displace(job_state, best.cost_s):
                continue
            if best.pool not in reserved:
                if best.start_s == math.inf:
                    return
                reserved.add(best.pool)
                drawn = decision.drawn(state, best.pool)
                best = decision.on_the_way(job_state, best)
                decision.reserve(best.pool, best.start_s, best.end_s, state.job.units, drawn=drawn)
                if best.on_the_way:
                    decision.start(best.state, best.on_the_way, best.start_s)
                    continue
            if state.job.stop is CHECKPOINT:
                waits.append(state)
        for state in waits if self.parameters.holes else ():
            decision.fill_hole(state, self._holes)

    def _ends_of_holes(self, view: View) -> list[Action]:
        """Stop who runs in a hole that ends, if somebody waits for the units."""
        stops: list[Action] = []
        for job_id, until in list(self._holes.items()):
            state = view.running.get(job_id)
            if state is None or state.stage is not RUNNING:
                del self._holes[job_id]
            elif until - view.costs.stop_s(state.job, state.place.pool) <= view.now + SOON_S:
                del self._holes[job_id]
                if state.expected_end_s > until and (view.waiting or view.suspended):
                    stops.append(Suspend(job_id))
        return stops

    def _movers(self, view: View, left: Mapping[str, int]) -> Iterator[JobState]:
        """Yield running jobs, as they are there, that would end earlier on units that are free."""
        most = max(left.values())
        for state in view.running.values():
            job, here = state.job, state.place.pool
            if job.units > most or job.stop is not CHECKPOINT or state.stage is not RUNNING:
                continue
            if job.alternatives or job.reference_s(here) == math.inf:
                continue
            stays = as_on(state, state.place, self._watts)
            whole_s, left_here = stays.job.reference_s(here), stays.left(view.now, here).middle
            if any(
                left[pool] >= way.job.units
                and way.job.runs_on(pool)
                and way.job.reference_s(pool) < whole_s
                and way.left(view.now, pool).middle + view.costs.move_s(job, here, pool).middle < left_here
                for way in ways_of(state, with_sizes=True, watts=self._watts)
                for pool in self._pools
            ):
                yield stays

    def _ranked(
        self, view: View, left: Mapping[str, int], movers: list[JobState], free_w: int, *, stops: bool
    ) -> list[JobState]:
        """List the jobs that are weighed: the first of the queue, then by priority and index.

        Args:
            stops: running jobs give way to others. Then a first job that would do so does not come first.
        """
        fits, others = self._ranks(left, view, free_w)
        more = [state for state in view.suspended.values() if stops or self._could_start(state.job, left)]
        more += movers
        if not fits and not more and not (stops and others):
            return []
        jobs = [(rank, view.state(job_id)) for rank, job_id in (*fits, *others)]
        jobs += [(self._rank(state, view), state) for state in more]
        if view.waiting:
            first = view.state(next(iter(view.waiting)))
            priority, index = self._rank(first, view)
            yields = stops and first.job.stop is CHECKPOINT and not is_unknown(first.job)
            jobs = [job for job in jobs if job[1] is not first]
            jobs.append(((priority, index / MARGIN) if yields else (-math.inf, index), first))
        jobs.sort(key=lambda job: (job[0], job[1].job.id))
        return [state for _, state in jobs]

    def _gives_way(self, view: View) -> list[tuple[float, JobState]]:
        """List running jobs that may be stopped for others, with their indices there, the highest first."""
        gives = []
        for state in view.running.values():
            job, pool = state.job, state.place.pool
            works = state.stage is RUNNING and state.works_from_s + FLOOR_S <= view.now
            if job.stop is CHECKPOINT and works and job.id not in self._holes and not is_unknown(job):
                there = as_on(state, state.place, self._watts)
                index = index_on(there, view, pool, fairness=self.parameters.fairness)
                gives.append((index, there))
        return sorted(gives, key=lambda pair: (-pair[0], pair[1].job.id))

    def _ranks(
        self, left: Mapping[str, int], view: View, free_w: int = 0
    ) -> tuple[list[tuple[Rank, int]], ...]:
        room = np.array([[left[pool]] for pool in self._pools], dtype=np.float64)
        if self._watts is not None:
            room = np.hstack((room, [[self._watts.units(free_w, pool)] for pool in self._pools]))
        return self._rows.ranked(room, self._weights(view), self.parameters.depth)

    def _weights(self, view: View) -> tuple[float, float, float]:
        """Return what an index depends on, beside the job."""
        first = next(iter(view.waiting.values()), None)
        return view.now, first.submit_s if first else math.inf, self.parameters.fairness

    def _could_start(self, job: Job, left: Mapping[str, int]) -> bool:
        return any(way.runs_on(pool) and way.units <= left[pool] for pool in self._pools for way in job.ways)

    def _rank(self, state: JobState, view: View) -> Rank:
        if state.placement is not None and (self._watts is not None or state.job.alternatives):
            state = as_on(state, state.place, self._watts)
        area_left = least_area(state.job, lengths_of(state, view, self._pools), self._rows.sizes)
        facts = np.array([*area_left, state.job.submit_s + state.attained_s(view.now)])
        return -state.job.priority, float(index_of(facts, *self._weights(view)))

    def _planned_end(self, state: JobState, view: View, holes: Mapping[int, float]) -> float:
        """Return when a running job is believed to give its units back, if no watts are lent to it."""
        end = believed_end(state, view, holes)
        if state.stage is not RUNNING or state.job.id in holes:
            return end
        left = left_s(as_on(state, state.place, self._watts), view.now, state.place.pool)
        return max(end, instant(max(view.now, state.works_from_s) + left))

    def _plans(
        self, view: View, ends: Mapping[int, float]
    ) -> tuple[dict[str, Availability], Availability | None]:
        """Free units of each class, and watts, over time, as running and moving jobs leave them."""
        now, costs, watts = view.now, view.costs, self._watts
        held: dict[str, list[tuple[float, int]]] = {pool: [] for pool in self._pools}
        drawn = list[tuple[float, int]]()
        for job_id, state in view.running.items():
            held[state.place.pool].append((ends[job_id], state.place.units))
            there = state.moves_to
            if there is not None:
                stop, restart = (
                    costs.stop_s(state.job, state.place.pool),
                    costs.restart_s(state.job, there.pool),
                )
                left = left_s(as_on(state, there, watts), now, there.pool)
                end = max(instant(state.since_s + stop + restart + left), instant(now + SOON_S))
                held[there.pool].append((end, there.units))
            if watts is not None:
                until = (ends[job_id],) if there is None else (ends[job_id], end)
                drawn += zip(until, watts.held(state), strict=True)
        plans = {pool: Availability.beside(some, view.in_service[pool], now) for pool, some in held.items()}
        return plans, None if watts is None else Availability.beside(drawn, watts.budget, now)


def index_on(state: JobState, view: View, pool: str, *, fairness: float, paid: float = 0.0) -> float:
    """Return the index of a job on one class.

    Args:
        paid: area that others lose who make room for it, as a share of the class for so many seconds.
    """
    left = left_s(state, view.now, pool)
    area = left * state.job.units / max(1, view.in_service[pool]) + paid
    return area / (1.0 + fairness * max(state.waited_s(view.now), 0.0) / max(left, FLOOR_S))


Gaps = list[tuple[float, float]]


def both(some: Gaps, others: Gaps) -> Gaps:
    """Return the intervals that lie in an interval of each of two ascending lists."""
    common, place = Gaps(), 0
    for start, end in some:
        while place < len(others) and others[place][0] < end:
            if others[place][1] > start:
                common.append((max(start, others[place][0]), min(end, others[place][1])))
            if others[place][1] > end:
                break
            place += 1
    return common


@dataclass
class PowerLeft:
    """The nanowatts that one decision can give: free now and as planned; price: of one for a second."""

    watts: Watts
    price: float
    plan: Availability
    free: int


@dataclass
class Decision:
    """Free and planned units, and the actions, of one decision.

    Attributes:
        left: units of each class that are free now. prices: of a unit-second of each.
        plans: free units of each class over time. ends: when running jobs are believed to give theirs back.
        gives: running jobs that may be stopped for others, and their indices, the highest first.
    """

    view: View
    left: dict[str, int]
    prices: dict[str, float]
    plans: dict[str, Availability]
    ends: dict[int, float]
    gives: list[tuple[float, JobState]]
    fairness: float
    power: PowerLeft | None = None
    actions: list[Action] = field(default_factory=list)
    _gaps: dict[tuple[str, int, int], Gaps] = field(default_factory=dict)

    def gaps(self, pool: str, units: int, drawn: int = 0) -> Gaps:
        """List when so many units, and watts, are free from now on, as (start, end)."""
        if (pool, units, drawn) not in self._gaps:
            gaps = self.plans[pool].regions(units, self.view.now)
            if self.power is not None:
                gaps = both(gaps, self.power.plan.regions(drawn, self.view.now))
            self._gaps[pool, units, drawn] = gaps
        return self._gaps[pool, units, drawn]

    def drawn(self, state: JobState, pool: str) -> int:
        """Return what a job is planned to draw on a class, in nW; 0 where watts do not count."""
        if self.power is None:
            return 0
        return self.power.watts.need(self.view.state(state.job.id).job, state.job, pool)

    def taken(self, state: JobState, pool: str) -> float:
        """Return what others, and the operator, pay for a second of a job on a class."""
        taken = self.prices[pool] * state.job.units
        return taken if self.power is None else taken + self.power.price * self.drawn(state, pool)

    def has(self, state: JobState, pool: str, until_s: float = -math.inf) -> bool:
        """Tell if units and watts for a job are free on a class, now and as planned until then."""
        units, power, now = state.job.units, self.power, self.view.now
        if self.left[pool] < units or (until_s > now and self.plans[pool].least(now, until_s) < units):
            return False
        if power is None:
            return True
        drawn = self.drawn(state, pool)
        return power.free >= drawn and (until_s <= now or power.plan.least(now, until_s) >= drawn)

    def best(self, state: JobState) -> Candidate | None:
        """Choose the candidate of least cost of a job that does not run; None: it can run nowhere now."""
        now, costs = self.view.now, self.view.costs
        candidates = list[Candidate]()
        for way in self.ways(state):
            job = way.job
            for pool in self.plans:
                drawn = 0 if self.power is None else self.drawn(way, pool)
                if self._may(way, pool, drawn):
                    length = left_s(way, now, pool) + (costs.restart_s(job, pool) if way.placement else 0.0)
                    held_s = max(length, SOON_S) if self._may_plan(job, pool) else math.inf
                    gaps = self.gaps(pool, job.units, drawn)
                    start = next((start for start, end in gaps if end - start >= held_s), math.inf)
                    end = instant(start + held_s)
                    cost = end - now + self.taken(way, pool) * length
                    waits = start > now and job.reference_s(pool) == math.inf
                    candidates.append(Candidate(waits, cost, start, end, pool, way))
        return min(candidates, key=itemgetter(slice(5)), default=None)

    def ways(self, state: JobState) -> list[JobState]:
        """List the ways of a job; on one class, its alternatives."""
        watts = None if self.power is None else self.power.watts
        return ways_of(state, with_sizes=len(self.plans) > 1, watts=watts)

    def _may(self, state: JobState, pool: str, drawn: int = 0) -> bool:
        job = state.job
        if not job.runs_on(pool) or job.units > self.view.in_service[pool]:
            return False
        if self.power is not None and drawn > self.power.watts.budget:
            return False
        return job.stop is not PAUSE or state.placement is None or state.place.pool == pool

    def _may_plan(self, job: Job, pool: str) -> bool:
        """Tell if the end of a job may be believed: on one class not where its run time is unknown."""
        return len(self.plans) > 1 or job.reference_s(pool) < math.inf

    def on_the_way(self, waiting: JobState, best: Candidate) -> Candidate:
        """Let the job run on a class of which units are free until its turn comes on a better one."""
        state, now, costs, most, chosen = best.state, self.view.now, self.view.costs, 0.0, best
        job = state.job
        able = product(self.ways(waiting), self.plans) if job.stop is CHECKPOINT else ()
        for way, pool in able:
            if pool == best.pool or not way.job.runs_on(pool) or not self.has(way, pool):
                continue
            changes = costs.move_s(job, pool, best.pool).high
            restart = costs.restart_s(job, pool) if state.placement is not None else 0.0
            runs_s = best.start_s - now - restart
            lengths = zip(left_quantiles(way, now, pool), left_quantiles(state, now, best.pool), strict=True)
            saved = min(runs_s / here * there for here, there in lengths) - changes
            if saved <= 0 or not self.has(way, pool, best.start_s):
                continue
            taken = self.taken(way, pool) * (best.start_s - now) - self.taken(state, best.pool) * saved
            if saved - taken > most:
                most = saved - taken
                chosen = best._replace(end_s=instant(best.end_s - saved), on_the_way=pool, state=way)
        return chosen

    def move(self, state: JobState) -> None:
        """Move a running job if that surely costs less than that it stays; else its place stays reserved."""
        view, job, now, here = self.view, state.job, self.view.now, state.place.pool
        stays, taken_here = left_quantiles(state, now, here), self.taken(state, here)
        second_here = 1.0 + taken_here  # what it costs
        if Suspend(job.id) in self.actions:
            return
        best, least = None, stays.middle * second_here
        stop = view.costs.stop_s(job, here)
        for way, pool in product(self.ways(view.running[job.id]), self.plans):
            units = way.job.units
            if (pool, units) == (here, job.units) or not job.runs_on(pool) or not self.has(way, pool):
                continue
            changes, goes = view.costs.move_s(job, here, pool), left_quantiles(way, now, pool)
            length, second = changes.middle + goes.middle, 1.0 + self.taken(way, pool)
            cost = length * second + taken_here * stop
            gains = [second_here * stay - second * go for stay, go in zip(stays, goes, strict=True)]
            cost += gains[1] - min(gains) + second * (changes.high - changes.middle)
            if cost < least and self._stays_free(way, pool, length):
                best, least, end = (way, pool), cost, instant(now + length)
        if best is None:
            return
        way, pool = best
        self.gives = [pair for pair in self.gives if pair[1].job.id != job.id]
        self.actions.append(Migrate(job.id, self.placement(way, pool)))
        self.take(way, pool)
        self.reserve(pool, now, end, way.job.units, drawn=self.drawn(way, pool))
        leaves = instant(now + max(stop, SOON_S))
        self.reserve(here, leaves, self.ends[job.id], -job.units, drawn=-self.drawn(state, here))

    def displace(self, state: JobState, cost_s: float) -> bool:
        """Stop running jobs of far higher index for one that waits, where all together gains.

        Args:
            cost_s: what it costs that the job starts without that.
        """
        if not self.gives or is_unknown(state.job):
            return False
        now, costs = self.view.now, self.view.costs
        least, best = math.inf, None
        for way, pool in product(self.ways(state), self.plans):
            stops = self._stops_for(way, pool) if self._may(way, pool, self.drawn(way, pool)) else []
            if not stops:
                continue
            length = left_s(way, now, pool) + (costs.restart_s(way.job, pool) if way.placement else 0.0)
            stop_s = max(costs.stop_s(other.job, pool) for other in stops)
            cost = stop_s + length * (1.0 + self.taken(way, pool))
            loss = sum(
                length + costs.move_s(other.job, pool, pool).high * (1.0 + self.taken(other, pool))
                for other in stops
            )
            if cost + loss < cost_s and cost < least:
                least, best = cost, (way, pool, stops, max(stop_s, SOON_S), length)
        if best is None:
            return False
        way, pool, stops, stop_s, length = best
        self.gives = [pair for pair in self.gives if pair[1] not in stops]
        for other in stops:
            self.actions.append(Suspend(other.job.id))
            leaves = instant(now + max(costs.stop_s(other.job, pool), SOON_S))
            until = max(self.ends[other.job.id], leaves)
            self.reserve(pool, leaves, until, -other.place.units, drawn=-self.drawn(other, pool))
        begins = instant(now + stop_s)
        self.reserve(pool, begins, instant(begins + length), way.job.units, drawn=self.drawn(way, pool))
        return True

    def _stops_for(self, state: JobState, pool: str) -> list[JobState]:
        """Choose who gives way to a job on a class until there is room; none if there is not enough."""
        room, drawn = self.left[pool], self.drawn(state, pool)
        free_w = math.inf if self.power is None else self.power.free
        paid, stops = 0.0, list[JobState]()
        for index, other in self.gives:
            if room >= state.job.units and free_w >= drawn:
                break
            if other.place.pool != pool or other.job.priority > state.job.priority:
                continue
            units = min(other.place.units, state.job.units)
            paid += (
                units
                / max(1, self.view.in_service[pool])
                * self.view.costs.move_s(other.job, pool, pool).high
            )
            if MARGIN * index_on(state, self.view, pool, fairness=self.fairness, paid=paid) >= index:
                return []
            room += other.place.units
            free_w += self.drawn(other, pool)
            stops.append(other)
        return stops if room >= state.job.units and free_w >= drawn else []

    def _stays_free(self, state: JobState, pool: str, length_s: float) -> bool:
        now = self.view.now
        if self.plans[pool].earliest(state.job.units, length_s, now) > now:
            return False
        return self.power is None or self.has(state, pool, instant(now + length_s))

    def take(self, state: JobState, pool: str) -> None:
        """Make what a job takes on a class less free now."""
        self.left[pool] -= state.job.units
        if self.power is not None:
            self.power.free -= self.drawn(state, pool)

    def placement(self, state: JobState, pool: str) -> Placement:
        """Return the place of a job on a class, under the cap that is planned for it."""
        job = state.job
        place = counted(pool, job.units, job.alternative)
        if self.power is None:
            return place
        whole = self.view.state(job.id).job.way(place)
        cap_w = self.power.watts.planned(whole, pool, job.units).cap_w
        return place if cap_w is None else replace(place, cap_w=cap_w)

    def reserve(self, pool: str, start_s: float, end_s: float, units: int, *, drawn: int = 0) -> None:
        """Make so many units, and watts, fewer free in an interval."""
        self.plans[pool].reserve(start_s, end_s, units)
        if self.power is not None:
            self.power.plan.reserve(start_s, end_s, drawn)
        self._gaps.clear()

    def start(self, state: JobState, pool: str, end_s: float) -> None:
        """Start or resume the job on ``pool`` now."""
        job = state.job
        self.reserve(pool, self.view.now, end_s, job.units, drawn=self.drawn(state, pool))
        self.take(state, pool)
        kind = Resume if job.id in self.view.suspended else Start
        self.actions.append(kind(job.id, self.placement(state, pool)))

    def fill_hole(self, state: JobState, holes: dict[int, float]) -> None:
        """Start the job in units that are free until a reservation begins, and enter when that is.

        Of several the class on which it gets most done, less what its stop and restart cost, if it is worth
        while on one.
        """
        job, now, costs = state.job, self.view.now, self.view.costs
        best, where, until_s = -1.0, "", math.inf
        for pool in self.plans:
            if not self._may(state, pool) or not self.has(state, pool):
                continue
            gaps = self.gaps(pool, job.units, self.drawn(state, pool))
            if not gaps or gaps[0][0] > now:
                continue
            until, length = gaps[0][1], left_s(state, now, pool) if self._may_plan(job, pool) else math.inf
            stop, restart = costs.stop_s(job, pool), costs.restart_s(job, pool)
            works = until - now - stop - (restart if state.placement else 0.0)
            if works < length and works > 2 * costs.move_s(job, pool, pool).high and works / length > best:
                best, where, until_s = works / length, pool, until
        if where:
            self.start(state, where, until_s)
            self.actions.append(WakeAt(instant(until_s - costs.stop_s(job, where))))
            holes[job.id] = until_s
