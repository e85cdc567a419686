"""Base of policies that let jobs share nodes: places, the order of starts, a bound on passing.

Nodes are divided into ``most`` equal shares. A job runs *packed* on whole nodes of its own, or takes a share
of each node of a *set* of ``most`` times as many. Jobs share whole sets only, so that a job has the same
neighbours on all of its nodes. A waiting job may join a set with a share left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, inf
from typing import NamedTuple

from profiles.errors import BadInput
from scheduler.model.events import Action, Event, Start
from scheduler.model.interference import BESIDE, PACKED
from scheduler.model.jobs import EPSILON, Cluster, Job, JobState, Placement, Pool
from scheduler.policies.base import Policy, Reason, View


class Shape(NamedTuple):
    """Number of nodes of a job, and of its units on each (the last may hold fewer)."""

    nodes: int
    units_a_node: int


class NodeSet(NamedTuple):
    """Nodes that jobs share, and the jobs in the order of their starts."""

    nodes: tuple[int, ...]
    residents: tuple[JobState, ...]

    @property
    def binding(self) -> str:
        """Binding of a job that joins."""
        return BESIDE[self.residents[0].place.binding]


class SharedStart(NamedTuple):
    """Jobs to be started together, their bindings, and the set that they join (None: empty nodes)."""

    jobs: tuple[Job, ...]
    bindings: tuple[str, ...]
    joined: NodeSet | None = None


def shape(job: Job, pool: Pool, shares: int = 1) -> Shape | None:
    """Compute how the job lies on nodes divided into ``shares``; None if it does not fit."""
    rooms = [int(c / shares / d + EPSILON) for c, d in zip(pool.capacity, job.demand, strict=True) if d > 0]
    units_a_node = min(rooms, default=0)
    if units_a_node < 1 or ceil(job.units / units_a_node) > pool.units:
        return None
    return Shape(ceil(job.units / units_a_node), min(units_a_node, job.units))


def place(job: Job, pool: Pool, taken: Shape, nodes: Sequence[int], *, binding: str) -> Placement:
    """Place the job on the first of ``nodes`` that it needs."""
    last = job.units - taken.units_a_node * (taken.nodes - 1)
    counts = [taken.units_a_node] * (taken.nodes - 1) + [last]
    return Placement(
        pool.name, job.units, tuple(zip(nodes[: taken.nodes], counts, strict=True)), binding=binding
    )


def pools_of(cluster: Cluster) -> tuple[Pool, ...]:
    """Return the pools whose nodes are shared, the best first.

    Raises:
        BadInput: the nodes of one differ, or have no identity.
    """
    if not all(pool.capacity for pool in cluster.pools):
        raise BadInput(
            "jobs can share nodes in pools of equal nodes only", "describe them as 16xnode[cores=4]"
        )
    return cluster.pools


def refusal(job: Job, cluster: Cluster) -> str:
    """Say why the job can never run packed on whole nodes, as a clause; "" if it can."""
    pools = pools_of(cluster)
    if any(job.runs_on(pool.name) and shape(job, pool) for pool in pools):
        return ""
    return f"it does not fit on whole nodes of {' or '.join(pool.name for pool in pools)}"


class Places:
    """Free places of a class: empty nodes, and of sets (``shared``) those in service with room (``sets``).

    A job that moves is on both of its sets.
    """

    def __init__(self, view: View, pool: Pool, most: int) -> None:
        self.pool, self.most, self.slowdowns = pool, most, view.slowdowns.on(pool.name)
        nodes = view.nodes[pool.name]
        self.empty = (
            [node for node, jobs in enumerate(nodes.jobs) if not jobs and nodes.up[node]]
            if view.free[pool.name]
            else []
        )
        residents: dict[tuple[int, ...], list[JobState]] = {}
        for state in view.running.values():
            for where in state.places:
                if where.pool == pool.name and where.binding in BESIDE:
                    there = state if where is state.place else replace(state, placement=where)
                    residents.setdefault(tuple(n for n, _ in where.nodes), []).append(there)
        self.shared = [NodeSet(numbers, tuple(on)) for numbers, on in residents.items()]
        self.sets = [
            where
            for where in self.shared
            if len(where.residents) < most and all(nodes.up[node] for node in where.nodes)
        ]
        self.of = f" of {pool.name}" if len(view.cluster.pools) > 1 else ""  # for people

    def __bool__(self) -> bool:
        return bool(self.empty or self.sets)

    def whole(self, job: Job) -> Shape | None:
        """Shape the job on whole nodes; None if it cannot run there."""
        return shape(job, self.pool) if job.runs_on(self.pool.name) else None

    def share(self, job: Job) -> Shape | None:
        """Shape the job on shares of nodes."""
        return shape(job, self.pool, self.most)

    def take(self, plan: SharedStart) -> list[Start]:
        """Start the plan's jobs; empty if there is no room for it (any more)."""
        pairs = list(zip(plan.jobs, plan.bindings, strict=True))
        taken = [self.whole(job) if binding == PACKED else self.share(job) for job, binding in pairs]
        shapes = [s for s in taken if s is not None]
        assert len(shapes) == len(taken), "a plan of a job that does not fit so"
        if plan.joined is not None:
            if plan.joined not in self.sets:
                return []
            self.sets.remove(plan.joined)  # one join a set and decision
            nodes = list(plan.joined.nodes)
        else:
            needed = max(s.nodes for s in shapes)
            if needed > len(self.empty):
                return []
            nodes, self.empty = self.empty[:needed], self.empty[needed:]
        return [
            Start(job.id, place(job, self.pool, s, nodes, binding=b))
            for (job, b), s in zip(pairs, shapes, strict=True)
        ]


def room_from(whole: Shape, share: Shape | None, view: View, pool: Pool) -> float | None:
    """Predict when there is room for a job, on whole nodes or beside another; None: not known."""
    nodes = view.nodes[pool.name]
    left = {node: len(jobs) for node, jobs in enumerate(nodes.jobs) if nodes.up[node]}
    empty = sum(not jobs for jobs in left.values())
    running = (state for state in view.running.values() if state.place.pool == pool.name)
    for state in sorted(running, key=lambda state: state.expected_end_s):
        if state.expected_end_s == inf:
            break
        here = [node for node, _ in state.place.nodes if node in left]
        for node in here:
            left[node] -= 1
            empty += not left[node]
        beside = share is not None and state.place.binding in BESIDE and len(here) == share.nodes
        if beside or empty >= whole.nodes:
            return max(state.expected_end_s, view.now)
    return None


@dataclass(frozen=True)
class SharingParameters:
    """Parameters of a policy that lets jobs share nodes.

    Attributes:
        depth: number of waiting jobs considered, in the order of submission.
        passes: number of later jobs that may start before a job; then it comes first on any free place.
    """

    depth: int = 16
    passes: int = 64

    def __post_init__(self) -> None:
        if self.depth < 1 or self.passes < 0:
            raise ValueError("depth must be at least 1, passes at least 0")


class Sharing(Policy):
    """Policy that starts the groups that a subclass chooses, oldest first.

    Only this object knows how often a job was passed. After a restart the later jobs that still run count.
    """

    suits = frozenset({"sharing"})
    parameters: SharingParameters

    @property
    def most(self) -> int:
        """Jobs a node."""
        return 2

    @abstractmethod
    def choose(self, jobs: Sequence[Job], places: Places, view: View) -> Sequence[SharedStart]:
        """Choose who of the waiting jobs starts with whom; each job in one plan."""

    @abstractmethod
    def instead(self, job: Job, places: Places, view: View, due: bool) -> SharedStart | None:
        """Choose a place for a job whose plan has no room now; None: it waits. A due job takes any place."""

    def begin(self, view: View) -> None:
        self.pools = pools_of(view.cluster)
        self._passed = {
            job.id: sum(state.job.submit_s > job.submit_s for state in view.running.values())
            for job in view.waiting.values()
        }

    def refuses(self, job: Job, cluster: Cluster) -> str:
        return refusal(job, cluster)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is not None or not view.waiting:
            return ()
        jobs = list(islice(view.waiting.values(), self.parameters.depth))
        actions, started = list[Action](), set[int]()
        for pool in self.pools:
            if places := Places(view, pool, self.most):
                actions += self._start_on(places, jobs, started, view)
        self._count(jobs, started)
        return actions

    def _start_on(
        self, places: Places, jobs: Sequence[Job], started: set[int], view: View
    ) -> Sequence[Action]:
        """Start jobs on one class; enter them in ``started``."""
        able = [job for job in jobs if job.id not in started and places.whole(job)]
        plan_of = {job.id: plan for plan in self.choose(able, places, view) for job in plan.jobs}
        actions = list[Action]()
        # Joins first: a job whose own plan has no room must not take the place meant for another.
        for job in sorted(able, key=lambda job: plan_of[job.id].joined is None):
            if job.id in started or not places:
                continue
            plan: SharedStart | None = plan_of[job.id]
            new: list[Start] = []
            if plan is not None and self._may(plan, jobs, started):
                new = places.take(plan)
            if not new:
                due = self._passed.get(job.id, 0) >= self.parameters.passes
                plan = self.instead(job, places, view, due)
                new = places.take(plan) if plan is not None and self._may(plan, jobs, started) else []
            if plan is not None and new:
                actions += new
                started.update(member.id for member in plan.jobs)
        return actions

    def _may(self, plan: SharedStart, jobs: Sequence[Job], started: set[int]) -> bool:
        """Tell if none of the plan's jobs has started, and no job is passed too often by it."""
        members = {job.id for job in plan.jobs}
        if members & started:
            return False
        passing = 0
        for job in reversed(jobs):
            if job.id in members or job.id in started:
                passing += 1
            elif passing and self._passed.get(job.id, 0) + passing > self.parameters.passes:
                return False
        return True

    def _count(self, jobs: Sequence[Job], started: set[int]) -> None:
        """Note who was passed by whom in this decision."""
        passing = 0
        for job in reversed(jobs):
            if job.id in started:
                passing += 1
                self._passed.pop(job.id, None)
            elif passing:
                self._passed[job.id] = self._passed.get(job.id, 0) + passing

    def why(self, job: Job, view: View) -> Reason:
        ahead = next(i for i, other in enumerate(view.waiting.values()) if other.id == job.id)
        before = f"{ahead} job{'s' * (ahead != 1)} submitted before it wait{'s' * (ahead == 1)} too"
        if ahead >= self.parameters.depth:
            return Reason(f"{before}; the first {self.parameters.depth} that wait are considered for a start")
        every = [Places(view, pool, self.most) for pool in self.pools]
        needs, at = list[str](), list[float]()
        for places in every:
            if (whole := places.whole(job)) is None:
                continue
            share = None if places.slowdowns.pressure(job.program) is None else places.share(job)
            needs.append(f"{whole.nodes} whole nodes{places.of}")
            if share:
                needs.append(f"a part of {share.nodes} nodes{places.of} beside a job that it gets on with")
            if not ahead and (from_s := room_from(whole, share, view, places.pool)) is not None:
                at.append(from_s)
        empty, sets = sum(len(p.empty) for p in every), sum(len(p.sets) for p in every)
        free = f"{empty} nodes are empty, beside {sets} running jobs there is room"
        return Reason(f"waits for {' or '.join(needs)}; {free}; {before}", min(at, default=None))
