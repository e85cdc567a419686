"""Fairness between users: whose turn it is, and what a user who floods the machine does to another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Job, Pool, Stop
from scheduler.policies.las.node_las import NodeTask
from scheduler.policies.las.two_level import FairShare
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival, Outcome
from tests.support.amounts import examples
from tests.support.scheduling.worlds import World, run

POOL = Pool("node", 4, resources=("cpu", "memory"), capacity=(1.0, 1.0))


def task(number: int, user: str, cpu: float, memory: float) -> NodeTask:
    return NodeTask(Job(number, 0.0, user=user, demand=(cpu, memory), stop=Stop.PAUSE))


def test_the_example_of_the_paper_on_fairness() -> None:
    """Ghodsi et al., figure 3: 9 CPUs and 18 GB; A's tasks take <1, 4>, B's <3, 1>: A runs 3 of them, B 2."""
    queue = FairShare((9, 18), {})
    for number in range(5):
        queue.add(task(2 * number, "A", 1, 4))
        queue.add(task(2 * number + 1, "B", 3, 1))
    free, order = [9, 18], ""
    while (first := queue.first()) is not None:
        left = [f - d for f, d in zip(free, first.demand, strict=True)]
        if min(left) < 0:
            break
        queue.sent(first)
        free, order = left, order + first.job.user
    assert sorted(order) == list("AAABB")
    assert order == "ABAAB" or order.startswith("AB")
    assert queue.share("A") == pytest.approx(2 / 3) and queue.share("B") == pytest.approx(2 / 3)


def test_weights_divide_shares_and_entitlement() -> None:
    queue = FairShare((10.0,), {"A": 3.0})
    a, b = (NodeTask(Job(i, 0.0, user=user, demand=(3.0,))) for i, user in enumerate("AB"))
    queue.add(a)
    queue.add(b)
    queue.sent(a)
    assert queue.share("A") == pytest.approx(0.1)
    assert queue.entitled(a) and queue.first() is b  # parts: 3/4 and 1/4
    queue.sent(b)
    assert not queue.entitled(b)
    queue.ended(a)
    assert queue.entitled(b) and queue.share("A") == 0.0  # alone now


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(1, 9), st.integers(1, 9)), max_size=20))
def test_the_least_share_comes_first_and_books_balance(rows: list[tuple[str, int, int]]) -> None:
    queue = FairShare((100, 50), {"B": 2.0})
    all_tasks = [task(i, user, cpu, memory) for i, (user, cpu, memory) in enumerate(rows)]
    for each in all_tasks:
        queue.add(each)
    sent: list[NodeTask] = []
    while (first := queue.first()) is not None:
        waiting = {t.job.user for t in all_tasks if t not in sent}
        shares = {}
        for user in waiting:
            own = [t.demand for t in sent if t.job.user == user]
            most = max(sum(d[0] for d in own) / 100, sum(d[1] for d in own) / 50)
            shares[user] = most / (2.0 if user == "B" else 1.0)
        assert shares[first.job.user] == pytest.approx(min(shares.values()))
        queue.sent(first)
        sent.append(first)
    assert sorted(t.id for t in sent) == sorted(t.id for t in all_tasks)
    for each in sent:
        queue.ended(each)
    assert all(queue.share(user) == 0.0 for user in "ABC")


def flooded(policy: str) -> dict[str, float]:
    """Mean slowdown of a user who submits one task a minute while another submits far too many."""
    rng = np.random.default_rng(1)
    arrivals = []
    for user, gap_s in (("heavy", 4.0), ("light", 60.0)):
        at = 0.0
        while at < 3000:
            at += float(rng.exponential(gap_s))
            demand = (float(rng.uniform(0.1, 0.4)), float(rng.uniform(0.1, 0.4)))
            arrivals.append((round(at, 6), user, demand, round(float(rng.exponential(100)) + 1, 6)))
    arrivals.sort()
    world = World(
        Cluster((POOL,)),
        tuple(
            Arrival(Job(i, at, user=user, demand=demand, stop=Stop.PAUSE), run_s)
            for i, (at, user, demand, run_s) in enumerate(arrivals)
        ),
    )
    outcomes: list[Outcome] = run(create(policy), world)[0]
    return {
        user: float(np.mean([(o.end_s - o.job.submit_s) / o.run_s for o in outcomes if o.job.user == user]))
        for user in ("heavy", "light")
    }


def test_a_user_who_floods_the_machine_does_not_delay_another() -> None:
    fair, free_for_all, paper = flooded("las-drf"), flooded("las-mq"), flooded("las")
    assert fair["light"] < 2.0 < free_for_all["light"]
    assert fair["light"] < paper["light"] / 5
    assert fair["heavy"] > fair["light"]


def test_the_youngest_task_in_the_system_states_the_weight() -> None:
    queue = FairShare((10.0,), {"A": 4.0})
    tasks = [
        NodeTask(Job(i, 0.0, user="A", demand=(1.0,), share=s)) for i, s in enumerate((None, 3.0, None, 2.0))
    ]
    other = NodeTask(Job(9, 0.0, user="B", demand=(1.0,)))
    queue.add(other)
    weights = [queue.weight("A")]
    for each in (tasks[0], tasks[3], tasks[1], tasks[2]):  # also in another order, as after a restart
        queue.add(each)
        queue.sent(each)
        weights.append(queue.weight("A"))
    assert weights == [4.0, 4.0, 2.0, 2.0, 2.0]
    assert queue.share("A") == pytest.approx(0.4 / 2.0) and queue.entitled(tasks[0])  # below 2 of 3 parts
    for each, weight in ((tasks[3], 3.0), (tasks[2], 3.0), (tasks[1], 4.0), (tasks[0], 4.0)):
        queue.ended(each)
        assert queue.weight("A") == weight
    assert queue.share("A") == 0.0 and queue.entitled(other)


@pytest.mark.parametrize("stated", [False, True])
def test_weights_divide_a_machine_that_is_always_full(stated: bool) -> None:
    """A of weight 3, B of weight 1, endless work: A has three quarters, said by jobs or by the policy."""
    jobs = [
        Job(i, 0.0, user="BA"[i % 2], demand=(0.25, 0.1), share=(1.0, 3.0)[i % 2] if stated else None)
        for i in range(400)
    ]
    world = World(Cluster((POOL,)), tuple(Arrival(job, 10.0) for job in jobs))
    outcomes = run(create("las-drf" if stated else "las-drf,weights=A:3"), world)[0]
    # All come at 0 s, one by one: who comes first is sent first. From then on the shares count.
    users = [o.job.user for o in outcomes if 10.0 < o.end_s <= 100.0]
    assert len(users) == 144 and users.count("A") == 108


def test_all_that_come_at_one_instant_are_there_before_anybody_is_chosen() -> None:
    """A, A and B at 0 s, each as large as the machine: A's first, then B, who has nothing of it, then A."""
    jobs = [Job(i, 0.0, user=user, demand=(1.0, 1.0)) for i, user in enumerate("AAB")]
    machine = Cluster((replace(POOL, units=1),))
    outcomes = run(create("las-drf"), World(machine, tuple(Arrival(job, 10.0) for job in jobs)))[0]
    assert {o.job.id: o.start_s for o in outcomes} == {0: 0.0, 2: 10.0, 1: 20.0}


@pytest.mark.parametrize("weights", ["alice", "alice:0", "alice:x"])
def test_weights_that_make_no_sense(weights: str) -> None:
    with pytest.raises(BadInput, match="weights"):
        create(f"las-drf,weights={weights}")
    create("las-drf,weights=alice:2/bob:0.5")
