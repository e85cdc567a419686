"""Tasks on one node by least attained service: who runs, who is paused, and whom a task may displace.

Nothing here knows of a policy: `Node` keeps the books of one node, `fewest` and `greedy` choose victims, and
`settle` is one decision of a node (Yabuuchi and Shinagawa 2019, section 3.5):

1. new tasks, in the order in which they came: each starts where it fits, or else displaces running tasks;
2. paused tasks, shortest attained service first: the same, but a task that started or resumed less than W ago
   is spared.

A task only ever displaces tasks with a strictly longer attained service.

A job of several tasks (not in the paper) runs with all its tasks or with none. Each node holds its *part*,
the tasks of the job that lie there, as one task of their whole demand; all parts start, pause and resume at
once and share one attained service. The job is admitted when there is room for every part, made on each node
by the rules above; a job displaced from one node leaves all its nodes.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from scheduler.model.actions import Action, Resume, Start, Suspend
from scheduler.model.costs import Costs
from scheduler.model.jobs import CHECKPOINT, EPSILON, NEVER, Job, Placement, Pool, instant

TICK_S = 1e-6  # of the grid that events lie on: "longer" is longer by a tick
ROOM = EPSILON / 2  # less than the engine allows, so that it never refuses what was found to fit


class NodeTask:
    """A job of one task, or its part on one node: ``units`` tasks that count as one.

    Attributes:
        node: where it is. gang: all parts of the job, itself among them.
        placement: of the whole job.
        served_s: attained service when it last stopped.
        above_s: what it displaces has attained more than this (its own service, or all of its level).
        began_s: while it runs: when it would have started had it never been paused. The earlier, the longer
            is its attained service, and this order of running tasks never changes.
        ripe_s: while it runs: from when on a paused task may displace it.
        rank: who goes before whom where nothing else says it.
        order: sort key among running tasks (longest attained first) or paused ones (shortest first).
        started: whether it ever ran.
    """

    __slots__ = (
        "above_s",
        "began_s",
        "demand",
        "gang",
        "id",
        "job",
        "node",
        "order",
        "placement",
        "rank",
        "ripe_s",
        "served_s",
        "since_s",
        "started",
        "units",
    )

    node: Node
    placement: Placement

    def __init__(self, job: Job, units: int = 1) -> None:
        self.job = job
        self.id = job.id
        self.rank = (-job.priority, job.id)
        self.units = units
        self.demand = job.demand if units == 1 else tuple(units * d for d in job.demand)
        self.gang: tuple[NodeTask, ...] = (self,)
        self.served_s = self.above_s = self.began_s = self.ripe_s = self.since_s = 0.0
        self.order = (0.0, self.rank)
        self.started = False

    def lie(self, nodes: Sequence[tuple[Node, int]]) -> None:
        """Place the job's tasks on these nodes (of one pool), so many on each."""
        first = nodes[0][0].placement
        if len(nodes) > 1:
            self.gang = tuple(NodeTask(self.job, units) for _, units in nodes)
            places = tuple(sorted((node.placement.nodes[0][0], units) for node, units in nodes))
            self.placement = Placement(first.pool, self.units, places)
        elif self.units > 1:
            self.placement = Placement(first.pool, self.units, ((first.nodes[0][0], self.units),))
        else:
            self.placement = first
        for part, (node, _) in zip(self.gang, nodes, strict=True):
            part.node, part.placement, part.gang = node, self.placement, self.gang

    def attained_s(self, now: float) -> float:
        """Return the attained service of a running task (none while it restarts)."""
        return max(self.served_s, instant(now - self.began_s))


ORDER = attrgetter("order")
Victims = tuple[NodeTask, ...]
Search = Callable[[Sequence[NodeTask], Sequence[float], Sequence[float]], Victims | None]


def covers(free: Sequence[float], demand: Sequence[float]) -> bool:
    """Tell if the demand fits into what is free."""
    for f, d in zip(free, demand, strict=True):  # noqa: SIM110 (three times as fast as all())
        if d > f + ROOM:
            return False
    return True


def fewest(candidates: Sequence[NodeTask], free: Sequence[float], demand: Sequence[float]) -> Victims | None:
    """Return the first set that frees enough: {0}, {1}, {0,1}, {2}, {0,2}, ... (the paper's listing 1).

    That is the order of the numbers 1, 2, 3, ... read as bit masks, so no member of the set could be spared.
    """
    freed: list[Sequence[float]] = [free]
    for bit, candidate in enumerate(candidates):
        for mask in range(1 << bit):
            room = [f + d for f, d in zip(freed[mask], candidate.demand, strict=True)]
            if covers(room, demand):
                return (*(candidates[b] for b in range(bit) if mask >> b & 1), candidate)
            freed.append(room)
    return None


def greedy(candidates: Sequence[NodeTask], free: Sequence[float], demand: Sequence[float]) -> Victims | None:
    """Take candidates in their order until enough is free, needed or not; None if all are too few."""
    room = list(free)
    for count, candidate in enumerate(candidates, 1):
        room = [f + d for f, d in zip(room, candidate.demand, strict=True)]
        if covers(room, demand):
            return tuple(candidates[:count])
    return None


def sparing(candidates: Sequence[NodeTask], free: Sequence[float], demand: Sequence[float]) -> Victims | None:
    """Take candidates as ``greedy``, then spare those that need not give way, the shortest first."""
    chosen = greedy(candidates, free, demand)
    if chosen is None:
        return None
    room = [f + sum(task.demand[r] for task in chosen) for r, f in enumerate(free)]
    kept: list[NodeTask] = []
    for task in reversed(chosen):
        without = [f - d for f, d in zip(room, task.demand, strict=True)]
        if covers(without, demand):
            room = without
        else:
            kept.append(task)
    return tuple(reversed(kept))


class Levels(NamedTuple):
    """Levels of attained service: up to ``first_s``, then each ``factor`` times as long as the one before."""

    first_s: float
    factor: float

    def above_s(self, attained_s: float) -> float:
        """Return where the next level begins."""
        bound = self.first_s
        while bound <= attained_s:
            bound *= self.factor
        return bound


class NodeRules(NamedTuple):
    """How a node decides.

    Attributes:
        search_new, search_paused: which of the candidates (longest attained first) give way to such a task.
        spare_s: a task that started or resumed less than this ago does not give way to a paused one (W).
        levels: a paused task displaces only tasks of a higher level; None: any with longer attained service.
    """

    search_new: Search
    search_paused: Search
    spare_s: float
    levels: Levels | None = None


class Node:
    """The books of one node.

    Attributes:
        free: what is free of each resource.
        tasks, unfinished: number of its unfinished tasks, and what they demand.
        running: longest attained service first. paused: shortest first. new: in the order they came.
        stopping: tasks that still hold their share while they are being stopped; the node decides nothing
            meanwhile.
        awaits: the part of a job for which tasks are being stopped, here or on others of its nodes; until it
            runs the node decides nothing else.
        wake_s: when the node asked to be woken; infinite: never.
    """

    __slots__ = (
        "awaits",
        "capacity",
        "free",
        "index",
        "new",
        "paused",
        "placement",
        "resources",
        "running",
        "stopping",
        "tasks",
        "unfinished",
        "up",
        "wake_s",
    )

    def __init__(self, index: int, placement: Placement, pool: Pool, up: bool) -> None:
        self.index = index
        self.placement = placement
        self.resources = pool.resources
        self.capacity = pool.capacity_of(placement.nodes[0][0])
        self.up = up
        self.free = list(self.capacity)
        self.unfinished = [0.0] * len(self.capacity)
        self.tasks = 0
        self.running: list[NodeTask] = []
        self.paused: list[NodeTask] = []
        self.new: list[NodeTask] = []
        self.stopping: dict[int, NodeTask] = {}
        self.awaits: NodeTask | None = None
        self.wake_s = math.inf

    def charge(self, task: NodeTask, sign: int) -> None:
        """Count a task that was sent here (1) or has ended (-1)."""
        self.tasks += sign * task.units
        self.unfinished = [round(u + sign * d, 12) for u, d in zip(self.unfinished, task.demand, strict=True)]

    def take(self, task: NodeTask, works_from_s: float, since_s: float, spare_s: float) -> None:
        """Let the task run from now on."""
        task.started = True
        task.since_s = since_s
        task.ripe_s = instant(since_s + spare_s)
        task.began_s = works_from_s - task.served_s
        task.order = (task.began_s, task.rank)
        insort(self.running, task, key=ORDER)
        # Rounded, so that the books do not depend on the order in which tasks came and went.
        self.free = [round(f - d, 12) for f, d in zip(self.free, task.demand, strict=True)]

    def hold(self, task: NodeTask) -> None:
        """Keep the share of a task that is being stopped."""
        self.stopping[task.id] = task
        self.free = [round(f - d, 12) for f, d in zip(self.free, task.demand, strict=True)]

    def give(self, task: NodeTask) -> None:
        """Free what the task held."""
        self.free = [round(f + d, 12) for f, d in zip(self.free, task.demand, strict=True)]
        if not self.running and not self.stopping:
            self.free = list(self.capacity)

    def pause(self, task: NodeTask, levels: Levels | None) -> None:
        """Enter the task among the paused ones."""
        task.above_s = task.served_s if levels is None else levels.above_s(task.served_s) - TICK_S
        task.order = (task.served_s, task.rank)
        insort(self.paused, task, key=ORDER)


def settle(node: Node, now: float, costs: Costs, rules: NodeRules) -> list[Action]:
    """Decide for a node what starts, is paused and resumes."""
    actions: list[Action] = []
    if not node.up:
        return actions
    if node.awaits is not None:
        gang = node.awaits.gang
        if any(part.node.stopping for part in gang):
            return actions
        for part in gang:
            part.node.awaits = None
        _admit(gang[0], now, costs, rules, actions=actions)
    for task in tuple(node.new):
        if node.stopping or node.awaits is not None:
            return actions
        _admit(task, now, costs, rules, actions=actions)
    at = 0
    while at < len(node.paused) and not node.stopping and node.awaits is None:
        # Tasks that it displaced are longer and so stand behind it: the next is then at this place.
        if not _admit(node.paused[at], now, costs, rules, actions=actions):
            at += 1
    return actions


def _admit(task: NodeTask, now: float, costs: Costs, rules: NodeRules, *, actions: list[Action]) -> bool:
    """Make room for all parts of the job and run it if it may; return if it runs from now on."""
    victims: dict[int, NodeTask] = {}
    for part in task.gang:
        found = _victims(part, now, rules, victims)
        if found is None:
            return False
        victims.update((victim.id, victim) for victim in found)
    for victim in victims.values():
        _displace(victim, now, costs, rules, actions=actions)
    if any(part.node.stopping for part in task.gang):  # they decide again when these have stopped
        if any(len(other.gang) > 1 for other in (task, *victims.values())):
            for part in task.gang:  # else another node could take their room, or resume them, meanwhile
                part.node.awaits = part
        return False
    cost = costs.restart_s(task.job, task.placement.pool) if task.started else 0.0
    actions.append((Resume if task.started else Start)(task.id, task.placement))
    for part in task.gang:
        (part.node.paused if part.started else part.node.new).remove(part)
        part.node.take(part, instant(now + cost), now, rules.spare_s)
    return True


def _victims(part: NodeTask, now: float, rules: NodeRules, others: dict[int, NodeTask]) -> Victims | None:
    """Choose the tasks that give way to the part, beside ``others`` that give way anyway; None: no room."""
    node, free = part.node, part.node.free
    if not node.up or node.stopping or node.awaits is not None:
        return None
    if others:
        here = [other for victim in others.values() for other in victim.gang if other.node is node]
        free = [f + sum(other.demand[r] for other in here) for r, f in enumerate(free)]
    if covers(free, part.demand):
        return ()
    search = rules.search_paused if part.started else rules.search_new
    may = candidates(node, part, now)
    return search([other for other in may if other.id not in others] if others else may, free, part.demand)


def candidates(node: Node, task: NodeTask, now: float) -> list[NodeTask]:
    """List running tasks that may give way to ``task``, longest attained service first."""
    before = now - task.above_s - TICK_S / 2
    found = []
    for other in node.running:
        if other.began_s > before:
            break
        if (not task.started or other.ripe_s <= now) and other.job.stop is not NEVER:
            found.append(other)
    return found


def _displace(victim: NodeTask, now: float, costs: Costs, rules: NodeRules, *, actions: list[Action]) -> None:
    served_s = victim.attained_s(now)
    actions.append(Suspend(victim.id))
    # Pausing frees at once. How long a checkpoint takes is known only when it is done.
    stops = victim.job.stop is CHECKPOINT or costs.stop_s(victim.job, victim.placement.pool) > 0
    for part in victim.gang:
        node = part.node
        node.running.remove(part)
        part.served_s = served_s
        if stops:
            node.stopping[part.id] = part
        else:
            node.give(part)
            node.pause(part, rules.levels)


def next_look_s(node: Node, now: float, spare_s: float, acted: bool) -> float:
    """Compute when the node should look again although nothing has happened; infinite: never.

    A node with tasks that wait looks W, 2W, ... after the start of each running task. Most of these looks
    find nothing new: a waiting task can only succeed once another running task has become a candidate for it,
    and all its candidates together free enough; or when the decision just made (``acted``) changed what runs.
    This is the first of the looks for which that holds; the next one, if a job with tasks on other nodes
    waits, for which those may have made room.
    """
    waiting = (*node.new, *node.paused)
    if not waiting or not node.running:
        return math.inf
    if not acted:
        acted = any(len(task.gang) > 1 for task in waiting)
    change = now + TICK_S if acted else min(_next_chance_s(node, task, now) for task in waiting)
    if change == math.inf:
        return math.inf
    first = math.inf
    change -= TICK_S / 2  # the looks lie on the grid, up to the rounding of these sums
    for other in node.running:
        since_s = other.since_s
        look = since_s + max(1, math.ceil((change - since_s) / spare_s)) * spare_s
        if look < first:  # noqa: PLR1730 (min() is slower)
            first = look
    return instant(first)


def _next_chance_s(node: Node, task: NodeTask, now: float) -> float:
    """Compute from when on the task could displace others although it cannot now."""
    longer, started = task.above_s + TICK_S, task.started
    eligible = []
    for other in node.running:
        at = other.began_s + longer
        if started and other.ripe_s > at:
            at = other.ripe_s
        eligible.append((at, other.rank, other))
    eligible.sort()
    later = now + TICK_S / 2
    room: Sequence[float] = node.free
    for at, _, other in eligible:
        if other.job.stop is not NEVER:
            room = [f + d for f, d in zip(room, other.demand, strict=True)]
            if at > later and covers(room, task.demand):
                return at
    return math.inf
