"""Sharing of nodes with the least predicted loss, by a minimum-weight perfect matching.

Algorithm: once for every instant at which something changed, among the first ``depth`` waiting jobs.

1. Prices. A linear program (``pairing.least_time``) over the work left of these jobs and of those on shared
   nodes prices a second of each program's work in sets of nodes. A program that disturbs little is cheap,
   because its company is scarce. Unequal lengths enter here, because the work of each program counts and
   not the number of its jobs.
2. Weights. Jobs on a set of nodes cost the value of the set less that of their progress: 1 - sum(price /
   predicted factor). A job alone on whole nodes costs their part of a set (1 / ``most``, or all of it if the
   job does not fill whole nodes) - price. A set with a share left keeps its cost if no job joins. If there
   are nodes for all jobs to be spread alone, nodes are free and programs equal, so the sum of speeds counts.
3. Matching. The groups (waiting jobs, up to ``most``; one with a set that has a share left; one alone) of
   least cost in all that hold each job once, with the placement of each. Joining costs ``order`` more for
   each earlier job that waits.
4. Joins start first, then groups in the order of their oldest job. A job whose group finds no room takes the
   cheapest free place: whole nodes, or a share left by the matching if total progress grows with the job. It
   waits for a better partner only while no place is free.

Guarantee: at most ``passes`` later jobs start before a job. While there are nodes for all, jobs share only if
more progress is predicted than apart. Jobs of programs without measurement are alone.
Cost: two programs solved by HiGHS an instant in which anything is free, about 10 ms for 16 jobs in pairs.
Paper: ours, for the questions that Konishi et al. (2008) leave open: placement, unequal lengths, short
queues, groups of more than two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from math import isfinite
from typing import NamedTuple

from scheduler.model.interference import PACKED, SPREAD, Slowdowns
from scheduler.model.jobs import Job
from scheduler.policies.base import View
from scheduler.policies.sharing.pairing import bindings_of, least_time, others, partition
from scheduler.policies.sharing.sharing import NodeSet, Places, SharedStart, Sharing, SharingParameters


@dataclass(frozen=True)
class MatchParameters(SharingParameters):
    """Parameters of ``match``.

    Attributes:
        most: largest number of jobs on a node.
        order: additional saving, as a share of a set of nodes, for each waiting job that joining passes;
            with 0.003 passing a whole window costs as much as the paper's tables can save.
    """

    most: int = 2
    order: float = 0.003

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 2 or not self.order >= 0:
            raise ValueError("most must be at least 2, order not negative")


class Prices(NamedTuple):
    """Prices of nodes and progress in one decision.

    Attributes:
        factor: predicted factor of (program, binding, those beside it).
        set_price: of a set of nodes that jobs share. prices: of the progress of each program.
        alone: part of a set that the whole nodes are on which a program is alone.
    """

    factor: Callable[[str, str, tuple[str, ...]], float]
    set_price: float
    prices: dict[str, float]
    alone: dict[str, float]

    def cost(self, programs: Sequence[str], bindings: Sequence[str]) -> float:
        """Subtract what these programs get done from what they hold (a set, or whole nodes for one alone)."""
        return self.set_price * self.held(programs, bindings) - sum(
            self.prices[program] / self.factor(program, binding, others(programs, member))
            for member, (program, binding) in enumerate(zip(programs, bindings, strict=True))
        )

    def held(self, programs: Sequence[str], bindings: Sequence[str]) -> float:
        """Return the part of a set that they take."""
        return self.alone[programs[0]] if bindings[0] == PACKED else 1.0

    def joined(self, where: NodeSet, job: Job | None) -> float:
        """Compute the cost of a set in use, with another job or without."""
        programs = [state.job.program for state in where.residents]
        bindings = [state.place.binding for state in where.residents]
        if job is not None:
            return self.cost([*programs, job.program], [*bindings, where.binding])
        return self.cost(programs, bindings)


class Match(Sharing):
    """Sharing with the least predicted total loss."""

    Parameters = MatchParameters
    parameters: MatchParameters

    @property
    def most(self) -> int:
        return self.parameters.most

    def choose(self, jobs: Sequence[Job], places: Places, view: View) -> Sequence[SharedStart]:
        plans: list[SharedStart] = []
        alike: dict[int, list[Job]] = {}  # only jobs on as many nodes share them
        for job in jobs:
            share = places.share(job)
            if share is None or places.slowdowns.pressure(job.program) is None:
                plans.append(SharedStart((job,), (PACKED,)))
            else:
                alike.setdefault(share.nodes, []).append(job)
        plenty = sum(nodes * len(waiting) for nodes, waiting in alike.items()) <= len(places.empty)
        self._weights = {
            nodes: self._weigh(waiting, nodes, places, view, plenty=plenty)
            for nodes, waiting in alike.items()
        }
        for nodes, waiting in alike.items():
            sets = [where for where in places.sets if len(where.nodes) == nodes]
            plans += self._best(waiting, sets, self._weights[nodes])
        return plans

    def instead(self, job: Job, places: Places, view: View, due: bool) -> SharedStart | None:
        whole, share = places.whole(job), places.share(job)
        fits = whole is not None and whole.nodes <= len(places.empty)
        if share is None or places.slowdowns.pressure(job.program) is None:
            return SharedStart((job,), (PACKED,)) if fits else None
        weights = self._weights[share.nodes]
        way = (SPREAD,) if weights.alone[job.program] == 1.0 else (PACKED,)  # so that others can join
        options = [(weights.cost([job.program], way), 0, SharedStart((job,), way))] if fits else []
        for number, where in enumerate(places.sets, 1):
            if len(where.nodes) == share.nodes:
                more = weights.joined(where, job) - weights.joined(where, None)
                if due or more <= 0:
                    options.append((more, number, SharedStart((job,), (where.binding,), where)))
        return min(options, key=lambda option: option[:2])[2] if options else None

    def _weigh(
        self, waiting: Sequence[Job], nodes: int, places: Places, view: View, *, plenty: bool
    ) -> Prices:
        """Price nodes and programs; nodes are free and programs equal where there are nodes for all."""
        states = [s for where in places.shared if len(where.nodes) == nodes for s in where.residents]
        left = [(job.program, job.reference_s(places.pool.name)) for job in waiting]
        left += [(state.job.program, state.remaining_s(view.now)) for state in states]
        jobs = [*waiting, *(state.job for state in states)]
        alone = {job.program: self._part(job, places, nodes) for job in jobs}
        slowdowns = _Cached(places.slowdowns)
        if plenty:
            return Prices(slowdowns.factor, 0.0, {program: 1.0 for program, _ in left}, alone)
        known = [seconds for _, seconds in left if isfinite(seconds)]
        mean = sum(known) / len(known) if sum(known) > 0 else 1.0
        work: dict[str, float] = {}
        for program, seconds in left:
            work[program] = work.get(program, 0.0) + (seconds if isfinite(seconds) else mean)
        _, prices = least_time(work, slowdowns, self.most, alone)
        return Prices(
            slowdowns.factor,
            1.0,
            {program: prices.get(program, alone[program]) for program in work},
            alone,
        )

    def _part(self, job: Job, places: Places, nodes: int) -> float:
        """Return the part of a set that the job takes alone; all if it does not fill whole nodes."""
        whole = places.whole(job)
        return 1.0 if whole is None or whole.nodes == nodes else 1.0 / self.most

    def _best(self, waiting: Sequence[Job], sets: Sequence[NodeSet], weights: Prices) -> list[SharedStart]:
        """Choose the groups of least total cost; the sets count as members behind the jobs."""
        costs: dict[tuple[int, ...], float] = {}
        plans: dict[tuple[int, ...], SharedStart] = {}
        groups = (combinations(range(len(waiting)), size) for size in range(1, self.most + 1))
        for members in chain.from_iterable(groups):
            jobs = tuple(waiting[member] for member in members)
            programs = [job.program for job in jobs]
            costs[members], bindings = self._cheapest(programs, bindings_of(len(jobs)), weights)
            plans[members] = SharedStart(jobs, bindings)
        for number, where in enumerate(sets, len(waiting)):
            costs[number,] = weights.joined(where, None)
            for place, job in enumerate(waiting):
                costs[place, number] = weights.joined(where, job) + self.parameters.order * place
                plans[place, number] = SharedStart((job,), (where.binding,), where)
        chosen = partition(len(waiting) + len(sets), costs)
        return [plans[members] for members in chosen if members in plans]

    def _cheapest(
        self, programs: Sequence[str], ways: Sequence[tuple[str, ...]], weights: Prices
    ) -> tuple[float, tuple[str, ...]]:
        """Return the least cost and its bindings; of equals fewer nodes, then room for others."""
        ways = (*ways, (SPREAD,)) if len(programs) == 1 else ways
        options = (
            (weights.cost(programs, way), weights.held(programs, way), way[0] == PACKED, way) for way in ways
        )
        cost, _, _, best = min(options)
        return cost, best


class _Cached:
    """Slow-downs, computed once a decision."""

    def __init__(self, slowdowns: Slowdowns) -> None:
        self.factor = cache(slowdowns.factor)
        self.pressure, self.on = slowdowns.pressure, slowdowns.on
