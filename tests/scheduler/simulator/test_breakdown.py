"""Waiting while units were free, and while they were not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings

from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator, WaitBreakdown
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder
from tests.support.amounts import examples
from tests.support.scheduling.worlds import World, classes


def test_by_hand() -> None:
    # 2 units. Job 1 holds one until 10, job 2 wants both: 10 s with too few (B). Job 3 wants one, which is
    # free until 10 (8 s of waiting: A), but job 2 holds both until 15 (5 s: B).
    cluster = Cluster((Pool("node", 2),))
    jobs = [Arrival(Job(1, 0, 1), 10), Arrival(Job(2, 0, 2), 5), Arrival(Job(3, 2, 1), 1)]
    waits = WaitBreakdown(cluster)
    Simulator(cluster, jobs, create("fcfs"), sinks=[waits]).run()
    assert waits.means() == (pytest.approx(8 / 3), pytest.approx(15 / 3))


def test_nothing_is_nothing() -> None:
    assert WaitBreakdown(Cluster((Pool("node", 2),))).means() == (0.0, 0.0)


@settings(max_examples=examples(60))
@given(classes())
def test_as_counted_moment_by_moment(world: World) -> None:
    waits, record, metrics = WaitBreakdown(world.cluster), OutcomeRecorder(), Accumulator(world.cluster)
    sinks = [waits, record, metrics]
    Simulator(world.cluster, world.arrivals, create("mctbm"), world.settings, sinks=sinks).run()
    segments = [s for o in record.outcomes for s in o.segments]
    turns = sorted({t for s in segments for t in s[2:]} | {o.job.submit_s for o in record.outcomes})
    under_a = under_b = 0.0
    for begin, end in pairwise(turns):
        held = [s for s in segments if s.start_s <= begin < s.end_s]
        free = {p.name: p.units for p in world.cluster.pools}
        for segment in held:
            free[segment.placement.pool] -= segment.placement.units
        for outcome in record.outcomes:
            busy = any(s.start_s <= begin < s.end_s for s in outcome.segments)
            if outcome.job.submit_s <= begin < outcome.end_s and not busy:
                if any(free[name] >= outcome.job.units for name in outcome.job.estimates_s):
                    under_a += end - begin
                else:
                    under_b += end - begin
    n = len(record.outcomes)
    assert waits.means() == (pytest.approx(under_a / n, abs=1e-6), pytest.approx(under_b / n, abs=1e-6))
    assert sum(waits.means()) == pytest.approx(metrics.metrics().mean_wait_s, abs=1e-4)
