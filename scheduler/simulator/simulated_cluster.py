"""The simulated machine: carries out a policy's actions, and lets jobs end, stop and fail.

It knows the truth about each job (``Live``) and keeps the books that the policy sees (``State``), which
refuse what cannot be. What an action brings about later goes to the agenda; what an event brings about at
once to ``ready``.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from scheduler.model import actions as act
from scheduler.model.events import (
    BudgetChanged,
    Checkpointed,
    Event,
    Failed,
    Finished,
    NodeDown,
    NodeUp,
    Started,
    Submitted,
)
from scheduler.model.jobs import CHECKPOINT, Placement, instant
from scheduler.model.state import RUNNING, JobState, State
from scheduler.simulator.event_queue import FINISH, STARTED, STOPPED, Agenda
from scheduler.simulator.settings import Settings
from scheduler.simulator.simulated_job import Live
from scheduler.simulator.trace import Arrival, Outcome


class Machine:
    """The simulated machine.

    Args:
        announces: whether the policy wants to know of starts.

    Attributes:
        live: the jobs in the system. most: so many at once.
        idle: events since a job last began, while none runs.
        ready: events that follow at once.
        do: what carries out each kind of action.
    """

    def __init__(self, state: State, settings: Settings, agenda: Agenda, announces: bool) -> None:
        self.state = state
        self.settings = settings
        self.agenda = agenda
        self.announces = announces
        self.live: dict[int, Live] = {}
        self.most = self.idle = 0
        self.ready: deque[Event] = deque()
        self._pools = {pool.name: pool for pool in state.cluster.pools}
        self._powered = {pool.name: pool for pool in state.cluster.pools if pool.has_power}
        self._costs = settings.costs
        self._random = random.Random(settings.seed)
        self._interferes = settings.interference is not None
        self._kills = settings.kill_at_limit
        self.do: dict[type, Callable[..., None]] = {
            act.Start: self._start,
            act.Suspend: self._suspend,
            act.Resume: self._resume,
            act.Migrate: self._migrate,
            act.Resize: self._resize,
            act.SetPowerCap: self._set_cap,
            act.Repartition: self._repartition,
            act.WakeAt: self._wake_at,
        }

    # -- what happens ---------------------------------------------------------------------------------

    def submit(self, arrival: Arrival) -> Submitted:
        """A new job waits."""
        job, live = arrival.job, self.live
        live[job.id] = Live(arrival, self.state.submit(job))
        self.most = max(self.most, len(live))
        return Submitted(job)

    def finish(self, live: Live) -> tuple[Finished, Outcome]:
        """A job ends."""
        job, placement, now = live.job, live.state.placement, self.state.now
        assert placement is not None
        if live.version > 1 or live.began_s != live.work_began_s or self._powered:  # most just ran on
            live.close(now, self._powered.get(placement.pool))
        self.state.finish(live.state)
        del self.live[job.id]
        outcome = live.outcome(now)
        if self._interferes:
            self._disturb_neighbours(job.id, placement)
        return Finished(job, placement, outcome.how), outcome

    def started(self, event: Started) -> Started | None:
        """A job gets on from now on; None: it was stopped before."""
        return event if event.job.id in self.state.running else None

    def stopped(self, live: Live | Checkpointed) -> Checkpointed:
        """A checkpoint is done, now or, where it cost nothing, when it was asked for."""
        if isinstance(live, Checkpointed):
            return live
        before = self._release(live)
        target, live.moving_to = live.moving_to, None
        resumed = target is not None and not self.state.obstacle(live.job, target)
        if target is not None and resumed:
            self._begin(live, self.state.resume(live.job.id, target), True)
        return Checkpointed(live.job, before, resumed)

    def _release(self, live: Live) -> Placement:
        """The job is suspended; where it was."""
        before = live.state.placement
        assert before is not None
        live.close(self.state.now, self._powered.get(before.pool))
        self.state.end_stop(live.state)
        live.keep()
        if self._interferes:
            self._disturb_neighbours(live.job.id, before)
        return before

    def disturb(self, event: NodeDown | NodeUp | BudgetChanged) -> None:
        """Nodes fail or come back, or the budget changes."""
        if isinstance(event, BudgetChanged):
            self.state.budget_w = event.budget_w
        elif event.node is not None:
            if isinstance(event, NodeDown):
                for job_id in list(self.state.nodes[event.pool].jobs[event.node]):
                    self._fail(self.live[job_id])
            self.state.set_node(event.pool, event.node, isinstance(event, NodeUp))
        elif isinstance(event, NodeUp):
            pool = self._pools[event.pool]
            self.state.up(event.pool, min(event.units, pool.units - self.state.in_service[event.pool]))
        else:
            for _ in range(event.units):
                self._lose_unit(event.pool)
        self.ready.append(event)

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
                        self._fail(self.live[job_state.job.id])
                        break
        state.down(pool, 1)

    def _fail(self, live: Live) -> None:
        """The job loses its units."""
        before = live.state.placement
        assert before is not None
        live.close(self.state.now, self._powered.get(before.pool))
        self.state.fail(live.state, live.fall_back(), live.saved_service_s)
        if self._interferes:
            self._disturb_neighbours(live.job.id, before)
        self.ready.append(Failed(live.job, before))

    # -- what the policy does -------------------------------------------------------------------------

    def _start(self, action: act.Start) -> None:
        state = self.state.start(action.job_id, action.placement)
        self._begin(self.live[action.job_id], state, state.served_s > 0)

    def _resume(self, action: act.Resume) -> None:
        state = self.state.resume(action.job_id, action.placement)
        self._begin(self.live[action.job_id], state, True)

    def _begin(self, live: Live, state: JobState, restart: bool) -> None:
        """The job holds its units from now on."""
        now, placement = self.state.now, state.placement
        assert placement is not None
        self.idle = 0
        live.set_out(now, self._costs.restart_s(live.job, placement.pool) if restart else 0.0)
        self._plan(live)
        if self._interferes:
            self._disturb_neighbours(live.job.id, placement)
        if self.announces:
            self.agenda.push(live.works_from_s, STARTED, Started(live.job))

    def _suspend(self, action: act.Suspend) -> None:
        state = self.state.check_stop("suspend", action.job_id)
        self._stop(self.live[action.job_id], state)

    def _migrate(self, action: act.Migrate) -> None:
        state = self.state.check_stop("migrate", action.job_id, CHECKPOINT)
        if not state.job.runs_on(action.placement.pool):
            self.state.broken(action.job_id, "migrate", f"the job cannot run on {action.placement.pool}")
        live = self.live[action.job_id]
        live.moving_to = action.placement
        self._stop(live, state)

    def _stop(self, live: Live, state: JobState) -> None:
        """Begin to stop a running job; at no cost its units are free at once."""
        placement, now = state.placement, self.state.now
        assert placement is not None
        live.version += 1
        cost = self._costs.stop_s(live.job, placement.pool)
        if cost > 0 or live.moving_to is not None:
            live.close(now, self._powered.get(placement.pool))
            self.state.begin_stop(state)
            live.began_s = now
            self.agenda.push(instant(now + cost), STOPPED, live, live.version)
        else:
            before = self._release(live)
            self.agenda.push(now, STOPPED, Checkpointed(live.job, before))

    def _resize(self, action: act.Resize) -> None:
        state = self.state.check_running("resize", action.job_id)
        live, before, after = self.live[action.job_id], state.placement, action.placement
        assert before is not None
        live.close(self.state.now, self._powered.get(before.pool))
        self.state.resize(state, after)
        planned = self.state.costs.resize_s(live.job, before, after)
        self._change(live, planned, self._costs.resize_s(live.job, before, after))
        if self._interferes:
            self._disturb_neighbours(live.job.id, before)
            self._disturb_neighbours(live.job.id, after)

    def _set_cap(self, action: act.SetPowerCap) -> None:
        state = self.state.check_running("set power cap", action.job_id)
        live, before = self.live[action.job_id], state.placement
        assert before is not None
        live.close(self.state.now, self._powered.get(before.pool))
        self.state.set_cap(state, action.cap_w)
        planned = self.state.costs.cap_s(live.job, before)
        self._change(live, planned, self._costs.cap_s(live.job, before))

    def _change(self, live: Live, planned_s: float, actual_s: float) -> None:
        """The job goes on otherwise than before, after a pause (and after the rest of a restart)."""
        now = self.state.now
        rest = max(0.0, live.work_began_s - now)
        self.state.expect(live.state, instant(now + rest + planned_s))
        live.set_out(now, rest + actual_s)
        self._plan(live)

    def _repartition(self, action: act.Repartition) -> None:
        self.state.repartition(action.pool, action.regions)

    def _wake_at(self, action: act.WakeAt) -> None:
        at, now = instant(action.at_s), self.state.now
        self.agenda.wake(at if at > now else now, action.tag)

    def _plan(self, live: Live) -> None:
        """Fix when the job ends as things are now."""
        end = live.plan(self._kills, self._factor(live) if self._interferes else 1.0)
        self.agenda.push(end, FINISH, live, live.version)

    def _factor(self, live: Live) -> float:
        placement, interference = live.state.placement, self.settings.interference
        assert placement is not None and interference is not None
        beside = []
        if placement.nodes:
            for other in sorted(self.state.nodes[placement.pool].neighbours(live.job.id, placement)):
                where = self.live[other].state.placement
                assert where is not None
                beside.append((self.live[other].job, where))
        return interference(live.job, placement, beside)

    def _disturb_neighbours(self, job_id: int, placement: Placement) -> None:
        """Jobs on these nodes go at another speed from now on."""
        if not placement.nodes:
            return
        for other in sorted(self.state.nodes[placement.pool].neighbours(job_id, placement)):
            live = self.live[other]
            if live.state.phase is RUNNING:
                live.advance(self.state.now)
                self._plan(live)
