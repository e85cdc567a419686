"""Processor time of weigh's decisions in long queues: after one change, and from nothing."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence

import pytest

from scheduler.model.clusters import parse_cluster
from scheduler.model.events import Action, Event
from scheduler.model.jobs import CHECKPOINT, EstimateKind, Job
from scheduler.model.speeds import CappedSpeed
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.policies.weigh.weigh import Weigh
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival
from scheduler.workloads.generators.power_sets import small_machine
from tests.benchmarks import amount

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
MEDIAN_MS, LONGEST_MS, RATIO = 5, 100, 50  # what is aimed at with 10,000 waiting
DECISIONS = amount(1000, 300, 20)
EVERY_S = 5.0  # a submission, after the many at once
MACHINES = {
    "pool": parse_cluster("256"),
    "classes": parse_cluster("64xgpu+256xcpu"),
    "nodes": parse_cluster("32xa[cores=64,memory_mb=512000,gpu=2]+64xb[cores=128,memory_mb=256000,gpu=4]"),
    "malleable": parse_cluster("256"),
    "caps": small_machine(budget_w=3850.0),
}


def crowd(kind: str, waiting: int) -> Iterator[Arrival]:
    """Many jobs at once, then one after the other, no two alike."""
    chance, cluster = random.Random(1), MACHINES[kind]
    for number in range(1, waiting + 2 * DECISIONS):
        submit_s = max(0, number - waiting) * EVERY_S
        run_s = round(chance.lognormvariate(5.0, 1.5), 3)
        units = chance.choice((1, 1, 1, 2, 4, 8, 16, 32))
        job = Job(number, submit_s, units, run_s * chance.uniform(1.0, 4.0))
        if kind == "pool":
            yield Arrival(job, run_s)
        elif kind == "classes":
            runs_s = {pool.name: run_s * chance.uniform(1.0, 4.0) for pool in cluster.pools}
            exact = EstimateKind.EXACT
            yield Arrival(
                Job(number, submit_s, units, estimate_kind=exact, stop=CHECKPOINT, estimates_s=runs_s),
                0.0,
                runs_s,
            )
        elif kind == "nodes":
            cores = chance.choice((1.0, 2.0, 4.0, 8.0, 16.0, 32.0))
            demand = cores, cores * chance.uniform(1e3, 8e3), chance.choice((0.0, 0.0, 1.0, 2.0))
            tasks = chance.choice((*(9 * (1,)), 2, 4))
            yield Arrival(Job(number, submit_s, tasks, job.estimate_s, demand=demand), run_s)
        else:
            most = chance.randint(1, 64)
            speed = CappedSpeed(float(most), chance.uniform(0.1, 2.0), chance.uniform(0.005, 0.03))
            malleable = kind == "malleable"
            yield Arrival(
                Job(
                    number,
                    submit_s,
                    1,
                    run_s,
                    EstimateKind.EXACT,
                    max_units=most,
                    malleable=malleable,
                    speed=speed,
                ),
                run_s,
            )


class Timed(Weigh):
    """Notes how long each decision takes; the last one is made once more by a policy that begins with it."""

    def begin(self, view: View) -> None:
        self.took_s: list[float] = []
        self.anew_s = 0.0
        super().begin(view)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if len(self.took_s) == DECISIONS:
            began = time.thread_time()
            fresh = create("weigh")
            fresh.begin(view)
            fresh.decide(view, event)
            self.anew_s = time.thread_time() - began
            raise StopIteration
        began = time.thread_time()
        actions = super().decide(view, event)
        if view.upcoming is None:  # nothing is decided before all of an instant have come
            self.took_s.append(time.thread_time() - began)
        return actions


@pytest.mark.parametrize("waiting", amount([10_000, 100_000], [10_000, 100_000], [300]))
@pytest.mark.parametrize("kind", MACHINES)
def test_many_jobs_wait(kind: str, waiting: int) -> None:
    policy = Timed()
    with pytest.raises(StopIteration):
        Simulator(MACHINES[kind], crowd(kind, waiting), policy).run()
    first_s, *later_s = policy.took_s
    median_s = statistics.median(later_s)
    print(
        f"BENCH weigh, {kind}, {waiting} waiting: {1e3 * first_s:.0f} ms at first, then "
        f"{1e3 * median_s:.2f} ms in the median, at most {1e3 * max(later_s):.1f} "
        f"(aims at 10,000: {MEDIAN_MS} and {LONGEST_MS}); "
        f"from nothing {1e3 * policy.anew_s:.0f} ms, ratio {policy.anew_s / median_s:.0f} (aim {RATIO})"
    )
