"""Weigh where jobs may have more or fewer units, and under power caps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, pairwise

import pytest

from scheduler.model.events import Action, Event, Start
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool
from scheduler.policies.base import Policy, View
from scheduler.policies.registry import create
from scheduler.policies.weigh.malleable import Machine
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, SimulationSettings
from scheduler.workloads import load
from scheduler.workloads.generators import power_sets
from tests.support.amounts import examples
from tests.support.scheduling.worlds import LinearSpeed, World, run


class DecidedError(Exception):
    """Ends the simulation when the first decision is made."""


class First(Policy):
    """Keeps the starts of another policy's first decision."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy, self.starts = policy, list[tuple[Job, Start]]()
        self.begin, self.refuses, self.why = policy.begin, policy.refuses, policy.why  # type: ignore[method-assign]

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        actions = self.policy.decide(view, event)
        if view.upcoming is None:
            self.starts = [(view.waiting[a.job_id], a) for a in actions if isinstance(a, Start)]
            raise DecidedError
        return actions


def merit(policy: str, cluster: Cluster, arrivals: Sequence[Arrival]) -> float:
    """Sum of (time left ^ 0.5) x speed of what a policy starts at first."""
    first = First(create(policy))
    with pytest.raises(DecidedError):
        Simulator(cluster, iter(arrivals), first, SimulationSettings()).run()
    total = 0.0
    for job, start in first.starts:
        assert job.speed is not None and job.estimate_s is not None
        total += job.estimate_s**0.5 * job.speed(start.placement.units, start.placement.cap_w)
    return total


def test_shares_are_worth_nearly_as_much_as_in_the_exact_program() -> None:
    """For the makespan parm (alpha 0.5) solves the same program exactly."""
    cluster = power_sets.small_machine()
    ratios = []
    for seed in range(examples(60)):
        arrivals = load("generator:power-set1", cluster, seed).arrivals
        assert isinstance(arrivals, Iterable)
        some = [a._replace(job=replace(a.job, submit_s=0.0)) for a in islice(arrivals, 2 + seed % 11)]
        best = merit("parm,alpha=0.5,gap=0.0001", cluster, some)
        ratios.append(merit("weigh,aim=makespan", cluster, some) / best)
    assert max(ratios) <= 1.0002
    assert statistics.median(ratios) >= 0.99 and min(ratios) >= 0.97


def test_of_equal_shares_the_faster_way_counts() -> None:
    pool = Pool("node", 4, base_w=10.0, peak_w=50.0, caps_w=(30.0, 50.0))
    job = Job(1, 0.0, 1, 10.0, max_units=4, speed=LinearSpeed(1, 4))
    ways = Machine(pool, 4, 1e9).ways(job)
    # Watts are plenty, so each number of units has the highest cap alone.
    assert [(way.units, way.cap_w) for way in ways] == [(1, 50.0), (2, 50.0), (3, 50.0), (4, 50.0)]
    # 40 W a unit at the lowest cap, 60 W at the highest: two units at the highest cap hold as much as three.
    tight = [(way.units, way.cap_w, round(way.share, 3)) for way in Machine(pool, 4, 120.0).ways(job)]
    assert tight[0] == (1, 30.0, round(40 / 120, 3)) and (2, 30.0, round(80 / 120, 3)) in tight
    assert all(a[2] < b[2] for a, b in pairwise(tight))


def test_a_job_that_is_alone_has_all_and_gives_it_back() -> None:
    """Of two jobs on four units: alone each would be four times as fast as on one."""
    machine = Cluster((Pool("node", 4),))
    jobs = [
        Job(
            number,
            at,
            1,
            run_s,
            estimate_kind=EstimateKind.EXACT,
            max_units=4,
            malleable=True,
            speed=LinearSpeed(1, 4),
        )
        for number, at, run_s in ((1, 0.0, 400.0), (2, 50.0, 40.0))
    ]
    world = World(machine, tuple(Arrival(job, job.estimate_s or 0.0) for job in jobs))
    outcomes = {outcome.job.id: outcome for outcome in run(create("weigh"), world)[0]}
    uncapped = 1.0 + 0.02 * 20  # of LinearSpeed
    # Job 2 comes first while it is there, and has all but the unit that job 1 keeps.
    end = 50 + 40 / (3 * uncapped)
    assert outcomes[2].end_s == pytest.approx(end, abs=1e-3)
    left = 400 - (4 * 50 + (end - 50)) * uncapped
    assert outcomes[1].end_s == pytest.approx(end + left / (4 * uncapped), abs=1e-3)
