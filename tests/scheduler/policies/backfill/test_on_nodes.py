"""Fcfs, first fit and EASY on nodes with several resources, beside plain ones and what they guarantee."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival
from tests.support.amounts import examples
from tests.support.scheduling.schedule_audit import audit, starts
from tests.support.scheduling.worlds import World, counted, run

NAMES = ("fcfs", "first-fit", "easy")
RESOURCES = ("cores", "memory_mb", "gpu")
WHOLE = (8.0, 64.0, 4.0)
MANY = settings(
    max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@st.composite
def machines(draw: st.DrawFn, nodes: int, *, exact: bool, most: int = 14) -> World:
    """Nodes that may differ, some without GPUs; jobs of several tasks, with run times that may be wrong."""
    capacities = [
        (
            float(draw(st.integers(1, 8))),
            float(draw(st.integers(8, 64))),
            float(draw(st.sampled_from((0, 0, 1, 4)))),
        )
        for _ in range(draw(st.integers(1, nodes)))
    ]
    pool = Pool("node", len(capacities), resources=RESOURCES, capacity=WHOLE, capacities=tuple(capacities))
    now, arrivals = 0, []
    for number in range(1, draw(st.integers(1, most)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 2, 7)))
        run_s = draw(st.integers(1, 12))
        limit = run_s if exact else draw(st.one_of(st.just(run_s), st.integers(1, 15)))
        demand = tuple(float(draw(st.sampled_from(few))) for few in ((1, 1, 2, 4), (0, 4, 16), (0, 0, 1, 2)))
        kind = EstimateKind.EXACT if exact else EstimateKind.LIMIT
        tasks = draw(st.sampled_from((1, 1, 1, 2, 3)))
        arrivals.append(Arrival(Job(number, now, tasks, limit, estimate_kind=kind, demand=demand), run_s))
    return World(Cluster((pool,)), tuple(arrivals))


@pytest.mark.parametrize("name", NAMES)
def test_one_resource_of_one_node_is_a_counted_pool(name: str) -> None:
    @MANY
    @given(counted(most=14))
    def check(world: World) -> None:
        units = world.cluster.pools[0].units
        node = Pool("node", 1, resources=("cores",), capacity=(float(units),))
        arrivals = [one._replace(job=replace(one.job, demand=(1.0,))) for one in world.arrivals]
        on_node = World(Cluster((node,)), tuple(arrivals))
        assert starts(run(create(name), on_node)[0]) == starts(run(create(name), world)[0])

    check()


def plain(name: str, world: World) -> dict[int, float]:
    """Compute the starts on one node by the rules as the policies' texts state them, without any index."""
    (capacity,) = world.cluster.pools[0].capacities
    times = {one.job.id: (one.job, min(one.run_s, one.job.estimate_s or math.inf)) for one in world.arrivals}
    first: Job | None
    waiting: list[Job] = []
    running: dict[int, float] = {}
    begun: dict[int, float] = {}
    coming = [one.job for one in world.arrivals]

    def left(of: dict[int, float]) -> list[float]:
        return [
            c - sum(times[j][0].units * times[j][0].demand[r] for j in of) for r, c in enumerate(capacity)
        ]

    def fits(job: Job, free: list[float]) -> bool:
        return all(job.units * d <= f for d, f in zip(job.demand, free, strict=True))

    def start(job: Job, now: float) -> None:
        waiting.remove(job)
        running[job.id] = now + times[job.id][1]
        begun[job.id] = now

    coming = [job for job in coming if fits(job, list(capacity))]
    first, at, spare = None, math.inf, list(capacity)
    while coming or waiting:
        now = min([*(job.submit_s for job in coming), *running.values()])
        freed = [job_id for job_id, end in running.items() if end == now]
        for job_id in freed:
            del running[job_id]
        waiting += [job for job in coming if job.submit_s == now]
        coming = [job for job in coming if job.submit_s > now]
        while waiting and fits(waiting[0], left(running)):
            start(waiting[0], now)
        if name == "fcfs" or not waiting:
            continue
        if name == "easy" and (freed or waiting[0] is not first):  # else the reservation stands
            first, still = waiting[0], dict(running)
            believed = sorted((begun[j] + (times[j][0].estimate_s or math.inf), j) for j in running)
            for end, job_id in believed:
                del still[job_id]
                if fits(first, left(still)):
                    at = max(end, now)
                    spare = [f - first.units * d for f, d in zip(left(still), first.demand, strict=True)]
                    break
        for job in waiting[name == "easy" :]:
            short = now + (job.estimate_s or math.inf) <= at
            if fits(job, left(running)) and (short or fits(job, spare)):
                if not short:
                    spare = [f - job.units * d for f, d in zip(spare, job.demand, strict=True)]
                start(job, now)
    return begun


@pytest.mark.parametrize("name", NAMES)
def test_on_one_node_they_start_as_their_rules_say(name: str) -> None:
    @MANY
    @given(machines(1, exact=False))
    def check(world: World) -> None:
        assert starts(run(create(name), world)[0]) == plain(name, world)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_given_twice_on_several(name: str) -> None:
    @MANY
    @given(machines(4, exact=False))
    def check(world: World) -> None:
        outcomes, summary = run(create(name), world)
        audit(world, outcomes, sum(summary.refused.values()))

    check()


def room(view: View, job: Job, ended: Callable[[float], bool]) -> int:
    """Count how many tasks of the job fit on the nodes when those running jobs have ended."""
    pool = view.cluster.pools[0]
    total = 0
    for node in range(pool.units):
        free = list(pool.capacity_of(node))
        for state in view.running.values():
            if not ended(state.expected_end_s):
                tasks = dict(state.place.nodes).get(node, 0)
                free = [f - tasks * d for f, d in zip(free, state.job.demand, strict=True)]
        total += int(min((f // d for f, d in zip(free, job.demand, strict=True) if d), default=0))
    return total


def test_no_job_that_passes_delays_the_first_one() -> None:
    """By the time at which it would have room if nobody started any more, seen when it became the first."""

    @MANY
    @given(machines(4, exact=True))
    def check(world: World) -> None:
        promised: dict[int, float] = {}

        def watch(view: View) -> None:
            if view.upcoming is not None or not view.waiting:
                return
            first = next(iter(view.waiting.values()))
            ends = sorted({state.expected_end_s for state in view.running.values()})
            at = next(
                (end for end in ends if room(view, first, lambda e, end=end: e <= end) >= first.units), None
            )
            if at is not None:
                promised.setdefault(first.id, at)

        begun = starts(run(create("easy"), world, watch)[0])
        assert all(begun[job_id] <= at for job_id, at in promised.items())

    check()


def test_jobs_without_gpus_leave_nodes_with_gpus_alone() -> None:
    pool = Pool("node", 2, resources=RESOURCES, capacities=((8.0, 64.0, 4.0), (8.0, 64.0, 0.0)))
    jobs = [Job(n, 0, 1, 100, demand=(4.0, 8.0, 0.0)) for n in (1, 2)] + [
        Job(3, 1, 1, 10, demand=(8.0, 8.0, 4.0))
    ]
    outcomes, _ = run(create("fcfs"), World(Cluster((pool,)), tuple(Arrival(job, 5) for job in jobs)))
    assert starts(outcomes) == {1: 0, 2: 0, 3: 1}


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        ((1.0, 8.0, 2.0), "waits for 2 gpu on a node (1 of 4 free)"),
        ((6.0, 8.0, 0.0), "waits for 6 cores on a node (4 of 12 free)"),
        ((3.0, 8.0, 1.0), "no node has all of it free"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_wait_names_what_binds(name: str, demand: tuple[float, ...], expected: str) -> None:
    pool = Pool("node", 2, resources=RESOURCES, capacities=((8.0, 64.0, 4.0), (4.0, 64.0, 0.0)))
    jobs = [Job(1, 0, 1, 100, demand=(8.0, 8.0, 3.0)), Job(2, 0, 1, 100, demand=(0.0, 8.0, 0.0))]
    jobs += [Job(3, 1, 1, 50, demand=demand)]
    said = []
    policy = create(name)

    def ask(view: View) -> None:
        if view.upcoming is None and 3 in view.waiting:
            said.append(policy.why(view.waiting[3], view).sentence)

    run(policy, World(Cluster((pool,)), tuple(Arrival(job, 20) for job in jobs)), ask)
    assert expected in said[0]


@pytest.mark.parametrize("name", NAMES)
def test_several_pools_with_nodes_are_refused(name: str) -> None:
    pools = tuple(Pool(kind, 1, resources=RESOURCES, capacity=WHOLE) for kind in ("a", "b"))
    with pytest.raises(BadInput, match="this cluster has a, b"):
        run(create(name), World(Cluster(pools), (Arrival(Job(1, 0, 1, 1, demand=WHOLE), 1),)))
