"""Outlier nodes: a cluster whose truth is known, and the rate at which an innocent node is named."""

from __future__ import annotations

import numpy as np
import pytest

from profiles.clusters import Odd, Value, odd_in, odd_ones, values
from profiles.records import Condition
from tests.support.records import make_coefficient, make_model, make_profile

NOISE = 0.02  # standard deviation of a measurement, relative


def cluster(count: int, seed: int, slow: dict[int, float] | None = None, spread: float = 0.0) -> list[Value]:
    """Nodes that write 20 GB/s, some slower by a factor, each measured with noise and its interval."""
    random = np.random.default_rng(seed)
    found = []
    for i in range(count):
        truth = 20.0 * (slow or {}).get(i, 1.0) * (1 + spread * random.normal())
        measured = truth * (1 + NOISE * random.normal())
        half = 1.96 * NOISE * measured
        found.append(Value(f"node{i}", "memory_bandwidth_gbs", "cores=1", measured, half, "GB/s"))
    return found


def test_the_slow_node_is_named_with_how_much() -> None:
    found = odd_ones(cluster(16, 1, {7: 0.82}), {})
    assert [odd.value.node for odd in found] == ["node7"]
    assert found[0].ratio == pytest.approx(0.82, abs=0.05)


def test_the_sentence() -> None:
    exact = [Value(f"node{i}", "memory_bandwidth_gbs", "cores=1", 20.0, 0.1, "GB/s") for i in range(8)]
    exact[7] = Value("node7", "memory_bandwidth_gbs", "cores=1", 16.4, 0.1, "GB/s")
    (odd,) = odd_ones(exact, {})
    assert str(odd) == "node7 writes memory 18 % slower than its siblings (cores=1)"
    lone = Odd(Value("n", "checkpoint_s", "alpha", 3.0, None, "s"), 2.0, 4, 9.0)
    assert str(lone) == "n takes 50 % longer in checkpoint_s than its siblings (alpha)"


@pytest.mark.parametrize(("count", "found"), [(3, 0.6), (5, 0.8), (8, 0.9), (16, 0.95), (64, 0.95)])
def test_found_and_falsely_accused(count: int, found: float) -> None:
    """18 % is found nearly always, of few nodes mostly; of innocent ones less than one in 100 is named."""
    trials = 200
    hit = wrong = 0
    for seed in range(trials):
        named = {odd.value.node for odd in odd_in(cluster(count, seed, {0: 0.82}))}
        hit += "node0" in named
        wrong += len({odd.value.node for odd in odd_in(cluster(count, 1000 + seed))})
    assert hit / trials > found
    assert wrong / (trials * count) < 0.01


def test_nodes_that_truly_vary_are_no_outliers() -> None:
    """A kind of node spreads by 5 %, more than a measurement does: its extremes are no outliers."""
    wrong = sum(len(list(odd_in(cluster(32, seed, spread=0.05)))) for seed in range(100))
    assert wrong / (32 * 100) < 0.01


def test_almost_half_may_be_odd() -> None:
    slow = dict.fromkeys(range(6), 0.6)
    assert {odd.value.node for odd in odd_in(cluster(16, 3, slow))} >= {f"node{i}" for i in range(6)}


def test_two_cannot_be_judged_and_kinds_are_not_held_against_each_other() -> None:
    assert not list(odd_in(cluster(2, 1, {0: 0.5})))
    mixed = cluster(8, 1, dict.fromkeys(range(4), 0.5))
    kinds = {f"node{i}": "old" if i < 4 else "new" for i in range(8)}
    assert odd_ones(mixed, kinds) == []


def test_equal_values_without_intervals_are_judged_by_the_least_difference() -> None:
    column = [
        Value(f"n{i}", "x", "", value, None, "s") for i, value in enumerate((1.0, 1.0, 1.0, 1.0, 1.04, 1.2))
    ]
    assert [odd.value.node for odd in odd_in(column)] == ["n5"]


def test_values_of_profiles() -> None:
    poor = make_model(make_coefficient(quality="poor"), labels={"cores": "4"})
    found = values({"a": make_profile(models=(make_model(make_coefficient(20.0, 19.0, 21.0)), poor))})
    assert [(v.node, v.subject, v.value, v.half) for v in found if not v.poor] == [
        ("a", "cores=1 numa=local", 20.0, 1.0)
    ]
    assert [v.subject for v in found if v.poor] == ["cores=4"]


@pytest.mark.parametrize(
    ("readings", "half", "poor"),
    [([1.0], 0.0, True), ([1.0, 1.5, 1.2], 0.25, False), ([1.0, *[1.1] * 20, 9.0], 0.0, False)],
)
def test_the_cpu_loop_is_judged_from_three_readings_on(
    readings: list[float], half: float, poor: bool
) -> None:
    visits = [
        Condition(probe="p", round=i, duration_s=1, reference_s=s, steal_ratio=0, others_ratio=0)
        for i, s in enumerate(readings)
    ]
    (loop, _) = values({"a": make_profile(conditions=tuple(visits))})
    assert loop.half == pytest.approx(half) and loop.poor is poor
