"""``las`` and ``kairos`` written down a second time, second by second, in whole numbers, for few tasks.

Nothing of tenbin is used. Every running task of a node on which something waits wakes it W, 2W, ... after its
start; all sets of victims are listed; all sums are made anew each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Vector = tuple[int, ...]
Enough = Callable[[list["Task"]], bool]


@dataclass
class Task:
    id: int
    submit: int
    run: int
    demand: Vector
    count: int = 1  # tasks of the job; all of them run or none
    never: frozenset[int] = frozenset()  # nodes on which it cannot run
    ways: tuple[tuple[Vector, int], ...] = ()  # of a job of one task: its demand and run time in each
    nodes: dict[int, int] = field(default_factory=dict)  # how many on which
    since: int | None = None  # while it holds its share: from when on it makes progress
    start: int | None = None
    end: int | None = None
    served: int = 0
    preemptions: int = 0

    def attained(self, now: int) -> int:
        return self.served + (max(0, now - self.since) if self.since is not None else 0)


@dataclass
class Machine:
    nodes: int
    capacity: Vector
    tasks: list[Task]
    victims: Callable[[Task, list[Task], Enough], list[Task] | None]
    choose: Callable[[Machine, Task, int], int | None]
    spare: int
    level: Callable[[int], int] = int  # of attained service; only a higher one gives way to a paused task
    sizes: tuple[Vector, ...] = ()  # of each node, where they differ
    restart: int = 0  # seconds without progress after each pause
    queue: list[Task] = field(default_factory=list)
    barred: set[int] = field(default_factory=set)  # nodes that hold as many tasks of a job as they can

    def size(self, node: int) -> Vector:
        return self.sizes[node] if self.sizes else self.capacity

    def here(self, node: int) -> list[Task]:
        """Unfinished tasks of the node, in the order in which they were sent (that of their numbers)."""
        return [t for t in self.tasks if node in t.nodes and t.end is None]

    def running(self, node: int) -> list[Task]:
        return [t for t in self.here(node) if t.since is not None]

    def free(self, node: int) -> Vector:
        return tuple(
            c - sum(t.nodes[node] * t.demand[r] for t in self.running(node))
            for r, c in enumerate(self.size(node))
        )

    def simulate(self) -> dict[int, tuple[int | None, int | None, int]]:
        now = 0
        while any(t.end is None for t in self.tasks):
            touched = set()
            for t in self.tasks:
                if t.end is None and t.since is not None and t.attained(now) == t.run:
                    t.end, t.since, t.served = now, None, t.run
                    touched |= t.nodes.keys()
            for node in range(self.nodes):
                waits = any(t.since is None for t in self.here(node))
                ticks = [
                    (now - (t.since or 0)) % self.spare for t in self.running(node) if (t.since or 0) < now
                ]
                if waits and 0 in ticks:
                    touched.add(node)
            self.decide(touched, now)
            self.queue += [t for t in self.tasks if t.submit == now]
            while self.queue:
                nodes = self.send(self.queue[0], now)
                if not nodes:
                    break
                self.queue.pop(0).nodes = nodes
                self.decide(set(nodes), now)
            now += 1
        return {t.id: (t.start, t.end, t.preemptions) for t in self.tasks}

    def fits(self, demand: Vector, node: int) -> bool:
        return all(d <= f for d, f in zip(demand, self.free(node), strict=True))

    def load(self, node: int) -> float:
        sums = [sum(t.nodes[node] * t.demand[r] for t in self.here(node)) for r in range(len(self.capacity))]
        return sum((s / c) ** 2 for s, c in zip(sums, self.size(node), strict=True))

    def send(self, job: Task, now: int) -> dict[int, int]:
        """In the first way that fits now, else in that of the least loaded node."""
        options = []
        for place, (demand, run) in enumerate(job.ways):
            if nodes := self.place(Task(job.id, now, run, demand), now):
                (node,) = nodes
                waits = not self.fits(demand, node)
                options.append((waits, self.load(node) if waits else 0.0, place, node))
        if not options:
            return {} if job.ways else self.place(job, now)
        *_, place, node = min(options)
        job.demand, job.run = job.ways[place]
        return {node: 1}

    def place(self, job: Task, now: int) -> dict[int, int]:
        """Task by task: one that fits beside those sent before it is as good as running there."""
        chosen: list[Task] = []
        real = self.tasks
        most = [min(c // d for c, d in zip(self.size(n), job.demand, strict=True)) for n in range(self.nodes)]
        for _ in range(job.count):
            full = {n for n in range(self.nodes) if sum(n in t.nodes for t in chosen) == most[n]}
            self.barred = full | job.never
            one = Task(job.id, now, 1, job.demand)
            node = self.choose(self, one, now)
            if node is None:
                chosen.clear()
                break
            one.nodes, one.since = {node: 1}, now if self.fits(job.demand, node) else None
            chosen.append(one)
            self.tasks = real + chosen
        self.tasks, self.barred = real, set()
        return {n: sum(n in t.nodes for t in chosen) for t in chosen for n in t.nodes}

    def decide(self, touched: set[int], now: int) -> None:
        """Each of the nodes, by index; with one that starts or pauses a job, the others of that job."""
        while touched:
            node = min(touched)
            touched.remove(node)
            for t in self.here(node):
                if t.since is None and t.start is None:
                    touched |= self.admit_somehow(t, now) - {node}
            done: set[int] = set()
            while True:  # paused tasks, those just paused too, each once
                paused = [
                    t for t in self.here(node) if t.since is None and t.start is not None and t.id not in done
                ]
                if not paused:
                    break
                t = min(paused, key=lambda t: (t.served, t.id))
                done.add(t.id)
                touched |= self.admit(t, now) - {node}

    def admit_somehow(self, task: Task, now: int) -> set[int]:
        """Admit the task in a way that fits, or else in one for which others give way."""
        if not task.ways:
            return self.admit(task, now)
        (node,), before = task.nodes, (task.demand, task.run)
        for way in sorted(task.ways, key=lambda way: not self.fits(way[0], node)):
            task.demand, task.run = way
            if changed := self.admit(task, now):
                return changed
        task.demand, task.run = before
        return set()

    def admit(self, task: Task, now: int) -> set[int]:
        """Admit the task; return the nodes on which something changed, none if there is no room."""
        gone: list[Task] = []
        for node, count in sorted(task.nodes.items()):
            need = [count * d for d in task.demand]
            found = self.room(
                task, node, need, [r for r in self.running(node) if r not in gone], gone=gone, now=now
            )
            if found is None:
                return set()
            gone += found
        for v in gone:
            v.served, v.since = v.attained(now), None
            v.preemptions += 1
        task.since = now if task.start is None else now + self.restart
        task.start = now if task.start is None else task.start
        return set(task.nodes).union(*(v.nodes for v in gone))

    def longer(self, task: Task, running: list[Task], now: int) -> list[Task]:
        """Return the tasks that may give way to the task, longest first."""
        if task.start is None:
            may = [r for r in running if r.attained(now) > 0]
        else:
            may = [
                r
                for r in running
                if self.level(r.attained(now)) > self.level(task.served)
                and r.since is not None
                and now - r.since >= self.spare
            ]
        return sorted(may, key=lambda r: (-r.attained(now), r.id))

    def enough(self, need: list[int], node: int, gone: list[Task]) -> Enough:
        free = self.free(node)
        return lambda victims: all(
            f + sum(v.nodes.get(node, 0) * v.demand[r] for v in (*gone, *victims)) >= need[r]
            for r, f in enumerate(free)
        )

    def room(
        self, task: Task, node: int, need: list[int], running: list[Task], *, gone: list[Task], now: int
    ) -> list[Task] | None:
        enough = self.enough(need, node, gone)
        return [] if enough([]) else self.victims(task, self.longer(task, running, now), enough)


def by_masks(candidates: list[Task], enough: Enough) -> list[Task] | None:
    for mask in range(1, 2 ** len(candidates)):
        chosen = [r for bit, r in enumerate(candidates) if mask & (1 << bit)]
        if enough(chosen):
            return chosen
    return None


def by_length(candidates: list[Task], enough: Enough) -> list[Task] | None:
    for count in range(1, len(candidates) + 1):
        if enough(candidates[:count]):
            return candidates[:count]
    return None


def las(
    nodes: int,
    capacity: Vector,
    tasks: list[Task],
    limit_squared: float,
    *,
    most: int,
    spare: int,
    thorough: bool = False,
    probe: int = 0,
    bounds: tuple[int, ...] = (),
    sizes: tuple[Vector, ...] = (),
) -> Machine:
    """Run the paper's rule (L squared, N, W) and its extensions.

    ``bounds``: where levels begin. ``sizes``: capacity of each node, where they differ.
    """

    def victims(task: Task, candidates: list[Task], enough: Enough) -> list[Task] | None:
        found = by_masks(candidates[:most], enough)
        if found is None and thorough and task.start is None:
            found = by_length(candidates, enough)
            for r in reversed(candidates):
                if found and r in found and enough([v for v in found if v is not r]):
                    found.remove(r)
        return found

    def choose(machine: Machine, task: Task, now: int) -> int | None:
        likeness: list[tuple[float, int]] = []
        load: list[tuple[float, int]] = []
        for node in set(range(nodes)) - machine.barred:
            free, size = machine.free(node), machine.size(node)
            if machine.fits(task.demand, node):
                like = sum(d * f / c**2 for d, f, c in zip(task.demand, free, size, strict=True))
                likeness.append((-like, node))
            load.append((machine.load(node), node))
        if likeness:
            return min(likeness)[1]
        open_nodes = [node for square, node in sorted(load) if square <= limit_squared]
        for node in open_nodes[:probe]:
            older = machine.longer(task, machine.running(node), now)
            if by_masks(older[:most], machine.enough(list(task.demand), node, [])):
                return node
        return open_nodes[0] if open_nodes else None

    def level(attained: int) -> int:
        return sum(attained >= bound for bound in bounds)

    return Machine(nodes, capacity, tasks, victims, choose, spare, level if bounds else int, sizes)


def kairos(
    nodes: int,
    capacity: Vector,
    tasks: list[Task],
    queued: int,
    *,
    spare: int,
    sizes: tuple[Vector, ...] = (),
) -> Machine:
    """Run the baseline; Q, W."""

    def choose(machine: Machine, task: Task, now: int) -> int | None:
        counts = []
        for node in set(range(nodes)) - machine.barred:
            here = machine.here(node)
            tasks = [(t.demand[0] if sizes else t.nodes[node], t) for t in here]  # of a class: its devices
            if sum(count for count, t in tasks if t.since is None) < queued:
                counts.append((sum(count for count, _ in tasks), node))
        return min(counts)[1] if counts else None

    def victims(task: Task, candidates: list[Task], enough: Enough) -> list[Task] | None:
        return by_length(candidates, enough)

    return Machine(nodes, capacity, tasks, victims, choose, spare, sizes=sizes)
