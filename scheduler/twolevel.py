"""Policies of two levels: a central queue sends each task to a node, which decides who runs when.

A task stays on its node. A policy says which node that is (``_choose``); everything else is here. Order
within one instant: tasks end; nodes on which something ended or whose timer fired decide, by their index;
tasks arrive; the central queue sends, first come first served, and a node decides after each task that is
sent to it. The first task of the queue that cannot be sent holds up the others.

Which node a task was sent to before it ever ran is known to this policy alone; when a coordinator starts
again, and when a node fails or returns, such tasks are sent anew, in the order of submission.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from scheduler.actions import Action, WakeAt
from scheduler.attained import ROOM, Node, Rules, Task, next_look_s, settle
from scheduler.events import (
    Checkpointed,
    Event,
    Failed,
    Finished,
    NodeDown,
    NodeUp,
    Submitted,
    Timer,
)
from scheduler.fairqueue import FairShare, Fifo
from scheduler.model import Cluster, Job, Placement
from scheduler.policy import Policy, Reason, View
from scheduler.state import Phase

MORE_TO_COME = frozenset({Finished, Timer})  # decide after all of an instant

Mask = NDArray[np.bool_]


class TwoLevel(Policy):
    """Base of ``las`` and ``kairos``."""

    suits = frozenset({"nodes"})

    def begin(self, view: View) -> None:
        self._rules = self._node_rules()
        self._tasks: dict[int, tuple[Task, Node | None]] = {}
        self._touched: set[int] = set()
        self._nodes = _nodes_of(view)
        self._queue = self._new_queue()
        self._at = {(node.placement.pool, node.placement.nodes[0][0]): node for node in self._nodes}
        self._capacities = np.array([node.capacity for node in self._nodes])
        self._alike = bool((self._capacities == self._capacities[0]).all())
        self._all = np.ones(len(self._nodes), dtype=np.bool_)
        self._adopt(view)
        self._tally()
        for node in self._nodes:
            self._changed(node)
            if node.new or node.paused:
                self._touched.add(node.index)

    @abstractmethod
    def _node_rules(self) -> Rules:
        """How nodes decide."""

    def _new_queue(self) -> Fifo | FairShare:
        """Whose turn it is."""
        return Fifo()

    @abstractmethod
    def _tally(self) -> None:
        """Set up what ``_choose`` looks at."""

    @abstractmethod
    def _changed(self, node: Node) -> None:
        """Something changed on the node."""

    @abstractmethod
    def _choose(self, task: Task, now: float) -> int | None:
        """The node that the task is sent to; None: it must wait."""

    @abstractmethod
    def _full(self) -> str:
        """Why no node takes a further task, as a clause."""

    def refuses(self, job: Job, cluster: Cluster) -> str:
        return "it has several tasks" if job.units != 1 else ""

    # -- events ---------------------------------------------------------------------------------------

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if isinstance(event, Submitted):
            task = Task(event.job)
            self._tasks[task.id] = task, None
            self._queue.add(task)
        elif isinstance(event, Finished):
            self._ended(event.job.id)
        elif isinstance(event, Timer):
            node = self._nodes[event.tag] if isinstance(event.tag, int) else None
            if node is not None and node.wake_s == event.at_s:
                node.wake_s = math.inf
                self._touched.add(node.index)
        elif isinstance(event, Checkpointed):
            self._stopped(event.job.id)
        elif isinstance(event, Failed | NodeDown | NodeUp):
            self.begin(view)
        if view.upcoming in MORE_TO_COME:
            return ()
        actions: list[Action] = []
        if self._touched:
            for index in sorted(self._touched):
                self._settle(self._nodes[index], view, actions)
            self._touched.clear()
        while (first := self._queue.first()) is not None:
            chosen = self._choose(first, view.now)
            if chosen is None:
                break
            self._queue.sent(first)
            node = self._nodes[chosen]
            self._tasks[first.id] = first, node
            node.new.append(first)
            node.charge(first, 1)
            self._settle(node, view, actions)
        return actions

    def _settle(self, node: Node, view: View, actions: list[Action]) -> None:
        """The node decides."""
        now, wake_s = view.now, math.inf
        if node.new or node.paused:
            decided = settle(node, now, view.costs, self._rules)
            actions += decided
            wake_s = next_look_s(node, now, self._rules.spare_s, bool(decided))
        if wake_s != node.wake_s:
            node.wake_s = wake_s
            if wake_s < math.inf:
                actions.append(WakeAt(wake_s, node.index))
        self._changed(node)

    def every(self, task: Task) -> bool:
        """Whether the task could run on every node."""
        return self._alike and not task.job.estimates_s

    def allowed(self, task: Task) -> Mask:
        """The nodes that the task could ever run on (and that may be down)."""
        if self.every(task):
            return self._all
        named = [task.job.runs_on(node.placement.pool) for node in self._nodes]
        mask: Mask = (self._capacities >= np.subtract(task.demand, ROOM)).all(axis=1) & np.array(named)
        return mask

    def _ended(self, job_id: int) -> None:
        task, node = self._tasks.pop(job_id)
        assert node is not None
        if job_id in node.stopping:
            del node.stopping[job_id]
        else:
            node.running.remove(task)
        node.give(task)
        node.charge(task, -1)
        self._queue.ended(task)
        self._touched.add(node.index)

    def _stopped(self, job_id: int) -> None:
        """A stop that took time is done."""
        if job_id not in self._tasks:
            return
        task, node = self._tasks[job_id]
        if node is not None and node.stopping.pop(job_id, None) is not None:
            node.give(task)
            node.pause(task, self._rules.levels)
            self._touched.add(node.index)

    # -- books ----------------------------------------------------------------------------------------

    def _adopt(self, view: View) -> None:
        """Take over the tasks that the view shows."""
        for state in (*view.running.values(), *view.suspended.values()):
            where = state.placement
            assert where is not None
            task, node = Task(state.job), self._at[where.pool, where.nodes[0][0]]
            task.served_s, task.started = state.served_s, True
            self._tasks[task.id] = task, node
            node.charge(task, 1)
            self._queue.held(task)
            if state.phase is Phase.RUNNING:
                node.take(task, state.works_from_s, state.since_s, self._rules.spare_s)
            elif state.phase is Phase.STOPPING:
                node.hold(task)
            else:
                node.pause(task, self._rules.levels)
        for job in view.waiting.values():
            task = Task(job)
            self._tasks[job.id] = task, None
            self._queue.add(task)

    # -- words ----------------------------------------------------------------------------------------

    def why(self, job: Job, view: View) -> Reason:
        if job.id not in self._tasks:
            return Reason("was submitted just now; the central queue has not looked at it yet")
        task, node = self._tasks[job.id]
        if node is None:
            return Reason(f"waits in the central queue, {self._queue.ahead(task)}: {self._full()}")
        wanted = _share(job.demand, node)
        if not node.up:
            return Reason(f"waits for {_name(node)}, which is down")
        free = f"{_share(node.free, node)} free there"
        return Reason(
            f"waits on {_name(node)} for {wanted}; {free}, and pausing those of its {len(node.running)} "
            "running tasks that may be paused for it would not make enough room"
        )


def _name(node: Node) -> str:
    return f"{node.placement.pool} {node.placement.nodes[0][0]}"


def _share(amounts: Sequence[float], node: Node) -> str:
    return ", ".join(
        f"{max(0.0, amount):.3g} {name}" for name, amount in zip(node.resources, amounts, strict=True)
    )


def _nodes_of(view: View) -> list[Node]:
    """All nodes of all pools, best class first.

    Raises:
        BadInput: a pool has no nodes, or pools have different resources.
    """
    nodes: list[Node] = []
    for pool in view.cluster.pools:
        if pool.counted:
            raise BadInput(
                f"policies that look at nodes cannot schedule {pool.name}, which is a mere count",
                "say what a node has: 256xnode[cpu=1,memory=1]",
            )
        if pool.resources != view.cluster.pools[0].resources:
            raise BadInput(
                f"the nodes of {pool.name} have other resources than those of {view.cluster.pools[0].name}",
                "give all pools the same resources",
            )
        up = view.nodes[pool.name].up.tolist()
        nodes += [
            Node(len(nodes) + i, Placement(pool.name, 1, ((i, 1),)), pool, up[i]) for i in range(pool.units)
        ]
    return nodes
