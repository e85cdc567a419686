"""Discrete events in virtual time.

After each event the policy decides, and its actions are checked and carried out before the next event. The
input is streamed, so jobs that wait, run or are suspended bound the memory. Time lies on a grid of one
microsecond (``jobs.instant``). Events of one instant come in the order of ``events.KINDS``; jobs end in the
order in which their ends were fixed, and arrive in the order of the input. The simulation ends with its last
job; later timers and disturbances are dropped.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NoReturn

from profiles.errors import BadInput
from scheduler.model.events import (
    KINDS,
    ORDER,
    Action,
    BudgetChanged,
    Checkpointed,
    Event,
    Failed,
    Finished,
    Migrate,
    NodeDown,
    NodeUp,
    Promise,
    Repartition,
    Resize,
    Resume,
    SetPowerCap,
    Start,
    Started,
    Submitted,
    Suspend,
    Timer,
    WakeAt,
)
from scheduler.model.jobs import (
    CHECKPOINT,
    RUNNING,
    STOPPING,
    Cluster,
    EstimateKind,
    Job,
    JobState,
    Placement,
    Pool,
    instant,
)
from scheduler.model.state import ClusterState
from scheduler.policies.base import Policy, View, actions_of, check_kind, refusal_of
from scheduler.policies.registry import POLICIES, create
from scheduler.simulator.trace import (
    Arrival,
    ClosedLoop,
    Disturbance,
    Outcome,
    Segment,
    SimulationSettings,
    SimulationSummary,
    Sink,
)

# -- jobs --------------------------------------------------------------------------------------------------


LIMIT = EstimateKind.LIMIT
made = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class SimulatedJob:
    """One job in the system.

    Attributes:
        alone_s, alone_on_s, speed: the true run time, that of each class, and the true speed (``Arrival``).
        progress: share of the work done by ``works_from_s``.
        works_from_s: begin of progress at the present speed.
        full_s: run time of the whole job at its present speed.
        saved, saved_service_s: progress and service that the last checkpoint holds.
        version: of the planned end; earlier planned ends are void.
        announced_s: when the policy is told that it makes progress; other such times are void.
    """

    __slots__ = (
        "alone_as_s",
        "alone_on_s",
        "alone_s",
        "announced_s",
        "began_s",
        "energy_j",
        "full_s",
        "job",
        "killed",
        "overhead_s",
        "progress",
        "run_s",
        "saved",
        "saved_service_s",
        "segments",
        "speed",
        "state",
        "version",
        "work_began_s",
        "works_from_s",
    )

    def __init__(self, arrival: Arrival, state: JobState) -> None:
        self.job, self.alone_s, self.alone_on_s, speed, others_s = arrival
        ways_s = zip(self.job.alternatives, others_s, strict=True)
        self.alone_as_s = {way.alternative: run_s for way, run_s in ways_s} if others_s else {}
        self.speed = speed or self.job.speed
        self.state = state
        self.segments: list[Segment] = []
        self.progress = self.saved = self.saved_service_s = 0.0
        self.run_s = self.overhead_s = self.energy_j = 0.0
        self.version = 0  # the rest is set by set_out and plan
        self.announced_s = math.inf

    def void(self) -> None:
        """Drop what was planned: the job does not run on."""
        self.version += 1
        self.announced_s = math.inf

    def set_out(self, now: float, cost_s: float) -> None:
        """Begin a segment: ``cost_s`` of restart or change, then work."""
        self.began_s = now
        self.work_began_s = self.works_from_s = instant(now + cost_s) if cost_s else now

    def plan(self, kill_at_limit: bool, factor: float) -> float:
        """Compute when the job ends as things are; neighbours multiply its run time by ``factor``."""
        state, full, speed = self.state, self.alone_s, self.speed
        placement = state.placement
        assert placement is not None
        if placement.alternative in self.alone_as_s:
            full, speed = self.alone_as_s[placement.alternative], self.job.way(placement).speed
        elif self.alone_on_s:
            full = self.alone_on_s[placement.pool]
        if speed is not None:
            full /= speed(placement.units, placement.cap_w)
        full *= factor
        self.killed = full > state.whole_s and kill_at_limit and self.job.estimate_kind is LIMIT
        if self.killed:
            full = state.whole_s
        self.full_s = full
        self.version += 1
        return instant(self.works_from_s + (1.0 - self.progress) * full)

    def progress_at(self, now: float) -> float:
        """Return the share of its work that is done."""
        if self.state.stage is not RUNNING or now <= self.works_from_s:
            return self.progress
        return self.progress + (now - self.works_from_s) / self.full_s if self.full_s > 0 else 1.0

    def advance(self, now: float) -> None:
        """Add the work done up to now."""
        worked = now - self.works_from_s
        if worked > 0:
            progress = self.progress + worked / self.full_s if self.full_s > 0 else 1.0
            self.progress = progress if progress < 1.0 else 1.0
            self.run_s += worked
            self.works_from_s = now

    def close(self, now: float, powered: Pool | None) -> None:
        """End the current segment, and enter its work and its costs.

        ``powered`` is the pool it ran on, if anything is known of its power.
        """
        state, turn, began = self.state, self.work_began_s, self.began_s
        placement = state.placement
        assert placement is not None
        if powered:
            self.energy_j += powered.power_of(state.job, placement) * (now - began)
        if state.stage is STOPPING:
            self._pay("checkpoint", placement, began, now)
            return
        if turn > began:
            turn = turn if turn < now else now
            if turn > began:
                self._pay("restart", placement, began, turn)
        if now > self.works_from_s:
            self.advance(now)
        if now > turn or not self.segments:
            self.segments.append(made(Segment, ("run", placement, turn, now)))
        state.works_from_s = self.work_began_s  # the believed restart time may be another

    def hold(self, there: Placement, now: float, powered: Pool | None) -> None:
        """Enter that the job has held the place to which it moves, since its checkpoint began."""
        if powered:
            self.energy_j += powered.power_of(self.job, there) * (now - self.began_s)
        self.segments.append(made(Segment, ("reserved", there, self.began_s, now)))

    def _pay(self, kind: str, placement: Placement, begin: float, end: float) -> None:
        """Enter a segment without progress."""
        self.segments.append(made(Segment, (kind, placement, begin, end)))
        self.overhead_s += end - begin

    def keep(self) -> None:
        """Note that all that was done is safe, because the job was checkpointed."""
        self.saved, self.saved_service_s = self.progress, self.state.served_s

    def fall_back(self) -> float:
        """Drop the work since the last checkpoint; return the share that policies may see as done."""
        self.void()
        self.progress = self.saved
        known = self.job.estimate_s is not None or self.job.estimates_s
        return self.saved if known else 0.0

    def outcome(self, now: float) -> Outcome:
        """Return the outcome of a job that has just ended; closed, or it just ran on from its start."""
        state = self.state
        assert state.start_s is not None
        if not self.segments:
            how, began, placement = "killed" if self.killed else "done", self.began_s, state.placement
            segments = (made(Segment, ("run", placement, began, now)),)
            row = (self.job, began, now, how, now - began, 0.0, 0.0, 0, 0, 0, 0.0, segments)
            return made(Outcome, row)
        return made(
            Outcome,
            (
                self.job,
                state.start_s,
                now,
                "killed" if self.killed else "done",
                self.run_s,
                self.overhead_s,
                max(0.0, self.run_s - state.served_s) if state.failures else 0.0,
                state.preemptions,
                state.migrations,
                state.failures,
                self.energy_j,
                tuple(self.segments),
            ),
        )


# -- event queue -------------------------------------------------------------------------------------------
#
# The next arrival is kept beside the heap, because half of all events are arrivals. Of the disturbances,
# whose number may be infinite, only the next is in the heap.


FINISH, STOPPED, STARTED = ORDER[Finished], ORDER[Checkpointed], ORDER[Started]
DISTURBANCE, TIMER, SUBMIT = ORDER[NodeDown], ORDER[Timer], ORDER[Submitted]

QueueEntry = tuple[float, int, int, object, int]  # time, kind, sequence, what, version of a planned end
LEAST_ROOM = 256  # entries, before a search for void ones pays


def _is_void(entry: QueueEntry) -> bool:
    """Tell if what was planned of a simulated job has changed meanwhile."""
    at, order, _, simulated, version = entry
    assert type(simulated) is SimulatedJob
    return simulated.announced_s != at if order == STARTED else simulated.version != version


class EventQueue:
    """Events to come.

    Args:
        arrivals: jobs in the order of their submission.
        disturbances: by time; may be endless.
        refuses: why a job can never run, as a clause; "" if it can. Refused jobs are skipped.

    Attributes:
        arrival: the next arrival; None: none is known.
        submit_s: its time; infinite without an arrival.
        heap: all other events, the next first; some may be void by then.
        refused: number of skipped jobs, by reason.
    """

    def __init__(
        self,
        arrivals: Iterator[Arrival],
        disturbances: Iterator[Disturbance],
        refuses: Callable[[Job], str],
    ) -> None:
        self.heap: list[QueueEntry] = []
        self.arrival: Arrival | None = None
        self.submit_s = math.inf
        self.refused = Counter[str]()
        self._arrivals = arrivals
        self._queued: deque[Arrival] = deque()
        self._disturbances = disturbances
        self._refuses = refuses
        self._sequence = count(1)
        self._room = LEAST_ROOM
        self._timers: set[tuple[float, object]] = set()
        self._last_submit_s = -math.inf
        self._fetch_disturbance()
        self._fetch_arrival()

    def push(self, at: float, order: int, what: object, version: int = 0) -> None:
        """Enter what is to happen; an end of a job is void if its version has changed by then."""
        heappush(self.heap, (at, order, next(self._sequence), what, version))
        if len(self.heap) > self._room:
            self._tidy()

    def _tidy(self) -> None:
        """Throw out void entries, whenever there are twice as many entries as were left the last time."""
        self.heap[:] = [
            entry for entry in self.heap if type(entry[3]) is not SimulatedJob or not _is_void(entry)
        ]
        heapify(self.heap)
        self._room = 2 * len(self.heap) + LEAST_ROOM

    def wake(self, at: float, tag: object) -> None:
        """Enter a timer, unless there is the same already."""
        timer = at, tag
        if timer not in self._timers:
            self._timers.add(timer)
            self.push(at, TIMER, tag, 0)

    def pop(self) -> QueueEntry | None:
        """Take what happens next; None: nothing."""
        heap, submit = self.heap, self.submit_s
        while heap and heap[0][0] <= submit:
            entry = heappop(heap)
            at, order, _, what, _ = entry
            if type(what) is SimulatedJob:
                if _is_void(entry):
                    continue
            elif order == TIMER:
                self._timers.discard((at, what))
            elif order == DISTURBANCE:
                self._fetch_disturbance()
            return entry
        arrival = self.arrival
        if arrival is None:
            return None
        self._fetch_arrival()
        return submit, SUBMIT, 0, arrival, 0

    def upcoming(self, now: float) -> type[Event] | None:
        """Return the kind of what happens next, if that is at this very instant."""
        heap = self.heap
        while heap and heap[0][0] <= now:
            _, order, _, what, _ = heap[0]
            if type(what) is SimulatedJob and _is_void(heap[0]):
                heappop(heap)
            else:
                return KINDS[order] if order != DISTURBANCE else type(what)  # type: ignore[return-value]
        return Submitted if self.submit_s <= now else None

    def add_arrivals(self, now: float, arrivals: Iterable[Arrival]) -> None:
        """Append jobs that a closed loop submits at ``now``."""
        self._last_submit_s = now
        self._queued.extend(arrivals)
        if self.arrival is None:
            self._fetch_arrival()

    def _fetch_arrival(self) -> None:
        """Look one arrival ahead, and skip jobs that can never run.

        Raises:
            BadInput: the jobs are not sorted.
        """
        while True:
            arrival = self._queued.popleft() if self._queued else next(self._arrivals, None)
            self.arrival = arrival
            if arrival is None:
                self.submit_s = math.inf
                return
            job = arrival.job
            submit = job.submit_s
            if submit < self._last_submit_s:
                raise BadInput(
                    f"job {job.id} is submitted at {submit} s, behind {self._last_submit_s} s",
                    "sort the jobs by their time of submission",
                )
            self.submit_s = self._last_submit_s = submit
            why = self._refuses(job)
            if not why:
                return
            self.refused[why] += 1

    def _fetch_disturbance(self) -> None:
        following = next(self._disturbances, None)
        if following is not None:
            at, event = following
            heappush(self.heap, (at, DISTURBANCE, 0, event, 0))


# -- cluster -----------------------------------------------------------------------------------------------
#
# The truth about each job is in ``SimulatedJob``; policies see ``ClusterState``, which refuses what cannot
# be.


class SimulatedCluster:
    """The simulated cluster.

    Events that an action causes later go to ``queue``; those that an event causes at once go to ``ready``.

    Args:
        announces: the policy is told of starts.

    Attributes:
        jobs: the jobs in the system. most: their largest number so far.
        do: the method for each kind of action.
    """

    def __init__(
        self, state: ClusterState, settings: SimulationSettings, queue: EventQueue, announces: bool
    ) -> None:
        self.state = state
        self.settings = settings
        self.queue = queue
        self.announces = announces
        self.jobs: dict[int, SimulatedJob] = {}
        self.most = 0
        self.ready: deque[Event] = deque()
        self._pools = {pool.name: pool for pool in state.cluster.pools}
        self._powered = {pool.name: pool for pool in state.cluster.pools if pool.has_power}
        self._costs = settings.costs
        self._random = random.Random(settings.seed)
        self._interferes = settings.interference is not None
        self._kills = settings.kill_at_limit
        self.do: dict[type, Callable[..., None]] = {
            Start: self._start,
            Suspend: self._suspend,
            Resume: self._resume,
            Migrate: self._migrate,
            Resize: self._resize,
            SetPowerCap: self._set_cap,
            Repartition: self._repartition,
            WakeAt: self._wake_at,
            Promise: self._promise,
        }

    # -- events ---------------------------------------------------------------------------------

    def submit(self, arrival: Arrival) -> Submitted:
        """Let a new job wait."""
        job, jobs = arrival.job, self.jobs
        jobs[job.id] = SimulatedJob(arrival, self.state.submit(job))
        self.most = max(self.most, len(jobs))
        return Submitted(job)

    def finish(self, simulated: SimulatedJob) -> tuple[Finished, Outcome]:
        """End a job."""
        job, placement, now = simulated.job, simulated.state.placement, self.state.now
        assert placement is not None
        if (
            simulated.version > 1 or simulated.began_s != simulated.work_began_s or self._powered
        ):  # most just ran on
            simulated.close(now, self._powered.get(placement.pool))
        self.state.finish(simulated.state)
        del self.jobs[job.id]
        outcome = simulated.outcome(now)
        if self._interferes:
            self._disturb_neighbours(job.id, placement)
        return Finished(job, placement, outcome.how), outcome

    def started(self, simulated: SimulatedJob) -> Started:
        """Tell the policy of a job that makes progress from now on."""
        return Started(simulated.job)

    def stopped(self, simulated: SimulatedJob | Checkpointed) -> Checkpointed:
        """End a checkpoint, now or, where it cost nothing, when it was requested."""
        if isinstance(simulated, Checkpointed):
            return simulated
        target = self._leave_goal(simulated)
        before = self._release(simulated)
        resumed = target is not None and not self.state.obstacle(simulated.job, target)
        if target is not None and resumed:
            self._begin(simulated, self.state.resume(simulated.job.id, target), True)
        return Checkpointed(simulated.job, before, resumed)

    def _leave_goal(self, simulated: SimulatedJob) -> Placement | None:
        """Free the place to which the job moves, and return it; None: there is none."""
        state = simulated.state
        there = state.moves_to
        if there is not None:
            simulated.hold(there, self.state.now, self._powered.get(there.pool))
            self.state.give_up_move(state)
        return there

    def _release(self, simulated: SimulatedJob) -> Placement:
        """Suspend the job; return where it was."""
        before = simulated.state.place
        simulated.close(self.state.now, self._powered.get(before.pool))
        self.state.end_stop(simulated.state)
        simulated.keep()
        if self._interferes:
            self._disturb_neighbours(simulated.job.id, before)
        return before

    def disturb(self, event: NodeDown | NodeUp | BudgetChanged) -> None:
        """Fail nodes, bring them back, or change the budget."""
        if isinstance(event, BudgetChanged):
            self.state.budget_w = event.budget_w
        elif event.node is not None:
            if isinstance(event, NodeDown):
                for job_id in list(self.state.nodes[event.pool].jobs[event.node]):
                    simulated = self.jobs[job_id]
                    runs_there = _is_on(simulated.state.place, event.pool, (event.node,))
                    (self._fail if runs_there else self._leave_goal)(simulated)
            self.state.set_node(event.pool, event.node, isinstance(event, NodeUp))
        elif isinstance(event, NodeUp):
            pool = self._pools[event.pool]
            self.state.up(event.pool, min(event.units, pool.units - self.state.in_service[event.pool]))
        else:
            for _ in range(event.units):
                self._lose_unit(event.pool)
        self.ready.append(event)

    def _lose_unit(self, pool: str) -> None:
        """Fail one unit of a counted pool, each as likely, and the job on it."""
        state = self.state
        if state.in_service[pool] < 1:
            return
        hit = self._random.randrange(state.in_service[pool]) - state.free[pool]
        if hit >= 0:
            ways = self._fail, self._leave_goal
            held = (
                (job, *at) for job in state.running.values() for at in zip(job.places, ways, strict=False)
            )
            for job_state, place, lose in held:
                if place.pool == pool:
                    hit -= place.units
                    if hit < 0:
                        lose(self.jobs[job_state.job.id])
                        break
        state.down(pool, 1)

    def _fail(self, simulated: SimulatedJob) -> None:
        """Take the job's units away."""
        before = simulated.state.place
        self._leave_goal(simulated)
        simulated.close(self.state.now, self._powered.get(before.pool))
        self.state.fail(simulated.state, simulated.fall_back(), simulated.saved_service_s)
        if self._interferes:
            self._disturb_neighbours(simulated.job.id, before)
        self.ready.append(Failed(simulated.job, before))

    # -- actions -------------------------------------------------------------------------

    def _start(self, action: Start) -> None:
        state = self.state.start(action.job_id, action.placement)
        self._begin(self.jobs[action.job_id], state, state.served_s > 0)

    def _resume(self, action: Resume) -> None:
        state = self.state.resume(action.job_id, action.placement)
        self._begin(self.jobs[action.job_id], state, True)

    def _begin(self, simulated: SimulatedJob, state: JobState, restart: bool) -> None:
        """Let the job hold its units from now on."""
        now, placement = self.state.now, state.placement
        assert placement is not None
        simulated.set_out(now, self._costs.restart_s(simulated.job, placement.pool) if restart else 0.0)
        self._plan(simulated)
        if self._interferes:
            self._disturb_neighbours(simulated.job.id, placement)
        self._announce(simulated)

    def _announce(self, simulated: SimulatedJob) -> None:
        """Have the policy told when the job makes progress."""
        if self.announces:
            simulated.announced_s = simulated.work_began_s
            self.queue.push(simulated.announced_s, STARTED, simulated)

    def _suspend(self, action: Suspend) -> None:
        state = self.state.check_stop("suspend", action.job_id)
        self._stop(self.jobs[action.job_id], state)

    def _migrate(self, action: Migrate) -> None:
        state = self.state.check_stop("migrate", action.job_id, CHECKPOINT)
        self.state.reserve(state, action.placement)
        self._stop(self.jobs[action.job_id], state)

    def _stop(self, simulated: SimulatedJob, state: JobState) -> None:
        """Begin to stop a running job; at no cost its units are free at once."""
        placement, now = state.place, self.state.now
        simulated.void()
        cost = self._costs.stop_s(simulated.job, placement.pool)
        if cost > 0 or state.moves_to is not None:
            simulated.close(now, self._powered.get(placement.pool))
            self.state.begin_stop(state)
            simulated.began_s = now
            self.queue.push(instant(now + cost), STOPPED, simulated, simulated.version)
        else:
            before = self._release(simulated)
            self.queue.push(now, STOPPED, Checkpointed(simulated.job, before))

    def _resize(self, action: Resize) -> None:
        state = self.state.check_running("resize", action.job_id)
        simulated, before, after = self.jobs[action.job_id], state.place, action.placement
        simulated.close(self.state.now, self._powered.get(before.pool))
        self.state.resize(state, after)
        planned = self.state.costs.resize_s(simulated.job, before, after)
        self._change(simulated, planned, self._costs.resize_s(simulated.job, before, after))
        if self._interferes:
            self._disturb_neighbours(simulated.job.id, before)
            self._disturb_neighbours(simulated.job.id, after)

    def _set_cap(self, action: SetPowerCap) -> None:
        state = self.state.check_running("set power cap", action.job_id)
        simulated, before = self.jobs[action.job_id], state.place
        simulated.close(self.state.now, self._powered.get(before.pool))
        self.state.set_cap(state, action.cap_w)
        planned = self.state.costs.cap_s(simulated.job, before)
        self._change(simulated, planned, self._costs.cap_s(simulated.job, before))

    def _change(self, simulated: SimulatedJob, planned_s: float, actual_s: float) -> None:
        """Let the job go on otherwise, after a pause (and after the rest of a restart)."""
        now = self.state.now
        rest = max(0.0, simulated.work_began_s - now)
        self.state.expect(simulated.state, instant(now + rest + planned_s))
        simulated.set_out(now, rest + actual_s)
        self._plan(simulated)
        if rest:
            self._announce(simulated)

    def _repartition(self, action: Repartition) -> None:
        self.state.repartition(action.pool, action.regions)

    def _wake_at(self, action: WakeAt) -> None:
        at, now = instant(action.at_s), self.state.now
        self.queue.wake(at if at > now else now, action.tag)

    def _promise(self, action: Promise) -> None:
        self.state.promise(action.job_id, action.start_s)

    def _plan(self, simulated: SimulatedJob) -> None:
        """Fix when the job ends as things are now."""
        end = simulated.plan(self._kills, self._factor(simulated) if self._interferes else 1.0)
        self.queue.push(end, FINISH, simulated, simulated.version)

    def _factor(self, simulated: SimulatedJob) -> float:
        placement, interference = simulated.state.place, self.settings.interference
        assert interference is not None
        beside, nodes = [], dict(placement.nodes)
        if nodes:
            for other in sorted(self.state.nodes[placement.pool].neighbours(simulated.job.id, placement)):
                neighbour = self.jobs[other]
                if _is_on(neighbour.state.place, placement.pool, nodes):  # else it is to move there
                    beside.append((neighbour.job, neighbour.state.place))
        return interference(simulated.job, placement, beside)

    def _disturb_neighbours(self, job_id: int, placement: Placement) -> None:
        """Change the speed of jobs on these nodes."""
        if not placement.nodes:
            return
        for other in sorted(self.state.nodes[placement.pool].neighbours(job_id, placement)):
            simulated = self.jobs[other]
            if simulated.state.stage is RUNNING:
                simulated.advance(self.state.now)
                self._plan(simulated)


def _is_on(place: Placement, pool: str, nodes: Container[int]) -> bool:
    """Tell if a place is on one of these nodes."""
    return place.pool == pool and any(node in nodes for node, _ in place.nodes)


# -- the simulation ----------------------------------------------------------------------------------------


MOST_FUTILE = 100_000  # events in a row may bring no job further
PROGRESS_EVERY = 5000
COLLECT_EVERY = 100_000  # objects


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Let Python seldom look for garbage in cycles, because a simulation makes hardly any."""
    every, *others = gc.get_threshold()
    gc.set_threshold(max(every, COLLECT_EVERY) if every else 0, *others)  # 0: never, as set by the caller
    try:
        yield
    finally:
        gc.set_threshold(every, *others)


class Simulator:
    """One simulation; ``run`` it once.

    Args:
        arrivals: jobs in the order of their submission, or a ``ClosedLoop``.
        sinks: get the ``Outcome`` of each job.
        progress: called every ``PROGRESS_EVERY`` jobs with (jobs ended, virtual time).
        observer: called with the view after each event's actions, for tests and pictures.
    """

    def __init__(
        self,
        cluster: Cluster,
        arrivals: Iterable[Arrival] | ClosedLoop,
        policy: Policy,
        settings: SimulationSettings | None = None,
        *,
        sinks: Sequence[Sink] = (),
        progress: Callable[[int, float], None] | None = None,
        observer: Callable[[View], None] | None = None,
    ) -> None:
        self.settings = settings or SimulationSettings()
        self.policy = policy
        self.sinks = sinks
        self.progress = progress
        self.observer = observer
        self.state = ClusterState(
            cluster,
            self.settings.planned_costs or self.settings.costs,
            self.settings.profiles,
            self.settings.slowdowns,
        )
        self._loop: ClosedLoop | None = None
        if isinstance(arrivals, Iterable):
            stream: Iterator[Arrival] = iter(arrivals)
        else:
            self._loop, stream = arrivals, iter(())
        self._stream = stream
        self._ended: list[Job] = []
        self._jobs = 0
        self._answer: Sequence[Action] = ()
        self._furthest = -math.inf, dict[int, float]()  # at the last look: time, progress of each job

    @_seldom_collecting()
    def run(self) -> SimulationSummary:
        """Simulate until the last job has ended.

        Raises:
            RuleBroken: the policy asked for what cannot be, left jobs waiting with nothing left to happen, or
                acts without end and brings no job further.
            NoAnswer: what it decided are no actions, or what it refuses a job for is no text.
            BadInput: the arrivals are not in the order of their submission.
        """
        try:
            return self._run()
        except (AttributeError, KeyError, TypeError):  # only now, because a look at each answer takes time
            actions_of(self.policy, self._answer)
            raise

    def _run(self) -> SimulationSummary:
        began = time.perf_counter()
        state, policy = self.state, self.policy
        watched = self.observer is not None or self._loop is not None
        picky = type(policy).refuses is not Policy.refuses
        refuses = self._refuses if picky else state.misfit
        queue = self._queue = EventQueue(self._stream, iter(self.settings.disturbances), refuses)
        self._cluster = SimulatedCluster(state, self.settings, queue, announces=Started not in policy.ignores)
        jobs, ready, do = self._cluster.jobs, self._cluster.ready, self._cluster.do
        ignores, decide, heap = policy.ignores, policy.decide, queue.heap
        happen: dict[int, Callable[..., Event | None]] = {
            FINISH: self._finish,
            STOPPED: self._cluster.stopped,
            STARTED: self._cluster.started,
            DISTURBANCE: self._disturb,
            TIMER: self._wake,
            SUBMIT: self._cluster.submit,
        }
        events = decisions = 0
        look_at = MOST_FUTILE
        self._set_up()
        now = state.now
        self._ask_loop()
        policy.begin(state)
        while ready or jobs or queue.arrival is not None:
            if ready:
                event: Event | None = ready.popleft()
            else:
                now, order, _, what, _ = queue.pop() or self._stuck()
                state.now = now
                if (event := happen[order](what)) is None:
                    continue
            events += 1
            if events == look_at:
                look_at += self._mind_progress()
            if ready:
                state.upcoming = type(ready[0])
            elif (heap and heap[0][0] <= now) or queue.submit_s <= now:
                state.upcoming = queue.upcoming(now) if jobs or queue.arrival else None
            else:
                state.upcoming = None
            if state.overtaken:
                event = self._begin_anew()
            if event is not None and type(event) not in ignores:
                decisions += 1
                self._answer = decide(state, event)
                for action in self._answer:
                    do[type(action)](action)
            if watched:
                self._look_on()
        wall, most = time.perf_counter() - began, self._cluster.most
        return SimulationSummary(
            jobs=self._jobs,
            refused=dict(queue.refused),
            end_s=state.now,
            events=events,
            decisions=decisions,
            wall_s=wall,
            most_in_system=most,
        )

    def _set_up(self) -> None:
        """Prepare the state in which the simulation begins: an empty cluster, at the first submission."""
        if self._queue.arrival is not None:
            self.state.now = min(self.state.now, self._queue.submit_s)

    def _begin_anew(self) -> Timer | None:
        """Let the policy begin again at the end of this instant, because a waiting job passed others."""
        if self.state.upcoming is not None:
            return None
        self.state.arrange()
        self.policy.begin(self.state)
        return Timer(self.state.now)

    def _wake(self, tag: object) -> Timer:
        """Wake the policy as it asked."""
        return Timer(self.state.now, tag)

    def _disturb(self, what: NodeDown | NodeUp | BudgetChanged) -> Event:
        """Change nodes or the budget; return the first event that follows."""
        self._cluster.disturb(what)
        return self._cluster.ready.popleft()

    def _finish(self, simulated: SimulatedJob) -> Finished:
        """End a job, and hand its outcome to the sinks."""
        event, outcome = self._cluster.finish(simulated)
        for sink in self.sinks:
            sink.add(outcome)
        self._jobs += 1
        if self.progress is not None and self._jobs % PROGRESS_EVERY == 0:
            self.progress(self._jobs, self.state.now)
        if self._loop is not None:
            self._ended.append(event.job)
        return event

    def _refuses(self, job: Job) -> str:
        """Say why the job can never run."""
        policy = self.policy
        return self.state.misfit(job) or refusal_of(policy, policy.refuses(job, self.state.cluster))

    def _look_on(self) -> None:
        """Show the state after an event to observer and closed loop."""
        if self.observer is not None:
            self.observer(self.state)
        if not self._cluster.ready:
            self._ask_loop()

    def _ask_loop(self) -> None:
        """Let a closed loop submit what follows on the jobs that ended at this instant, when it is over."""
        going_on = self._cluster.jobs or self._queue.arrival
        if self._loop is not None and not (going_on and self._queue.upcoming(self.state.now)):
            self._queue.add_arrivals(self.state.now, self._loop.due(self.state.now, tuple(self._ended)))
            self._ended.clear()

    def _mind_progress(self) -> int:
        """Stop what would never end: nothing came since the last look, and no job is further than then.

        Returns:
            The number of events until the next look.
        """
        now, jobs, (before_s, before) = self.state.now, self._cluster.jobs, self._furthest
        furthest = {
            job_id: max(simulated.progress_at(now), before.get(job_id, 0.0))
            for job_id, simulated in jobs.items()
        }
        if furthest == before and (self._queue.arrival is None or now == before_s):
            self._stuck("event follows event, and none brings a job further")
        self._furthest = now, furthest
        return max(MOST_FUTILE, 10 * len(jobs))

    def _stuck(self, why: str = "no job ends any more, and no timer is set") -> NoReturn:
        left = sorted(self._cluster.jobs)
        named = ", ".join(map(str, left[:5])) + (", ..." if len(left) > 5 else "")
        self.state.broken(None, "jobs are left over", f"{why}, but these jobs have not ended: {named}")


# -- policies that can schedule a cluster ------------------------------------------------------------------


def objection(policy: Policy, cluster: Cluster, settings: SimulationSettings) -> BadInput | None:
    """Return why the policy cannot schedule this cluster, with the remedy; None if it can."""
    costs = settings.planned_costs or settings.costs
    try:
        policy.begin(ClusterState(cluster, costs, settings.profiles, settings.slowdowns))
        check_kind(policy, cluster)  # last, because a policy's own words are of more use
    except BadInput as error:
        return error
    return None


def suitable(cluster: Cluster, settings: SimulationSettings) -> list[str]:
    """List the names of all policies that can schedule this cluster, with their default parameters."""
    return [name for name in POLICIES if _can(name, cluster, settings)]


def _can(name: str, cluster: Cluster, settings: SimulationSettings) -> bool:
    try:
        return objection(create(name), cluster, settings) is None
    except BadInput:  # a library that it needs is not installed
        return False
