"""The plan state of MCT's family: planned jobs, due starts and stops, and the rest of a job to be planned."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from scheduler.model.jobs import NEVER, PAUSE, Job, instant
from scheduler.model.state import STOPPING, WAITING, JobState
from scheduler.policies.base import View
from scheduler.policies.mct.plan import MOMENT_S, PoolPlan, RemainingJob, Stay

LATE_SHARE = 0.1
LATE_LEAST_S = 1.0
LATE_STOP_S = 0.05
STINT = 0.1  # least share of its work that a job does between two stops, once plans could not be kept


@dataclass(slots=True)
class PlannedJob:
    """A job and its parts to come, the first of them under way while the job runs.

    ``version`` counts the changes, because due times of earlier versions are void. ``counts_on``: the class
    on which it counts as waiting; "": on none.
    """

    job: Job
    parts: tuple[Stay, ...] = ()
    running: bool = False
    stopping: bool = False
    version: int = 0
    counts_on: str = ""

    @property
    def end_s(self) -> float:
        return self.parts[-1].end_s

    def could_use(self, pool: str, now: float) -> bool:
        """Tell if the job waits (for any class) and could run on free units of that class."""
        return self.job.runs_on(pool) and self.parts[-1].start_s > now


class DueQueue:
    """Due times of the next stop or start of each job.

    Attributes:
        heap: (due time, order of addition, version of the plan, job), the first first. After ``collect``
            that one is neither past nor void.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int, PlannedJob]] = []
        self._places = count()

    def add(self, planned: PlannedJob, due: float) -> None:
        heappush(self.heap, (due, next(self._places), planned.version, planned))

    def collect(self, now: float) -> tuple[list[PlannedJob], list[PlannedJob]]:
        """Take the jobs to be stopped and those to be started now."""
        stops: list[PlannedJob] = []
        starts: list[PlannedJob] = []
        heap = self.heap
        while heap:
            due, _, version, planned = heap[0]
            if planned.version == version:
                if due > now:
                    break
                (stops if planned.running else starts).append(planned)
            heappop(heap)
        return stops, starts


def remaining_job(
    view: View,
    pool_plans: Mapping[str, PoolPlan],
    migrate: bool,
    planned: PlannedJob,
    *,
    state: JobState | None = None,
    stint: float = 0.0,
) -> RemainingJob:
    """Describe what is left to plan of a job, on the classes on which it can run."""
    job, costs = planned.job, view.costs
    tied = job.stop is PAUSE
    known: Container[str] = job.estimates_s or pool_plans
    if tied and state is not None and state.stage is not WAITING:
        known = (state.place.pool,)
    times = {name: job.estimate_on(name) for name in pool_plans if name in known}
    names = sorted(times, key=times.__getitem__)  # of equal times the better rank comes first
    stoppable = migrate and job.stop is not NEVER
    counts = stoppable or state is not None
    rest = RemainingJob(
        units=job.units,
        pool_plans=[*map(pool_plans.__getitem__, names)],
        run_s=[*map(times.__getitem__, names)],
        stop_s=[costs.stop_s(job, name) for name in names] if counts else [0.0] * len(names),
        restart_s=[costs.restart_s(job, name) for name in names] if counts else [0.0] * len(names),
        now=view.now,
        ready_s=view.now,
        stoppable=stoppable,
        tied=tied,
        stint=stint,
    )
    if state is not None:
        _go_on(rest, planned, state)
    return rest


def stays_until(state: JobState, view: View) -> float:
    """Compute until when a running job holds its units if nothing is done to it."""
    now = view.now
    end = state.expected_end_s
    if state.stage is STOPPING:
        end = instant(state.since_s + view.costs.stop_s(state.job, state.place.pool))
    if end <= now and state.stage is STOPPING:
        end = instant(now + max(LATE_STOP_S, now - state.since_s))
    elif end <= now:
        end = instant(now + max(LATE_LEAST_S, LATE_SHARE * state.attained_s(now)))
    return end if end == math.inf or not state.done else instant(end + MOMENT_S)


def in_order(view: View) -> list[JobState]:
    """List all jobs in the system, by priority and then in the order of submission."""
    states = [*view.running.values(), *view.suspended.values(), *map(view.state, view.waiting)]
    return sorted(states, key=lambda state: (-state.job.priority, state.job.submit_s, state.job.id))


def _go_on(rest: RemainingJob, planned: PlannedJob, state: JobState) -> None:
    """Subtract from the rest what a job that may have run has done already."""
    now = rest.now
    rest.begun = state.served_s > 0.0 or state.stage is not WAITING
    rest.done = state.done_by(now)
    if planned.stopping:
        rest.ready_s = planned.parts[0].end_s
    elif planned.running:
        rest.here = [pool_plan.name for pool_plan in rest.pool_plans].index(state.place.pool)
        rest.works_s = max(now, instant(state.works_from_s))
        rest.stays_s = now
        if rest.stint:
            rest.stays_s = max(now, instant(state.works_from_s + rest.stint * rest.run_s[rest.here]))
        rest.ready_s = max(rest.stays_s + MOMENT_S, instant(rest.stays_s + rest.stop_s[rest.here]))
