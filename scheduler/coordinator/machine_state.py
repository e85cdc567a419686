"""The state of a coordinator: all that is durable, and all on which its decisions rest.

Transitions (``scheduler.coordinator.transitions``) are functions of this state. Nothing else keeps a part of
it: what happens to a job is seen here, or it has not happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.notifier import Notice
from profiles.quantities import stamp
from scheduler.coordinator.events import Applied, EventQueue
from scheduler.coordinator.job_table import JobTable
from scheduler.engines.common.job_folders import JobFolders
from scheduler.engines.protocol import Engine
from scheduler.jobs.arrays import ArrayLimits
from scheduler.jobs.dependencies import Standing, WaitCondition, WaitVerdict, conditions, verdict
from scheduler.jobs.entry import Entry, Phase, Stage
from scheduler.jobs.machine_memory import MachineMemory
from scheduler.model.events import NodeDown, NodeUp, Timer
from scheduler.model.jobs import Pool
from scheduler.model.state import ClusterState
from scheduler.prediction.run_times import RunTimePredictor
from scheduler.prediction.tracker import CoLocationTracker, PredictionTracker

PARK_AGAIN_S = 2.0  # after a program could not be parked for now


# -- jobs that are held, and when to look at them again ----------------------------------------------------


class Holds:
    """Knows of each held job which others it waits for, and has an alarm for each begin and deadline.

    All of it follows from the job table, so a new coordinator makes it anew.
    """

    def __init__(self, job_table: JobTable) -> None:
        self.job_table = job_table
        self._followers: dict[int, dict[int, None]] = {}  # job or array -> jobs that are held for it
        # What each held job waits for, by the number of the other.
        self._pending: dict[int, dict[int, list[WaitCondition]]] = {}
        self._alarms: list[tuple[float, int]] = []
        self._set: set[tuple[float, int]] = set()

    # -- other jobs -----------------------------------------------------------------------------------

    def verdict(self, entry: Entry) -> WaitVerdict:
        """Judge what a job waits for; one that has begun before waits for no other job any more."""
        if entry.attempt:
            return WaitVerdict()
        of_spec = conditions(entry.spec, entry.array_index, self.job_table.members)
        return verdict(of_spec, self.job_table.standing, self.job_table.name)

    def hold(self, entry: Entry, judged: WaitVerdict) -> None:
        """Let a job wait until its conditions hold, or cannot any more."""
        pending: dict[int, list[WaitCondition]] = {}
        for condition in judged.waits:
            pending.setdefault(condition.number, []).append(condition)
            self._followers.setdefault(condition.number, {})[entry.id] = None
        self._pending[entry.id] = pending

    def followers(self, ended: Entry) -> Iterator[Entry]:
        """Yield the jobs for which the end of a job decides: they may begin now, or never.

        A job that waits for many others is looked at once for each of them, whatever their number.
        """
        yield from self._decided(ended.id)
        array = ended.array
        if array is not None and array in self._followers:
            arrays = self.job_table.arrays
            first_failure = ended.stage is not Stage.DONE and arrays.failed(array) == 1
            if first_failure or arrays.standing(array).ended:
                yield from self._decided(array)

    def _decided(self, number: int) -> Iterator[Entry]:
        """Yield the jobs for which it decides how far a job or an array is now."""
        standing: Standing | None = self.job_table.standing(number)
        for job_id in self._followers.pop(number, {}):
            entry, pending = self.job_table.entries.get(job_id), self._pending.get(job_id, {})
            if entry is None or entry.phase is not Phase.HELD:
                continue  # if it is resumed, it is judged anew
            judged = verdict(pending.pop(number, ()), lambda _: standing)
            if judged.waits:
                pending[number] = list(judged.waits)
                self._followers.setdefault(number, {})[job_id] = None
            if judged.hopeless or not pending:
                self._pending.pop(job_id, None)
                yield entry

    def waited_for(self, entry: Entry) -> bool:
        """Return true if other jobs are held for a job, or for its array."""
        followers = (*self._followers.get(entry.id, ()), *self._followers.get(entry.array or 0, ()))
        others = (self.job_table.entries.get(job_id) for job_id in followers)
        return any(other is not None and other.stage is Stage.HELD for other in others)

    # -- times ----------------------------------------------------------------------------------------

    def alarm(self, entry: Entry, at_s: float | None) -> None:
        """Have a job looked at again at a time; None: at none."""
        if at_s is not None and (at_s, entry.id) not in self._set:
            self._set.add((at_s, entry.id))
            heapq.heappush(self._alarms, (at_s, entry.id))

    def clear_alarms(self) -> None:
        """Forget when jobs are to be looked at."""
        self._alarms.clear()
        self._set.clear()

    def due(self, now: float) -> list[Entry]:
        """Take the jobs whose time has come and that have not ended."""
        entries = {}
        while self._alarms and self._alarms[0][0] <= now:
            alarm = heapq.heappop(self._alarms)
            self._set.remove(alarm)
            entry = self.job_table.entries.get(alarm[1])
            if entry is not None:
                entries[entry.id] = entry
        return list(entries.values())

    def next_s(self) -> float | None:
        """Return when the next job is to be looked at, in seconds since 1970."""
        return self._alarms[0][0] if self._alarms else None


def not_before_s(entry: Entry) -> float | None:
    """Return the time before which a job may not start; None: there is none."""
    times = [at for at in (entry.spec.begin_s, entry.not_before_s) if at is not None]
    return max(times, default=None)


def why_held(entry: Entry, judged: WaitVerdict, now: float) -> str:
    """Say why a job is held, as a sentence."""
    parts = [why] if (why := judged.hopeless or judged.why()) else []
    if entry.not_before_s is not None and entry.not_before_s > now:
        parts.append(f"{entry.trouble}; tried again at {stamp(entry.not_before_s)}, {tries_left(entry)}")
    elif entry.spec.begin_s is not None and entry.spec.begin_s > now:
        parts.append(f"begins at {stamp(entry.spec.begin_s)}")
    return ", ".join(parts)


def tries_left(entry: Entry) -> str:
    """Say how often a job will still be tried again if it goes on failing."""
    return f"{entry.spec.retries - entry.retried} of {entry.spec.retries} left"


# -- trials, holds of the machine, timers ------------------------------------------------------------------


class TrialKey(NamedTuple):
    """An attempt of a job, and the class of device on which it is tried."""

    job_id: int
    attempt: int
    pool: str


@dataclass
class Trials:
    """The trial under way, and when others may be: infinite, if a program was tried there, or in vain."""

    present: TrialKey = field(default_factory=lambda: TrialKey(0, 0, ""))
    began_s: float = 0.0
    not_before_s: dict[TrialKey, float] = field(default_factory=dict)

    def shift(self, step_s: float) -> None:
        """Move what durations are counted from with a clock that was set."""
        self.began_s += step_s
        self.not_before_s = {of: at_s + step_s for of, at_s in self.not_before_s.items()}


class MachineHold:
    """Reasons to start no job now; jobs that run go on.

    Attributes:
        of_queue: the user has suspended the queue.
        until_s: end of the time for which somebody has asked for a hold, in seconds since 1970; 0 where nodes
            have names.
        unfit: says why the machine may not have jobs; "" while it may, or where nodes have names.
    """

    def __init__(self) -> None:
        self.of_queue = False
        self.until_s = 0.0
        self.unfit: Callable[[], str] = lambda: ""

    def why(self, now: float) -> str:
        """Say why no job is started; "" if jobs are."""
        if self.of_queue:
            return "the queue is suspended; go on with: tenbin resume --queue"
        if now < self.until_s:
            return f"no job is started until {stamp(self.until_s)}, for a check of this machine"
        return self.unfit()


class Timers:
    """The times at which the policy wants to be asked again, each with its tag.

    Attributes:
        changed: the journal has others.
    """

    def __init__(self, pending: Iterable[tuple[float, object]]) -> None:
        self._heap = [(at, number, tag) for number, (at, tag) in enumerate(pending)]
        heapq.heapify(self._heap)
        self._made = len(self._heap)
        self.changed = False

    def set(self, at_s: float, tag: object) -> None:
        self._made += 1
        heapq.heappush(self._heap, (at_s, self._made, tag))
        self.changed = True

    def due(self, now: float) -> list[tuple[float, object]]:
        """Take the timers whose time has come, as (time, tag)."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            at, _, tag = heapq.heappop(self._heap)
            due.append((at, tag))
            self.changed = True
        return due

    def pending(self) -> list[tuple[float, object]]:
        """Return the pending timers, as (time, tag)."""
        return [(at, tag) for at, _, tag in self._heap]

    def next_s(self) -> float | None:
        """Return when the next timer is due, in seconds since 1970."""
        return self._heap[0][0] if self._heap else None

    def shift(self, step_s: float) -> None:
        """Move what is due after a while with a clock that was set."""
        self._heap = [(at + step_s, number, tag) for at, number, tag in self._heap]
        self.changed = True


# -- the whole ---------------------------------------------------------------------------------------------


class MachineState:
    """The one owner of a coordinator's state.

    Attributes:
        engine: places jobs on units, and cuts pools, at once: the next coordinator does so by the journal.
            Else it acts on effects alone, but for trials.
        cluster: the cluster state, which is the policy's view. Its jobs are entries of ``jobs``.
        jobs: all jobs that have not ended, and what the journal does not have yet. folders: their files.
        queue: the events that have not been handled.
        holds: which jobs are held for others, and when jobs are to be looked at again.
        memory: what is set aside of the machine's memory, and who waits for it.
        returning: paused jobs that wait for the nodes which they cannot leave.
        array_limits: the members of arrays that have places, and those that wait for one.
        timers: when the policy wants to be asked again. hold: of all starts.
        stale: something has changed for which there is no event: the policy has to begin anew.
        postponed: running jobs that cannot be parked for now.
        unsure: jobs that may be predicted better than they are, by number.
        starts, asks, caps: the jobs that may have something to be done when the turn is over: a start, a
            request to their supervisor, another power cap. What, follows from the jobs as they are then.
        notices: what is to be told when the turn is over. on_event: whom to tell the end of every job; "":
            nobody.
        regions_changed: the journal has other regions.
        external: the external jobs that were ever taken over, by their name there.
    """

    def __init__(
        self,
        engine: Engine,
        cluster: ClusterState,
        jobs: JobTable,
        folders: JobFolders,
        *,
        tracker: PredictionTracker,
        run_times: RunTimePredictor,
        co_location: CoLocationTracker | None = None,
    ) -> None:
        self.engine, self.cluster, self.jobs, self.folders = engine, cluster, jobs, folders
        self.tracker, self.run_times, self.co_location = tracker, run_times, co_location
        if engine.device_moves.able:
            jobs.why_not_moved = engine.device_moves.why_not
        self.queue, self.holds, self.hold = EventQueue(), Holds(jobs), MachineHold()
        self.returning = dict[int, None]()
        self.memory, self.array_limits = MachineMemory(engine.cluster.memory_mb), ArrayLimits()
        self.timers, self.trials = Timers(jobs.journal.timers()), Trials()
        self.stale = self.regions_changed = False
        self.postponed = set[int]()
        self.unsure: dict[int, None] = {}
        self.starts: dict[int, Entry] = {}
        self.asks: dict[int, Entry] = {}  # in the order of the last request
        self.caps: list[Entry] = []
        self.notices: list[Notice] = []
        self.on_event = ""
        self.external: dict[str, int] = {}

    @property
    def now(self) -> float:
        """The time of this turn, in seconds since 1970."""
        return self.cluster.now

    def record(self, entry: Entry, kind: str, detail: str = "") -> None:
        """Record what happens to a job now."""
        self.jobs.record(entry, self.now, kind, detail)

    def commit(self) -> None:
        """Make all of it durable.

        Raises:
            sqlite3.Error, OSError: the journal cannot be written.
        """
        timers = self.timers.pending() if self.timers.changed else None
        self.jobs.commit(timers, self.cluster.regions if self.regions_changed else None, self.now)
        self.timers.changed = self.regions_changed = False

    def shift(self, step_s: float, now: float) -> None:
        """Move what durations are counted from with a clock that was set; ``now``: by that clock."""
        self.jobs.shift(step_s, now)
        self.timers.shift(step_s)
        self.hold.until_s += step_s
        self.trials.shift(step_s)

    # -- nodes ----------------------------------------------------------------------------------------------

    def update_nodes(self) -> list[NodeDown | NodeUp]:
        """Bring nodes in and out of service as the engine sees them; return the changes.

        A node with jobs leaves service at once where nodes have identity. Of a counted pool its units follow
        when they are free, and so does what jobs have beyond what there is (``Allocation.exceed``). While
        starts are held, all leave service.
        """
        nodes, cluster = self.engine.nodes, self.cluster
        held = bool(self.hold.why(self.now))
        absent = nodes.absent()
        changes = list[NodeDown | NodeUp]()
        for pool in cluster.cluster.pools:
            if pool.counted:
                more = pool.units - self._out_of_service(pool, held=held) - cluster.in_service[pool.name]
                if more > 0:
                    cluster.up(pool.name, more)
                    changes.append(NodeUp(pool.name, more))
                elif less := min(-more, cluster.free[pool.name]):
                    cluster.down(pool.name, less)
                    changes.append(NodeDown(pool.name, less))
                continue
            gpus, of_pool = self.engine.gpus, cluster.nodes[pool.name]
            for node in {*of_pool.exceeded, 0} if gpus.able else {*of_pool.exceeded}:
                if of_pool.withhold(node, gpus.withheld()):
                    self.stale = True  # no event tells a policy of that
                    self.queue.put(Applied(Timer(self.now)))
            up = of_pool.up
            for node in range(pool.units) if absent or held or not up.all() else ():
                away = held or node in absent
                if bool(up[node]) == away:
                    cluster.set_node(pool.name, node, not away)
                    changes.append((NodeDown if away else NodeUp)(pool.name, 1, node))
        return changes

    def _out_of_service(self, pool: Pool, *, held: bool) -> int:
        """Count the units of a counted pool that cannot be used now and that no job has."""
        if held:
            return pool.units - (self.cluster.in_service[pool.name] - self.cluster.free[pool.name])
        withheld = int(self.engine.gpus.withheld().get(pool.name, 0)) if pool.kind else 0
        return withheld + (self.engine.nodes.out_of_service(pool.name) if self.engine.nodes.named else 0)
