"""Pairs of jobs on the same nodes, chosen by the pressure of each on a probe.

Algorithm: once for every instant at which something changed, among the first ``depth`` waiting jobs. A job
that has its nodes half for itself gets the partner from the other end of the order of pressure on memory.
The others are paired from both ends inwards (``pairing.by_probes``), spread over twice as many nodes. A pair
is excluded if one presses on the network and the other communicates much, unless no other job is left; then
one lies near to the network card and one far. A job without partner runs on half of twice as many nodes if
they are empty, so that a later job can join; else on whole nodes. Jobs of a pair without room, and jobs of
programs without measured pressure, run on whole nodes too. Joins start first, then pairs in the order of
their earlier job.
Guarantee: at most ``passes`` later jobs start before a job.
Cost: O(depth^2 + running jobs + nodes) an instant.
Paper: Konishi, Nomura, Matsuba, Ishikawa: Efficient Scheduling for Cluster of NUMA Parallel Computers
(2008); it chooses from a list of jobs once, the form over time is ours.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scheduler.model.interference import PACKED, SPREAD, Pressure
from scheduler.model.jobs import Job
from scheduler.policies.base import View
from scheduler.policies.sharing.pairing import apart, ends_inwards, excluded
from scheduler.policies.sharing.sharing import NodeSet, Places, SharedStart, Sharing, SharingParameters


@dataclass(frozen=True)
class PairParameters(SharingParameters):
    """Parameters of ``pair``.

    Attributes:
        by: basis of the order: "probes" (the paper's proposal), "counters" (mean memory accesses, the paper's
            comparison, without exclusions), "chance" (no knowledge).
        high_percent: pressure on the network (near core) that is high.
        talks_percent: share of time in communication that is large.
    """

    by: Literal["probes", "counters", "chance"] = "probes"
    high_percent: float = 10.0
    talks_percent: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.high_percent >= 0 and self.talks_percent >= 0):
            raise ValueError("high_percent and talks_percent must not be negative")


class RankedJob(NamedTuple):
    """A waiting job whose pressure is known, and its place in the order."""

    job: Job
    key: float
    pressure: Pressure


class Pair(Sharing):
    """Pairs from both ends of an order of pressure."""

    Parameters = PairParameters
    parameters: PairParameters

    def choose(self, jobs: Sequence[Job], places: Places, view: View) -> Sequence[SharedStart]:
        plans: list[SharedStart] = []
        alike: dict[int, list[RankedJob]] = {}  # only jobs on as many nodes share them
        for job in jobs:
            known, share = self._known(job, places), places.share(job)
            if known is None or share is None:
                plans.append(SharedStart((job,), (PACKED,)))
            else:
                alike.setdefault(share.nodes, []).append(known)
        for nodes, waiting in alike.items():
            for where in places.sets:
                if len(where.nodes) == nodes and waiting:
                    known = self._partner(where, waiting, places)
                    waiting.remove(known)
                    plans.append(SharedStart((known.job,), (where.binding,), where))
            plans += self._pairs(waiting)
        return plans

    def instead(self, job: Job, places: Places, view: View, due: bool) -> SharedStart | None:
        if self._known(job, places) is not None:
            share = places.share(job)
            for where in places.sets:
                if share is not None and len(where.nodes) == share.nodes:
                    return SharedStart((job,), (where.binding,), where)
        return SharedStart((job,), (PACKED,))

    def _known(self, job: Job, places: Places) -> RankedJob | None:
        pressure = places.slowdowns.pressure(job.program)
        if pressure is None:
            return None
        key = {
            "probes": pressure.memory_percent,
            "counters": pressure.dram_per_ms,
            "chance": random.Random(f"{self.seed}/{job.id}").random(),
        }[self.parameters.by]
        return RankedJob(job, key, pressure)

    def _excluded(self, a: Pressure, b: Pressure) -> bool:
        given = self.parameters
        return given.by == "probes" and excluded(a, b, given.high_percent, given.talks_percent)

    def _partner(self, where: NodeSet, waiting: Sequence[RankedJob], places: Places) -> RankedJob:
        """Choose who joins: from the other end of the order, the first not excluded, else the first."""
        there = self._known(where.residents[0].job, places)
        if there is None:
            return waiting[0]
        order = sorted(waiting, key=lambda known: known.key)
        if 2 * sum(known.key < there.key for known in order) < len(order):
            order.reverse()  # most are above it: it takes the highest
        allowed = (known for known in order if not self._excluded(there.pressure, known.pressure))
        return next(allowed, order[0])

    def _pairs(self, waiting: Sequence[RankedJob]) -> list[SharedStart]:
        """Pair those left, all on as many nodes, by the paper's rule."""

        def forbidden(a: int, b: int) -> bool:
            return self._excluded(waiting[a].pressure, waiting[b].pressure)

        plans = []
        for members in ends_inwards([known.key for known in waiting], forbidden):
            bindings: tuple[str, ...] = (SPREAD,) * len(members)
            if len(members) == 2 and forbidden(*members):
                bindings = apart(*(waiting[member].pressure for member in members))
            plans.append(SharedStart(tuple(waiting[member].job for member in members), bindings))
        return plans
