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

Guarantee: the first job of the queue is passed until the machine could have done all that waited when it
became the first. From then on it comes before all others, and while it cannot start it has whole nodes
reserved: others should end before, or leave it enough of them.
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

from scheduler.model.events import Action, Event, Failed, Finished, Submitted
from scheduler.model.interference import BESIDE, PACKED, SPREAD
from scheduler.model.jobs import Job, JobState, Pool
from scheduler.policies.base import Reason, View, in_turn
from scheduler.policies.sharing.pairing import bindings_of, factors, least_time
from scheduler.policies.sharing.sharing import (
    NodeSet,
    Places,
    Shape,
    SharedStart,
    pool_of,
    room_from,
)
from scheduler.policies.weigh.parameters import WeighParameters
from scheduler.policies.weigh.waiting import AREA, SOON_S, Rows, believed_end, left_s

PARTNERS = 16  # so many jobs are weighed beside each other
LITTLE = 0.01  # weight of ends and of passing, for the makespan


class Candidate(NamedTuple):
    """A waiting job.

    Attributes:
        rank: minus its priority. left_s: believed run time on whole nodes.
        whole, share: its shape there, and on shares of nodes (None: it is alone).
        passing_s: what those before it wait longer by its start.
    """

    job: Job
    rank: float
    left_s: float
    whole: Shape
    share: Shape | None
    passing_s: float


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


class SharedWeigh:
    """Weigh (see the head of this module)."""

    def __init__(self, view: View, parameters: WeighParameters) -> None:
        self._pool, self._parameters = pool_of(view.cluster), parameters
        self._rows = Rows(np.array([np.maximum(self._pool.capacity, SOON_S)]) * self._pool.units)
        self._first, self._until_s = -1, math.inf  # others may pass this job until then
        self._enter_all(view)

    def _enter_all(self, view: View) -> None:
        self._rows.clear()
        for job_id in view.waiting:
            self._enter(view.state(job_id), view.now)

    def _enter(self, state: JobState, now: float) -> None:
        self._rows.add(state.job, [left_s(state, now, self._pool.name)])

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if isinstance(event, Submitted | Failed):
            self._enter(view.state(event.job.id), view.now)
        elif isinstance(event, Finished):
            self._rows.drop(event.job.id)
        if view.upcoming is not None or not view.waiting:
            return ()
        if len(self._rows) != len(view.waiting):
            self._enter_all(view)
        first = next(iter(view.waiting))
        if first != self._first:
            area_s = self._rows.facts(view.waiting)[AREA].sum()
            self._first, self._until_s = first, view.now + float(area_s)
        market = Market(view, self._pool, self._parameters, self._price())
        if market.places and view.now >= self._until_s:
            head = market.candidate(view.state(first))
            behind = [candidate for candidate in self._candidates(market) if candidate.job.id != first]
            if not self._start(market, [head, *behind], head):
                market.reserve(head)
        while market.places and len(self._rows):
            if not self._start(market, self._candidates(market)):
                break
        return market.actions

    def _start(self, market: Market, candidates: Sequence[Candidate], of: Candidate | None = None) -> bool:
        group = market.start(candidates, of)
        for job in group.start.jobs if group is not None else ():
            self._rows.drop(job.id)
        return group is not None

    def _price(self) -> float:
        """Return the price of a node: seconds for which others wait for a second of it."""
        self._rows.form_prices(self._parameters.price)
        return float(self._rows.prices[0] @ self._pool.capacity) * (1.0 - 1.0 / max(len(self._rows), 1))

    def prices(self) -> dict[str, dict[str, float]]:
        """Return prices of the resources of the nodes (see ``Policy.prices``)."""
        self._price()
        row = (self._rows.prices[0] * bool(len(self._rows))).tolist()
        return {self._pool.name: dict(zip(self._pool.resources, row, strict=True))}

    def _candidates(self, market: Market) -> list[Candidate]:
        """List jobs of the least index, in their order."""
        view, weights = market.view, (market.view.now, -math.inf, self._parameters.fairness)
        ranked = sorted(self._rows.ranked(market.room(), weights, self._parameters.depth)[0])
        areas_s = self._rows.facts(job_id for _, job_id in ranked)[AREA].tolist()
        candidates = list[Candidate]()
        before, indices, last = 0, 0.0, 0.0
        for ((rank, index), job_id), area_s in zip(ranked, areas_s, strict=True):
            if rank != last:
                before, indices, last = 0, 0.0, rank
            passing_s = before * area_s - indices * area_s / index if index > 0 else 0.0
            candidates.append(market.candidate(view.state(job_id), passing_s))
            before, indices = before + 1, indices + index
        return candidates

    def why(self, job: Job, view: View) -> Reason:
        """Explain what a job waits for, and beside whom it would best be."""
        market = Market(view, self._pool, self._parameters, self._price())
        candidate = market.candidate(view.state(job.id))
        whole, share, places = candidate.whole, candidate.share, market.places
        needs = f"waits for {whole.nodes} whole node{'s' * (whole.nodes != 1)} ({len(places.empty)} empty)"
        if share is not None:
            needs += f" or a share of {share.nodes} beside another job ({len(places.sets)} have room)"
        sentence = needs + in_turn(job, view) + market.best_company(candidate)
        first = next(iter(view.waiting)) == job.id
        return Reason(sentence, room_from(whole, share, view, self._pool) if first else None)


class Market:
    """Free nodes in one decision, and the costs of groups of jobs there."""

    def __init__(self, view: View, pool: Pool, parameters: WeighParameters, price: float) -> None:
        self.view, self._pool, self._price, self._most = view, pool, price, parameters.most
        self._late = LITTLE if parameters.aim == "makespan" else 1.0
        self.places, self.actions = Places(view, pool, parameters.most), list[Action]()
        self._known: dict[object, tuple[Shape, Shape | None]] = {}  # shapes of jobs alike
        self._begins_s, self._spare = math.inf, 0  # of the reservation, and the nodes that are free beside it

    def candidate(self, state: JobState, passing_s: float = 0.0) -> Candidate:
        left = left_s(state, self.view.now, self._pool.name)
        return Candidate(state.job, -state.job.priority, left, *self._shapes(state.job), passing_s)

    def _shapes(self, job: Job) -> tuple[Shape, Shape | None]:
        key = job.units, job.demand, job.program
        if key not in self._known:
            whole, share = self.places.whole(job), self.places.share(job)
            assert whole is not None, "a job that fits nowhere"
            measured = self._most > 1 and self.view.slowdowns.pressure(job.program) is not None
            self._known[key] = whole, share if measured else None
        return self._known[key]

    def room(self) -> NDArray[np.float64]:
        """Return what is free of each resource, in all."""
        shares = sum(len(where.nodes) for where in self.places.sets) / self._most
        room: NDArray[np.float64] = np.multiply(self._pool.capacity, len(self.places.empty) + shares)
        return room

    def best_company(self, candidate: Candidate) -> str:
        """Name the running job that the other runs best beside, and what both would lose."""
        companies = []
        for state in chain.from_iterable(where.residents for where in self.places.shared):
            if candidate.share is not None and len(state.place.nodes) == candidate.share.nodes:
                bound = state.place.binding, BESIDE[state.place.binding]
                slowed = factors((state.job.program, candidate.job.program), bound, self.view.slowdowns)
                companies.append((sum(slowed), state.job, slowed))
        if not companies:
            return ""
        _, other, (its, own) = min(companies, key=lambda company: company[0])
        return (
            f"; of those that run it goes best with job {other.name}: {_slower(own)}, that job {_slower(its)}"
        )

    def start(self, candidates: Sequence[Candidate], of: Candidate | None = None) -> Group | None:
        """Start the group of least cost; or of those with one of the jobs."""
        groups = [group for group in self._groups(candidates, of) if self._held_beyond(group) <= self._spare]
        best = min(groups, key=lambda group: group[:3], default=None)
        if best is not None:
            self._spare -= self._held_beyond(best)
            self.actions += self.places.take(best.start)
        return best

    # -- the reservation ------------------------------------------------------------------------------

    def reserve(self, candidate: Candidate) -> None:
        """Keep whole nodes for a job that cannot start."""
        view, nodes = self.view, self.view.nodes[self._pool.name]
        ends_s = {job_id: believed_end(state, view, {}) - view.now for job_id, state in view.running.items()}
        for where in self.places.shared:
            stays_s = self._crowd(len(where.nodes), self._members(where.residents)).stays_s
            ends_s |= {state.job.id: stay_s for state, stay_s in zip(where.residents, stays_s, strict=True)}
        free = sorted(
            max((ends_s[job_id] for job_id in jobs), default=0.0)
            for jobs, up in zip(nodes.jobs, nodes.up.tolist(), strict=True)
            if up
        )
        if len(free) >= candidate.whole.nodes:
            self._begins_s = free[candidate.whole.nodes - 1]
            self._spare = sum(end_s <= self._begins_s for end_s in free) - candidate.whole.nodes

    def _held_beyond(self, group: Group) -> int:
        """Count the nodes that it takes from those that are free when the reservation begins."""
        if group.ends_s <= self._begins_s:
            return 0
        residents = group.start.joined.residents if group.start.joined else ()
        ends_s = self._crowd(group.nodes, self._members(residents)).stays_s
        return 0 if max(ends_s, default=0.0) > self._begins_s else group.nodes

    # -- groups and their costs -----------------------------------------------------------------------

    def _groups(self, candidates: Sequence[Candidate], of: Candidate | None) -> Iterator[Group]:
        """Yield who can start; of jobs of one program and shape the first few."""
        empty, partners, seen = len(self.places.empty), list[Candidate](), Counter[object]()
        for candidate in candidates:
            seen[candidate.job.program, candidate.share] += 1
            if candidate.share is not None and seen[candidate.job.program, candidate.share] > self._most:
                continue
            if candidate.share is not None and len(partners) < PARTNERS:
                partners.append(candidate)
            if of in (None, candidate):
                yield from self._alone(candidate)
        for jobs in chain.from_iterable(combinations(partners, size) for size in range(2, self._most + 1)):
            nodes = {candidate.share.nodes for candidate in jobs if candidate.share}
            if len(nodes) == 1 and max(nodes) <= empty and (of is None or of in jobs):
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
        late_s = sum(stays_s) + sum(candidate.passing_s - candidate.left_s for candidate in jobs)
        for work_s, slow, slow_before in zip(before.work_s, crowd.slowed, before.slowed, strict=False):
            late_s += min(work_s, max(stays_s) / slow) * (slow - slow_before)
        known = all(candidate.job.reference_s(self._pool.name) < math.inf for candidate in jobs)
        return Group(
            max(candidate.rank for candidate in jobs),
            self._late * late_s + self._price * nodes * crowd.idle * min(crowd.stays_s),
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
        return self._late * (wait_s + candidate.passing_s) + idle_s

    def _members(self, residents: Sequence[JobState]) -> list[Member]:
        now, pool = self.view.now, self._pool.name
        return [(state.job.program, state.place.binding, left_s(state, now, pool)) for state in residents]

    def _crowd(self, nodes: int, members: Sequence[Member]) -> Crowd:
        """Predict how jobs run beside each other."""
        programs, bindings = [program for program, *_ in members], [binding for _, binding, _ in members]
        slowed = factors(programs, bindings, self.view.slowdowns)
        worth, alone = self._worths.get(nodes, NOTHING)
        held = alone.get(programs[0], 1.0) if bindings == [PACKED] else 1.0
        used = sum(worth.get(program, held) / slow for program, slow in zip(programs, slowed, strict=True))
        return Crowd([work_s for *_, work_s in members], slowed, held - used)

    @cached_property
    def _worths(self) -> dict[int, tuple[dict[str, float], dict[str, float]]]:
        """By nodes of a set: worth of a second of each program, and the part of a set that it takes alone."""
        view, name = self.view, self._pool.name
        work, parts = defaultdict[int, dict[str, float]](dict), defaultdict[int, dict[str, float]](dict)
        running = (state.job for where in self.places.shared for state in where.residents)
        for job in chain(view.waiting.values(), running):
            whole, share = self._shapes(job)
            if share is not None:
                left, of = left_s(view.state(job.id), view.now, name), work[share.nodes]
                of[job.program] = of.get(job.program, 0.0) + left
                parts[share.nodes][job.program] = 1.0 if whole.nodes >= share.nodes else 1.0 / self._most
        return {nodes: (self._worth(of, parts[nodes]), parts[nodes]) for nodes, of in work.items()}

    def _worth(self, work: Mapping[str, float], parts: Mapping[str, float]) -> dict[str, float]:
        """Return the dual prices; of a short queue the mean of those with one job more of each program.

        There a job is much of the work: what is a good partner now may be lacking behind it.
        """
        few = max(len(self.view.waiting), len(work)) <= PARTNERS
        one_s = sum(work.values()) / len(self.view.waiting)
        works = [{**work, program: work[program] + one_s} for program in work] if few else [work]
        worths = [least_time(of, self.view.slowdowns, self._most, parts)[1] for of in works]
        return {program: fmean(worth[program] for worth in worths) for program in work}


def _slower(slow: float) -> str:
    """Write ``"3 % slower"``."""
    percent = round(100.0 * (slow - 1.0))
    return f"{abs(percent)} % {'faster' if percent < 0 else 'slower'}"
