"""Quantiles of what is left of a time, against scipy's log-normal distribution; costs that scatter."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scheduler.model.clusters import parse_cluster
from scheduler.model.costs import LinearCost, LinearCosts, ScatteredCosts
from scheduler.model.jobs import Job, JobState, Placement, Stop
from scheduler.model.quantiles import TO_HIGH, Quantiles, exactly
from scheduler.model.state import ClusterState


@given(st.floats(1.0, 1e5), st.floats(0.05, 2.0), st.floats(0.0, 3.0))
def test_what_is_left_is_that_of_the_conditional_distribution(
    middle: float, sigma: float, passed: float
) -> None:
    spread = math.exp(TO_HIGH * sigma)
    passed_s, whole = middle * passed, stats.lognorm(sigma, scale=middle)
    survivors = whole.sf(passed_s)
    if survivors < 1e-9:
        return
    left = Quantiles(middle / spread, middle, middle * spread).left_after(passed_s)
    for value, level in zip(left, (0.1, 0.5, 0.9), strict=True):
        assert whole.sf(passed_s + value) / survivors == pytest.approx(1 - level, rel=1e-6)


def test_each_side_of_the_middle_has_its_own_spread() -> None:
    whole = Quantiles(50.0, 100.0, 800.0)
    assert whole.left_after(0.0) == whole
    assert whole.left_after(1.0) == pytest.approx((49.0, 99.0, 799.0), rel=0.01)
    # Of those that last longer than 100 s, which is every second one, 80 % end before 800 s.
    low, middle, high = whole.left_after(100.0)
    assert low < middle < 700.0 < high


@given(st.floats(0.1, 1e6), st.floats(0.0, 1e7))
def test_of_what_is_known_exactly_the_rest_is_left(value: float, passed: float) -> None:
    left = exactly(value).left_after(passed)
    assert left == pytest.approx(exactly(max(value - passed, 0.0)), abs=1e-6 * value)
    assert exactly(math.inf).left_after(passed) == exactly(math.inf)


def test_a_job_that_lasts_longer_than_believed_is_taken_for_a_long_one() -> None:
    """Known by the middle on a device, by the high quantile on cores; halves are left after a move."""
    predicted = Quantiles(50.0, 100.0, 200.0)
    for planned_s in (100.0, 200.0):
        job = Job(1, 0.0, estimate_s=planned_s, quantiles_s={"": predicted})
        state = ClusterState(parse_cluster("1"))
        state.submit(job)
        running = state.start(1, Placement("node", 1))
        for now in (0.0, 60.0, 150.0, 500.0):
            assert running.left(now) == pytest.approx(predicted.left_after(now))
    on_gpu = Job(1, 0.0, estimates_s={"gpu": 10.0}, quantiles_s={"gpu": exactly(10.0)})
    moved = JobState(job=on_gpu, since_s=0.0, done=0.5)
    assert moved.left(0.0, "gpu") == pytest.approx(exactly(5.0), abs=1e-6)
    assert JobState(job=Job(1, 0.0), since_s=0.0).left(0.0) == exactly(math.inf)


def test_errors_of_stop_and_restart_are_added_as_independent() -> None:
    line = LinearCost(0.01, 1.0, 0.003, 0.0), LinearCost(0.02, 2.0, 0.0, 4.0)
    costs = LinearCosts({"cpu": line[0]}, {"gpu": line[1]}, factor=2.0)
    job = Job(1, 0.0, memory_mb=1000.0, stop=Stop.CHECKPOINT)
    assert costs.move_s(job, "cpu", "gpu") == pytest.approx((66.0 - 10.0, 66.0, 66.0 + 10.0))
    assert costs.move_s(job, "gpu", "cpu") == exactly(0.0)
    assert LinearCosts(pause_s=1.0).move_s(Job(1, 0.0, stop=Stop.PAUSE), "cpu", "cpu") == exactly(1.0)


def test_true_costs_scatter_about_the_predicted_ones() -> None:
    line = {"cpu": LinearCost(0.01, 0.0)}
    costs = ScatteredCosts(LinearCosts(line, line), 0.3, seed=5)
    jobs = [Job(number, 0.0, memory_mb=1000.0, stop=Stop.CHECKPOINT) for number in range(2000)]
    logs = np.log([[costs.stop_s(job, "cpu"), costs.restart_s(job, "cpu")] for job in jobs]) - math.log(10.0)
    assert np.abs(logs.mean(axis=0)).max() < 0.03 and logs.std(axis=0) == pytest.approx(0.3, rel=0.06)
    assert abs(np.corrcoef(logs.T)[0, 1]) < 0.1
    for job in jobs[:5]:
        assert costs.stop_s(job, "cpu") == costs.stop_s(job, "cpu")
        assert costs.move_s(job, "cpu", "cpu") == exactly(
            costs.stop_s(job, "cpu") + costs.restart_s(job, "cpu")
        )
