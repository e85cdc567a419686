"""Discrete events in virtual time: a policy decides after each, and its actions are carried out and checked.

The input is streamed: memory is bounded by the jobs that wait, run or are suspended. Time lies on a grid of
one microsecond (``model.instant``). Events of one instant come in the order of ``events.KINDS``; among
themselves, jobs end in the order in which their ends were fixed, and arrive in the order of the input. After
each event the policy decides, and its actions are carried out before the next event. The simulation is over
when the last job has ended; timers and disturbances that would come later are forgotten.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from scheduler.agenda import DISTURBANCE, FINISH, SUBMIT, TIMER, Agenda
from scheduler.events import Event, Finished, Started, Timer
from scheduler.live import Live
from scheduler.machine import Machine
from scheduler.model import Cluster, Job
from scheduler.policy import Policy, View
from scheduler.state import State
from scheduler.trace import Arrival, ClosedLoop, Sink
from scheduler.world import Settings, Summary

MOST_IDLE = 100_000  # so many events in a row while nothing runs: the policy has forgotten its jobs
PROGRESS_EVERY = 5000
COLLECT_EVERY = 100_000  # objects


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Python seldom looks for garbage in cycles: a simulation makes many objects, and hardly a cycle."""
    every, *others = gc.get_threshold()
    gc.set_threshold(max(every, COLLECT_EVERY) if every else 0, *others)  # 0: never, as somebody wants it
    try:
        yield
    finally:
        gc.set_threshold(every, *others)


class Simulator:
    """One simulation; ``run`` it once.

    Args:
        arrivals: jobs in the order of their submission, or a ``ClosedLoop``.
        sinks: get the ``Outcome`` of each job.
        progress: called now and then with (jobs ended, virtual time).
        observer: called with the view after each event's actions, for tests and pictures.
    """

    def __init__(
        self,
        cluster: Cluster,
        arrivals: Iterable[Arrival] | ClosedLoop,
        policy: Policy,
        settings: Settings | None = None,
        sinks: Sequence[Sink] = (),
        progress: Callable[[int, float], None] | None = None,
        observer: Callable[[View], None] | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.policy = policy
        self.sinks = sinks
        self.progress = progress
        self.observer = observer
        self.state = State(
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
        self._jobs = self._idle = 0

    @_seldom_collecting()
    def run(self) -> Summary:
        """Simulate until the last job has ended.

        Raises:
            RuleBroken: the policy asked for what cannot be, or left jobs waiting with nothing left to happen.
            BadInput: the arrivals are not in the order of their submission.
        """
        began = time.perf_counter()
        state, policy, observer, loop = self.state, self.policy, self.observer, self._loop
        picky = type(policy).refuses is not Policy.refuses
        refuses = self._refuses if picky else state.misfit
        agenda = self._agenda = Agenda(self._stream, iter(self.settings.disturbances), refuses)
        self._machine = Machine(state, self.settings, agenda, announces=Started not in policy.ignores)
        live, ready, do = self._machine.live, self._machine.ready, self._machine.do
        ignores, decide, advance, heap = policy.ignores, policy.decide, self._advance, agenda.heap
        events = decisions = 0
        if agenda.arrival is not None:
            state.now = min(state.now, agenda.arrival.job.submit_s)
        self._ask_loop()
        policy.begin(state)
        while (event := ready.popleft() if ready else advance()) is not None:
            events += 1
            if ready:
                state.upcoming = type(ready[0])
            elif (heap and heap[0][0] <= state.now) or agenda.submit_s <= state.now:
                state.upcoming = agenda.upcoming(state.now) if live or agenda.arrival else None
            else:
                state.upcoming = None
            if state.overtaken:
                event = self._begin_anew()
            if event is not None and type(event) not in ignores:
                decisions += 1
                for action in decide(state, event):
                    do[type(action)](action)
            if observer is not None:
                observer(state)
            if loop is not None and not ready:
                self._ask_loop()
        wall, most = time.perf_counter() - began, self._machine.most
        return Summary(self._jobs, dict(agenda.refused), state.now, events, decisions, wall, most)

    def _begin_anew(self) -> Timer | None:
        """A waiting job goes before others: what the policy is told once all of this instant has happened."""
        if self.state.upcoming is not None:
            return None
        self.state.arrange()
        self.policy.begin(self.state)
        return Timer(self.state.now)

    def _advance(self) -> Event | None:
        """Let the next thing happen, and say what; None when all is over. Further events go to ``ready``."""
        machine, agenda = self._machine, self._agenda
        while machine.live or agenda.arrival is not None:
            entry = agenda.pop()
            if entry is None:
                self._stuck()
            now, order, _, what, _ = entry
            self.state.now = now
            if order == SUBMIT:
                return machine.submit(what)  # type: ignore[arg-type]
            if order == FINISH:
                return self._finish(what)  # type: ignore[arg-type]
            if self.state.running:
                self._idle = 0
            else:
                self._mind_idleness()
            if order == TIMER:
                return Timer(now, what)
            if order == DISTURBANCE:
                machine.disturb(what)  # type: ignore[arg-type]
            else:
                machine.happen(what)
            if machine.ready:
                return machine.ready.popleft()
        return None

    def _finish(self, live: Live) -> Finished:
        """A job ends."""
        event, outcome = self._machine.finish(live)
        for sink in self.sinks:
            sink.add(outcome)
        self._jobs += 1
        if self.progress is not None and self._jobs % PROGRESS_EVERY == 0:
            self.progress(self._jobs, self.state.now)
        if self._loop is not None:
            self._ended.append(event.job)
        return event

    def _refuses(self, job: Job) -> str:
        """Why the job can never run."""
        return self.state.misfit(job) or self.policy.refuses(job, self.state.cluster)

    def _ask_loop(self) -> None:
        """Let a closed loop submit what follows on the jobs that ended at this instant, when it is over."""
        going_on = self._machine.live or self._agenda.arrival
        if self._loop is not None and not (going_on and self._agenda.upcoming(self.state.now)):
            self._agenda.queue(self.state.now, self._loop.due(self.state.now, tuple(self._ended)))
            self._ended.clear()

    def _mind_idleness(self) -> None:
        """A policy that only wakes itself, while its jobs wait for nothing, would never end."""
        self._idle = self._idle + 1 if self._agenda.arrival is None else 0
        if self._idle > MOST_IDLE:
            self._stuck()

    def _stuck(self) -> NoReturn:
        left = sorted(self._machine.live)
        named = ", ".join(map(str, left[:5])) + (", ..." if len(left) > 5 else "")
        self.state.broken(
            None, "no job is lost", f"nothing is left to happen, but these jobs have not ended: {named}"
        )
