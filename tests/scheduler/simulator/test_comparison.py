"""Intervals of differences, against differences that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.policies.registry import create
from scheduler.simulator.metrics import COMPARED, Accumulator, PolicyDifference, differences, half_width
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival
from scheduler.workloads.arrivals import Blocks

WEEK_S = 7 * 86400.0
CLUSTER = Cluster((Pool("node", 2),))
SHORTEST_S, LONGEST_S = 60, 400
# In each week a job of L s holds one of two units, a second needs both, a third (50 s) one. In order the
# third waits until the first two have ended, L + 10 - 2 s; where whoever fits starts it waits 0 s. So the
# mean wait of three jobs differs by (L + 8) / 3, and L is uniform.
TRUE_S = -((SHORTEST_S + LONGEST_S) / 2 + 8) / 3


def week(number: int, length_s: float) -> list[Arrival]:
    jobs = ((0, 1, length_s), (1, 2, 10.0), (2, 1, 50.0))
    first = 3 * number + 1
    return [
        Arrival(Job(first + i, number * WEEK_S + at, units, run), run)
        for i, (at, units, run) in enumerate(jobs)
    ]


def log(lengths: Sequence[float]) -> list[Arrival]:
    last = Job(3 * len(lengths) + 1, len(lengths) * WEEK_S, 1, 1.0)  # so that the last week is whole
    return [arrival for i, length in enumerate(lengths) for arrival in week(i, length)] + [Arrival(last, 1.0)]


def figures(policy: str, arrivals: Sequence[Arrival]) -> Mapping[str, float | None]:
    metrics = Accumulator(CLUSTER)
    Simulator(CLUSTER, arrivals, create(policy), sinks=[metrics]).run()
    return metrics.metrics().to_dict()


def compared(lengths: Sequence[float], resamples: int, seed: int) -> dict[str, PolicyDifference]:
    arrivals = log(lengths)
    blocks = Blocks(arrivals, WEEK_S)
    drawn = [blocks.drawn(np.random.default_rng([seed, i])) for i in range(resamples)]
    pairs = [(figures("first-fit", one), figures("fcfs", one)) for one in drawn]
    whole = arrivals[:-1]
    own = figures("first-fit", whole), figures("fcfs", whole)
    return {one.metric: one for one in differences(own, pairs, blocks.count)}


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng, held, widths = np.random.default_rng(19), 0, []
    logs, weeks = 60, 12
    for seed in range(logs):
        lengths = rng.integers(SHORTEST_S, LONGEST_S + 1, weeks).astype(float).tolist()
        found = compared(lengths, 20, seed)["mean_wait_s"]
        assert found.difference == pytest.approx(-(np.mean(lengths) + 8) / 3)
        held += found.low <= TRUE_S <= found.high
        spread = np.std(lengths, ddof=1) / 3 / np.sqrt(weeks)  # of the mean of independent weeks
        widths.append(
            (found.high - found.low) / (2 * stats.t.ppf(0.975, 1 / (1 / (weeks - 1) + 1 / 19)) * spread)
        )
    # 95 % less three standard deviations; an interval of any width would hold all.
    assert 0.86 * logs <= held < logs
    assert np.mean(widths) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("weeks", [4, 8, 30])
def test_few_weeks_have_wide_intervals(weeks: int) -> None:
    rng, held, trials = np.random.default_rng(weeks), 0, 1000
    for _ in range(trials):
        sample = rng.normal(3.0, 2.0, weeks)
        drawn = rng.choice(sample, (40, weeks)).mean(axis=1).tolist()
        held += abs(sample.mean() - 3.0) <= half_width(drawn, weeks)
    assert 0.92 <= held / trials <= 0.98


def test_verdicts_know_which_direction_is_better() -> None:
    less: dict[str, float | None] = dict.fromkeys(COMPARED, 1.0)
    more: dict[str, float | None] = dict.fromkeys(COMPARED, 2.0)
    better = {one.metric: one.verdict for one in differences((less, more), [(less, more)] * 5, 5)}
    assert better.pop("utilisation_ratio") == "worse" and set(better.values()) == {"better"}
    mixed = differences((less, more), [(less, more), (more, less)] * 3, 5)
    assert {one.verdict for one in mixed} == {"not sure"}
    same = differences((less, less), [(less, less)] * 5, 5)
    assert {one.verdict for one in same} == {"same"}


def test_a_metric_that_a_workload_lacks_is_left_out() -> None:
    some: dict[str, float | None] = {**dict.fromkeys(COMPARED, 1.0), "p95_slowdown": None}
    full: dict[str, float | None] = dict.fromkeys(COMPARED, 1.0)
    found = differences((full, full), [(full, some), (full, full)], 5)
    assert {one.metric for one in found} == set(COMPARED) - {"p95_slowdown"}
