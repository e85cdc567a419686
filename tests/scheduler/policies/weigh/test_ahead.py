"""Weigh's plan for the makespan: against all schedules of few jobs, and for how long one is passed."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool
from scheduler.model.speeds import TabulatedSpeed
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival
from tests.support.amounts import examples
from tests.support.scheduling.worlds import World, run

UNITS, POLICY = 4, "weigh,aim=makespan"


def moldable(number: int, at_s: float, times_s: tuple[float, ...]) -> Job:
    """Make a job of these run times on 1, 2, ... units."""
    speed = TabulatedSpeed(1, tuple(times_s[0] / seconds for seconds in times_s))
    most = len(times_s) if len(times_s) > 1 else None
    return Job(number, at_s, 1, times_s[0], estimate_kind=EstimateKind.EXACT, max_units=most, speed=speed)


def starts_and_end(jobs: list[Job], policy: str = POLICY) -> tuple[dict[int, float], float]:
    world = World(Cluster((Pool("gpu", UNITS),)), tuple(Arrival(job, job.estimate_s or 0.0) for job in jobs))
    outcomes = run(create(policy), world)[0]
    return {o.job.id: o.start_s for o in outcomes}, max(o.end_s for o in outcomes)


def least(times_s: list[tuple[float, ...]]) -> float:
    """Shortest of all schedules: each order and size, each job as early as it fits."""

    def makespan(runs: tuple[tuple[int, float], ...]) -> float:
        placed: list[tuple[float, float, int]] = []
        for units, seconds in runs:
            for start in sorted({0.0, *(end for _, end, _ in placed)}):
                at = [start, *(s for s, _, _ in placed if start < s < start + seconds)]
                if all(sum(u for s, e, u in placed if s <= t < e) + units <= UNITS for t in at):
                    placed.append((start, start + seconds, units))
                    break
        return max(end for _, end, _ in placed)

    sizes = [list(enumerate(times, 1)) for times in times_s]
    return min(makespan(order) for runs in product(*sizes) for order in permutations(runs))


def test_few_jobs_are_done_nearly_as_early_as_can_be() -> None:
    ratios = []
    for seed in range(examples(24)):
        rng = np.random.default_rng(seed)
        times = [tuple(map(float, rng.integers(10, 60, rng.integers(1, UNITS)).tolist())) for _ in range(5)]
        _, end_s = starts_and_end([moldable(number, 0.0, own) for number, own in enumerate(times, 1)])
        ratios.append(end_s / least(times))
    assert min(ratios) > 1 - 1e-6
    assert np.mean(ratios) < 1.02 and max(ratios) < 1.1


def test_the_first_is_passed_for_no_longer_than_a_plan() -> None:
    """A wide job that comes second, and small ones that always fit beside what runs."""
    wide = Job(2, 1.0, UNITS, 10.0, estimate_kind=EstimateKind.EXACT, speed=TabulatedSpeed(UNITS, (1.0,)))
    small = [moldable(number, 2.0 * (number != 1) * (number - 2), (10.0,)) for number in (1, *range(3, 200))]
    starts, _ = starts_and_end([small[0], wide, *small[1:]])
    assert starts[2] < 40.0
    assert sum(start > starts[2] for start in starts.values()) > 150


def test_lengths_that_are_not_known_are_not_planned() -> None:
    """They start as they come, as in other policies."""
    jobs = [Job(number, 0.0, 2, None, speed=TabulatedSpeed(2, (1.0,))) for number in range(1, 4)]
    world = World(Cluster((Pool("gpu", UNITS),)), tuple(Arrival(job, 10.0) for job in jobs))
    assert [o.start_s for o in sorted(run(create(POLICY), world)[0], key=lambda o: o.job.id)] == [0, 0, 10]
