"""More is known of jobs that wait: a policy that revises decides as one that begins anew."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler.model.events import Event, Finished, Start, Submitted, Timer
from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.model.state import ClusterState
from scheduler.policies.base import Policy
from scheduler.policies.registry import create

pytestmark = pytest.mark.computes
CLUSTER = Cluster((Pool("core", 8),))


@pytest.mark.parametrize("name", ["fcfs", "first-fit", "easy"])
@pytest.mark.parametrize("seed", range(20))
def test_it_decides_as_one_that_begins_anew(name: str, seed: int) -> None:
    chance = random.Random(seed)
    state = ClusterState(CLUSTER)
    policy = create(name)
    policy.begin(state)
    assert policy.revises
    starts = 0
    for number in range(1, 150):
        state.now += chance.choice((0.0, 1.0, 3.0))
        event: Event = Timer(state.now)
        if state.running and chance.random() < 0.4:
            ended = chance.choice(list(state.running.values()))
            state.finish(ended)
            event = Finished(ended.job, ended.placement)
        elif chance.random() < 0.7:
            seconds = chance.choice((None, 1.0, 5.0, 20.0))
            job = Job(number, state.now, chance.choice((1, 1, 2, 3, 8)), seconds)
            state.submit(job)
            event = Submitted(job)
        told = [job for job in state.waiting.values() if event != Submitted(job) and chance.random() < 0.2]
        revised = [replace(job, estimate_s=chance.choice((0.5, 2.0, 9.0, 40.0))) for job in told]
        for job in revised:
            state.reconsider(job)
        policy.revise(revised)
        starts += agree(policy, name, state, event)
    assert starts > 20


def agree(policy: Policy, name: str, state: ClusterState, event: Event) -> int:
    """Carry out what both decide; how many start."""
    anew = create(name)
    anew.begin(state)
    decided = list(policy.decide(state, event))
    assert decided == list(anew.decide(state, Timer(state.now)))
    for action in decided:
        assert isinstance(action, Start)
        state.start(action.job_id, action.placement)
    return len(decided)
