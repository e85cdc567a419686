"""Central queues of tasks that no node holds yet: by the order of arrival, or fair between users.

Dominant resource fairness (Ghodsi et al., NSDI 2011): a user's dominant share is the largest of its shares of
the machine's resources, here of what its unfinished tasks on nodes demand, over its weight. The user of least
dominant share sends next. A user is *entitled* while its dominant share is below its weight's part of the
weights of all users that have tasks in the system.

A user's weight is ``Job.share`` of the task with the largest number among its tasks in the system that state
a share; else the weight given to the queue; else 1.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from scheduler.policies.las.node_las import NodeTask


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
        demand = self._demand.get(user) or [0.0] * len(self._capacity)
        self._demand[user] = [round(a + sign * d, 12) for a, d in zip(demand, task.demand, strict=True)]
