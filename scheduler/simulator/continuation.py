"""Simulations that go on from a cluster state as it is now, to learn when a waiting job would start.

Jobs take as long as they are believed to; one that takes longer ends at once, one of unknown run time never.
Nothing is submitted, fails or comes back meanwhile. The policy begins anew, as after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from math import isinf

from profiles.errors import UserError
from scheduler.model.jobs import RUNNING, STOPPING, Job, JobState, Region, instant
from scheduler.model.state import ClusterState
from scheduler.policies.registry import create
from scheduler.simulator.simulator import FINISH, STOPPED, SimulatedJob, Simulator
from scheduler.simulator.trace import Arrival, SimulationSettings

NEVER_S = 1e10  # run time of a job of which nothing is known
HORIZON_S = 30 * 86_400.0  # nothing is said of what is farther off
SOON_S = 1e-6  # until the end of a job that takes longer than believed


class OutOfTime(Exception):
    """The simulation takes more processor time than it may."""


class _Over(Exception):
    """The job has started, or will not within the horizon."""


@dataclass(frozen=True)
class Present:
    """A cluster state to go on from, which does not change any more.

    Attributes:
        state: where costs, slow-downs and the like are taken from.
        jobs: running ones in the order of their starts, suspended ones, waiting ones in their order.
        down: units of each counted pool out of service. nodes_down: (pool, node).
        timers: those that the policy has asked for, as (time, tag).
    """

    state: ClusterState
    now: float
    budget_w: float | None
    regions: dict[str, tuple[Region, ...]]
    jobs: tuple[JobState, ...]
    down: dict[str, int]
    nodes_down: tuple[tuple[str, int], ...]
    timers: tuple[tuple[float, object], ...]

    @classmethod
    def of(cls, state: ClusterState, timers: Iterable[tuple[float, object]] = ()) -> Present:
        """Keep a cluster state as it is now."""
        waiting = [state.state(job_id) for job_id in state.waiting]
        jobs = [
            copy(job_state) for job_state in (*state.running.values(), *state.suspended.values(), *waiting)
        ]
        counted = [pool for pool in state.cluster.pools if pool.counted]
        nodes = ((name, n, up) for name, of_pool in state.nodes.items() for n, up in enumerate(of_pool.up))
        return cls(
            state=state,
            now=state.now,
            budget_w=state.budget_w,
            regions=dict(state.regions),
            jobs=tuple(jobs),
            down={pool.name: pool.units - state.in_service[pool.name] for pool in counted},
            nodes_down=tuple((name, n) for name, n, up in nodes if not up),
            timers=tuple(timers),
        )


class Continuation(Simulator):
    """One simulation from the present on.

    Args:
        policy: name and parameters.
        without: a job that is gone. new: a job that is submitted now in its place.
    """

    def __init__(self, present: Present, policy: str, *, without: int | None, new: Job | None) -> None:
        state = present.state
        settings = SimulationSettings(
            state.costs, kill_at_limit=False, slowdowns=state.slowdowns, profiles=state.profiles
        )
        super().__init__(state.cluster, (), create(policy), settings)
        self._present, self._without, self._new = present, without, new

    def _set_up(self) -> None:
        """Enter the jobs as they are."""
        present, state = self._present, self.state
        state.now, state.budget_w = present.now, None
        for pool, regions in present.regions.items():
            state.repartition(pool, regions)
        for job_state in present.jobs:
            if job_state.job.id != self._without:
                self._enter(copy(job_state))
        if self._new is not None:
            self._cluster.submit(_arrival(self._new))
        state.arrange()
        state.budget_w = present.budget_w
        for pool, units in present.down.items():
            state.down(pool, units)
        for pool, node in present.nodes_down:
            state.set_node(pool, node, False)
        for at, tag in present.timers:
            self._queue.wake(max(at, state.now), tag)
        self._queue.wake(state.now, None)

    def _enter(self, job_state: JobState) -> None:
        """Enter one job; what runs ends as believed."""
        job, state, queue = job_state.job, self.state, self._queue
        simulated = self._cluster.jobs[job.id] = SimulatedJob(_arrival(job), job_state)
        state.restore(job_state)
        simulated.progress = simulated.saved = job_state.done
        simulated.saved_service_s = job_state.served_s
        if job_state.stage is RUNNING:
            simulated.set_out(job_state.works_from_s, 0.0)
            end = simulated.plan(False, 1.0)
            queue.push(max(end, instant(state.now + SOON_S)), FINISH, simulated, simulated.version)
        elif job_state.stage is STOPPING:
            simulated.set_out(state.now, 0.0)
            simulated.version += 1
            stop_s = state.costs.stop_s(job, job_state.place.pool)
            queue.push(instant(state.now + stop_s), STOPPED, simulated, simulated.version)


def start_of(
    job_id: int,
    present: Present,
    policy: str,
    *,
    without: int | None = None,
    new: Job | None = None,
    until_s: float = float("inf"),
) -> float | None:
    """Simulate until a waiting job starts, and return when; None: nothing that is known lets it start.

    Args:
        without, new: as of ``Continuation``.
        until_s: processor time of this thread (``time.thread_time``) at which to give up.

    Raises:
        OutOfTime: it is over.
    """
    simulation = Continuation(present, policy, without=without, new=new)

    def look(view: object) -> None:
        if time.thread_time() > until_s:
            raise OutOfTime
        if job_id in simulation.state.running or simulation.state.now > present.now + HORIZON_S:
            raise _Over

    simulation.observer = look
    try:
        simulation.run()
    except _Over:
        at = simulation.state.now
        return at if at <= present.now + HORIZON_S else None
    except UserError:  # nothing is left to happen, or the policy cannot go on
        return None
    return None


def _arrival(job: Job) -> Arrival:
    """Take what is believed of a job for the truth."""
    whole_s = NEVER_S if job.estimate_s is None or isinf(job.estimate_s) else job.estimate_s
    runs_s = {pool: NEVER_S if isinf(run_s) else run_s for pool, run_s in job.estimates_s.items()}
    return Arrival(job, whole_s, runs_s)
