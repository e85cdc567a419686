"""Discrete events in virtual time: carries out a policy's actions on a simulated machine, checking each.

The input is streamed: memory is bounded by the jobs that wait, run or are suspended. Time lies on a grid of
one microsecond (``model.instant``). Events of one instant come in the order of ``events.KINDS``; among
themselves, jobs end in the order in which their ends were fixed, and arrive in the order of the input. After
each event the policy decides, and its actions are carried out before the next event. The simulation is over
when the last job has ended; timers and disturbances that would come later are forgotten.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush

from profiles.errors import BadInput
from scheduler import actions as act
from scheduler.events import (
    KINDS,
    ORDER,
    BudgetChanged,
    Checkpointed,
    Event,
    Failed,
    Finished,
    NodeDown,
    NodeUp,
    Started,
    Submitted,
    Timer,
)
from scheduler.live import Live
from scheduler.model import Cluster, Job, Placement, Stop
from scheduler.policy import Policy, View
from scheduler.state import JobState, Phase, State
from scheduler.trace import Arrival, ClosedLoop, Sink
from scheduler.world import Disturbance, Settings, Summary

FINISH, STOPPED, STARTED = ORDER[Finished], ORDER[Checkpointed], ORDER[Started]
DISTURBANCE, TIMER, SUBMIT = ORDER[NodeDown], ORDER[Timer], ORDER[Submitted]
MOST_IDLE = 100_000  # so many events in a row while nothing runs: the policy has forgotten its jobs
PROGRESS_EVERY = 5000


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
            cluster, self.settings.planned_costs or self.settings.costs, self.settings.profiles
        )
        self._loop: ClosedLoop | None = None
        if isinstance(arrivals, Iterable):
            self._arrivals: Iterator[Arrival] = iter(arrivals)
        else:
            self._loop, self._arrivals = arrivals, iter(())
        self._queued: deque[Arrival] = deque()
        self._disturbances = iter(self.settings.disturbances)
        self._live: dict[int, Live] = {}
        self._heap: list[tuple[float, int, int, object, int]] = []
        self._ready: deque[Event] = deque()
        self._timers: set[tuple[float, object]] = set()
        self._random = random.Random(self.settings.seed)
        self._sequence = 0
        self._next: tuple[float, int] | None = None
        self._ended: list[Job] = []
        self._next_arrival: Arrival | None = None
        self._next_disturbance: Disturbance | None = None
        self._pools = {pool.name: pool for pool in cluster.pools}
        self._picky = type(policy).refuses is not Policy.refuses
        self._interferes = self.settings.interference is not None
        self._jobs = self._idle = 0
        self._last_submit_s = -math.inf
        self._refused = Counter[str]()
        self._do: dict[type, Callable[..., None]] = {
            act.Start: self._start,
            act.Suspend: self._suspend,
            act.Resume: self._resume,
            act.Migrate: self._migrate,
            act.Resize: self._resize,
            act.SetPowerCap: self._set_cap,
            act.Repartition: self._repartition,
            act.WakeAt: self._wake_at,
        }

    # -- the loop -------------------------------------------------------------------------------------

    def run(self) -> Summary:
        """Simulate until the last job has ended.

        Raises:
            RuleBroken: the policy asked for what cannot be, or left jobs waiting with nothing left to happen.
            BadInput: the arrivals are not in the order of their submission.
        """
        began = time.perf_counter()
        state, policy, ready, do = self.state, self.policy, self._ready, self._do
        ignores, decide = policy.ignores, policy.decide
        self._next_disturbance = next(self._disturbances, None)
        events = decisions = most = 0
        self._fetch_arrival()
        if self._next_arrival is not None:
            state.now = min(state.now, self._next_arrival.job.submit_s)
        self._ask_loop()
        policy.begin(state)
        while (event := ready.popleft() if ready else self._advance()) is not None:
            events += 1
            if ready:
                state.upcoming = type(ready[0])
            else:
                at, order = self._next or self._peek()
                state.upcoming = None if at > state.now else self._kind(order)
            if type(event) not in ignores:
                decisions += 1
                for action in decide(state, event):
                    do[type(action)](action)
            if self.observer is not None:
                self.observer(state)
            if self._loop is not None and not ready and self._peek()[0] > state.now:
                self._ask_loop()
            if len(self._live) > most:  # noqa: PLR1730 (max() is slower)
                most = len(self._live)
        wall = time.perf_counter() - began
        return Summary(self._jobs, dict(self._refused), state.now, events, decisions, wall, most)

    def _advance(self) -> Event | None:
        """Let the next thing happen, and say what; None when all is over. Further events go to ``_ready``."""
        while True:
            at, order = self._next or self._peek()
            if order < 0:
                if self._live:
                    self._stuck()
                return None
            self.state.now = at
            self._next = None
            if order == SUBMIT:
                return self._submit()
            if order == FINISH:
                return self._finish(heappop(self._heap)[3])  # type: ignore[arg-type]
            self._mind_idleness()
            if order == DISTURBANCE:
                self._disturb()
            else:
                self._happen()
            if self._ready:
                return self._ready.popleft()

    def _peek(self) -> tuple[float, int]:
        """Time and kind of what happens next; (infinite, -1): nothing.

        Kept until something is pushed or happens (``_next`` is None then).
        """
        if self._next is None:
            self._next = self._look()
        return self._next

    def _look(self) -> tuple[float, int]:
        heap, arrival = self._heap, self._next_arrival
        if not self._live and arrival is None:
            return math.inf, -1
        at, order = math.inf, -1
        while heap:
            at, order, _, what, version = heap[0]
            if type(what) is Live and what.version != version:
                heappop(heap)
                at, order = math.inf, -1
            else:
                break
        if self._next_disturbance is not None:
            when = self._next_disturbance[0]
            if when < at or (when == at and order > DISTURBANCE):
                at, order = when, DISTURBANCE
        if arrival is not None:
            when = arrival.job.submit_s
            if when < at:
                return when, SUBMIT
        return at, order

    def _kind(self, order: int) -> type[Event]:
        """Of the event that happens next."""
        if order == DISTURBANCE and self._next_disturbance is not None:
            return type(self._next_disturbance[1])
        return KINDS[order]

    def _mind_idleness(self) -> None:
        """A policy that only wakes itself, while its jobs wait for nothing, would never end."""
        self._idle = 0 if self.state.running or self._next_arrival is not None else self._idle + 1
        if self._idle > MOST_IDLE:
            self._stuck()

    def _stuck(self) -> None:
        left = sorted(self._live)
        named = ", ".join(map(str, left[:5])) + (", ..." if len(left) > 5 else "")
        self.state.broken(
            None, "no job is lost", f"nothing is left to happen, but these jobs have not ended: {named}"
        )

    # -- what happens ---------------------------------------------------------------------------------

    def _fetch_arrival(self) -> None:
        """Look one arrival ahead, passing over jobs that can never run."""
        while True:
            arrival = self._queued.popleft() if self._queued else next(self._arrivals, None)
            self._next_arrival = arrival
            if arrival is None:
                return
            job = arrival.job
            if job.submit_s < self._last_submit_s:
                raise BadInput(
                    f"job {job.id} is submitted at {job.submit_s} s, behind {self._last_submit_s} s",
                    "sort the jobs by their time of submission",
                )
            self._last_submit_s = job.submit_s
            why = self.state.misfit(job)
            if not why and self._picky:
                why = self.policy.refuses(job, self.state.cluster)
            if not why:
                return
            self._refused[why] += 1

    def _submit(self) -> Submitted:
        arrival = self._next_arrival
        assert arrival is not None
        self._fetch_arrival()
        job = arrival.job
        self._live[job.id] = Live(arrival, self.state.submit(job))
        return Submitted(job)

    def _ask_loop(self) -> None:
        """Let a closed loop submit what follows on the jobs that ended at this instant."""
        if self._loop is None:
            return
        self._last_submit_s = self.state.now
        self._queued.extend(self._loop.due(self.state.now, tuple(self._ended)))
        self._ended.clear()
        self._next = None
        if self._next_arrival is None:
            self._fetch_arrival()

    def _happen(self) -> None:
        """The first thing of the heap happens: no end of a job, but anything else."""
        at, order, _, what, _ = heappop(self._heap)
        if order == TIMER:
            self._timers.discard((at, what))
            self._ready.append(Timer(at, what))
        elif isinstance(what, Checkpointed):
            self._ready.append(what)
        elif isinstance(what, Started):
            if what.job.id in self.state.running:
                self._ready.append(what)
        elif isinstance(what, Live):
            self._stopped(what)

    def _finish(self, live: Live) -> Finished:
        """A job ends."""
        job, placement, now = live.job, live.state.placement, self.state.now
        assert placement is not None
        live.close(now, self._pools[placement.pool])
        self.state.finish(live.state)
        del self._live[job.id]
        outcome = live.outcome(now)
        for sink in self.sinks:
            sink.add(outcome)
        self._jobs += 1
        if self.progress is not None and self._jobs % PROGRESS_EVERY == 0:
            self.progress(self._jobs, now)
        if self._loop is not None:
            self._ended.append(job)
        if self._interferes:
            self._disturb_neighbours(job.id, placement)
        return Finished(job, placement, outcome.how)

    def _stopped(self, live: Live) -> None:
        """A checkpoint is done."""
        before = self._release(live)
        target, live.moving_to = live.moving_to, None
        resumed = target is not None and not self.state.obstacle(live.job, target)
        if target is not None and resumed:
            self._begin(live, self.state.resume(live.job.id, target), restart=True)
        self._ready.append(Checkpointed(live.job, before, resumed))

    def _release(self, live: Live) -> Placement:
        """The job is suspended; where it was."""
        before = live.state.placement
        assert before is not None
        live.close(self.state.now, self._pools[before.pool])
        self.state.end_stop(live.state)
        live.keep()
        if self._interferes:
            self._disturb_neighbours(live.job.id, before)
        return before

    def _disturb(self) -> None:
        """Nodes fail or come back, or the budget changes."""
        assert self._next_disturbance is not None
        event = self._next_disturbance[1]
        self._next_disturbance = next(self._disturbances, None)
        if isinstance(event, BudgetChanged):
            self.state.budget_w = event.budget_w
        elif event.node is not None:
            if isinstance(event, NodeDown):
                for job_id in list(self.state.nodes[event.pool].jobs[event.node]):
                    self._fail(self._live[job_id])
            self.state.set_node(event.pool, event.node, isinstance(event, NodeUp))
        elif isinstance(event, NodeUp):
            pool = self._pools[event.pool]
            self.state.up(event.pool, min(event.units, pool.units - self.state.in_service[event.pool]))
        else:
            for _ in range(event.units):
                self._lose_unit(event.pool)
        self._ready.append(event)

    def _lose_unit(self, pool: str) -> None:
        """One unit of a counted pool fails, each as likely; the job on it fails."""
        state = self.state
        if state.in_service[pool] < 1:
            return
        hit = self._random.randrange(state.in_service[pool]) - state.free[pool]
        if hit >= 0:
            for job_state in state.running.values():
                placement = job_state.placement
                if placement is not None and placement.pool == pool:
                    hit -= placement.units
                    if hit < 0:
                        self._fail(self._live[job_state.job.id])
                        break
        state.down(pool, 1)

    def _fail(self, live: Live) -> None:
        """The job loses its units."""
        before = live.state.placement
        assert before is not None
        live.close(self.state.now, self._pools[before.pool])
        self.state.fail(live.state, live.fall_back(), live.saved_service_s)
        if self._interferes:
            self._disturb_neighbours(live.job.id, before)
        self._ready.append(Failed(live.job, before))

    # -- what the policy does -------------------------------------------------------------------------

    def _start(self, action: act.Start) -> None:
        state = self.state.start(action.job_id, action.placement)
        self._begin(self._live[action.job_id], state, restart=state.served_s > 0)

    def _resume(self, action: act.Resume) -> None:
        state = self.state.resume(action.job_id, action.placement)
        self._begin(self._live[action.job_id], state, restart=True)

    def _begin(self, live: Live, state: JobState, restart: bool) -> None:
        """The job holds its units from now on."""
        now, placement = self.state.now, state.placement
        assert placement is not None
        live.set_out(now, self.settings.costs.restart_s(live.job, placement.pool) if restart else 0.0)
        self._plan(live)
        if self._interferes:
            self._disturb_neighbours(live.job.id, placement)
        if Started not in self.policy.ignores:
            self._push(live.works_from_s, STARTED, Started(live.job))

    def _suspend(self, action: act.Suspend) -> None:
        state = self.state.check_stop("suspend", action.job_id)
        self._stop(self._live[action.job_id], state)

    def _migrate(self, action: act.Migrate) -> None:
        state = self.state.check_stop("migrate", action.job_id, Stop.CHECKPOINT)
        if not state.job.runs_on(action.placement.pool):
            self.state.broken(action.job_id, "migrate", f"the job cannot run on {action.placement.pool}")
        live = self._live[action.job_id]
        live.moving_to = action.placement
        self._stop(live, state)

    def _stop(self, live: Live, state: JobState) -> None:
        """Begin to stop a running job; at no cost its units are free at once."""
        assert state.placement is not None
        live.version += 1
        self._next = None
        cost = self.settings.costs.stop_s(live.job, state.placement.pool)
        if cost > 0 or live.moving_to is not None:
            live.close(self.state.now, self._pools[state.placement.pool])
            self.state.begin_stop(state)
            live.began_s = self.state.now
            self._push(round(self.state.now + cost, 6), STOPPED, live, live.version)
        else:
            before = self._release(live)
            self._push(self.state.now, STOPPED, Checkpointed(live.job, before))

    def _resize(self, action: act.Resize) -> None:
        state = self.state.check_running("resize", action.job_id)
        live, before, after = self._live[action.job_id], state.placement, action.placement
        assert before is not None
        live.close(self.state.now, self._pools[before.pool])
        self.state.resize(state, after)
        planned = self.state.costs.resize_s(live.job, before, after)
        self._change(live, planned, self.settings.costs.resize_s(live.job, before, after))
        if self._interferes:
            self._disturb_neighbours(live.job.id, before)
            self._disturb_neighbours(live.job.id, after)

    def _set_cap(self, action: act.SetPowerCap) -> None:
        state = self.state.check_running("set power cap", action.job_id)
        live, before = self._live[action.job_id], state.placement
        assert before is not None
        live.close(self.state.now, self._pools[before.pool])
        self.state.set_cap(state, action.cap_w)
        planned = self.state.costs.cap_s(live.job, before)
        self._change(live, planned, self.settings.costs.cap_s(live.job, before))

    def _change(self, live: Live, planned_s: float, actual_s: float) -> None:
        """The job goes on otherwise than before, after a pause (and after the rest of a restart)."""
        now = self.state.now
        rest = max(0.0, live.work_began_s - now)
        self.state.expect(live.state, round(now + rest + planned_s, 6))
        live.set_out(now, rest + actual_s)
        self._plan(live)

    def _repartition(self, action: act.Repartition) -> None:
        self.state.repartition(action.pool, action.regions)

    def _wake_at(self, action: act.WakeAt) -> None:
        at = max(round(action.at_s, 6), self.state.now)
        if (at, action.tag) not in self._timers:
            self._timers.add((at, action.tag))
            self._push(at, TIMER, action.tag)

    # -- ends that are to come ------------------------------------------------------------------------

    def _push(self, at: float, order: int, what: object, version: int = 0) -> None:
        self._sequence += 1
        self._next = None
        heappush(self._heap, (at, order, self._sequence, what, version))

    def _plan(self, live: Live) -> None:
        """Fix when the job ends as things are now."""
        factor = self._factor(live) if self._interferes else 1.0
        end = live.plan(self.settings.kill_at_limit, factor)
        self._push(end, FINISH, live, live.version)

    def _factor(self, live: Live) -> float:
        placement, interference = live.state.placement, self.settings.interference
        assert placement is not None and interference is not None
        beside = []
        if placement.nodes:
            for other in sorted(self.state.nodes[placement.pool].neighbours(live.job.id, placement)):
                where = self._live[other].state.placement
                assert where is not None
                beside.append((self._live[other].job, where))
        return interference(live.job, placement, beside)

    def _disturb_neighbours(self, job_id: int, placement: Placement) -> None:
        """Jobs on these nodes go at another speed from now on."""
        if not placement.nodes:
            return
        for other in sorted(self.state.nodes[placement.pool].neighbours(job_id, placement)):
            live = self._live[other]
            if live.state.phase is Phase.RUNNING:
                live.advance(self.state.now)
                self._plan(live)
