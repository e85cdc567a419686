"""The speed of MCT and its family on paper A's machine; mct against a plain program for the same schedule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from heapq import heappop, heappush

import pytest

from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import instant
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder
from scheduler.workloads import load
from tests.benchmarks import amount

JOBS = amount(100_000, 5_000, 200)
CLUSTER = parse_cluster("512xhigh+512xlow")
MIXES = ("small,per=harmonic", "even,per=units")

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]


class Lane:
    """The end of one class's queue: its last start, what is free then, and the ends to come."""

    def __init__(self, units: int) -> None:
        self.free, self.last, self.ends = units, 0.0, list[tuple[float, int]]()

    def start(self, units: int, now: float) -> float:
        at = max(now, self.last)
        while self.ends and self.ends[0][0] <= at:
            self.free += heappop(self.ends)[1]
        free, ends = self.free, self.ends.copy()
        while free < units:
            at, more = heappop(ends)
            free += more
        return at

    def take(self, start: float, end: float, units: int) -> None:
        while self.ends and self.ends[0][0] <= start:
            self.free += heappop(self.ends)[1]
        self.free -= units
        self.last = start
        heappush(self.ends, (end, units))


def plain_mct(arrivals: Sequence[Arrival]) -> dict[int, float]:
    """Compute the starts of mct alone: no events, no checks, no figures."""
    lanes = {pool.name: Lane(pool.units) for pool in CLUSTER.pools}
    starts = {}
    for job, _, runs, *_ in arrivals:
        found = []
        for name, lane in lanes.items():
            start = lane.start(job.units, job.submit_s)
            found.append((instant(start + runs[name]), start, name))
        end, start, name = min(found)
        lanes[name].take(start, end, job.units)
        starts[job.id] = start
    return starts


def jobs(mix: str) -> list[Arrival]:
    return list(load(f"generator:migration,jobs={JOBS},mix={mix}", CLUSTER, 1).arrivals)  # type: ignore[arg-type]


@pytest.mark.parametrize("mix", MIXES)
def test_mct_against_a_plain_program(mix: str) -> None:
    arrivals = jobs(mix)
    began = time.process_time()
    expected = plain_mct(arrivals)
    plain = time.process_time() - began
    record = OutcomeRecorder()
    began = time.process_time()
    Simulator(CLUSTER, arrivals, create("mct"), sinks=[record]).run()
    ours = time.process_time() - began
    assert {outcome.job.id: outcome.start_s for outcome in record.outcomes} == expected
    print(f"BENCH mct {mix}, {JOBS} jobs: {ours:.1f} s, plain Python {plain:.1f} s, ratio {ours / plain:.1f}")


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("policy", ["mct", "mctb", "mctm", "mctbm", "mctbm-priced"])
def test_seconds_for_the_papers_jobs(policy: str, mix: str) -> None:
    workload = load(f"generator:migration,jobs={JOBS},mix={mix}", CLUSTER, 1)
    metrics = Accumulator(CLUSTER)
    began = time.process_time()
    Simulator(CLUSTER, workload.arrivals, create(policy), workload.settings, sinks=[metrics]).run()
    seconds = time.process_time() - began
    found = metrics.metrics()
    print(f"BENCH {policy} {mix}: {JOBS} jobs in {seconds:.1f} s, {found.migrations} migrations")
    assert found.jobs == JOBS
