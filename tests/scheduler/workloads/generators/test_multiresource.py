"""The generator of tasks with several resources: the figures it promises, closed loop and open stream."""

from __future__ import annotations

import math

import numpy as np
import pytest

from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import Stop
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder
from scheduler.workloads import load
from scheduler.workloads.arrivals import offered_load

CLUSTER = parse_cluster("16xnode[cpu=2,memory=4]")


def stream(text: str, seed: int = 0) -> list[Arrival]:
    """Load an open stream of tasks."""
    return list(load(f"generator:multiresource,load=0.5,{text}", CLUSTER, seed).arrivals)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("like", "cvs", "correlation", "run_cv"),
    [("google", (0.81, 0.91), 0.33, 2.97), ("alibaba", (0.38, 0.34), 0.28, 6.60)],
)
def test_the_papers_table_1(like: str, cvs: tuple[float, float], correlation: float, run_cv: float) -> None:
    arrivals = stream(f"like={like},jobs=200000,demand=0.02")
    demands = np.array([arrival.job.demand for arrival in arrivals])
    assert demands.mean(axis=0) == pytest.approx([0.02 * 2, 0.02 * 4], rel=0.01)
    assert demands.std(axis=0) / demands.mean(axis=0) == pytest.approx(cvs, rel=0.02)
    assert np.corrcoef(demands.T)[0, 1] == pytest.approx(correlation, abs=0.02)
    logs = np.log([arrival.run_s for arrival in arrivals])
    # The cv of a sample of so long a tail says little: compare the distribution's, by its upper quantiles.
    sigma = (np.quantile(logs, 0.99) - np.quantile(logs, 0.5)) / 2.3263
    assert math.sqrt(math.expm1(sigma**2)) == pytest.approx(run_cv, rel=0.06)


def test_an_open_stream_offers_its_load_and_a_seed_names_it() -> None:
    arrivals = stream("jobs=9000", seed=5)
    assert offered_load(arrivals, CLUSTER) == pytest.approx(0.5, rel=0.01)
    assert arrivals == stream("jobs=9000", seed=5) != stream("jobs=9000", seed=6)
    assert all(a.job.stop is Stop.PAUSE and a.job.estimate_s is None for a in arrivals)


def test_users_submit_as_one_over_k() -> None:
    users = [arrival.job.user for arrival in stream("jobs=20000,users=3")]
    shares = [users.count(f"u{k}") / len(users) for k in (1, 2, 3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.02)


def test_a_closed_loop_keeps_the_load() -> None:
    workload = load("generator:multiresource,jobs=3000,like=alibaba", CLUSTER, 1)
    record = OutcomeRecorder()
    Simulator(CLUSTER, workload.arrivals, create("las"), workload.settings, sinks=[record]).run()
    assert len(record.outcomes) == 3000
    last = max(outcome.job.submit_s for outcome in record.outcomes)
    for time in np.linspace(0, last, 20):
        inside = [o.job.demand for o in record.outcomes if o.job.submit_s <= time < o.end_s]
        load_now = math.hypot(*(np.sum(inside, axis=0) / 16 / np.array([2, 4])))
        assert math.sqrt(2) <= load_now < math.sqrt(2) + 0.1


@pytest.mark.parametrize(
    "text", ["jobs=0", "users=0", "closed-load=0", "load=0", "demand=1.5", "like=google2", "demand=0"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        load(f"generator:multiresource,{text}", CLUSTER)


def test_two_resources_are_needed() -> None:
    with pytest.raises(BadInput, match="CPU and memory"):
        load("generator:multiresource", parse_cluster("16"))
