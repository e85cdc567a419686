"""Work of a decision in a long queue, in lines of Python: it grows as the queue, not as its square."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from scheduler.model.events import Action, Event
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, Stop
from scheduler.policies.base import View
from scheduler.policies.power.multiple_choice_knapsack import Problem, Solution
from scheduler.policies.power.parm import Parm, ParmParameters, _considered
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival
from tests.support.scheduling.worlds import LinearSpeed, World, run

DEVICES = Cluster((Pool("gpu", 2, 0, kind="gpu"), Pool("cpu", 1, 1, kind="cpu")))
NODES = Cluster((Pool("node", 2, resources=("cpu", "memory"), capacity=(8.0, 8.0)),))


class Stopped(Exception):
    pass


def burst(kind: str, number: int) -> World:
    """So many jobs at one instant."""
    arrivals = []
    for i in range(1, number + 1):
        if kind == "nodes":
            job = Job(i, 0.0, demand=(float(1 + i % 5), float(1 + i % 3)), stop=Stop.PAUSE)
            arrivals.append(Arrival(job, 500.0))
            continue
        times = {"gpu": 100.0 + i % 7, "cpu": 400.0 + i % 11} if kind == "estimates" else {}
        job = Job(i, 0.0, 1, stop=Stop.CHECKPOINT, estimate_kind=EstimateKind.EXACT, estimates_s=times)
        arrivals.append(Arrival(job, 500.0, times))
    return World(NODES if kind == "nodes" else DEVICES, tuple(arrivals))


def lines_of_the_first_decision(policy: str, world: World) -> int:
    """Count the lines that run from the last submission until the policy has decided."""
    lines = 0
    chooser = create(policy)
    decide = chooser.decide

    def count(frame: FrameType, what: str, argument: Any) -> Any:
        nonlocal lines
        lines += what == "line"
        return count

    def watched(view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is not None:
            return decide(view, event)
        before = sys.gettrace()
        sys.settrace(count)
        try:
            decide(view, event)
        finally:
            sys.settrace(before)
        raise Stopped

    chooser.decide = watched  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        run(chooser, world)
    return lines


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ("las-mq", "devices"),
        ("las-mq", "nodes"),
        ("las-prompt", "nodes"),
        ("las-drf", "nodes"),
        ("mctbm-priced", "estimates"),
        ("mctb", "estimates"),
    ],
)
def test_a_burst_takes_time_as_it_is_long(policy: str, kind: str) -> None:
    few, many = (lines_of_the_first_decision(policy, burst(kind, number)) for number in (150, 600))
    assert many < 5 * few  # 16 times, were it the square


class Recorded(Parm):
    problems: list[Problem]

    def solve(self, problem: Problem, view: View) -> Solution | None:
        self.problems.append(problem)
        return super().solve(problem, view)


def test_parm_considers_of_like_jobs_no_more_than_can_run_and_those_that_weigh_most() -> None:
    """Four units, 200 jobs of two kinds, the later the longer: the four heaviest of each, in their order."""
    pool = Pool("node", 4, base_w=10.0, caps_w=(30.0, 50.0))
    jobs = []
    for i in range(1, 201):
        job = Job(i, 0.0, 1, float(i), estimate_kind=EstimateKind.EXACT, max_units=2)
        jobs.append(replace(job, speed=LinearSpeed(1, 1 + i % 2)))
    policy = Recorded(ParmParameters(alpha=1.0))
    policy.problems = []
    world = World(
        Cluster((pool,), budget_w=200.0), tuple(Arrival(job, job.estimate_s or 0.0) for job in jobs)
    )
    outcomes, _ = run(policy, world)
    assert len(outcomes) == 200 and len(policy.problems[0].values) == 8
    least = policy.problems[0].values[:, 1]
    assert least.max() == pytest.approx(200.0) and least.min() == pytest.approx(193.0)


def test_tables_of_many_different_jobs_are_made_once() -> None:
    pool = Pool("node", 2, base_w=10.0, caps_w=(30.0,))
    few = (Job(i, 0.0, 1, 9.0, speed=LinearSpeed(1, 1000 + i)) for i in range(4500))
    jobs = [replace(job, estimate_kind=EstimateKind.EXACT) for job in few]
    policy = Parm()
    policy.pool = pool
    policy.options(jobs, 2.0, 50.0)
    made = _considered.cache_info().misses
    policy.options(jobs, 2.0, 50.0)
    assert _considered.cache_info().misses == made
