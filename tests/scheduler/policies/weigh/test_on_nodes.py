"""Weigh on nodes: order and reservation beside a plain program, its bound on waits, its choice of a class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool
from scheduler.model.state import ClusterState
from scheduler.policies.base import Reason, View
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival, Outcome
from tests.scheduler.policies.backfill.test_on_nodes import (
    RESOURCES,
    choices,
    choices_of_units,
    crowd,
    kinds,
    machines,
)
from tests.support.amounts import examples
from tests.support.brute import nodes
from tests.support.scheduling.schedule_audit import starts
from tests.support.scheduling.worlds import World, run

A = Pool("a", 1, 0, RESOURCES, (8.0, 64.0, 1.0))
B = Pool("b", 1, 1, RESOURCES, (8.0, 64.0, 1.0))


@given(machines(3, exact=False))
def test_order_and_reservation_are_as_the_rules_say(world: World) -> None:
    fit = tuple(a for a in world.arrivals if not ClusterState(world.cluster).misfit(a.job))
    expected = nodes.Simulation("weigh", world.cluster.pools, fit).run()
    begun = starts(run(create("weigh"), World(world.cluster, fit))[0])
    assert begun == {job_id: held.start for job_id, held in expected.items()}


@given(machines(3, exact=False))
def test_where_no_run_time_is_known_jobs_start_as_under_easy(world: World) -> None:
    arrivals = [a._replace(job=replace(a.job, estimate_s=None)) for a in world.arrivals]
    fit = tuple(a for a in arrivals if not ClusterState(world.cluster).misfit(a.job))
    unknown = World(world.cluster, fit)
    assert starts(run(create("weigh"), unknown)[0]) == starts(run(create("easy"), unknown)[0])


def test_the_first_who_comes_after_an_empty_queue_starts_before_smaller_jobs() -> None:
    """Job 2 has started behind the first job, and nobody was left; jobs 3 and 4 do not fit together."""
    pool = Pool("node", 1, resources=("cores",), capacity=(4.0,))
    asks = (1, 0, 1, 9), (2, 0, 1, 9), (3, 1, 2, 2), (4, 1, 1, 1)
    jobs = [Job(number, at_s, 1, run_s, demand=(float(cores),)) for number, at_s, cores, run_s in asks]
    arrivals = tuple(Arrival(job, job.estimate_s or 0.0) for job in jobs)
    begun = starts(run(create("weigh"), World(Cluster((pool,)), arrivals))[0])
    assert begun == {1: 0, 2: 0, 3: 1, 4: 3}


@given(st.one_of(choices(), choices_of_units()))
def test_each_job_with_alternatives_runs_once_in_one_of_them(world: World) -> None:
    policy = create("weigh")

    def ask(view: View) -> None:
        for job in view.waiting.values() if view.upcoming is None else ():
            assert re.search("wait|would delay", policy.why(job, view).sentence)

    outcomes, _ = run(policy, world, ask)
    arrivals = {arrival.job.id: arrival for arrival in world.arrivals}
    assert {outcome.job.id for outcome in outcomes} == set(arrivals)
    for outcome in outcomes:
        at, arrival = outcome.segments[0].placement, arrivals[outcome.job.id]
        way = outcome.job.way(at)
        run_s = [arrival.runs_s.get(at.pool, arrival.run_s), *arrival.others_s][at.alternative]
        assert outcome.end_s - outcome.start_s == min(run_s, way.estimate_on(at.pool))


def test_of_alternatives_the_cheapest_is_taken_now_or_later() -> None:
    """The GPU is taken until 10; on it job 2 takes 5 s, without it either 100 s or 8 s."""
    for long_s, begins in (100, 10.0), (8, 1.0):
        first = Job(1, 0, 1, 10, demand=(1.0, 0.0, 1.0))
        way = Job(2, 1, 1, long_s, demand=(1.0, 0.0, 0.0), alternative=1)
        second = Job(2, 1, 1, 5, demand=(1.0, 0.0, 1.0), alternatives=(way,))
        arrivals = (Arrival(first, 10), Arrival(second, 5, others_s=(long_s,)))
        assert starts(run(create("weigh"), World(Cluster((A,)), arrivals))[0]) == {1: 0, 2: begins}
        second = replace(second, units=3, demand=(), alternatives=(replace(way, demand=()),))  # of 4 units
        arrivals = (Arrival(replace(first, units=3, demand=()), 10), arrivals[1]._replace(job=second))
        counted = World(Cluster((Pool("node", 4),)), arrivals)
        assert starts(run(create("weigh"), counted)[0]) == {1: 0, 2: begins}


def test_of_many_jobs_with_alternatives_only_the_first_waits_for_a_better_one() -> None:
    """On a GPU they take 10 s; without, each 25 s on two of seven cores. Job 2 waits, job 6 fits nowhere."""
    pool = Pool("a", 1, 0, RESOURCES, (7.0, 64.0, 1.0))
    arrivals = []
    for number in range(1, 7):
        way = Job(number, 0, 1, 25, demand=(2.0, 0.0, 0.0), alternative=1)
        job = Job(number, 0, 1, 10, demand=(1.0, 0.0, 1.0), alternatives=(way,))
        arrivals.append(Arrival(job, 10, others_s=(25.0,)))
    policy, told = create("weigh"), list[str]()

    def ask(view: View) -> None:
        for job in view.waiting.values() if view.upcoming is None else ():
            told.append(policy.why(job, view).sentence)

    outcomes, _ = run(policy, World(Cluster((pool,)), tuple(arrivals)), ask)
    begun = {o.job.id: (o.start_s, o.segments[0].placement.alternative) for o in outcomes}
    assert begun == {1: (0, 0), 2: (10, 0), 3: (0, 1), 4: (0, 1), 5: (0, 1), 6: (20, 0)}
    assert told and not any("costs others" in sentence for sentence in told)  # prices decide nothing there


def test_the_last_who_waits_may_have_alternatives_on_one_class() -> None:
    """Job 3 starts behind job 2, and with it both of its entries leave the queue."""
    asks = (1, 8.0), (2, 1.0), (3, 1.0)
    jobs = [Job(number, 0, 1, 10, demand=(cores, 0.0, 0.0)) for number, cores in asks]
    jobs[2] = replace(jobs[2], alternatives=(replace(jobs[2], alternative=1),))
    arrivals = tuple(Arrival(job, 10, others_s=(10.0,) * len(job.alternatives)) for job in jobs)
    assert starts(run(create("weigh"), World(Cluster((A,)), arrivals))[0]) == {1: 0, 2: 10, 3: 10}


def test_long_queues_start_as_the_rules_say() -> None:
    for seed in range(examples(240)):
        world = crowd(seed, 0.1)
        if len(world.cluster.pools) == 1:
            expected = nodes.Simulation("weigh", world.cluster.pools, world.arrivals).run()
            begun = starts(run(create("weigh"), world)[0])
            assert begun == {job_id: held.start for job_id, held in expected.items()}, seed


@given(kinds(most=14))
def test_a_job_with_k_before_it_waits_at_most_k_and_one_times_the_longest_run_time(world: World) -> None:
    before: dict[int, int] = {}

    def count(view: View) -> None:
        for place, job_id in enumerate(view.waiting):
            before.setdefault(job_id, place)

    outcomes, _ = run(create("weigh"), world, count)
    jobs = [arrival.job for arrival in world.arrivals]
    longest = max((max((job.estimate_s or 0.0, *job.estimates_s.values())) for job in jobs), default=0.0)
    for outcome in outcomes:
        at_most = (before.get(outcome.job.id, 0) + 1) * longest
        assert outcome.start_s <= outcome.job.submit_s + at_most + 1e-5, outcome


def arrival(number: int, submit_s: float, **times: float) -> Arrival:
    demand = (1.0, 0.0, 1.0)
    job = Job(number, submit_s, 1, estimate_kind=EstimateKind.EXACT, demand=demand, estimates_s=times)
    return Arrival(job, max(times.values()), times)


def lived(arrivals: list[Arrival], policy: str = "weigh") -> dict[int, Outcome]:
    outcomes, _ = run(create(policy), World(Cluster((A, B)), tuple(arrivals)))
    return {outcome.job.id: outcome for outcome in outcomes}


def test_a_job_waits_for_the_fast_class_only_if_it_ends_earlier_there() -> None:
    """Nobody else is there to pay."""
    first = arrival(1, 0, a=10, b=100)
    takes = lived([first, arrival(2, 1, a=10, b=15)], "weigh,price=0")[2]
    assert takes.segments[0].placement.pool == "b"
    waits = lived([first, arrival(2, 1, a=10, b=30)], "weigh,price=0")[2]
    assert waits.segments[0].placement.pool == "a" and waits.start_s == 10
    for b_s, pool in (30, "b"), (45, "a"):  # by default it counts for the price itself
        assert lived([first, arrival(2, 1, a=10, b=b_s)])[2].segments[0].placement.pool == pool


def test_behind_depth_jobs_that_would_rather_wait_the_others_are_looked_at_next_time() -> None:
    """From 5 s on two jobs fit on the third class; job 5 fits on the second, and waits for the first."""
    c = Pool("c", 1, 2, RESOURCES, (8.0, 64.0, 2.0))
    jobs = [arrival(1, 0, a=10, b=10_000), arrival(2, 0, c=5), arrival(3, 0, c=5)]
    jobs += [
        arrival(4, 1, a=10, b=1000),
        arrival(5, 2, a=10, b=1000),
        arrival(6, 3, c=100),
        arrival(7, 4, c=100),
    ]
    for policy, last_s in ("weigh", 5), ("weigh,depth=1", 10):
        begun = starts(run(create(policy), World(Cluster((A, B, c)), tuple(jobs)))[0])
        assert begun == {1: 0, 2: 0, 3: 0, 4: 10, 5: 20, 6: 5, 7: last_s}


def test_where_many_wait_for_the_fast_class_a_job_that_gains_little_there_takes_the_slow_one() -> None:
    first, patient = arrival(1, 0, a=100, b=10_000), arrival(2, 1, a=50, b=250)
    many = [arrival(number, 1, a=10, b=1000) for number in range(3, 13)]
    assert lived([first, patient])[2].segments[0].placement.pool == "a"
    assert lived([first, patient, *many])[2].segments[0].placement.pool == "b"
    assert lived([first, patient, *many], "weigh,price=0")[2].segments[0].placement.pool == "a"


def test_of_those_behind_the_first_job_the_smallest_dominant_area_passes_next() -> None:
    """Three cores are left: job 3 takes half of the GPUs for 10 s, job 4 three of 64 cores for 12 s."""
    pool = Pool("node", 1, resources=RESOURCES, capacity=(64.0, 64.0, 2.0))
    demands = (64.0, 0.0, 2.0), (61.0, 0.0, 0.0), (2.0, 0.0, 1.0), (3.0, 0.0, 0.0)
    asks = zip((1, 2, 3, 4), demands, (10, 5, 10, 12), strict=True)
    jobs = [Job(number, number, 1, run_s, demand=demand) for number, demand, run_s in asks]
    arrivals = tuple(Arrival(job, job.estimate_s or 0.0) for job in jobs)
    begun = starts(run(create("weigh"), World(Cluster((pool,)), arrivals))[0])
    assert begun == {1: 1, 2: 11, 4: 11, 3: 16}


@pytest.mark.parametrize(("submit_s", "run_s", "start_s"), [(3, 90, 100), (60, 90, 120), (3, 100, 120)])
def test_a_wide_job_that_has_waited_nearly_as_long_as_the_first_and_than_it_runs_comes_next(
    submit_s: int, run_s: int, start_s: float
) -> None:
    """As where units are counted: beside job 2 there is room for job 4, or for job 5, shorter and younger."""
    pool = Pool("node", 2, resources=("cores",), capacity=(2.0,))
    asks = (1, 0, 2, 100), (2, 1, 1, 500), (4, submit_s, 1, run_s), (5, 90, 1, 20)
    jobs = [Job(number, at_s, tasks, length_s, demand=(2.0,)) for number, at_s, tasks, length_s in asks]
    arrivals = tuple(Arrival(job, job.estimate_s or 0.0) for job in jobs)
    assert starts(run(create("weigh"), World(Cluster((pool,)), arrivals))[0])[4] == start_s


def test_a_wait_says_what_it_gains_where_and_what_others_pay() -> None:
    jobs = [arrival(1, 0, a=6000, b=90_000), arrival(2, 1, a=600, b=9000), arrival(3, 2, a=600, b=60_000)]
    policy = create("weigh")
    said: dict[int, Reason] = {}

    def ask(view: View) -> None:
        if view.upcoming is None and 3 in view.waiting and not said:
            said.update({job.id: policy.why(job, view) for job in view.waiting.values()})
            prices.update(policy.prices())

    prices: dict[str, Mapping[str, float]] = {}
    run(policy, World(Cluster((A, B)), tuple(jobs)), ask)
    assert said[2] == Reason(
        "there is room, but it waits for a; on b it would end 40:02 min later than on a; "
        "an hour of 1 GPU costs others 3 h of waiting",
        6000.0,
    )
    assert said[3].sentence.startswith("there is room, but it waits for a; on b it would end 14:50 h later")
    assert prices["a"]["gpu"] > 0 == prices["b"]["gpu"] == prices["a"]["cores"]
