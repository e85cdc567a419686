"""Weigh on shared nodes: who starts beside whom.

A job runs on whole nodes of its own, or on a share of more of them beside others (``sharing``). A *group* is
what can start now: a job alone, one beside running jobs, or several that wait. It costs, in seconds,

    what its jobs and their neighbours end later than undisturbed
    + price x (1 - sum of worth / slow-down) x how long all of them are together
    + what jobs of a lower index, which it passes, wait longer

and the group of least cost starts, one after another. The price is that of the nodes (see ``weigh``) without
the job itself. The *worth* of a second of a program is its dual price in a linear program over all the work
(``match``): in the best company that there is nothing is lost. For the makespan hardly anything else counts.

A job joins running ones only where that costs less than to wait until they have ended, with its place empty.
Programs that nobody measured are alone.

**Classes of nodes** have prices of their own, and slow-downs. A job on one class costs, beside the above,

    (1 + price x worth) x believed time left

beyond what that is on the class where it is least. A job of unknown run time takes the first class, in the
order of the cluster, on which it can start. When no job that waits can start any more, running ones with a
checkpoint move to where their cost, with a stop and a restart at their 90 % quantile, is below that of where
they are.

Guarantee: the first job of the queue is passed until the machine could have done all that waited when it
became the first; one of unknown run time, until ``PASSES`` others have started. From then on it comes before
all others, and while it cannot start it has whole nodes reserved: others should end before, or leave it
enough of them.
Cost: a linear program, and ``depth`` jobs beside all that run, in a decision.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, combinations
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.model.events import Action, Event, Failed, Finished, Migrate, Resume, Start, Submitted
from scheduler.model.interference import BESIDE, PACKED, SPREAD
from scheduler.model.jobs import CHECKPOINT, RUNNING, Job, JobState, Pool
from scheduler.policies.base import Reason, View, in_turn
from scheduler.policies.sharing.pairing import bindings_of, factors, least_time
from scheduler.policies.sharing.sharing import (
    NodeSet,
    Places,
    Shape,
    SharedStart,
    pools_of,
    room_from,
    shape,
)
from scheduler.policies.weigh.parameters import WeighParameters
from scheduler.policies.weigh.waiting import AREA, SOON_S, Rows, believed_end, is_unknown, left_s

PARTNERS = 16  # so many jobs are weighed beside each other
PASSES = 64  # so many jobs may start before a first one of unknown run time
LITTLE = 0.01  # weight of ends and of passing, for the makespan


class Candidate(NamedTuple):
    """A waiting job.

    Attributes:
        left_s: believed time left on whole nodes, with a stop and a restart before.
        whole, share: its shape there, and on shares of nodes (None: it is alone).
        more_s: what it costs beside: those before it wait longer, another class is better for it.
    """

    job: Job
    left_s: float
    whole: Shape
    share: Shape | None
    more_s: float = 0.0


class Group(NamedTuple):
    """Jobs that can start now. The order is that in which groups do.

    Attributes:
        rank: minus the least priority. nodes: that it takes, or whose set it joins.
        ends_s: when all on them should have ended; infinite: nobody knows.
    """

    rank: float
    cost_s: float
    oldest: int
    nodes: int
    ends_s: float
    start: SharedStart


Member = tuple[str, str, float]  # program, binding, believed time left undisturbed


class Crowd(NamedTuple):
    """Jobs on the same nodes.

    Attributes:
        work_s: believed times left, undisturbed. slowed: predicted slow-downs.
        idle: what a second of the nodes is worth more than what is done on them, as a share of it.
    """

    work_s: list[float]
    slowed: list[float]
    idle: float

    @property
    def stays_s(self) -> list[float]:
        return [work_s * slow for work_s, slow in zip(self.work_s, self.slowed, strict=True)]


NOTHING: tuple[dict[str, float], dict[str, float]] = {}, {}
Change = Start | Resume | Migrate


class SharedWeigh:
    """Weigh (see the head of this module)."""

    def __init__(self, view: View, parameters: WeighParameters) -> None:
        self._pools, self._parameters = pools_of(view.cluster), parameters
        self._rows = Rows(np.array([np.maximum(pool.capacity, SOON_S) * pool.units for pool in self._pools]))
        self._first, self._until_s = -1, math.inf  # others may pass this job until then,
        self._passes = math.inf  # or until so many have started
        self._enter_all(view)

    def _enter_all(self, view: View) -> None:
        self._rows.clear()
        for job_id in view.waiting:
            self._enter(view.state(job_id), view.now)

    def _enter(self, state: JobState, now: float) -> None:
        job = state.job
        lefts = [
            left_s(state, now, pool.name) if job.runs_on(pool.name) and shape(job, pool) else math.inf
            for pool in self._pools
        ]
        self._rows.add(job, lefts)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if isinstance(event, Submitted | Failed):
            self._enter(view.state(event.job.id), view.now)
        elif isinstance(event, Finished):
            self._rows.drop(event.job.id)
        if view.upcoming is not None or not (view.waiting or len(self._pools) > 1):
            return ()
        if len(self._rows) != len(view.waiting):
            self._enter_all(view)
        first = next(iter(view.waiting), -1)
        if first != self._first:
            unknown = first in view.waiting and is_unknown(view.waiting[first])
            area_s = math.inf if unknown else float(self._rows.facts(view.waiting)[AREA].sum())
            self._first, self._until_s = first, view.now + area_s
            self._passes = PASSES if unknown else math.inf
        markets = self._markets(view)
        self._stopped = {**view.suspended} if len(markets) > 1 else {}
        is_due = view.now >= self._until_s or self._passes <= 0
        if is_due and any(market.places for market in markets) and view.waiting:
            behind = [ranked for ranked in self._ranked(markets, view) if ranked[0].job.id != first]
            if not self._start(markets, [(view.state(first), 0.0), *behind], first):
                self._reserve(markets, view.state(first))
        while any(market.places for market in markets) and (len(self._rows) or self._stopped):
            if not self._start(markets, self._ranked(markets, view)):
                break
        if len(markets) > 1 and self._parameters.move:
            while any(market.places for market in markets) and _move(markets, view):
                pass
        return [action for market in markets for action in market.actions]

    def _markets(self, view: View) -> list[Market]:
        pairs = zip(self._pools, self._prices(), strict=True)
        return [Market(view, pool, self._parameters, price) for pool, price in pairs]

    def _start(self, markets: Sequence[Market], jobs: Sequence[Ranked], of: int | None = None) -> bool:
        """Start the group of least cost; or of those with one of the jobs."""
        columns = zip(markets, _candidates(markets, jobs), strict=True)
        able = [(group, market) for market, column in columns if (group := market.best(column, of))]
        if not able:
            return False
        group, market = min(able, key=lambda pair: pair[0][:3])
        if group.ends_s == math.inf:
            alike = group.rank, group.ends_s
            group, market = next(pair for pair in able if (pair[0].rank, pair[0].ends_s) == alike)
        market.take(group)
        self._passes -= len(group.start.jobs)
        for job in group.start.jobs:
            self._rows.drop(job.id)
            self._stopped.pop(job.id, None)
        return True

    def _reserve(self, markets: Sequence[Market], state: JobState) -> None:
        """Keep whole nodes for a job that cannot start, on the class on which they are free first."""
        able = [(market, candidate) for market in markets if (candidate := market.candidate(state))]
        market, candidate = min(able, key=lambda pair: pair[0].begins(pair[1])[0])
        market.reserve(candidate)

    def _prices(self) -> list[float]:
        """Return the price of a node of each class: seconds for which others wait for a second of it."""
        self._rows.form_prices(self._parameters.price)
        others = 1.0 - 1.0 / max(len(self._rows), 1)
        rows = zip(self._rows.prices, self._pools, strict=True)
        return [float(row @ pool.capacity) * others for row, pool in rows]

    def prices(self) -> dict[str, dict[str, float]]:
        """Return prices of the resources of the nodes (see ``Policy.prices``)."""
        self._prices()
        rows = zip(self._pools, (self._rows.prices * bool(len(self._rows))).tolist(), strict=True)
        return {pool.name: dict(zip(pool.resources, row, strict=True)) for pool, row in rows}

    def _ranked(self, markets: Sequence[Market], view: View) -> list[Ranked]:
        """List jobs of the least index, in their order; those that were stopped come first."""
        weights = view.now, -math.inf, self._parameters.fairness
        room = np.array([market.room() for market in markets])
        ranked = sorted(self._rows.ranked(room, weights, self._parameters.depth)[0])
        areas_s = self._rows.facts(job_id for _, job_id in ranked)[AREA].tolist()
        jobs: list[Ranked] = [(state, 0.0) for state in self._stopped.values()]
        before, indices, last = 0, 0.0, 0.0
        for ((rank, index), job_id), area_s in zip(ranked, areas_s, strict=True):
            if rank != last:
                before, indices, last = 0, 0.0, rank
            passing_s = before * area_s - indices * area_s / index if index > 0 else 0.0
            jobs.append((view.state(job_id), passing_s))
            before, indices = before + 1, indices + index
        return jobs

    def why(self, job: Job, view: View) -> Reason:
        """Explain what a job waits for, and beside whom it would best be."""
        needs, company, at = list[str](), list[tuple[float, str]](), list[float]()
        first = next(iter(view.waiting)) == job.id
        for market in self._markets(view):
            candidate = market.candidate(view.state(job.id))
            if candidate is not None:
                needs.append(market.needs(candidate))
                company += market.best_company(candidate)
                from_s = room_from(candidate.whole, candidate.share, view, market.pool) if first else None
                at += [] if from_s is None else [from_s]
        best = min(company, default=(0.0, ""))[1]
        return Reason(f"waits for {' or '.join(needs)}{in_turn(job, view)}{best}", min(at, default=None))


Ranked = tuple[JobState, float]  # a job, and what those before it wait longer by its start


def _candidates(markets: Sequence[Market], jobs: Sequence[Ranked]) -> list[list[Candidate]]:
    """Return the jobs as they are on each class on which they can run."""
    columns = list[list[Candidate]]([] for _ in markets)
    for state, passing_s in jobs:
        able = []
        for market, column in zip(markets, columns, strict=True):
            if (candidate := market.candidate(state)) is not None:
                able.append((market.use_s(candidate) if len(markets) > 1 else 0.0, candidate, market, column))
        least_s = min((use_s for use_s, *_ in able), default=0.0)
        for use_s, candidate, market, column in able:
            column.append(candidate._replace(more_s=use_s - least_s + market.late * passing_s))
    return columns


def _move(markets: Sequence[Market], view: View) -> bool:
    """Move the running job to which that is worth most; false: it is worth nothing to any."""
    gone = {action.job_id for market in markets for action in market.actions}
    moves: list[tuple[float, int, Market, Group]] = []
    for state in view.running.values():
        job, here = state.job, state.place.pool
        works = state.stage is RUNNING and state.works_from_s <= view.now
        if job.stop is not CHECKPOINT or not works or job.id in gone or is_unknown(job):
            continue
        pairs = zip(markets, _candidates(markets, [(state, 0.0)]), strict=True)
        of = {market.pool.name: (market, candidate) for market, column in pairs for candidate in column}
        stays_s = of[here][0].stays_s(state, of[here][1])
        for pool, (market, candidate) in of.items():
            group = market.best([candidate], None) if pool != here else None
            if group is not None:
                moves.append((group.cost_s - stays_s, job.id, market, group))
    best = min(moves, key=lambda move: move[:2], default=None)
    if best is None or best[0] >= 0:
        return False
    _, _, market, group = best
    market.take(group)
    return True


class Market:
    """Free nodes in one decision, and the costs of groups of jobs there."""

    def __init__(self, view: View, pool: Pool, parameters: WeighParameters, price: float) -> None:
        self.view, self.pool, self._price, self._most = view, pool, price, parameters.most
        self.late = LITTLE if parameters.aim == "makespan" else 1.0
        self.places, self.actions = Places(view, pool, parameters.most), list[Change]()
        self._known: dict[object, tuple[Shape | None, Shape | None]] = {}  # shapes of jobs alike
        self._begins_s, self._spare = math.inf, 0  # of the reservation, and the nodes that are free beside it

    def candidate(self, state: JobState) -> Candidate | None:
        """Return the job as it is here; None: it cannot run here."""
        whole, share = self._shapes(state.job)
        if whole is None:
            return None
        left = left_s(state, self.view.now, self.pool.name) + self._changes_s(state)
        return Candidate(state.job, left, whole, share)

    def _changes_s(self, state: JobState) -> float:
        """Return what it takes until a job that has run goes on here."""
        job, costs, name = state.job, self.view.costs, self.pool.name
        if job.id in self.view.running and state.place.pool != name:
            return costs.move_s(job, state.place.pool, name).high
        return costs.restart_s(job, name) if job.id in self.view.suspended else 0.0

    def _shapes(self, job: Job) -> tuple[Shape | None, Shape | None]:
        if not job.runs_on(self.pool.name):
            return None, None
        key = job.units, job.demand, job.program
        if key not in self._known:
            measured = self._most > 1 and self.places.slowdowns.pressure(job.program) is not None
            self._known[key] = self.places.whole(job), self.places.share(job) if measured else None
        return self._known[key]

    def use_s(self, candidate: Candidate) -> float:
        """Return what all that is left of a job costs here, itself and others."""
        nodes, worth = candidate.whole.nodes, 1.0
        if candidate.share is not None:
            nodes = candidate.share.nodes
            worth = self._worths.get(nodes, NOTHING)[0].get(candidate.job.program, 1.0 / self._most)
        return (self.late + self._price * nodes * worth) * candidate.left_s

    def stays_s(self, state: JobState, candidate: Candidate) -> float:
        """Weigh that a running job stays where it is."""
        crowds = (where.residents for where in self.places.shared if state in where.residents)
        others = tuple(resident for resident in next(crowds, ()) if resident is not state)
        beside = NodeSet((), others) if others else None
        return self._group((candidate,), (state.place.binding or PACKED,), beside).cost_s

    def room(self) -> NDArray[np.float64]:
        """Return what is free of each resource, in all."""
        shares = sum(len(where.nodes) for where in self.places.sets) / self._most
        room: NDArray[np.float64] = np.multiply(self.pool.capacity, len(self.places.empty) + shares)
        return room

    def needs(self, candidate: Candidate) -> str:
        """Write what a job waits for here."""
        whole, share, of = candidate.whole, candidate.share, self.places.of
        needs = f"{whole.nodes} whole node{'s' * (whole.nodes != 1)}{of} ({len(self.places.empty)} empty)"
        if share is not None:
            needs += (
                f" or a share of {share.nodes}{of} beside another job ({len(self.places.sets)} have room)"
            )
        return needs

    def best_company(self, candidate: Candidate) -> Iterator[tuple[float, str]]:
        """Yield running jobs: the slow-downs of both, and a clause."""
        for state in chain.from_iterable(where.residents for where in self.places.shared):
            if candidate.share is not None and len(state.place.nodes) == candidate.share.nodes:
                bound = state.place.binding, BESIDE[state.place.binding]
                its, own = factors((state.job.program, candidate.job.program), bound, self.places.slowdowns)
                name, slower = state.job.name, f"{_slower(own)}, that job {_slower(its)}"
                yield its + own, f"; of those that run it goes best with job {name}: {slower}"

    def best(self, candidates: Sequence[Candidate], of: int | None) -> Group | None:
        """Return the group of least cost; or of those with one of the jobs."""
        groups = [group for group in self._groups(candidates, of) if self._held_beyond(group) <= self._spare]
        return min(groups, key=lambda group: group[:3], default=None)

    def take(self, group: Group) -> None:
        """Start, resume or move the jobs of a group."""
        self._spare -= self._held_beyond(group)
        stopped, running = self.view.suspended, self.view.running
        for job_id, where in ((start.job_id, start.placement) for start in self.places.take(group.start)):
            kind = Resume if job_id in stopped else Migrate if job_id in running else Start
            self.actions.append(kind(job_id, where))

    # -- the reservation ------------------------------------------------------------------------------

    def reserve(self, candidate: Candidate) -> None:
        """Keep whole nodes for a job that cannot start."""
        self._begins_s, self._spare = self.begins(candidate)

    def begins(self, candidate: Candidate) -> tuple[float, int]:
        """Return in how many seconds there are whole nodes for a job, and how many more there are then."""
        view, nodes = self.view, self.view.nodes[self.pool.name]
        ends_s = {job_id: believed_end(state, view, {}) - view.now for job_id, state in view.running.items()}
        for job_id in [job_id for job_id, end_s in ends_s.items() if end_s == math.inf]:
            ends_s[job_id] = left_s(view.state(job_id), view.now, self.pool.name)
        for where in self.places.shared:
            stays_s = self._crowd(len(where.nodes), self._members(where.residents)).stays_s
            ends_s |= {state.job.id: stay_s for state, stay_s in zip(where.residents, stays_s, strict=True)}
        free = sorted(
            max((ends_s[job_id] for job_id in jobs), default=0.0)
            for jobs, up in zip(nodes.jobs, nodes.up.tolist(), strict=True)
            if up
        )
        if len(free) < candidate.whole.nodes:
            return math.inf, 0
        begins_s = free[candidate.whole.nodes - 1]
        return begins_s, sum(end_s <= begins_s for end_s in free) - candidate.whole.nodes

    def _held_beyond(self, group: Group) -> int:
        """Count the nodes that it takes from those that are free when the reservation begins."""
        if group.ends_s <= self._begins_s:
            return 0
        residents = group.start.joined.residents if group.start.joined else ()
        ends_s = self._crowd(group.nodes, self._members(residents)).stays_s
        return 0 if max(ends_s, default=0.0) > self._begins_s else group.nodes

    # -- groups and their costs -----------------------------------------------------------------------

    def _groups(self, candidates: Sequence[Candidate], of: int | None) -> Iterator[Group]:
        """Yield who can start; of jobs of one program and shape the first few."""
        empty, partners, seen = len(self.places.empty), list[Candidate](), Counter[object]()
        for candidate in candidates:
            seen[candidate.job.program, candidate.share] += 1
            if candidate.share is not None and seen[candidate.job.program, candidate.share] > self._most:
                continue
            if candidate.share is not None and len(partners) < PARTNERS:
                partners.append(candidate)
            if of in (None, candidate.job.id):
                yield from self._alone(candidate)
        for jobs in chain.from_iterable(combinations(partners, size) for size in range(2, self._most + 1)):
            nodes = {candidate.share.nodes for candidate in jobs if candidate.share}
            is_there = of is None or any(candidate.job.id == of for candidate in jobs)
            if len(nodes) == 1 and max(nodes) <= empty and is_there:
                yield from (self._group(jobs, bindings) for bindings in bindings_of(len(jobs)))

    def _alone(self, candidate: Candidate) -> Iterator[Group]:
        """Yield the places of one job: whole nodes, a share that others can join, beside those that run."""
        empty, share = len(self.places.empty), candidate.share
        if candidate.whole.nodes <= empty and (share is None or candidate.whole.nodes < share.nodes):
            yield self._group((candidate,), (PACKED,))
        if share is None:
            return
        if share.nodes <= empty:
            yield self._group((candidate,), (SPREAD,))
        for where in self.places.sets:
            if len(where.nodes) == share.nodes:
                group = self._group((candidate,), (where.binding,), where)
                if group.cost_s < self._wait_s(candidate, where):
                    yield group

    def _group(
        self, jobs: tuple[Candidate, ...], bindings: tuple[str, ...], where: NodeSet | None = None
    ) -> Group:
        """Weigh jobs that start together."""
        residents = where.residents if where else ()
        new = [
            (candidate.job.program, binding, candidate.left_s)
            for candidate, binding in zip(jobs, bindings, strict=True)
        ]
        nodes = jobs[0].whole.nodes if jobs[0].share is None else jobs[0].share.nodes
        before = self._crowd(nodes, self._members(residents))
        crowd = self._crowd(nodes, [*self._members(residents), *new])
        stays_s = crowd.stays_s[len(residents) :]
        late_s = sum(stays_s) - sum(candidate.left_s for candidate in jobs)
        more_s = sum(candidate.more_s for candidate in jobs)
        for work_s, slow, slow_before in zip(before.work_s, crowd.slowed, before.slowed, strict=False):
            late_s += min(work_s, max(stays_s) / slow) * (slow - slow_before)
        known = all(candidate.job.reference_s(self.pool.name) < math.inf for candidate in jobs)
        return Group(
            -min(candidate.job.priority for candidate in jobs),
            self.late * late_s + more_s + self._price * nodes * crowd.idle * min(crowd.stays_s),
            min(candidate.job.id for candidate in jobs),
            jobs[0].whole.nodes if bindings == (PACKED,) else nodes,
            max(crowd.stays_s) if known else math.inf,
            SharedStart(tuple(candidate.job for candidate in jobs), bindings, where),
        )

    def _wait_s(self, candidate: Candidate, where: NodeSet) -> float:
        """Weigh that a job waits until the others on a set have ended, its place empty."""
        crowd = self._crowd(len(where.nodes), self._members(where.residents))
        wait_s = max(crowd.stays_s)
        idle_s = self._price * len(where.nodes) * crowd.idle * min(wait_s, candidate.left_s)
        return self.late * wait_s + candidate.more_s + idle_s

    def _members(self, residents: Sequence[JobState]) -> list[Member]:
        now, pool = self.view.now, self.pool.name
        return [(state.job.program, state.place.binding, left_s(state, now, pool)) for state in residents]

    def _crowd(self, nodes: int, members: Sequence[Member]) -> Crowd:
        """Predict how jobs run beside each other."""
        programs, bindings = [program for program, *_ in members], [binding for _, binding, _ in members]
        slowed = factors(programs, bindings, self.places.slowdowns)
        worth, alone = self._worths.get(nodes, NOTHING)
        held = alone.get(programs[0], 1.0) if bindings == [PACKED] else 1.0
        used = sum(worth.get(program, held) / slow for program, slow in zip(programs, slowed, strict=True))
        return Crowd([work_s for *_, work_s in members], slowed, held - used)

    @cached_property
    def _worths(self) -> dict[int, tuple[dict[str, float], dict[str, float]]]:
        """By nodes of a set: worth of a second of each program, and the part of a set that it takes alone."""
        view, name = self.view, self.pool.name
        work, parts = defaultdict[int, dict[str, float]](dict), defaultdict[int, dict[str, float]](dict)
        begun = chain(view.running.values(), view.suspended.values())
        for job in chain(view.waiting.values(), (state.job for state in begun)):
            whole, share = self._shapes(job)
            if whole is not None and share is not None:
                left, of = left_s(view.state(job.id), view.now, name), work[share.nodes]
                of[job.program] = of.get(job.program, 0.0) + left
                parts[share.nodes][job.program] = 1.0 if whole.nodes >= share.nodes else 1.0 / self._most
        return {nodes: (self._worth(of, parts[nodes]), parts[nodes]) for nodes, of in work.items()}

    def _worth(self, work: Mapping[str, float], parts: Mapping[str, float]) -> dict[str, float]:
        """Return the dual prices; of a short queue the mean of those with one job more of each program.

        There a job is much of the work: what is a good partner now may be lacking behind it.
        """
        few = max(len(self.view.waiting), len(work)) <= PARTNERS and len(self.view.cluster.pools) == 1
        one_s = sum(work.values()) / max(len(self.view.waiting), 1)
        works = [{**work, program: work[program] + one_s} for program in work] if few else [work]
        worths = [least_time(of, self.places.slowdowns, self._most, parts)[1] for of in works]
        return {program: fmean(worth[program] for worth in worths) for program in work}


def _slower(slow: float) -> str:
    """Write ``"3 % slower"``."""
    percent = round(100.0 * (slow - 1.0))
    return f"{abs(percent)} % {'faster' if percent < 0 else 'slower'}"
