"""Least attained service for tasks that all count the same (``kairos``), the baseline of ``las``.

Algorithm: as ``las``, but

- the central queue sends each task to the node with the fewest unfinished tasks, among nodes on which fewer
  than ``queued`` (Q) tasks wait or are paused. Without such a node the queue waits. Resources do not count;
- a node pauses running tasks of longest attained service until there is room, needed or not. It pauses none
  if all that may give way are too few.

All resources are checked on the node, so nothing is over-committed.
Guarantee: a task displaces only tasks that have run longer than it.
Cost: O(nodes) to send a task.
Paper: Delgado, Didona, Dinu, Zwaenepoel, Kairos: Preemptive data center scheduling without runtime estimates,
SoCC 2018, with the simple extension to several resources by Yabuuchi and Shinagawa, IPSJ 2019-OS-146.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scheduler.policies.las.node_las import Node, NodeRules, NodeTask, greedy
from scheduler.policies.las.two_level import TwoLevel

MANY = 1 << 62


@dataclass(frozen=True)
class KairosParameters:
    """Q and W of the papers.

    Attributes:
        queued: no task is sent to a node on which so many tasks wait or are paused.
        spare_s: least time that a task runs before it gives way to a paused task.
    """

    queued: int = 32
    spare_s: float = 60.0

    def __post_init__(self) -> None:
        if self.queued < 1:
            raise ValueError("queued must be at least 1")
        if not 0 < self.spare_s < math.inf:
            raise ValueError("spare_s must be above 0")


class Kairos(TwoLevel):
    """Least attained service, blind to what tasks demand until they are on a node."""

    Parameters = KairosParameters
    parameters: KairosParameters

    def _node_rules(self) -> NodeRules:
        return NodeRules(greedy, greedy, self.parameters.spare_s)

    def _tally(self) -> None:
        self._unfinished = np.zeros(len(self._nodes), dtype=np.int64)

    def _changed(self, node: Node) -> None:
        waiting = sum(task.units for task in (*node.new, *node.paused))
        open_ = node.up and waiting < self.parameters.queued
        self._unfinished[node.index] = node.tasks if open_ else MANY

    def _choose(self, task: NodeTask, now: float) -> int | None:
        unfinished = self._unfinished
        if not self.every(task):
            unfinished = np.where(self.allowed(task), unfinished, MANY)
        best = int(unfinished.argmin())
        return best if unfinished[best] < MANY else None

    def _burden(self, index: int) -> float:
        return float(self._unfinished[index])

    def _full(self) -> str:
        most = self.parameters.queued
        return (
            f"on every node that could take the first, {most} tasks or more wait or are paused, or it is down"
        )
