"""Base of policies that let jobs share nodes: places, the order of starts, a bound on passing.

Nodes are divided into ``most`` equal shares. A job runs *packed* on whole nodes of its own, or takes a share
of each node of a *set* of ``most`` times as many. Jobs share whole sets only, so that a job has the same
neighbours on all of its nodes. A waiting job may join a set with a share left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
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


def pool_of(cluster: Cluster) -> Pool:
    """Return the pool whose nodes are shared.

    Raises:
        BadInput: there is no such pool, or several.
    """
    if len(cluster.pools) != 1 or not cluster.pools[0].capacity:
        raise BadInput(
            "jobs can share nodes in one pool of equal nodes only", "describe it as 16xnode[cores=4]"
        )
    return cluster.pools[0]


def refusal(job: Job, cluster: Cluster) -> str:
    """Say why the job can never run packed on whole nodes, as a clause; "" if it can."""
    pool = pool_of(cluster)
    return "" if shape(job, pool) else f"it does not fit on whole nodes of {pool.name}"


class Places:
    """Free places: empty nodes, and of all sets (``shared``) those in service with room (``sets``)."""

    def __init__(self, view: View, pool: Pool, most: int) -> None:
        self.pool, self.most = pool, most
        nodes = view.nodes[pool.name]
        self.empty = (
            [node for node, jobs in enumerate(nodes.jobs) if not jobs and nodes.up[node]]
            if view.free[pool.name]
            else []
        )
        residents: dict[tuple[int, ...], list[JobState]] = {}
        for state in view.running.values():
            if state.place.binding in BESIDE:
                residents.setdefault(tuple(n for n, _ in state.place.nodes), []).append(state)
        self.shared = [NodeSet(numbers, tuple(on)) for numbers, on in residents.items()]
        self.sets = [
            where
            for where in self.shared
            if len(where.residents) < most and all(nodes.up[node] for node in where.nodes)
        ]

    def __bool__(self) -> bool:
        return bool(self.empty or self.sets)

    def whole(self, job: Job) -> Shape | None:
        """Shape the job on whole nodes."""
        return shape(job, self.pool)

    def share(self, job: Job) -> Shape | None:
        """Shape the job on shares of nodes."""
        return shape(job, self.pool, self.most)

    def take(self, plan: SharedStart) -> list[Action]:
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
    for state in sorted(view.running.values(), key=lambda state: state.expected_end_s):
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
        self.pool = pool_of(view.cluster)
        self._passed = {
            job.id: sum(state.job.submit_s > job.submit_s for state in view.running.values())
            for job in view.waiting.values()
        }

    def refuses(self, job: Job, cluster: Cluster) -> str:
        return refusal(job, cluster)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is not None or not view.waiting:
            return ()
        places = Places(view, self.pool, self.most)
        if not places:
            return ()
        jobs = list(islice(view.waiting.values(), self.parameters.depth))
        plan_of = {job.id: plan for plan in self.choose(jobs, places, view) for job in plan.jobs}
        actions: list[Action] = []
        started: set[int] = set()
        # Joins first: a job whose own plan has no room must not take the place meant for another.
        for job in sorted(jobs, key=lambda job: plan_of[job.id].joined is None):
            if job.id in started or not places:
                continue
            plan: SharedStart | None = plan_of[job.id]
            new: list[Action] = []
            if plan is not None and self._may(plan, jobs, started):
                new = places.take(plan)
            if not new:
                due = self._passed.get(job.id, 0) >= self.parameters.passes
                plan = self.instead(job, places, view, due)
                new = places.take(plan) if plan is not None and self._may(plan, jobs, started) else []
            if plan is not None and new:
                actions += new
                started.update(member.id for member in plan.jobs)
        self._count(jobs, started)
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
            elif self._passed.get(job.id, 0) + passing > self.parameters.passes:
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
        places = Places(view, self.pool, self.most)
        ahead = next(i for i, other in enumerate(view.waiting.values()) if other.id == job.id)
        before = f"{ahead} job{'s' * (ahead != 1)} submitted before it wait{'s' * (ahead == 1)} too"
        if ahead >= self.parameters.depth:
            return Reason(f"{before}; the first {self.parameters.depth} that wait are considered for a start")
        whole = places.whole(job)
        share = None if view.slowdowns.pressure(job.program) is None else places.share(job)
        needs = [f"{whole.nodes} whole nodes"] if whole else []
        if share:
            needs.append(f"a part of {share.nodes} nodes beside a job that it gets on with")
        free = f"{len(places.empty)} nodes are empty, beside {len(places.sets)} running jobs there is room"
        expected = None if ahead or whole is None else room_from(whole, share, view, self.pool)
        return Reason(f"waits for {' or '.join(needs)}; {free}; {before}", expected)
