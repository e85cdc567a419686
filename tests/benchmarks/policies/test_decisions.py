"""Processor time of decisions with many jobs waiting of which no two are alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import Cluster, EstimateKind, Job
from scheduler.model.speeds import CappedSpeed
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival
from scheduler.workloads.generators.power_sets import small_machine
from tests.benchmarks import amount

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
WAITING, DECISIONS = amount((10_000, 30), (10_000, 10), (300, 3))
EVERY_S = 10.0  # a submission, after the many at once
MACHINES = {"las-mq": parse_cluster("4xgpu+8xcpu"), "parm": small_machine(1_000, 60_000.0)}


def crowd(cluster: Cluster) -> Iterator[Arrival]:
    """Many jobs at once, then one after the other; each with run times and a speed of its own."""
    chance = random.Random(1)
    for number in range(1, WAITING + 10 * DECISIONS):
        submit_s = max(0, number - WAITING) * EVERY_S
        run_s = round(chance.lognormvariate(5.0, 1.5), 3)
        if cluster.budget_w is not None:
            size = chance.randint(1, 64)
            speed = CappedSpeed(float(size), chance.uniform(0.1, 2.0), chance.uniform(0.005, 0.03))
            job = Job(number, submit_s, 1, run_s, EstimateKind.EXACT, max_units=size, speed=speed)
            yield Arrival(job, run_s)
        else:
            runs_s = {pool.name: run_s * chance.uniform(1.0, 4.0) for pool in cluster.pools}
            yield Arrival(Job(number, submit_s, estimates_s=runs_s), 0.0, runs_s)


@pytest.mark.parametrize("policy", MACHINES)
def test_many_jobs_wait(policy: str) -> None:
    cluster, waiting, times = MACHINES[policy], 0, [time.process_time()]

    def watch(view: View) -> None:
        nonlocal waiting
        waiting = len(view.waiting)
        if view.now >= EVERY_S or not view.upcoming:  # nothing is decided before all have come
            times.append(time.process_time())
        if len(times) > DECISIONS + 2:
            raise StopIteration

    with pytest.raises(StopIteration):
        Simulator(cluster, crowd(cluster), create(policy), observer=watch).run()
    first_s, *later_s = [after - before for before, after in pairwise(times)]
    print(
        f"BENCH {policy}, {waiting} jobs waiting, no two alike: {first_s:.2f} s at first, then "
        f"{statistics.median(later_s):.4f} s a decision, at most {max(later_s):.4f} s"
    )
