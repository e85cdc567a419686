"""The speed of EASY on nodes with several resources: made-up jobs under load, and Alibaba's GPU trace."""

from __future__ import annotations

import random
import time

import pytest

from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import Cluster, Job, instant
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival
from scheduler.workloads import load
from scheduler.workloads.arrivals import stretched
from tests.benchmarks import amount
from tests.support.paths import SHARED_DATA

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]
JOBS = amount(50_000, 20_000, 500)
AIM, LIMIT_S = 10_000, 60.0  # jobs a second under ordinary load; seconds for the trace
NODES = "64xnode[cores=64,memory_mb=512000,gpu=4,disk_gb=1000]"
PODS = SHARED_DATA / "alibaba-gpu2023-openb_pod_list_default.csv.gz"
MACHINES = SHARED_DATA / "alibaba-gpu2023-openb_node_list_all_node.csv"


def lab_jobs(jobs: int, rounded: bool) -> list[Arrival]:
    """Make jobs of one task mostly, as people ask for them, or each of another vector."""
    rng, arrivals = random.Random(1), []
    now = 0.0
    for number in range(1, jobs + 1):
        cores = float(rng.choice((1, 2, 4, 8, 16, 32)))
        memory = cores * (rng.choice((1e3, 2e3, 4e3, 8e3)) if rounded else rng.uniform(1e3, 8e3))
        disk = float(rng.choice((0, 10, 100))) if rounded else rng.uniform(0, 100)
        tasks = rng.choice((*(9 * (1,)), 2, 4))
        run_s = rng.lognormvariate(6, 1.2)
        demand = (cores, memory, float(rng.choice((0, 0, 0, 1, 1, 2, 4))), disk)
        now += rng.expovariate(1)
        limit_s = run_s * rng.choice((1, 2, 5))
        arrivals.append(Arrival(Job(number, instant(now), tasks, limit_s, demand=demand), run_s))
    return arrivals


def jobs_per_s(cluster: Cluster, arrivals: list[Arrival], policy: str) -> float:
    simulator = Simulator(cluster, iter(arrivals), create(policy))
    began = time.process_time()
    summary = simulator.run()
    assert summary.jobs + sum(summary.refused.values()) == len(arrivals)
    return summary.jobs / (time.process_time() - began)


@pytest.mark.parametrize("rounded", [True, False], ids=["round", "any"])
@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy"])
def test_64_nodes_of_four_resources(policy: str, rounded: bool) -> None:
    cluster, jobs = parse_cluster(NODES), lab_jobs(JOBS, rounded)
    speeds = {at: jobs_per_s(cluster, list(stretched(jobs, cluster, at)), policy) for at in (0.8, 1.6)}
    vectors = "round vectors" if rounded else "any vectors"
    rates = ", ".join(f"{speed:,.0f} jobs/s at load {at}" for at, speed in speeds.items())
    print(
        f"BENCH {policy}, {JOBS} jobs of {vectors} on 64 nodes of 4 resources: {rates} (aim {AIM:,} at 0.8)"
    )


@pytest.mark.parametrize("policy", ["easy", "las-mq"])
def test_alibabas_gpu_trace(policy: str) -> None:
    if not PODS.exists():
        pytest.skip("the trace is not here")
    cluster = parse_cluster(str(MACHINES))
    workload = load(f"{PODS},estimate=exact", cluster)
    arrivals = list(workload.arrivals)  # type: ignore[arg-type]
    speed = jobs_per_s(cluster, arrivals, policy)
    taken_s = len(arrivals) / speed
    others = "".join(f", {number} {reason}" for reason, number in workload.skipped.items())
    print(
        f"BENCH {policy}, {len(arrivals)} pods{others}; {cluster.units} nodes: "
        f"{taken_s:.1f} s of {LIMIT_S:.0f}"
    )
