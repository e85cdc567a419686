"""Believed ends of jobs that share nodes: they follow who comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given

from scheduler.model.interference import Pressure, SharedNodeInterference, Slowdowns, load_pairs
from scheduler.model.jobs import Cluster, EstimateKind, Job, JobState, Placement, Pool
from scheduler.model.state import ClusterState
from scheduler.policies.base import View
from scheduler.policies.registry import create
from tests.support.scheduling.worlds import World, run, sharing

POOL = Pool("node", 1, resources=("cores",), capacity=(4.0,))
HERE = Placement("node", 1, ((0, 1),))


@dataclass(frozen=True)
class Halved(Slowdowns):
    """All programs are half as fast beside others."""

    def factor(self, program: str, binding: str, beside: Sequence[str]) -> float:
        return 2.0 if beside else 1.0

    def pressure(self, program: str) -> Pressure | None:
        return None


def cluster() -> ClusterState:
    return ClusterState(Cluster((POOL,)), slowdowns=Halved())


def start(state: ClusterState, number: int, kind: EstimateKind = EstimateKind.EXACT) -> JobState:
    """Start a job of 100 s."""
    state.submit(Job(number, state.now, 1, 100.0, estimate_kind=kind, demand=(1.0,)))
    return state.start(number, HERE)


def test_an_end_is_later_beside_others_and_earlier_when_they_leave() -> None:
    """From 40 s on both are half as fast: the first has 60 s of work left then, and the second 100."""
    state = cluster()
    first = start(state, 1)
    assert first.expected_end_s == 100.0
    state.now = 40.0
    second = start(state, 2)
    assert (first.expected_end_s, second.expected_end_s) == (160.0, 240.0)
    state.now = 100.0
    assert (first.remaining_s(100.0), second.remaining_s(100.0)) == pytest.approx((30.0, 70.0))
    assert first.attained_s(100.0) == 100.0
    state.reconsider(first.job)  # as it was
    assert first.remaining_s(100.0) == pytest.approx(30.0) and first.expected_end_s == 160.0
    state.now = 160.0
    state.finish(first)
    assert second.remaining_s(160.0) == pytest.approx(40.0) and second.expected_end_s == 200.0
    state.now = 180.0
    third = start(state, 3)
    assert (second.expected_end_s, third.expected_end_s) == (220.0, 380.0)


def test_a_limit_is_one_whoever_is_there() -> None:
    state = cluster()
    first, second = start(state, 1, EstimateKind.LIMIT), start(state, 2)
    assert (first.expected_end_s, second.expected_end_s) == (100.0, 200.0)


def test_after_a_restart_all_are_beside_each_other_again() -> None:
    state, before = cluster(), cluster()
    jobs = [start(before, number) for number in (1, 2)]
    state.now = 50.0
    for job in jobs:
        state.restore(job)
    assert [job.expected_end_s for job in jobs] == [200.0, 200.0]
    assert [job.remaining_s(50.0) for job in jobs] == [75.0, 75.0]


@pytest.mark.parametrize("policy", ["match", "weigh", "easy"])
def test_the_believed_end_is_the_true_one_where_slow_downs_are_known(policy: str) -> None:
    table = load_pairs("konishi2008")

    @given(sharing(most=12))
    def check(world: World) -> None:
        settings = replace(world.settings, slowdowns=table, interference=SharedNodeInterference(table))
        believed = dict[int, float]()

        def look(view: View) -> None:
            believed.update((job_id, state.expected_end_s) for job_id, state in view.running.items())

        outcomes, _ = run(create(policy), replace(world, settings=settings), look)
        for outcome in outcomes:
            if outcome.job.estimate_s is not None:
                assert believed[outcome.job.id] == pytest.approx(outcome.end_s, abs=1e-3)

    check()
