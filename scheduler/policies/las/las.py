"""Least attained service on several resources: a task's run time need not be known (``las``).

Algorithm (tasks that can be paused, each with a demand of every resource of a node):

- Central queue, first come, first served. A task goes to the node on which it fits now and whose free
  resources are most like its demand: the largest sum over the resources of demand * free / capacity^2. If it
  fits on no node, it goes to the node with the least load. If that load is above ``load_limit`` (L), the
  queue waits. The load is the norm of the demands of all unfinished tasks of the node, as shares of its
  capacity. A task stays on its node.
- Each node runs the tasks with the least attained service (see ``node_las``). The tasks that give way are
  searched among the ``victims`` (N) candidates of longest attained service, in the order {0}, {1}, {0,1},
  {2}, ... A task that started or resumed less than ``spare_s`` (W) ago does not give way to a paused task.

A job of several tasks runs all of them or none; its attained service is the time for which it ran (see
``node_las``; not in the paper).

``las-prompt`` cures two faults of ``las``. Large new tasks starve before their first start if no N tasks make
room for them; with ``thorough`` a new task may displace as many as it needs. Under overload paused tasks lift
every node above L, so new tasks, most likely short, wait for old ones; ``load_limit=inf`` lets them pass
(paused tasks then hold memory without bound). It also sends a task to the first of the ``probe`` least loaded
nodes on which the task can start at once.

``las-mq`` has levels of attained service like LAS_MQ (Hu et al. 2017): the first ends at ``first_s``, each
further one at ``factor`` times the end of the one before (60, 120, 240 s, ...). A paused task displaces only
tasks of a higher level, so tasks of like age do not take turns.

``las-drf`` is fair between users by dominant resource (see ``FairShare``). The queue sends the tasks of the
user of least dominant share first, and L binds only users that have at least their part of the machine. So
the tasks of a user who submits too much wait in the queue, and those of others pass.

Guarantee: a task displaces only tasks that have run longer than it.
Cost: O(nodes) to send a task, O(2^N) to look for victims (O(tasks of the node) more if ``thorough``).
Paper: Yabuuchi and Shinagawa, A cluster scheduler without run-time estimates for several, uneven resource
demands, IPSJ SIG Technical Report 2019-OS-146 (in Japanese).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.policies.las.node_las import (
    ROOM,
    Levels,
    Node,
    NodeRules,
    NodeTask,
    Victims,
    candidates,
    fewest,
    sparing,
)
from scheduler.policies.las.two_level import FairShare, Fifo, TwoLevel


@dataclass(frozen=True)
class LasParameters:
    """L, N and W of the paper, and what goes beyond it.

    Attributes:
        load_limit: no task is sent to a node of a higher load unless it fits there at once.
        victims: number of running tasks considered to make room for a task.
        spare_s: least time that a task runs before it gives way to a paused task.
        thorough: a new task may displace more than ``victims`` tasks, if so many do not make room.
        probe: number of least loaded nodes searched for a start at once of a task that fits nowhere.
        first_s, factor: the levels of attained service end at first_s, first_s * factor, first_s * factor^2,
            ...; factor None: each instant is a level.
        fair: the user of least dominant share sends first, and load_limit does not bind users below their
            part.
        weights: of users for ``fair``, as ``alice:2/bob:0.5``; 1 for all others. ``Job.share`` overrides it.
    """

    load_limit: float = 1.5
    victims: int = 4
    spare_s: float = 60.0
    thorough: bool = False
    probe: int = 0
    first_s: float = 60.0
    factor: float | None = None
    fair: bool = False
    weights: str = ""

    def __post_init__(self) -> None:
        if not self.load_limit > 0:
            raise ValueError("load_limit must be above 0")
        if not 1 <= self.victims <= 12:
            raise ValueError("victims must be 1 to 12: their sets are tried one by one")
        if not 0 < self.spare_s < math.inf or not 0 < self.first_s < math.inf:
            raise ValueError("spare_s and first_s must be above 0")
        if self.probe < 0:
            raise ValueError("probe must not be negative")
        if self.factor is not None and not 1 < self.factor < math.inf:
            raise ValueError("factor must be above 1")
        self.by_user()

    def by_user(self) -> dict[str, float]:
        """Read the weights.

        Raises:
            ValueError: they are not understood.
        """
        weights = {}
        for part in filter(None, self.weights.split("/")):
            user, _, number = part.rpartition(":")
            try:
                weights[user] = float(number)
            except ValueError:
                raise ValueError(f"weights: {part!r} is not of the form user:number") from None
            if not 0 < weights[user] < math.inf:
                raise ValueError(f"weights: that of {user} must be above 0")
        return weights


class Las(TwoLevel):
    """Least attained service with as few preemptions as possible, on several resources."""

    Parameters = LasParameters
    parameters: LasParameters

    @property
    def fair(self) -> bool:
        return self.parameters.fair

    def _node_rules(self) -> NodeRules:
        given = self.parameters
        levels = None if given.factor is None else Levels(given.first_s, given.factor)
        new = self._thorough if given.thorough else self._few
        return NodeRules(new, self._few, given.spare_s, levels)

    def _few(
        self, longest: Sequence[NodeTask], free: Sequence[float], demand: Sequence[float]
    ) -> Victims | None:
        """Search the sets of the first N candidates."""
        return fewest(longest[: self.parameters.victims], free, demand)

    def _thorough(
        self, longest: Sequence[NodeTask], free: Sequence[float], demand: Sequence[float]
    ) -> Victims | None:
        """Search the sets of the first N candidates, or else larger ones."""
        return self._few(longest, free, demand) or sparing(longest, free, demand)

    def _new_queue(self) -> Fifo | FairShare:
        if not self.parameters.fair:
            return Fifo()
        whole = [math.fsum(column) for column in zip(*(node.capacity for node in self._nodes), strict=True)]
        return FairShare(whole, self.parameters.by_user())

    def _tally(self) -> None:
        capacity = np.array([node.capacity for node in self._nodes], dtype=np.float64).T
        self._capacity = capacity
        self._weights = np.divide(1.0, capacity**2, out=np.zeros_like(capacity), where=capacity > 0)
        self._free = np.zeros_like(capacity)
        self._load = np.zeros(len(self._nodes))
        self._none = np.zeros(len(self._nodes))

    def _changed(self, node: Node) -> None:
        at, square = node.index, 0.0
        for r, free in enumerate(node.free):
            self._free[r, at] = free
            if node.unfinished[r]:
                square += (node.unfinished[r] / node.capacity[r]) ** 2
        self._load[at] = math.sqrt(square)
        if not node.up:
            self._free[:, at] = -1.0
            self._load[at] = math.inf

    def _choose(self, task: NodeTask, now: float) -> int | None:
        # One resource after the other, because operations on rows hardly slow down with the number of nodes.
        fits, likeness = self.allowed(task), self._none
        for free, weights, demand in zip(self._free, self._weights, task.demand, strict=True):
            fits = fits & (free >= demand - ROOM)
            likeness = likeness + free * (weights * demand)
        best = int(np.where(fits, likeness, -1.0).argmax())
        if fits[best]:
            return best
        load = self._load if self.every(task) else np.where(self.allowed(task), self._load, math.inf)
        best = int(load.argmin())
        limit = math.inf if self._queue.entitled(task) else self.parameters.load_limit
        if not load[best] <= limit or load[best] == math.inf:
            return None
        for index in load.argsort(kind="stable")[: self.parameters.probe].tolist():
            node = self._nodes[index]
            if load[index] > limit or load[index] == math.inf:
                break
            if (
                not node.stopping
                and node.awaits is None
                and self._few(candidates(node, task, now), node.free, task.demand)
            ):
                return int(index)
        return best

    def _burden(self, index: int) -> float:
        return float(self._load[index])

    def _full(self) -> str:
        first, limit = self._queue.first(), self.parameters.load_limit
        ways = [first] if first else []
        if first and first.job.alternatives:
            ways = [NodeTask(way, way.units, self._each) for way in first.job.ways]
        able = [self.allowed(self.sent_alone(way)) for way in ways]
        loads = self._load[np.any(able, axis=0)] if able else self._load
        lightest = float(loads.min(initial=math.inf))
        if lightest == math.inf:
            return "every node that could take the first is down"
        if lightest <= limit:  # of a job of several tasks
            return f"not all tasks of the first can be sent to nodes of a load of at most {limit:g}"
        above = f"the load of every node that could take the first is above {limit:g}"
        return f"{above} (the lightest: {lightest:.2f})"
