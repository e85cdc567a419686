"""Running and paused tasks of one node, by least attained service, and the choice of tasks that give way.

`Node` is the state of one node, `fewest` and `greedy` choose victims, and `settle` is one decision of a node
(Yabuuchi and Shinagawa 2019, section 3.5):

1. new tasks, in the order in which they came: each starts if it fits, or else displaces running tasks;
2. paused tasks, shortest attained service first: the same, but a task that started or resumed less than W ago
   is spared.

A task only displaces tasks with a strictly longer attained service. A restart that takes time (in the paper
none does) is no service, and W counts from its end: a task that restarts gives way to new tasks only. So each
run brings a job further, however long its restart is and whatever was believed of it.

A job of several tasks (not in the paper) runs all its tasks or none. The tasks of the job on a node are its
*part* there, and count as one task of their whole demand. All parts start, pause and resume at once and share
one attained service. The job is admitted when every part finds room by the rules above. A job displaced from
one node leaves all its nodes.

A job with alternatives (not in the paper), of one task, starts in the first of those for which its node has
room, or else in the first for which others give way. Once begun, it goes on as it is.

A class without nodes (not in the paper either) is one node, whose only resource is its units: a job demands
as many as it asks for. A job on a device gives way only if it can be parked, because a program that is merely
paused keeps its memory there.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, le
from typing import NamedTuple

from scheduler.model.costs import Costs
from scheduler.model.events import Action, Resume, Start, Suspend
from scheduler.model.jobs import (
    CHECKPOINT,
    EPSILON,
    NEVER,
    PAUSE,
    Job,
    Placement,
    Pool,
    Stop,
    counted,
    instant,
)

TICK_S = 1e-6  # step of the grid of time, the least difference of attained service
ROOM = EPSILON / 2  # less than the engine allows, so that the engine never refuses a task that fits


@dataclass(slots=True, eq=False)
class NodeTask:
    """A job of one task, or its part on one node: ``units`` tasks that count as one.

    Args:
        demand_each: demand of one task, where that is not what the job states.

    Attributes:
        node: node of the task. gang: all parts of the job, with this one.
        placement: of the whole job.
        ways: the job as it could run on its node, until it has begun (not in the paper). demands: of each.
        served_s: attained service when it last stopped.
        above_s: it displaces only tasks that have attained more (than its own service, or its level).
        began_s: while it runs: the start of an equal task that was never paused. The order of running tasks
            by it is that of attained service, and never changes.
        since_s: while it runs: the start, or the end of the restart.
        ripe_s: while it runs: from then on a paused task may displace it.
        rank: order of otherwise equal tasks.
        order: sort key among running tasks (longest attained first) or paused ones (shortest first).
        started: True once it ran.
    """

    job: Job
    units: int = 1
    demand_each: tuple[float, ...] = ()
    id: int = field(init=False)
    rank: tuple[int, int] = field(init=False)
    demand: tuple[float, ...] = field(init=False)
    gang: tuple[NodeTask, ...] = field(init=False)
    node: Node = field(init=False)
    placement: Placement = field(init=False)
    ways: tuple[Job, ...] = field(init=False)
    demands: tuple[tuple[float, ...], ...] = field(init=False)
    served_s: float = 0.0
    above_s: float = 0.0
    began_s: float = 0.0
    ripe_s: float = 0.0
    since_s: float = 0.0
    order: tuple[float, tuple[int, int]] = field(init=False)
    started: bool = False

    def __post_init__(self) -> None:
        job = self.job
        self.id = job.id
        self.rank = (-job.priority, job.id)
        self.demand_each = self.demand_each or job.demand
        self.demand = self.demand_each if self.units == 1 else tuple(self.units * d for d in self.demand_each)
        self.gang = (self,)
        self.set_ways((job,))
        self.order = (0.0, self.rank)

    def lie(self, nodes: Sequence[tuple[Node, int]]) -> None:
        """Place the job's tasks on these nodes (of one pool), so many on each."""
        first = nodes[0][0].placement
        if self.job.alternative:
            first = replace(first, alternative=self.job.alternative)
        if not first.nodes:
            self.placement = counted(first.pool, self.units, first.alternative)
        elif len(nodes) > 1:
            self.gang = tuple(NodeTask(self.job, units) for _, units in nodes)
            places = tuple(sorted((node.placement.nodes[0][0], units) for node, units in nodes))
            self.placement = replace(first, units=self.units, nodes=places)
        elif self.units > 1:
            self.placement = replace(first, units=self.units, nodes=((first.nodes[0][0], self.units),))
        else:
            self.placement = first
        for part, (node, _) in zip(self.gang, nodes, strict=True):
            part.node, part.placement, part.gang = node, self.placement, self.gang

    def set_ways(self, ways: Sequence[Job]) -> None:
        """Let the task begin in any of these ways of its job; a single way is the one it has."""
        self.ways = tuple(ways)
        self.demands = (self.demand,) if len(ways) == 1 else tuple(way.demand for way in ways)

    def switch_to(self, way: Job) -> None:
        """Let the job, of one task, be run in this way on its node from now on."""
        if way is not self.job:
            self.node.charge(self, -1)
            self.job, self.demand_each, self.demand = way, way.demand, way.demand
            self.placement = replace(self.placement, alternative=way.alternative)
            self.node.charge(self, 1)

    def attained_s(self, now: float) -> float:
        """Return the attained service of a task that runs or restarts."""
        return self.served_s if now <= self.began_s else max(self.served_s, instant(now - self.began_s))


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
    """Levels of attained service, which end at ``first_s``, ``first_s * factor``, and so on."""

    first_s: float
    factor: float

    def above_s(self, attained_s: float) -> float:
        """Return where the next level begins."""
        bound = self.first_s
        while bound <= attained_s:
            bound *= self.factor
        return bound


class NodeRules(NamedTuple):
    """Rules by which a node decides.

    Attributes:
        search_new, search_paused: choose candidates (longest attained first) that give way to such a task.
        spare_s: a task that started or resumed less than this ago does not give way to a paused task (W).
        levels: a paused task displaces only tasks of a higher level; None: any of longer attained service.
    """

    search_new: Search
    search_paused: Search
    spare_s: float
    levels: Levels | None = None


@dataclass(slots=True, eq=False)
class Node:
    """The state of one node, or of a class without nodes.

    Attributes:
        capacity: of each resource. in_service: so much of it can be used; less where units of a class are
            down, or some of a node are held outside of the queue.
        keeps: jobs that can be stopped in such ways only never give way here.
        free: free amount of each resource.
        tasks, unfinished: number of its unfinished tasks, and their demands.
        running: longest attained service first. paused: shortest first. new: in the order they came.
        restarting: tasks that hold their share, but whose restart is not over.
        stopping: tasks that hold their share until they have stopped; the node decides nothing meanwhile.
        awaits: the part of a job for which tasks are being stopped, here or on other nodes of the job; until
            the part runs the node decides nothing else.
        wake_s: requested time of a timer; infinite: none.
        decided_s: time of its last decision. acted: it has changed what runs.
        refused: number of first new tasks for which there was no room at ``decided_s``; 0 again as soon as
            anything changes, or if there is a job with parts on other nodes.
    """

    index: int
    placement: Placement
    pool: Pool
    up: bool
    in_service: tuple[float, ...] = ()
    capacity: tuple[float, ...] = field(init=False)
    keeps: tuple[Stop, ...] = field(init=False)
    free: list[float] = field(init=False)
    unfinished: list[float] = field(init=False)
    tasks: int = 0
    running: list[NodeTask] = field(default_factory=list)
    paused: list[NodeTask] = field(default_factory=list)
    new: list[NodeTask] = field(default_factory=list)
    restarting: list[NodeTask] = field(default_factory=list)
    stopping: dict[int, NodeTask] = field(default_factory=dict)
    awaits: NodeTask | None = None
    wake_s: float = math.inf
    decided_s: float = -math.inf
    acted: bool = False
    refused: int = 0

    def __post_init__(self) -> None:
        nodes = self.placement.nodes
        self.capacity = self.pool.capacity_of(nodes[0][0]) if nodes else (float(self.pool.units),)
        self.in_service = self.in_service or self.capacity
        self.keeps = (NEVER, PAUSE) if self.pool.kind else (NEVER,)
        self.free = list(self.in_service)
        self.unfinished = [0.0] * len(self.capacity)

    def may_hold(self, way: Job) -> bool:
        """Tell if a job of one task could ever run here."""
        return way.units == 1 and way.runs_on(self.pool.name) and covers(self.capacity, way.demand)

    def charge(self, task: NodeTask, sign: int) -> None:
        """Count a task that was sent here (1) or has ended (-1)."""
        self.tasks += sign * task.units
        self.unfinished = [round(u + sign * d, 12) for u, d in zip(self.unfinished, task.demand, strict=True)]

    def take(self, task: NodeTask) -> None:
        """Give the task its share."""
        self.refused = 0
        # Rounded, so that the order in which tasks came and went does not matter.
        self.free = [round(f - d, 12) for f, d in zip(self.free, task.demand, strict=True)]

    def run(self, task: NodeTask, since_s: float, spare_s: float) -> None:
        """Let the task, which has its share, make progress from ``since_s`` on."""
        self.refused = 0
        task.started = True
        task.since_s = since_s
        task.ripe_s = instant(since_s + spare_s)
        task.began_s = since_s - task.served_s
        task.order = (task.began_s, task.rank)
        insort(self.running, task, key=ORDER)

    def restart(self, task: NodeTask) -> None:
        """Let the task, which has its share, restart; ``run`` follows."""
        task.began_s = math.inf
        self.restarting.append(task)

    def drop(self, task: NodeTask) -> None:
        """Forget a task that runs or restarts; it keeps its share."""
        self.refused = 0
        (self.restarting if task in self.restarting else self.running).remove(task)

    def give(self, task: NodeTask) -> None:
        """Free what the task held."""
        self.refused = 0
        self.free = [round(f + d, 12) for f, d in zip(self.free, task.demand, strict=True)]
        if not self.running and not self.restarting and not self.stopping:
            self.free = list(self.in_service)

    def pause(self, task: NodeTask, levels: Levels | None) -> None:
        """Enter the task among the paused ones."""
        self.refused = 0
        task.above_s = task.served_s if levels is None else levels.above_s(task.served_s) - TICK_S
        task.order = (task.served_s, task.rank)
        insort(self.paused, task, key=ORDER)


def settle(node: Node, now: float, costs: Costs, rules: NodeRules) -> list[Action]:
    """Decide for a node what starts, is paused and resumes."""
    actions: list[Action] = []
    known = node.refused if node.decided_s == now else 0
    node.decided_s, node.refused = now, 0
    if not node.up:
        return actions
    if node.awaits is not None:
        gang = node.awaits.gang
        if any(part.node.stopping for part in gang):
            return actions
        for part in gang:
            part.node.awaits = None
        _admit(gang[0], now, costs, rules, actions=actions)
    gangs, refused = False, Refused()
    for task in node.new[known:]:
        if node.stopping or node.awaits is not None:
            return actions
        gangs = gangs or len(task.gang) > 1
        if not refused.covers(task) and _admit_in_some_way(task, now, costs, rules, actions=actions):
            refused = Refused()
    at, refused = 0 if actions or not known else len(node.paused), Refused()
    while at < len(node.paused) and not node.stopping and node.awaits is None:
        task = node.paused[at]
        gangs = gangs or len(task.gang) > 1
        # Tasks that it displaced have attained more and stand behind it, so the next task is at this place.
        if not refused.covers(task) and _admit(task, now, costs, rules, actions=actions):
            refused = Refused()
        else:
            at += 1
    if not actions and not gangs:
        node.refused = len(node.new)
    return actions


class Refused:
    """Tasks for which a node has no room as it is.

    There is none either for a task that demands no less, if both are new, or if both are paused and the other
    has attained no less: whoever gives way to it gives way to the first as well.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[float, ...]] = set()
        self._least: list[tuple[float, ...]] = []

    def covers(self, task: NodeTask) -> bool:
        """Tell if there is no room for the task, because of an earlier one; else enter it."""
        if len(task.gang) > 1:  # other nodes decide as well
            return False
        return all([self._covers(demand) for demand in task.demands])  # noqa: C419 (each is entered)

    def _covers(self, demand: tuple[float, ...]) -> bool:
        if demand in self._seen:
            return True
        self._seen.add(demand)
        for least in self._least:
            if all(map(le, least, demand)):
                return True
        self._least.append(demand)
        return False


def _admit_in_some_way(
    task: NodeTask, now: float, costs: Costs, rules: NodeRules, *, actions: list[Action]
) -> bool:
    """Admit a new task in the first of its ways that fits, or else in the first for which others give way."""
    if len(task.ways) == 1:
        return _admit(task, now, costs, rules, actions=actions)
    node, before = task.node, task.job
    for way in sorted(task.ways, key=lambda way: not covers(node.free, way.demand)):
        task.switch_to(way)
        if _admit(task, now, costs, rules, actions=actions):
            task.set_ways((way,))
            return True
        if node.stopping or node.awaits is not None:  # others give way to it
            return False
    task.switch_to(before)
    return False


def _admit(task: NodeTask, now: float, costs: Costs, rules: NodeRules, *, actions: list[Action]) -> bool:
    """Make room for all parts of the job and run it if it may; return if it runs from now on."""
    victims: dict[int, NodeTask] = {}
    for part in task.gang:
        more = _victims(part, now, rules, victims)
        if more is None:
            return False
        victims.update((victim.id, victim) for victim in more)
    for victim in victims.values():
        _displace(victim, now, costs, rules, actions=actions)
    if any(part.node.stopping for part in task.gang):  # these nodes decide again when the tasks have stopped
        if any(len(other.gang) > 1 for other in (task, *victims.values())):
            for part in task.gang:  # so that no other task takes the room, and no node resumes the victims
                part.node.awaits = part
        return False
    actions.append((Resume if task.started else Start)(task.id, task.placement))
    for part in task.gang:
        node = part.node
        (node.paused if part.started else node.new).remove(part)
        node.take(part)
        if part.started:
            node.restart(part)
        else:
            node.run(part, now, rules.spare_s)
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
    """List the tasks that may give way to ``task``, longest attained service first."""
    before = now - task.above_s - TICK_S / 2
    others = []
    for other in node.running:
        if other.began_s > before:
            break
        if (not task.started or other.ripe_s <= now) and other.job.stop not in node.keeps:
            others.append(other)
    if node.restarting and not task.started:
        others += [other for other in node.restarting if gives_way(other, task)]
        others = [other for other in others if other.job.stop not in node.keeps]
        others.sort(key=lambda other: (-other.attained_s(now), other.rank))
    return others


def gives_way(restarting: NodeTask, task: NodeTask) -> bool:
    """Tell if a task that restarts gives way to ``task`` if it can be stopped."""
    return not task.started and restarting.served_s > task.above_s


def _displace(victim: NodeTask, now: float, costs: Costs, rules: NodeRules, *, actions: list[Action]) -> None:
    served_s = victim.attained_s(now)
    actions.append(Suspend(victim.id))
    # A pause frees the units at once; a checkpoint frees them at its end.
    stops = victim.job.stop is CHECKPOINT or costs.stop_s(victim.job, victim.placement.pool) > 0
    for part in victim.gang:
        node = part.node
        node.drop(part)
        part.served_s = served_s
        if stops:
            node.stopping[part.id] = part
        else:
            node.give(part)
            node.pause(part, rules.levels)
