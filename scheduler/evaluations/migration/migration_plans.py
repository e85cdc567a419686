"""Counts of plans in parts that end later than under MCT but that the printed steps of paper A keep."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model.jobs import Cluster, Job
from scheduler.policies.base import View
from scheduler.policies.mct.mct import Mct
from scheduler.policies.mct.plan import MctParameters, plan
from scheduler.policies.mct.plan_state import PlannedJob, remaining_job
from scheduler.simulator.simulator import Simulator
from scheduler.workloads import load


class PlansOfStep(NamedTuple):
    """Plans that end in one step of the procedure: how many, how many later than MCT's, and by how much."""

    plans: int
    late: int
    mean_loss_s: float


class LatePlans(NamedTuple):
    """Step 6: the parts suffice. Step 7: the rest follows at the end of the queue."""

    step_6: PlansOfStep
    step_7: PlansOfStep


class Counting(Mct):
    """mctbm by the printed steps, noting how each plan in parts compares with MCT's."""

    def begin(self, view: View) -> None:
        self.losses: dict[bool, list[float]] = {True: [], False: []}
        super().begin(view)

    def _plan_new(self, job: Job, view: View) -> None:
        task = remaining_job(view, self._pool_plans, True, PlannedJob(job))
        (mct,) = plan(task, MctParameters())
        super()._plan_new(job, view)
        parts = self._plans[job.id].parts
        if parts != (mct,):
            rest = parts[-1].pool == mct.pool and parts[-1].start_s >= mct.start_s
            self.losses[rest].append(parts[-1].end_s - mct.end_s)


def count_later(cluster: Cluster, text: str) -> LatePlans:
    """Count them on the workload that ``text`` describes (seed 0)."""
    workload = load(text, cluster, 0)
    policy = Counting(MctParameters(backfill=True, migrate=True, literal=True))
    Simulator(cluster, workload.arrivals, policy, workload.settings).run()
    return LatePlans(_step(policy.losses[False]), _step(policy.losses[True]))


def _step(losses: list[float]) -> PlansOfStep:
    late = [loss for loss in losses if loss > 1e-4]
    return PlansOfStep(len(losses), len(late), sum(late) / len(late) if late else 0.0)
