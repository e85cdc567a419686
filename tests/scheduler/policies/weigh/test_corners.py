"""Weigh where a machine leaves only one of its effects: it is as good as the policy made for that."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import fmean

import pytest

from scheduler.model.jobs import CHECKPOINT, Cluster, EstimateKind, Job, Pool
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival
from tests.support.scheduling.worlds import World, run

SEEDS = range(6)
JOBS = 300
Jobs = Callable[[random.Random], tuple[Arrival, ...]]
EXACT = EstimateKind.EXACT


def waits_s(policy: str, cluster: Cluster, jobs: Jobs, seed: int) -> list[float]:
    outcomes, _ = run(create(policy), World(cluster, jobs(random.Random(seed))))
    return [outcome.start_s - outcome.job.submit_s for outcome in outcomes]


def stream(chance: random.Random, load: float) -> list[tuple[int, float, float]]:
    """Draw number, submission and run time of jobs that keep so many units busy."""
    runs_s = [round(chance.lognormvariate(4.0, 1.0), 3) for _ in range(JOBS)]
    now, rows = 0.0, []
    for number, run_s in enumerate(runs_s, 1):
        now += round(chance.expovariate(load / fmean(runs_s)), 3)
        rows.append((number, now, run_s))
    return rows


def of_one_unit(chance: random.Random) -> tuple[Arrival, ...]:
    return tuple(
        Arrival(Job(number, at_s, 1, run_s, EXACT), run_s) for number, at_s, run_s in stream(chance, 8.0)
    )


def of_one_core(chance: random.Random) -> tuple[Arrival, ...]:
    return tuple(
        Arrival(Job(number, at_s, 1, run_s, EXACT, demand=(1.0,)), run_s)
        for number, at_s, run_s in stream(chance, 8.0)
    )


def alike_on_both(chance: random.Random) -> tuple[Arrival, ...]:
    """One to four units, as long on both classes, which move at no cost."""
    arrivals = []
    for number, at_s, run_s in stream(chance, 3.0):
        times = {"a": run_s, "b": run_s}
        units = chance.choice((1, 1, 2, 3, 4))
        job = Job(number, at_s, units, estimate_kind=EXACT, stop=CHECKPOINT, estimates_s=times)
        arrivals.append(Arrival(job, run_s, times))
    return tuple(arrivals)


def of_one_unit_on_both(chance: random.Random) -> tuple[Arrival, ...]:
    arrivals = []
    for number, at_s, run_s in stream(chance, 8.0):
        times = {"a": run_s, "b": run_s}
        arrivals.append(Arrival(Job(number, at_s, 1, estimate_kind=EXACT, estimates_s=times), run_s, times))
    return tuple(arrivals)


ONE = Cluster((Pool("node", 8),))
TWINS = Cluster((Pool("a", 4, 0), Pool("b", 4, 1)))
CORES = Cluster((Pool("node", 2, resources=("cores",), capacity=(4.0,)),))
TWIN_NODES = Cluster(tuple(Pool(name, 1, resources=("cores",), capacity=(4.0,)) for name in "ab"))


@pytest.mark.parametrize(
    ("cluster", "jobs", "rival"),
    [
        (ONE, of_one_unit, "fcfs"),  # the first of the queue fits whenever anybody does
        (TWINS, of_one_unit_on_both, "easy"),
        (CORES, of_one_core, "easy"),
        (TWIN_NODES, of_one_core, "easy"),
        (TWINS, alike_on_both, "weigh,price=0"),  # equal classes have equal prices, which decide nothing
    ],
    ids=["one pool", "equal classes", "one kind of nodes", "equal kinds of nodes", "no price"],
)
def test_waits_are_within_one_percent_of_the_special_policys(
    cluster: Cluster, jobs: Jobs, rival: str
) -> None:
    """The mean, and the longest of each seed in the mean."""
    own, its = ([waits_s(policy, cluster, jobs, seed) for seed in SEEDS] for policy in ("weigh", rival))
    assert fmean(map(fmean, its)) > 10.0  # they do wait
    assert fmean(map(fmean, own)) <= 1.01 * fmean(map(fmean, its))
    assert fmean(map(max, own)) <= 1.01 * fmean(map(max, its))
