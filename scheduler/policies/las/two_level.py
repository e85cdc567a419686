"""Policies of two levels: a central queue sends each task to a node, which decides who runs when.

A task stays on its node, which the policy chooses (``_choose``). The tasks of a job are sent together, one
after the other, to nodes of one class. Tasks sent before count, and no node gets more than it could hold at
once. They run all or none (see ``node_las``).

Order within one instant: tasks end. Nodes on which a task ended or whose timer fired decide, by their index,
and with them nodes on which these decisions started or paused parts of jobs. Tasks arrive. The central queue
sends, first come first served, and a node decides after each task that is sent to it. The first task of the
queue that cannot be sent holds up the others.

A job with alternatives (its ways) is sent in the first that fits now, else in that whose nodes are the least
burdened. On its node it may still begin in another (see ``node_las``).

A class without nodes (of devices) is one node, see ``node_las``. All units of a job are sent to one class.

Only this policy knows the node of a task that was sent but never ran. When a coordinator starts again, and
when a node fails or returns, such tasks are sent anew, in the order of submission, before any paused task
goes on.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from scheduler.jobs.literals import resource_text
from scheduler.model import events
from scheduler.model.jobs import Job, Placement, Stage, counted, instant
from scheduler.model.state import rooms
from scheduler.policies.base import Policy, Reason, View
from scheduler.policies.las.node_las import (
    ROOM,
    TICK_S,
    Node,
    NodeRules,
    NodeTask,
    Refused,
    covers,
    gives_way,
    settle,
)

# -- central queues ----------------------------------------------------------------------------------------
#
# Dominant resource fairness (Ghodsi et al., NSDI 2011): a user's dominant share is the largest of its
# shares of the machine's resources, here of what its unfinished tasks on nodes demand, over its weight. The
# user of least dominant share sends next. A user is *entitled* while its dominant share is below its
# weight's part of the weights of all users that have tasks in the system.
#
# A user's weight is ``Job.share`` of the task with the largest number among its tasks in the system that
# state a share; else the weight given to the queue; else 1.


class Fifo:
    """First come, first served, for all users."""

    def __init__(self) -> None:
        self._tasks: deque[NodeTask] = deque()

    def add(self, task: NodeTask) -> None:
        """Append a waiting task."""
        self._tasks.append(task)

    def first(self) -> NodeTask | None:
        """Return the task that is sent next."""
        return self._tasks[0] if self._tasks else None

    def sent(self, task: NodeTask) -> None:
        """Note that the first task was sent to a node."""
        self._tasks.popleft()

    def held(self, task: NodeTask) -> None:
        """Note that a node holds the task."""

    def began(self, task: NodeTask) -> None:
        """Note that a task that a node holds has begun, in the way of its job that it has now."""

    def ended(self, task: NodeTask) -> None:
        """Note that a task that a node held has ended."""

    def entitled(self, task: NodeTask) -> bool:
        """Tell if the task's user may send whatever the load is."""
        return False

    def ahead(self, task: NodeTask) -> str:
        """Describe what comes before the waiting task, for people."""
        return f"{self._tasks.index(task)} ahead of it"


class FairShare:
    """The user of least dominant share first; for each user, first come, first served.

    Args:
        capacity: of the whole machine.
        weights: of users whose tasks state none; 1 for other users.
    """

    def __init__(self, capacity: Sequence[float], weights: Mapping[str, float]) -> None:
        self._capacity = capacity
        self._given = weights
        self._stated: dict[str, dict[int, float]] = {}  # user -> task in the system -> weight
        self._weights: dict[str, float] = {}  # of users in the system
        self._waiting: dict[str, deque[NodeTask]] = {}
        self._demand: dict[str, list[float]] = {}
        self._charged: dict[int, Sequence[float]] = {}  # demand of each task on a node
        self._tasks = Counter[str]()  # in the system
        self._sum = 0.0  # of the weights of users in the system

    def add(self, task: NodeTask) -> None:
        self._enter(task)
        self._waiting.setdefault(task.job.user, deque()).append(task)

    def first(self) -> NodeTask | None:
        if not self._waiting:
            return None
        # Of equal shares, the task of higher priority, then the earlier task.
        firsts = ((user, tasks[0]) for user, tasks in self._waiting.items())
        return min((self.share(user), -task.job.priority, task.id, task) for user, task in firsts)[3]

    def sent(self, task: NodeTask) -> None:
        user = task.job.user
        self._waiting[user].popleft()
        if not self._waiting[user]:
            del self._waiting[user]
        self._charge(task, 1)

    def held(self, task: NodeTask) -> None:
        self._enter(task)
        self._charge(task, 1)

    def began(self, task: NodeTask) -> None:
        if self._charged[task.id] != task.demand:
            self._charge(task, -1)
            self._charge(task, 1)

    def ended(self, task: NodeTask) -> None:
        user = task.job.user
        self._charge(task, -1)
        self._tasks[user] -= 1
        if task.job.share is not None:
            del self._stated[user][task.id]
            self._weigh(user)
        if not self._tasks[user]:
            del self._tasks[user], self._demand[user], self._weights[user]
            self._stated.pop(user, None)
            self._sum = sum(self._weights.values())

    def entitled(self, task: NodeTask) -> bool:
        user = task.job.user
        return self.share(user) < 1.0 / self._sum

    def ahead(self, task: NodeTask) -> str:
        user = task.job.user
        before = self._waiting[user].index(task)
        has = f"{self.weight(user) * self.share(user):.1%} of the machine"
        return f"{before} of the same user ahead of it (who has {has}; whoever has least comes first)"

    def weight(self, user: str) -> float:
        return self._weights[user] if user in self._weights else self._given.get(user, 1.0)

    def share(self, user: str) -> float:
        """Return the dominant share of what the user's tasks on nodes demand, over the user's weight."""
        demand = self._demand.get(user)
        if demand is None:
            return 0.0
        most = max(d / c for d, c in zip(demand, self._capacity, strict=True) if c)
        return most / self.weight(user)

    def _enter(self, task: NodeTask) -> None:
        user, share = task.job.user, task.job.share
        self._tasks[user] += 1
        if share is not None:
            self._stated.setdefault(user, {})[task.id] = share
            self._weigh(user)
        elif user not in self._weights:
            self._weigh(user)

    def _weigh(self, user: str) -> None:
        """Compute the user's weight again."""
        stated = self._stated.get(user)
        weight = stated[max(stated)] if stated else self._given.get(user, 1.0)
        if self._weights.get(user) != weight:
            self._weights[user] = weight
            self._sum = sum(self._weights.values())

    def _charge(self, task: NodeTask, sign: int) -> None:
        user = task.job.user
        if sign > 0:
            self._charged[task.id] = task.demand
        more = self._charged[task.id] if sign > 0 else self._charged.pop(task.id)
        demand = self._demand.get(user) or [0.0] * len(self._capacity)
        self._demand[user] = [round(a + sign * d, 12) for a, d in zip(demand, more, strict=True)]


# -- the next look -----------------------------------------------------------------------------------------


def next_look_s(node: Node, now: float, spare_s: float) -> float:
    """Compute when the node should look again although nothing has happened; infinite: never.

    A node with waiting tasks looks W, 2W, ... after the start (or the end of the restart) of each running
    task. Most of these looks find nothing new. A waiting task succeeds only if another running task became a
    candidate for it since the last decision and all candidates together free enough, or if that decision
    changed the running tasks. The first such look is returned; the next look, if a job with parts on other
    nodes waits, because those nodes may have made room.
    """
    if not node.running or not (node.new or node.paused):
        return math.inf
    decided_s = node.decided_s
    change = decided_s + TICK_S if node.acted else math.inf
    for waiting in (node.new, node.paused) if change == math.inf else ():
        refused = Refused()
        for task in waiting:
            if len(task.gang) > 1:
                change = decided_s + TICK_S
                break
            if not refused.covers(task):
                change = min(change, _next_chance_s(node, task, decided_s))
    if change == math.inf:
        return math.inf
    change = max(change, now)
    first = math.inf
    change -= TICK_S / 2  # the looks lie on the grid, up to the rounding of these sums
    for other in node.running:
        since_s = other.since_s
        look = since_s + max(1, math.ceil((change - since_s) / spare_s)) * spare_s
        if look < first:  # noqa: PLR1730 (min() is slower)
            first = look
    return instant(first)


def _next_chance_s(node: Node, task: NodeTask, decided_s: float) -> float:
    """Compute from when on the task could displace others although it could not at ``decided_s``."""
    longer, started = task.above_s + TICK_S, task.started
    eligible = [(-math.inf, other.rank, other) for other in node.restarting if gives_way(other, task)]
    for other in node.running:
        at = other.began_s + longer
        if started and other.ripe_s > at:
            at = other.ripe_s
        eligible.append((at, other.rank, other))
    eligible.sort()
    later = decided_s + TICK_S / 2
    room: Sequence[float] = node.free
    for at, _, other in eligible:
        if other.job.stop not in node.keeps:
            room = [f + d for f, d in zip(room, other.demand, strict=True)]
            if at > later and any(covers(room, demand) for demand in task.demands):
                return at
    return math.inf


# -- the policies ------------------------------------------------------------------------------------------


Mask = NDArray[np.bool_]


class TwoLevel(Policy):
    """Base of ``las`` and ``kairos``."""

    suits = frozenset({"nodes", "classes"})
    ignores = frozenset()
    resumes = True

    def begin(self, view: View) -> None:
        self._rules = self._node_rules()
        self._tasks: dict[int, tuple[NodeTask, bool]] = {}  # each job's task, and True if it was sent
        self._touched: set[int] = set()
        self._anew = True  # nothing was decided since
        self._decided: set[int] = set()  # nodes that decided at this instant
        self._due = True  # something has happened since the last decision
        self._nodes = _nodes_of(view)
        self._queue = self._new_queue()
        self._at = {
            (node.pool.name, number): node for node in self._nodes for number, _ in _nodes_at(node.placement)
        }
        self._each = () if self._nodes[0].placement.nodes else (1.0,)
        self._capacities = np.array([node.capacity for node in self._nodes])
        self._alike = bool((self._capacities == self._capacities[0]).all())
        self._all = np.ones(len(self._nodes), dtype=np.bool_)
        # Only while the tasks of one job are sent: number of further tasks that each node could hold.
        self._room: NDArray[np.int64] | None = None
        self._adopt(view)
        self._tally()
        for node in self._nodes:
            self._changed(node)
            if node.new or node.paused:
                self._touched.add(node.index)

    @abstractmethod
    def _node_rules(self) -> NodeRules:
        """Return how nodes decide."""

    def _new_queue(self) -> Fifo | FairShare:
        """Make the central queue."""
        return Fifo()

    @abstractmethod
    def _tally(self) -> None:
        """Set up what ``_choose`` looks at."""

    @abstractmethod
    def _changed(self, node: Node) -> None:
        """Enter a change of the node."""

    @abstractmethod
    def _choose(self, task: NodeTask, now: float) -> int | None:
        """Choose the node that the task is sent to; None: it must wait."""

    @abstractmethod
    def _burden(self, index: int) -> float:
        """Return how much work a node has: of nodes without room, the one with the least is chosen."""

    @abstractmethod
    def _full(self) -> str:
        """Say why no node takes a further task, as a clause."""

    # -- events ---------------------------------------------------------------------------------------

    def decide(self, view: View, event: events.Event) -> Sequence[events.Action]:
        looks: list[events.Action] = []
        if isinstance(event, events.Started):
            self._restarted(event.job.id, view.now, looks)
        else:
            self._note(view, event)
        if view.upcoming is not None or not self._due:
            return looks
        self._due = False
        return [*looks, *self._decide(view)]

    def _note(self, view: View, event: events.Event) -> None:
        """Enter what has happened."""
        self._due = True
        if isinstance(event, events.Submitted):
            self._add(event.job)
        elif isinstance(event, events.Finished):
            self._ended(event.job.id)
        elif isinstance(event, events.Timer):
            node = self._nodes[event.tag] if isinstance(event.tag, int) else None
            if node is not None and node.wake_s == event.at_s:
                node.wake_s = math.inf
                self._touched.add(node.index)
        elif isinstance(event, events.Checkpointed) and not event.resumed:
            self._stopped(event.job.id)
        elif not isinstance(event, events.BudgetChanged):
            self.begin(view)

    def _decide(self, view: View) -> list[events.Action]:
        """Let first the nodes decide on which something happened, then the central queue send."""
        actions: list[events.Action] = []
        self._decided.clear()
        later = self._touched if self._anew else set[int]()
        self._touched, self._anew = self._touched - later, False
        for index in later:  # it sends by what they hold, also if a task has ended meanwhile
            self._changed(self._nodes[index])
        self._settle_touched(view, actions)
        while (waiting := self._queue.first()) is not None:
            chosen = self._way(waiting, view.now)
            if chosen is None:
                break
            first, places = chosen
            self._queue.sent(first)
            self._tasks[first.id] = first, True
            first.lie([(self._nodes[index], units) for index, units in sorted(places.items())])
            if first.units == 1 and waiting.job.alternatives and not self._each:
                first.set_ways([way for way in waiting.job.ways if first.node.may_hold(way)])
            for part in first.gang:
                part.node.new.append(part)
                part.node.charge(part, 1)
                self._touched.add(part.node.index)
            self._settle_touched(view, actions)
        self._touched |= later
        self._settle_touched(view, actions)
        for index in sorted(self._decided):
            self._look_again(self._nodes[index], view.now, actions)
        return actions

    def _add(self, job: Job) -> None:
        """Append a job to the queue."""
        task = NodeTask(job, job.units, self._each)
        self._tasks[job.id] = task, False
        self._queue.add(task)

    def sent_alone(self, task: NodeTask) -> NodeTask:
        """Return the part of a job that a node must hold as a whole: one task; of a class, the whole job."""
        return task if self._each or task.units == 1 else NodeTask(task.job)

    def _way(self, task: NodeTask, now: float) -> tuple[NodeTask, dict[int, int]] | None:
        """Choose the way of a job, and its places: that which fits now, else that of the least burden."""
        best: tuple[tuple[bool, float], NodeTask, dict[int, int]] | None = None
        if not task.job.alternatives:
            places = self._places(task, now)
            return None if places is None else (task, places)
        for way in task.job.ways:
            other = NodeTask(way, way.units, self._each)
            if rooms(self._capacities, other.demand_each).sum() < way.units:
                continue
            if (places := self._places(other, now)) is None:
                continue
            waits = any(
                not covers(self._nodes[index].free, [units * d for d in other.demand_each])
                for index, units in places.items()
            )
            rank = waits, max(map(self._burden, places)) if waits else 0.0
            if best is None or rank < best[0]:
                best = rank, other, places
        return None if best is None else best[1:]

    def _places(self, task: NodeTask, now: float) -> dict[int, int] | None:
        """Choose how many of the job's tasks are sent to which node; None: it must wait."""
        if task.units == 1 or self._each:
            chosen = self._choose(task, now)
            return None if chosen is None else {chosen: task.units}
        single, places = NodeTask(task.job), dict[int, int]()
        room = np.where(self.allowed(single), rooms(self._capacities, task.job.demand), 0)
        for pool in dict.fromkeys(node.placement.pool for node in self._nodes):
            self._room = np.where([node.placement.pool == pool for node in self._nodes], room, 0)
            if self._room.sum() >= task.units:
                places = self._one_by_one(single, task.units, now)
                if places:
                    break
        self._room = None
        return places or None

    def _one_by_one(self, single: NodeTask, tasks: int, now: float) -> dict[int, int]:
        """Choose the nodes of a job's tasks, one after the other; empty if the job must wait."""
        assert self._room is not None
        places: dict[int, int] = {}
        before: dict[int, tuple[list[float], list[float], int]] = {}
        for _ in range(tasks):
            index = self._choose(single, now)
            if index is None:
                places = {}
                break
            node = self._nodes[index]
            before.setdefault(index, (node.free, node.unfinished, node.tasks))
            places[index] = places.get(index, 0) + 1
            self._room[index] -= 1
            node.charge(single, 1)
            if covers(node.free, single.demand):
                node.free = [round(f - d, 12) for f, d in zip(node.free, single.demand, strict=True)]
            else:
                node.new.append(single)
            self._changed(node)
        for index, (free, unfinished, count) in before.items():
            node = self._nodes[index]
            node.free, node.unfinished, node.tasks = free, unfinished, count
            node.new = [task for task in node.new if task is not single]
            self._changed(node)
        return places

    def _settle_touched(self, view: View, actions: list[events.Action]) -> None:
        """Let the nodes on which something happened decide, by their index."""
        while self._touched:
            index = min(self._touched)
            self._touched.discard(index)
            self._settle(self._nodes[index], view, actions)

    def _settle(self, node: Node, view: View, actions: list[events.Action]) -> None:
        """Let the node decide."""
        decided = settle(node, view.now, view.costs, self._rules)
        actions += decided
        for action in decided:
            self._touch_others(action, node)
            if isinstance(action, events.Start):
                self._queue.began(self._tasks[action.job_id][0])
        node.acted = bool(decided)
        self._decided.add(node.index)
        self._changed(node)

    def _look_again(self, node: Node, now: float, actions: list[events.Action]) -> None:
        """Have the node decide again when it may decide anew."""
        wake_s = next_look_s(node, now, self._rules.spare_s)
        if wake_s != node.wake_s:
            node.wake_s = wake_s
            if wake_s < math.inf:
                actions.append(events.WakeAt(wake_s, node.index))

    def _restarted(self, job_id: int, now: float, actions: list[events.Action]) -> None:
        """Count the service of a job whose restart is over."""
        task, sent = self._tasks.get(job_id, (None, False))
        for part in task.gang if task is not None and sent else ():
            node = part.node
            if part in node.restarting:
                node.restarting.remove(part)
                node.run(part, now, self._rules.spare_s)
                self._look_again(node, now, actions)

    def _touch_others(self, action: events.Action, node: Node) -> None:
        """Let the other nodes of a job decide too when it started or gave way here."""
        assert isinstance(action, events.Start | events.Resume | events.Suspend)
        for part in self._tasks[action.job_id][0].gang:
            if part.node is not node:
                self._touched.add(part.node.index)
                self._changed(part.node)

    def every(self, task: NodeTask) -> bool:
        """Tell if the task could run on every node."""
        return self._alike and not task.job.estimates_s and self._room is None

    def allowed(self, task: NodeTask) -> Mask:
        """Return the nodes that the task could ever run on (even if down)."""
        if self._room is not None:
            return self._room > 0
        if self.every(task):
            return self._all
        named = [task.job.runs_on(node.placement.pool) for node in self._nodes]
        mask: Mask = (self._capacities >= np.subtract(task.demand, ROOM)).all(axis=1) & np.array(named)
        return mask

    def _ended(self, job_id: int) -> None:
        task, _ = self._tasks.pop(job_id)
        for part in task.gang:
            node = part.node
            if job_id in node.stopping:
                del node.stopping[job_id]
            else:
                node.drop(part)
            node.give(part)
            node.charge(part, -1)
            self._touched.add(node.index)
        self._queue.ended(task)

    def _stopped(self, job_id: int) -> None:
        """End a stop that took time."""
        if job_id not in self._tasks:
            return
        task, sent = self._tasks[job_id]
        for part in task.gang if sent else ():
            node = part.node
            if node.stopping.pop(job_id, None) is not None:
                node.give(part)
                node.pause(part, self._rules.levels)
                self._touched.add(node.index)

    # -- state ----------------------------------------------------------------------------------------

    def _adopt(self, view: View) -> None:
        """Take over the tasks that the view shows."""
        for state in (*view.running.values(), *view.suspended.values()):
            where = state.place
            task = NodeTask(state.job.way(where), where.units, self._each)
            task.lie([(self._at[where.pool, number], units) for number, units in _nodes_at(where)])
            self._tasks[task.id] = task, True
            self._queue.held(task)
            for part in task.gang:
                node = part.node
                part.served_s, part.started = state.served_s, True
                node.charge(part, 1)
                if state.stage is Stage.RUNNING:  # its restart ends as believed
                    node.take(part)
                    node.run(part, state.works_from_s, self._rules.spare_s)
                elif state.stage is Stage.STOPPING:
                    node.take(part)
                    node.stopping[part.id] = part
                else:
                    node.pause(part, self._rules.levels)
            if state.moves_to is not None:  # the policy begins anew at the end of the move
                aside = NodeTask(state.job, where.units, self._each)
                places = _nodes_at(state.moves_to)
                aside.lie([(self._at[state.moves_to.pool, number], units) for number, units in places])
                for part in aside.gang:
                    part.node.take(part)
                    part.node.stopping[part.id] = part
        for job in view.waiting.values():
            self._add(job)

    # -- explanations ----------------------------------------------------------------------------------------

    def why(self, job: Job, view: View) -> Reason:
        if job.id not in self._tasks:
            return Reason("was submitted just now; the central queue has not looked at it yet")
        task, sent = self._tasks[job.id]
        if not sent:
            return Reason(f"waits in the central queue, {self._queue.ahead(task)}: {self._full()}")
        # The first node without room for its part.
        part = next((part for part in task.gang if not covers(part.node.free, part.demand)), task.gang[0])
        node = part.node
        share = " or ".join(_share(demand, node, demand) for demand in part.demands)
        if not node.up:
            return Reason(f"waits for {_name(node)}, which is down")
        free = f"{_share(node.free, node, [*map(max, *part.demands, part.demand)])} free there"
        if node.stopping:
            stops = ", ".join(view.state(other).job.name for other in node.stopping)
            return Reason(f"waits on {_name(node)} for {share}; {free}, job {stops} is being stopped there")
        runs = len(node.running) + len(node.restarting)
        return Reason(
            f"waits on {_name(node)} for {share}; {free}, and to pause those of its {runs} running tasks "
            "that may be paused for it would not make enough room"
        )


def _name(node: Node) -> str:
    return " ".join([node.pool.name, *(str(number) for number, _ in node.placement.nodes)])


def _share(amounts: Sequence[float], node: Node, demand: Sequence[float]) -> str:
    """Write amounts of the resources of which there is a demand."""
    names = node.pool.resources or ("device" if node.pool.kind else node.pool.name,)
    rows = zip(names, amounts, demand, strict=True)
    return ", ".join(
        resource_text(name, float(f"{max(0.0, amount):.3g}")) for name, amount, needed in rows if needed > 0
    )


def _nodes_at(where: Placement) -> Sequence[tuple[int | None, int]]:
    """Return a placement's nodes, with the units on each; a class without nodes is one of no number."""
    return where.nodes or ((None, where.units),)


def _nodes_of(view: View) -> list[Node]:
    """List all nodes of all pools, best class first; a class without nodes is one node.

    Raises:
        BadInput: pools have different resources.
    """
    nodes: list[Node] = []
    for pool in view.cluster.pools:
        if pool.resources != view.cluster.pools[0].resources:
            raise BadInput(
                f"the nodes of {pool.name} have other resources than those of {view.cluster.pools[0].name}",
                "give all pools the same resources",
            )
        if pool.counted:
            units = view.in_service[pool.name]
            nodes.append(Node(len(nodes), counted(pool.name, 1), pool, units > 0, (float(units),)))
            continue
        there = view.nodes[pool.name]
        rows = zip(there.up.tolist(), map(tuple, there.capacity.tolist()), strict=True)
        nodes += [
            Node(len(nodes) + i, Placement(pool.name, 1, ((i, 1),)), pool, up, in_service)
            for i, (up, in_service) in enumerate(rows)
        ]
    return nodes
