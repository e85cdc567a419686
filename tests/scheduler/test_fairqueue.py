"""Fairness between users: whose turn it is, and what a user who floods the machine does to another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.attained import Task
from scheduler.fairqueue import FairShare
from scheduler.model import Cluster, Job, Pool, Stop
from scheduler.registry import create
from scheduler.trace import Arrival, Outcome
from tests.scheduler.worlds import World, run

POOL = Pool("node", 4, resources=("cpu", "memory"), capacity=(1.0, 1.0))


def task(number: int, user: str, cpu: float, memory: float) -> Task:
    return Task(Job(number, 0.0, user=user, demand=(cpu, memory), stop=Stop.PAUSE))


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
    a, b = (Task(Job(i, 0.0, user=user, demand=(3.0,))) for i, user in enumerate("AB"))
    queue.add(a)
    queue.add(b)
    queue.sent(a)
    assert queue.share("A") == pytest.approx(0.1)
    assert queue.entitled(a) and queue.first() is b  # parts: 3/4 and 1/4
    queue.sent(b)
    assert not queue.entitled(b)
    queue.ended(a)
    assert queue.entitled(b) and queue.share("A") == 0.0  # alone now


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(1, 9), st.integers(1, 9)), max_size=20))
def test_the_least_share_comes_first_and_books_balance(rows: list[tuple[str, int, int]]) -> None:
    queue = FairShare((100, 50), {"B": 2.0})
    all_tasks = [task(i, user, cpu, memory) for i, (user, cpu, memory) in enumerate(rows)]
    for each in all_tasks:
        queue.add(each)
    sent: list[Task] = []
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
        while at < 6000:
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


@pytest.mark.parametrize("weights", ["alice", "alice:0", "alice:x"])
def test_weights_that_make_no_sense(weights: str) -> None:
    with pytest.raises(BadInput, match="weights"):
        create(f"las-drf,weights={weights}")
    create("las-drf,weights=alice:2/bob:0.5")
