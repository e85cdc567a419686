"""Least attained service on several resources: a task's run time need not be known (``las``).

Algorithm (tasks that can be paused, each with a demand of every resource of a node):

- Central queue, first come, first served. A task goes to the node on which it fits now and whose free
  resources are most like its demand: the largest sum over the resources of demand * free / capacity^2. If it
  fits on none, it goes to the node with the least load, unless that is above ``load_limit`` (L); then the
  queue waits. The load is the norm of what all unfinished tasks of the node demand, as shares of its
  capacity. A task stays on its node.
- Each node runs the tasks with the least attained service (see ``scheduler/attained.py``). Who gives way is
  searched among the ``victims`` (N) candidates of longest attained service, in the order {0}, {1}, {0,1},
  {2}, ...; a task that started or resumed less than ``spare_s`` (W) ago does not give way to a paused one.

Guarantee: a task displaces only tasks that have run longer than it.
Cost: O(nodes) to send a task, O(2^N) to look for victims.
Paper: Yabuuchi and Shinagawa, A cluster scheduler without run-time estimates for several, uneven resource
demands, IPSJ SIG Technical Report 2019-OS-146 (in Japanese).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scheduler.attained import ROOM, Node, Rules, Task, fewest
from scheduler.twolevel import TwoLevel


@dataclass(frozen=True)
class LasParameters:
    """L, N and W of the paper.

    Attributes:
        load_limit: no task is sent to a node of a higher load unless it fits there at once.
        victims: so many running tasks are considered to make room for one.
        spare_s: a task runs at least so long before it gives way to a paused one.
    """

    load_limit: float = 1.5
    victims: int = 4
    spare_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.load_limit > 0:
            raise ValueError("load_limit must be above 0")
        if not 1 <= self.victims <= 12:
            raise ValueError("victims must be 1 to 12: their sets are tried one by one")
        if not 0 < self.spare_s < math.inf:
            raise ValueError("spare_s must be above 0")


class Las(TwoLevel):
    """Least attained service with as few preemptions as possible, on several resources."""

    Parameters = LasParameters
    parameters: LasParameters

    def _node_rules(self) -> Rules:
        return Rules(fewest, self.parameters.victims, self.parameters.spare_s)

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

    def _choose(self, task: Task) -> int | None:
        # One resource after the other, on rows: a hundred times as many nodes cost little more.
        fits, likeness = self.allowed(task), self._none
        for free, weights, demand in zip(self._free, self._weights, task.demand, strict=True):
            fits = fits & (free >= demand - ROOM)
            likeness = likeness + free * (weights * demand)
        best = int(np.where(fits, likeness, -1.0).argmax())
        if fits[best]:
            return best
        best = int(np.where(self.allowed(task), self._load, math.inf).argmin())
        return best if self._load[best] <= self.parameters.load_limit else None

    def _full(self) -> str:
        lightest = float(self._load.min())
        return f"the load of every node that could take the first is above {self.parameters.load_limit:g}" + (
            f" (the lightest: {lightest:.2f})" if lightest < math.inf else ""
        )
