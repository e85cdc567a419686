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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from scheduler.model.events import BudgetChanged, Event, Finished, NodeDown, NodeUp, Started, Timer
from scheduler.model.jobs import Cluster, Job
from scheduler.model.state import ClusterState
from scheduler.policies.base import Policy, View
from scheduler.simulator.event_queue import DISTURBANCE, FINISH, STARTED, STOPPED, SUBMIT, TIMER, EventQueue
from scheduler.simulator.settings import SimulationSettings, SimulationSummary
from scheduler.simulator.simulated_cluster import SimulatedCluster
from scheduler.simulator.simulated_job import SimulatedJob
from scheduler.simulator.trace import Arrival, ClosedLoop, Sink

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
        self._furthest = -math.inf, dict[int, float]()  # at the last look: time, progress of each job

    @_seldom_collecting()
    def run(self) -> SimulationSummary:
        """Simulate until the last job has ended.

        Raises:
            RuleBroken: the policy asked for what cannot be, left jobs waiting with nothing left to happen, or
                acts without end and brings no job further.
            BadInput: the arrivals are not in the order of their submission.
        """
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
                for action in decide(state, event):
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
        return self.state.misfit(job) or self.policy.refuses(job, self.state.cluster)

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

    def _stuck(self, why: str = "nothing is left to happen") -> NoReturn:
        left = sorted(self._cluster.jobs)
        named = ", ".join(map(str, left[:5])) + (", ..." if len(left) > 5 else "")
        self.state.broken(None, "no job is lost", f"{why}, but these jobs have not ended: {named}")
