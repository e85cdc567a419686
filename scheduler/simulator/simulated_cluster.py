"""The simulated cluster: carries out a policy's actions, and lets jobs end, stop and fail.

The truth about each job is in ``SimulatedJob``; policies see ``ClusterState``, which refuses what cannot be.
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
from scheduler.model.state import RUNNING, ClusterState, JobState
from scheduler.simulator.event_queue import FINISH, STARTED, STOPPED, EventQueue
from scheduler.simulator.settings import SimulationSettings
from scheduler.simulator.simulated_job import SimulatedJob
from scheduler.simulator.trace import Arrival, Outcome


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
            act.Start: self._start,
            act.Suspend: self._suspend,
            act.Resume: self._resume,
            act.Migrate: self._migrate,
            act.Resize: self._resize,
            act.SetPowerCap: self._set_cap,
            act.Repartition: self._repartition,
            act.WakeAt: self._wake_at,
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
        before = self._release(simulated)
        target, simulated.moving_to = simulated.moving_to, None
        resumed = target is not None and not self.state.obstacle(simulated.job, target)
        if target is not None and resumed:
            self._begin(simulated, self.state.resume(simulated.job.id, target), True)
        return Checkpointed(simulated.job, before, resumed)

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
                    self._fail(self.jobs[job_id])
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
            for job_state in state.running.values():
                placement = job_state.place
                if placement.pool == pool:
                    hit -= placement.units
                    if hit < 0:
                        self._fail(self.jobs[job_state.job.id])
                        break
        state.down(pool, 1)

    def _fail(self, simulated: SimulatedJob) -> None:
        """Take the job's units away."""
        before = simulated.state.place
        simulated.close(self.state.now, self._powered.get(before.pool))
        self.state.fail(simulated.state, simulated.fall_back(), simulated.saved_service_s)
        if self._interferes:
            self._disturb_neighbours(simulated.job.id, before)
        self.ready.append(Failed(simulated.job, before))

    # -- actions -------------------------------------------------------------------------

    def _start(self, action: act.Start) -> None:
        state = self.state.start(action.job_id, action.placement)
        self._begin(self.jobs[action.job_id], state, state.served_s > 0)

    def _resume(self, action: act.Resume) -> None:
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

    def _suspend(self, action: act.Suspend) -> None:
        state = self.state.check_stop("suspend", action.job_id)
        self._stop(self.jobs[action.job_id], state)

    def _migrate(self, action: act.Migrate) -> None:
        state = self.state.check_stop("migrate", action.job_id, CHECKPOINT)
        if not state.job.runs_on(action.placement.pool):
            self.state.broken(action.job_id, "migrate", f"the job cannot run on {action.placement.pool}")
        simulated = self.jobs[action.job_id]
        simulated.moving_to = action.placement
        self._stop(simulated, state)

    def _stop(self, simulated: SimulatedJob, state: JobState) -> None:
        """Begin to stop a running job; at no cost its units are free at once."""
        placement, now = state.place, self.state.now
        simulated.void()
        cost = self._costs.stop_s(simulated.job, placement.pool)
        if cost > 0 or simulated.moving_to is not None:
            simulated.close(now, self._powered.get(placement.pool))
            self.state.begin_stop(state)
            simulated.began_s = now
            self.queue.push(instant(now + cost), STOPPED, simulated, simulated.version)
        else:
            before = self._release(simulated)
            self.queue.push(now, STOPPED, Checkpointed(simulated.job, before))

    def _resize(self, action: act.Resize) -> None:
        state = self.state.check_running("resize", action.job_id)
        simulated, before, after = self.jobs[action.job_id], state.place, action.placement
        simulated.close(self.state.now, self._powered.get(before.pool))
        self.state.resize(state, after)
        planned = self.state.costs.resize_s(simulated.job, before, after)
        self._change(simulated, planned, self._costs.resize_s(simulated.job, before, after))
        if self._interferes:
            self._disturb_neighbours(simulated.job.id, before)
            self._disturb_neighbours(simulated.job.id, after)

    def _set_cap(self, action: act.SetPowerCap) -> None:
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

    def _repartition(self, action: act.Repartition) -> None:
        self.state.repartition(action.pool, action.regions)

    def _wake_at(self, action: act.WakeAt) -> None:
        at, now = instant(action.at_s), self.state.now
        self.queue.wake(at if at > now else now, action.tag)

    def _plan(self, simulated: SimulatedJob) -> None:
        """Fix when the job ends as things are now."""
        end = simulated.plan(self._kills, self._factor(simulated) if self._interferes else 1.0)
        self.queue.push(end, FINISH, simulated, simulated.version)

    def _factor(self, simulated: SimulatedJob) -> float:
        placement, interference = simulated.state.place, self.settings.interference
        assert interference is not None
        beside = []
        if placement.nodes:
            for other in sorted(self.state.nodes[placement.pool].neighbours(simulated.job.id, placement)):
                beside.append((self.jobs[other].job, self.jobs[other].state.place))
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
