"""The job list of paper A: its distributions, its load, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.model.costs import LinearCosts
from scheduler.simulator.trace import Arrival
from scheduler.workloads import load
from scheduler.workloads.generators.migration import Migration, mean_gap_s, mean_slowness

CLUSTER = parse_cluster("512xhigh+512xlow")


def arrivals(text: str, seed: int = 0) -> list[Arrival]:
    workload = load(f"generator:migration,{text}", CLUSTER, seed)
    return list(workload.arrivals)  # type: ignore[arg-type]


def test_the_columns_are_those_of_table_4() -> None:
    jobs = arrivals("jobs=20000,mix=even")
    slow = np.array([a.runs_s["low"] for a in jobs])
    speed = slow / np.array([a.runs_s["high"] for a in jobs])
    sizes = np.array([a.job.units for a in jobs])
    per_unit_gb = np.array([a.job.memory_mb for a in jobs]) / sizes / 1024
    assert slow.min() > 0 and 85_000 < slow.max() <= 86_400 and slow.mean() == pytest.approx(43_200, rel=0.02)
    assert (
        1 <= speed.min() < 1.01 and 9.99 < speed.max() <= 10 and speed.mean() == pytest.approx(5.5, rel=0.02)
    )
    assert (
        per_unit_gb.min() > 0 and per_unit_gb.max() <= 4 and per_unit_gb.mean() == pytest.approx(2, rel=0.02)
    )
    assert set(sizes.tolist()) == {2**k for k in range(10)}
    gaps = np.diff([a.job.submit_s for a in jobs])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)  # exponential
    assert [a.job.id for a in jobs] == list(range(1, 20_001))


@pytest.mark.parametrize(
    ("mix", "mean"),
    [
        ("small", (1 + 2 + 4 + 8 + 16) / 5),
        ("even", 1023 / 10),
        ("steep", sum(2**-k for k in range(10)) / sum(4**-k for k in range(10))),
        ("large", sum(4**k for k in range(10)) / 1023),
    ],
)
def test_mean_sizes_of_the_mixes(mix: str, mean: float) -> None:
    sizes = np.array([a.job.units for a in arrivals(f"jobs=40000,mix={mix}")])
    assert sizes.mean() == pytest.approx(mean, rel=0.03)


def test_the_interval_gives_the_load() -> None:
    # E[1/X] over 1..10 is ln(10) / 9: a high unit does 3.909 low ones' work.
    assert mean_slowness(Migration()) == pytest.approx(math.log(10) / 9)
    assert mean_gap_s(Migration(), CLUSTER) == pytest.approx(
        6.2 * 43_200 / ((512 + 512 * 9 / math.log(10)) * 0.9)
    )
    assert mean_gap_s(Migration(per="units"), CLUSTER) == pytest.approx(6.2 * 43_200 / (1024 * 0.9))
    jobs = arrivals("jobs=40000,load=0.8,per=units")
    work = sum(a.job.units * a.runs_s["low"] for a in jobs)
    assert work / jobs[-1].job.submit_s / 1024 == pytest.approx(0.8, rel=0.03)
    same = Migration(least_acceleration=2.0, most_acceleration=2.0)
    assert mean_slowness(same) == 0.5


def test_costs_are_25_seconds_a_gigabyte() -> None:
    workload = load("generator:migration,jobs=1,factor=3", CLUSTER)
    (arrival,) = workload.arrivals  # type: ignore[misc]
    costs, planned = workload.settings.costs, workload.settings.planned_costs
    assert isinstance(costs, LinearCosts) and planned is not None
    gb = arrival.job.memory_mb / 1024
    assert costs.stop_s(arrival.job, "low") == pytest.approx(15 * gb)
    assert costs.restart_s(arrival.job, "high") == pytest.approx(10 * gb)
    assert planned.stop_s(arrival.job, "low") == pytest.approx(45 * gb)
    assert load("generator:migration,jobs=1", CLUSTER).settings.planned_costs is None


def test_what_is_believed_is_off_by_as_much_as_its_quantiles_say() -> None:
    workload = load("generator:migration,jobs=4000,cost_sigma=0.3,run_sigma=0.4", CLUSTER, 3)
    settings, made = workload.settings, list(workload.arrivals)  # type: ignore[arg-type]
    assert settings.planned_costs is not None
    below, costs_below = [], []
    for (job, _, runs_s, *_), exact in zip(made, arrivals("jobs=4000", 3), strict=True):
        assert runs_s == exact.runs_s and job.submit_s == exact.job.submit_s
        for pool, quantiles in job.quantiles_s.items():
            assert job.estimates_s[pool] == quantiles.middle
            below.append([runs_s[pool] <= value for value in quantiles])
        true = settings.costs.move_s(job, "low", "high").middle
        costs_below.append([true <= value for value in settings.planned_costs.move_s(job, "low", "high")])
    assert np.mean(below, axis=0) == pytest.approx([0.1, 0.5, 0.9], abs=0.02)
    low, middle, high = np.mean(costs_below, axis=0)
    assert low < 0.1 and middle == pytest.approx(0.5, abs=0.06) and high == pytest.approx(0.9, abs=0.03)


def test_same_seed_same_jobs_and_a_longer_list_begins_alike() -> None:
    few, many = arrivals("jobs=100", 7), arrivals("jobs=5000", 7)
    assert few == many[:100] and few == arrivals("jobs=100", 7) and few != arrivals("jobs=100", 8)


@pytest.mark.parametrize(
    "text",
    [
        "jobs=0",
        "load=0",
        "most_units=500",
        "factor=-1",
        "run_sigma=-1",
        "most_acceleration=0.5",
        "mix=big",
        "load=inf",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        arrivals(text)


@pytest.mark.parametrize("cluster", ["1024", "512xhigh+256xlow", "4xa[cpu=1]+4xb[cpu=1]"])
def test_clusters_that_do_not_suit_are_refused(cluster: str) -> None:
    with pytest.raises(BadInput, match="generator migration"):
        load("generator:migration,mix=even", parse_cluster(cluster))
