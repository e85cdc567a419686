"""Resampled traces: spread and correlation are met, nothing else changes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder
from scheduler.workloads import Workload, load
from scheduler.workloads.arrivals import Closed, offered_load
from scheduler.workloads.generators.multiresource import correlated, correlation, cv, with_cv
from tests.support.amounts import examples
from tests.support.paths import DATA, SHARED_DATA

EXCERPT = DATA / "google2011-task_events-excerpt.csv"
SHARD = SHARED_DATA / "google2011-task_events-part-00000.csv.gz"
NODES = Cluster((Pool("node", 4, resources=("cpu", "memory"), capacity=(1.0, 1.0)),))
QUICK = settings(max_examples=examples(80))
seeds = st.integers(0, 2**32)
margins = st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=60).map(np.array)


def resampled(text: str, seed: int = 1, cluster: Cluster = NODES) -> tuple[list[Arrival], Workload]:
    workload = load(f"generator:resample,trace={text}", cluster, seed)
    return list(workload.arrivals), workload  # type: ignore[arg-type]


def columns(arrivals: list[Arrival]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    demands = np.array([a.job.demand for a in arrivals])
    return demands[:, 0], demands[:, 1], np.array([a.run_s for a in arrivals])


@QUICK
@given(margins, st.floats(0.05, 5.0))
def test_cv_is_met_the_mean_and_the_order_stay(values: np.ndarray, wanted: float) -> None:
    largest = math.sqrt(len(values) / (values == values.max()).sum() - 1)
    if wanted > largest * 0.999:
        assume(wanted > largest)
        with pytest.raises(BadInput, match="cannot be reached, only"):
            with_cv(values, wanted, "cpu_cv")
        return
    found = with_cv(values, wanted, "cpu_cv")
    assert cv(found) == pytest.approx(wanted, rel=1e-6)
    assert found.mean() == pytest.approx(values.mean()) and (found > 0).all()
    assert (np.diff(found[np.argsort(values, kind="stable")]) >= 0).all()


@QUICK
@given(seeds, st.floats(-0.5, 0.6), st.floats(0.2, 0.8))
def test_correlation_is_met_and_the_values_stay(seed: int, wanted: float, sigma: float) -> None:
    rng = np.random.default_rng(seed)
    first, second = np.exp(sigma * rng.normal(size=400)), np.exp(rng.normal(size=400) / 2)
    try:
        found = correlated(first, second, wanted, np.random.default_rng(7))
    except BadInput as error:
        highest = correlation(np.sort(first), np.sort(second))
        lowest = correlation(np.sort(first), np.sort(second)[::-1])
        assert not lowest <= wanted <= highest and "cannot be reached" in str(error)
        return
    assert correlation(first, found) == pytest.approx(wanted, abs=1e-3)
    assert sorted(found) == sorted(second)
    assert (correlated(first, second, wanted, np.random.default_rng(7)) == found).all()


def test_values_that_are_equal_can_be_correlated() -> None:
    """As in the traces, where few different requests occur."""
    rng = np.random.default_rng(3)
    first, second = rng.choice([0.5, 1.0, 4.0], 2000, p=[0.7, 0.29, 0.01]), rng.choice([1.0, 2.0, 3.0], 2000)
    for wanted in (-0.3, 0.0, 0.28, 0.4):
        assert correlation(first, correlated(first, second, wanted, rng)) == pytest.approx(wanted, abs=1e-3)


def test_the_rest_of_a_job_stays() -> None:
    plain = list(load(str(EXCERPT), NODES).arrivals)  # type: ignore[arg-type]
    same, workload = resampled(str(EXCERPT))
    assert same == plain and "in the trace CPU" in workload.note
    found, workload = resampled(f"{EXCERPT},cpu_cv=0.6,memory_cv=0.5,correlation=0.3,run_cv=1.5")
    cpu, memory, run = columns(found)
    assert (cv(cpu), cv(memory), cv(run)) == pytest.approx((0.6, 0.5, 1.5), rel=1e-6)
    assert (
        f"(correlation {correlation(cpu, memory):.3f})" in workload.note
    )  # 0.46: 26 of 27 want the same CPU
    for a, b in zip(found, plain, strict=True):
        assert (a.job.id, a.job.submit_s, a.job.user) == (b.job.id, b.job.submit_s, b.job.user)
    assert "CPU 0.600, memory 0.500 (" in workload.note and "run time 1.500 (in the trace" in workload.note
    assert sum(workload.skipped.values()) == 39


def test_same_seed_same_stream() -> None:
    text = f"{EXCERPT},correlation=0.2,jobs=100,load=0.8"
    assert resampled(text, 4)[0] == resampled(text, 4)[0] != resampled(text, 5)[0]


def test_drawn_jobs_offer_the_load() -> None:
    found, _ = resampled(f"{EXCERPT},jobs=500,load=0.8,run_cv=2")
    assert len(found) == 500 and [a.job.id for a in found] == list(range(1, 501))
    assert offered_load(found, NODES) == pytest.approx(0.8, rel=1e-4)
    assert cv(columns(found)[2]) == pytest.approx(2, rel=1e-6)
    gaps = np.diff([a.job.submit_s for a in found])
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.2)  # exponential


def test_closed_loop_runs_to_the_end() -> None:
    cluster, record = Cluster((Pool("node", 8),)), OutcomeRecorder()
    workload = load(f"generator:resample,trace={EXCERPT};limit=20,jobs=60,closed_load=1.5", cluster, 2)
    assert isinstance(workload.arrivals, Closed)
    Simulator(cluster, workload.arrivals, create("fcfs"), sinks=[record]).run()
    assert len(record.outcomes) == 60


def test_estimates_follow_the_run_times(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    log.write_text("1 0 -1 10 4 -1 -1 4 20\n2 5 -1 30 4 -1 -1 4 -1\n3 9 -1 90 1 -1 -1 1 90\n")
    found, workload = resampled(f"{log},run_cv=0.4")
    ratios = [a.job.estimate_s and a.job.estimate_s / a.run_s for a in found]
    assert ratios == [pytest.approx(2), None, pytest.approx(1)] and "CPU" not in workload.note
    with pytest.raises(BadInput, match="the jobs state no demand of CPU and memory"):
        resampled(f"{log},cpu_cv=0.4")


@pytest.mark.parametrize("like", ["google", "alibaba"])
def test_the_papers_table_1_from_the_shard(like: str) -> None:
    if not SHARD.exists():
        pytest.skip("the published trace is not here")
    wanted = {"google": (0.81, 0.91, 0.33, 2.97), "alibaba": (0.38, 0.34, 0.28, 6.60)}[like]
    cpu, memory, run = columns(resampled(f"{SHARD};every=4,like={like}")[0])
    assert len(cpu) > 9000
    assert (cv(cpu), cv(memory), cv(run)) == pytest.approx((*wanted[:2], wanted[3]), rel=1e-6)
    assert correlation(cpu, memory) == pytest.approx(wanted[2], abs=1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it needs a trace"),
        ("nothing.csv", "nothing.csv: no such file"),
        (f"{EXCERPT},cpu_cv=0", "must be above 0"),
        (f"{EXCERPT},cpu_cv=40", "cpu_cv 40 cannot be reached"),
        (f"{EXCERPT},correlation=2", "from -1 to 1"),
        (f"{EXCERPT},correlation=-0.99", "correlation -0.99 cannot be reached"),
        (f"{EXCERPT},jobs=9", "jobs needs load or closed_load"),
        (f"{EXCERPT},jobs=1,load=1", "at least 2"),
        (f"{EXCERPT},load=1,closed_load=1", "either load or closed_load"),
        (f"{EXCERPT};limit=1", "holds 1 job"),
        (f"generator:resample;trace={EXCERPT};closed_load=1", "no such file|reacts to the schedule"),
    ],
)
def test_what_cannot_be_is_one_line(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        resampled(text)
    assert "\n" not in str(error.value)
