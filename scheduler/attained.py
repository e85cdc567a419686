"""Tasks on one node by least attained service: who runs, who is paused, and whom a task may displace.

Nothing here knows of a policy: `Node` keeps the books of one node, `fewest` and `greedy` choose victims, and
`settle` is one decision of a node (Yabuuchi and Shinagawa 2019, section 3.5):

1. new tasks, in the order in which they came: each starts where it fits, or else displaces running tasks;
2. paused tasks, shortest attained service first: the same, but a task that started or resumed less than W ago
   is spared.

A task only ever displaces tasks with a strictly longer attained service.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from scheduler.actions import Action, Resume, Start, Suspend
from scheduler.costs import Costs
from scheduler.model import EPSILON, Job, Placement, Pool, Stop, instant

TICK_S = 1e-6  # of the grid that events lie on: "longer" is longer by a tick
ROOM = EPSILON / 2  # less than the engine allows, so that it never refuses what was found to fit


class Task:
    """A job of one task, on a node.

    Attributes:
        served_s: attained service when it last stopped.
        above_s: what it displaces has attained more than this (its own service, or all of its level).
        began_s: while it runs: when it would have started had it never been paused. The earlier, the longer
            is its attained service, and this order of running tasks never changes.
        ripe_s: while it runs: from when on a paused task may displace it.
        order: sort key among running tasks (longest attained first) or paused ones (shortest first).
        started: whether it ever ran.
    """

    __slots__ = (
        "above_s",
        "began_s",
        "demand",
        "id",
        "job",
        "order",
        "ripe_s",
        "served_s",
        "since_s",
        "started",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self.id = job.id
        self.demand = job.demand
        self.served_s = self.above_s = self.began_s = self.ripe_s = self.since_s = 0.0
        self.order = (0.0, job.id)
        self.started = False

    def attained_s(self, now: float) -> float:
        """Attained service of a running task (one that is still restarting gains none)."""
        return max(self.served_s, instant(now - self.began_s))


ORDER = attrgetter("order")
Victims = tuple[Task, ...]
Search = Callable[[Sequence[Task], Sequence[float], Sequence[float]], Victims | None]


def covers(free: Sequence[float], demand: Sequence[float]) -> bool:
    """Whether the demand fits into what is free."""
    for f, d in zip(free, demand, strict=True):  # noqa: SIM110 (three times as fast as all())
        if d > f + ROOM:
            return False
    return True


def fewest(candidates: Sequence[Task], free: Sequence[float], demand: Sequence[float]) -> Victims | None:
    """The first set that frees enough, in the order {0}, {1}, {0,1}, {2}, {0,2}, ... (the paper's listing 1).

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


def greedy(candidates: Sequence[Task], free: Sequence[float], demand: Sequence[float]) -> Victims | None:
    """Candidates in their order until enough is free; all of them, needed or not. None if all are too few."""
    room = list(free)
    for count, candidate in enumerate(candidates, 1):
        room = [f + d for f, d in zip(room, candidate.demand, strict=True)]
        if covers(room, demand):
            return tuple(candidates[:count])
    return None


def sparing(candidates: Sequence[Task], free: Sequence[float], demand: Sequence[float]) -> Victims | None:
    """As ``greedy``, less those that need not give way after all, looking at the shortest first."""
    chosen = greedy(candidates, free, demand)
    if chosen is None:
        return None
    room = [f + sum(task.demand[r] for task in chosen) for r, f in enumerate(free)]
    kept: list[Task] = []
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
        """Where the next level begins."""
        bound = self.first_s
        while bound <= attained_s:
            bound *= self.factor
        return bound


class Rules(NamedTuple):
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
        wake_s: when the node asked to be woken; infinite: never.
    """

    __slots__ = (
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
        self.running: list[Task] = []
        self.paused: list[Task] = []
        self.new: list[Task] = []
        self.stopping: dict[int, Task] = {}
        self.wake_s = math.inf

    def charge(self, task: Task, sign: int) -> None:
        """A task was sent here (1), or has ended (-1)."""
        self.tasks += sign
        self.unfinished = [round(u + sign * d, 12) for u, d in zip(self.unfinished, task.demand, strict=True)]

    def take(self, task: Task, works_from_s: float, since_s: float, spare_s: float) -> None:
        """The task runs from now on."""
        task.started = True
        task.since_s = since_s
        task.ripe_s = instant(since_s + spare_s)
        task.began_s = works_from_s - task.served_s
        task.order = (task.began_s, task.id)
        insort(self.running, task, key=ORDER)
        # Rounded, so that the books do not depend on the order in which tasks came and went.
        self.free = [round(f - d, 12) for f, d in zip(self.free, task.demand, strict=True)]

    def hold(self, task: Task) -> None:
        """The task is being stopped, and keeps its share meanwhile."""
        self.stopping[task.id] = task
        self.free = [round(f - d, 12) for f, d in zip(self.free, task.demand, strict=True)]

    def give(self, task: Task) -> None:
        """What the task held is free."""
        self.free = [round(f + d, 12) for f, d in zip(self.free, task.demand, strict=True)]
        if not self.running and not self.stopping:
            self.free = list(self.capacity)

    def pause(self, task: Task, levels: Levels | None) -> None:
        """The task is paused."""
        task.above_s = task.served_s if levels is None else levels.above_s(task.served_s) - TICK_S
        task.order = (task.served_s, task.id)
        insort(self.paused, task, key=ORDER)


def settle(node: Node, now: float, costs: Costs, rules: Rules) -> list[Action]:
    """One decision of a node: what starts, is paused, resumes."""
    actions: list[Action] = []
    if not node.up:
        return actions
    for task in tuple(node.new):
        if node.stopping:
            return actions
        if _admit(node, task, now, costs, rules, actions):
            node.new.remove(task)
            actions.append(Start(task.id, node.placement))
    at = 0
    while at < len(node.paused) and not node.stopping:
        task = node.paused[at]
        if _admit(node, task, now, costs, rules, actions):
            # Tasks that it displaced are longer and so stand behind it: it is still at this place.
            del node.paused[at]
            actions.append(Resume(task.id, node.placement))
        else:
            at += 1
    return actions


def _admit(node: Node, task: Task, now: float, costs: Costs, rules: Rules, actions: list[Action]) -> bool:
    """Whether the task runs from now on; makes room for it if it may."""
    if not covers(node.free, task.demand):
        search = rules.search_paused if task.started else rules.search_new
        victims = search(candidates(node, task, now), node.free, task.demand)
        if victims is None:
            return False
        for victim in victims:
            _displace(node, victim, now, costs, rules, actions)
        if node.stopping:  # it decides again when they have stopped
            return False
    cost = costs.restart_s(task.job, node.placement.pool) if task.started else 0.0
    node.take(task, instant(now + cost), now, rules.spare_s)
    return True


def candidates(node: Node, task: Task, now: float) -> list[Task]:
    """Running tasks that may give way to ``task``, longest attained service first."""
    before = now - task.above_s - TICK_S / 2
    found = []
    for other in node.running:
        if other.began_s > before:
            break
        if (not task.started or other.ripe_s <= now) and other.job.stop is not Stop.NEVER:
            found.append(other)
    return found


def _displace(
    node: Node, victim: Task, now: float, costs: Costs, rules: Rules, actions: list[Action]
) -> None:
    node.running.remove(victim)
    victim.served_s = victim.attained_s(now)
    actions.append(Suspend(victim.id))
    # Pausing frees at once. How long a checkpoint takes is known only when it is done.
    if victim.job.stop is Stop.CHECKPOINT or costs.stop_s(victim.job, node.placement.pool) > 0:
        node.stopping[victim.id] = victim
    else:
        node.give(victim)
        node.pause(victim, rules.levels)


def next_look_s(node: Node, now: float, spare_s: float, acted: bool) -> float:
    """When the node should look again although nothing has happened; infinite: never.

    A node with tasks that wait looks W, 2W, ... after the start of each running task. Most of these looks
    find nothing new: a waiting task can only succeed once another running task has become a candidate for it,
    and all its candidates together free enough; or when the decision just made (``acted``) changed what runs.
    This is the first of the looks for which that holds.
    """
    waiting = (*node.new, *node.paused)
    if not waiting or not node.running:
        return math.inf
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


def _next_chance_s(node: Node, task: Task, now: float) -> float:
    """From when on the task could displace others although it cannot now."""
    longer, started = task.above_s + TICK_S, task.started
    eligible = []
    for other in node.running:
        at = other.began_s + longer
        if started and other.ripe_s > at:
            at = other.ripe_s
        eligible.append((at, other.id, other))
    eligible.sort()
    later = now + TICK_S / 2
    room: Sequence[float] = node.free
    for at, _, other in eligible:
        if other.job.stop is not Stop.NEVER:
            room = [f + d for f, d in zip(room, other.demand, strict=True)]
            if at > later and covers(room, task.demand):
                return at
    return math.inf
