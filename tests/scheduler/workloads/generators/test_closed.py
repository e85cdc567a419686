"""Keeping a machine at a load: the closed loop, and arrivals stretched in time."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder
from scheduler.workloads.arrivals import Closed, capacity, offered_load, stretched
from tests.support.amounts import examples

QUICK = settings(max_examples=examples(60))
NODES = Cluster((Pool("node", 2, resources=("cpu", "memory"), capacity=(1.0, 2.0)),))
demands = st.tuples(st.floats(0.05, 1.0), st.floats(0.05, 2.0))


def task(number: int, demand: tuple[float, ...], run_s: float = 10.0, submit_s: float = 0.0) -> Arrival:
    return Arrival(Job(number, submit_s, demand=demand), run_s)


def test_worked_by_hand() -> None:
    """Capacity (2, 4). Demand (1, 1) is (0.5, 0.25), its norm 0.559; two are (1, 0.5), 1.118; three 1.677."""
    loop = Closed([task(i, (1.0, 1.0)) for i in range(1, 6)], NODES, math.sqrt(2), Counter())
    first = loop.due(0.0, ())
    assert [a.job.id for a in first] == [1, 2, 3]  # 1.118 is below, so the third still comes
    assert loop.due(1.0, ()) == []
    (second,) = loop.due(7.5, (first[0].job,))
    assert second.job.id == 4 and second.job.submit_s == 7.5
    assert [a.job.id for a in loop.due(9.0, (first[1].job, first[2].job))] == [5]


@QUICK
@given(st.lists(demands, max_size=30), st.floats(0.1, 3.0), st.randoms(use_true_random=False))
def test_against_sums_made_anew(wanted: list[tuple[float, float]], load: float, random: object) -> None:
    arrivals = [task(i, d) for i, d in enumerate(wanted, 1)]
    loop = Closed(arrivals, NODES, load, Counter())
    inside: dict[int, Job] = {}
    left, now = list(arrivals), 0.0
    ended: tuple[Job, ...] = ()
    while True:
        expected = []
        while left and _norm(inside) < load:
            job = left.pop(0).job
            inside[job.id] = job
            expected.append(job.id)
        assert [a.job.id for a in loop.due(now, ended)] == expected
        if not inside:
            return
        gone = random.sample(sorted(inside), random.randint(1, len(inside)))  # type: ignore[attr-defined]
        ended = tuple(inside.pop(number) for number in gone)
        now += 1.0


def _norm(inside: dict[int, Job]) -> float:
    return math.hypot(*(sum(j.demand[r] for j in inside.values()) / (2.0, 4.0)[r] for r in (0, 1)))


def test_jobs_that_fit_nowhere_are_passed_over_and_counted() -> None:
    skipped: Counter[str] = Counter()
    arrivals = [task(1, (1.5, 1.0)), task(2, (1.0, 1.0)), task(3, (0.0, 0.0))]
    loop = Closed(arrivals, NODES, 9.0, skipped)
    assert [a.job.id for a in loop.due(0.0, ())] == [2]
    assert sum(skipped.values()) == 2 and any(
        "it needs 1 times 1.5 cpu, 1 memory, node has" in reason for reason in skipped
    )


def test_units_are_the_load_of_a_counted_pool_whatever_the_jobs_demand() -> None:
    counted = Cluster((Pool("node", 4),))
    loop = Closed([task(i, (0.1, 0.1)) for i in range(1, 9)], counted, 0.75, Counter())
    assert [a.job.id for a in loop.due(0.0, ())] == [1, 2, 3]
    arrivals = [task(1, (0.1, 0.1)), Arrival(Job(2, 10.0, 2, demand=(9.0,)), 5.0)]
    assert offered_load(arrivals, counted) == (10.0 + 2 * 5.0) / 4 / 10
    assert offered_load([task(1, (1.0, 1.0)), task(2, (9.0, 9.0), submit_s=10.0)], NODES) == 0.5


def test_drives_the_simulator_to_the_end() -> None:
    """Two units, jobs of one unit and 10 s, load 2: always four in the system, so two wait 10 s each time."""
    cluster, record, seen = Cluster((Pool("node", 2),)), OutcomeRecorder(), []
    loop = Closed((Arrival(Job(i, 99.0), 10.0) for i in range(1, 21)), cluster, 2.0, Counter())

    def look(view: View) -> None:
        seen.append(len(view.waiting) + len(view.running))

    Simulator(cluster, loop, create("fcfs"), sinks=[record], observer=look).run()
    assert len(record.outcomes) == 20 and max(seen) == 4
    assert [o.end_s for o in record.outcomes][-1] == 100.0
    assert {o.start_s - o.job.submit_s for o in record.outcomes} == {0.0, 10.0}


def test_capacity() -> None:
    assert capacity(NODES) == (2.0, 4.0)
    assert capacity(Cluster((Pool("a", 3), Pool("b", 4)))) == (7.0,)
    uneven = Pool("n", 2, resources=("cpu",), capacities=((1.0,), (0.5,)))
    assert capacity(Cluster((uneven,))) == (1.5,)
    with pytest.raises(BadInput, match="different resources"):
        capacity(Cluster((Pool("a", 3), uneven)))


@QUICK
@given(
    st.lists(st.tuples(demands, st.floats(1.0, 1e4), st.floats(0.0, 100.0)), min_size=2, max_size=20),
    st.floats(0.1, 2.0),
)
def test_stretched_arrivals_offer_the_load(
    rows: list[tuple[tuple[float, float], float, float]], load: float
) -> None:
    now, arrivals = 5.0, []
    for number, (demand, run_s, gap) in enumerate(rows):
        now += gap + 1.0
        arrivals.append(task(number, demand, run_s, now))
    found = list(stretched(arrivals, NODES, load))
    assert found[0].job.submit_s == 0.0
    assert offered_load(found, NODES) == pytest.approx(load, rel=1e-5)
    assert [(a.job.id, a.job.demand, a.run_s) for a in found] == [
        (a.job.id, a.job.demand, a.run_s) for a in arrivals
    ]


def test_what_cannot_be_is_one_line() -> None:
    with pytest.raises(BadInput, match="closed load 0"):
        Closed([], NODES, 0.0, Counter())
    for arrivals in ([], [task(1, (1.0, 1.0)), task(2, (1.0, 1.0))]):
        with pytest.raises(BadInput, match=r"load 0.9 cannot be reached"):
            list(stretched(arrivals, NODES, 0.9))
