"""Fcfs, first fit and EASY on nodes with several resources, beside plain ones and what they guarantee."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.events import NodeDown, NodeUp
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, Stop
from scheduler.model.state import ClusterState
from scheduler.policies.base import Policy, Reason, View
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival, Disturbance, SimulationSettings
from tests.support.amounts import examples
from tests.support.brute import nodes
from tests.support.scheduling.schedule_audit import audit, starts
from tests.support.scheduling.worlds import World, counted, limited_classes, run

NAMES = ("fcfs", "first-fit", "easy")
ALL = (*NAMES, "conservative")
RESOURCES = ("cores", "memory_mb", "gpu")
WHOLE = (8.0, 64.0, 4.0)


@st.composite
def machines(draw: st.DrawFn, largest: int, *, exact: bool, most: int = 14) -> World:
    """Nodes that may differ, some without GPUs; jobs of several tasks, with run times that may be wrong."""
    capacities = [
        (
            float(draw(st.integers(1, 8))),
            float(draw(st.integers(8, 64))),
            float(draw(st.sampled_from((0, 0, 1, 4)))),
        )
        for _ in range(draw(st.integers(1, largest)))
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


@pytest.mark.parametrize("name", ALL)
def test_one_resource_of_one_node_is_a_counted_pool(name: str) -> None:
    @given(counted(most=14))
    def check(world: World) -> None:
        units = world.cluster.pools[0].units
        node = Pool("node", 1, resources=("cores",), capacity=(float(units),))
        arrivals = [one._replace(job=replace(one.job, demand=(1.0,))) for one in world.arrivals]
        on_node = World(Cluster((node,)), tuple(arrivals))
        assert starts(run(create(name), on_node)[0]) == starts(run(create(name), world)[0])

    check()


@st.composite
def choices_of_units(draw: st.DrawFn) -> World:
    """Give some jobs of a counted pool other ways, with sizes and limits of their own."""
    world = draw(counted(most=12, shortest=1))
    arrivals = []
    for arrival in world.arrivals:
        others, others_s = list[Job](), list[float]()
        for number in range(1, draw(st.integers(0, 2)) + 1):
            limit_s, units = float(draw(st.integers(1, 15))), draw(st.integers(1, world.cluster.units))
            others.append(replace(arrival.job, units=units, estimate_s=limit_s, alternative=number))
            others_s.append(float(draw(st.integers(1, int(limit_s)))))
        job = replace(arrival.job, alternatives=tuple(others))
        arrivals.append(arrival._replace(job=job, others_s=tuple(others_s)))
    return World(world.cluster, tuple(arrivals))


@pytest.mark.parametrize("name", [*ALL, "conservative,depth=2"])
def test_alternatives_of_units_start_as_on_one_node_by_the_rules(name: str) -> None:
    @given(choices_of_units())
    def check(world: World) -> None:
        node = Pool("node", 1, resources=("cores",), capacity=(float(world.cluster.units),))
        arrivals = []
        for arrival in world.arrivals:
            job, *others = (replace(way, demand=(1.0,)) for way in arrival.job.ways)
            arrivals.append(arrival._replace(job=replace(job, alternatives=tuple(others))))
        plain, _, depth = name.partition(",depth=")
        brute = (
            nodes.Conservative((node,), tuple(arrivals), int(depth or 1000))
            if plain == "conservative"
            else nodes.Simulation(plain, (node,), tuple(arrivals))
        )
        expected = {job_id: (held.start, held.job.alternative) for job_id, held in brute.run().items()}
        outcomes, _ = run(create(name), world)
        begun = {o.job.id: (o.start_s, o.segments[0].placement.alternative) for o in outcomes}
        assert begun == expected

    check()


@st.composite
def kinds(draw: st.DrawFn, *, most: int = 10) -> World:
    """One to three kinds of nodes; jobs with one limit for all, or with one for each kind they can run on."""
    pools = tuple(
        replace(draw(machines(2, exact=False, most=1)).cluster.pools[0], name=name, rank=rank)
        for rank, name in enumerate("abc"[: draw(st.integers(1, 3))])
    )
    arrivals = []
    for arrival in draw(machines(1, exact=False, most=most)).arrivals:
        where = draw(st.lists(st.sampled_from(pools), unique=True))
        limits = {pool.name: float(draw(st.integers(1, 15))) for pool in where}
        runs = {name: float(draw(st.integers(1, int(limit)))) for name, limit in limits.items()}
        job = replace(arrival.job, estimates_s=limits) if limits else arrival.job
        if not ClusterState(Cluster(pools)).misfit(job):
            arrivals.append(Arrival(job, arrival.run_s, runs))
    return World(Cluster(pools), tuple(arrivals))


# Pool, tasks by node, start, and way of each job.
Placed = dict[int, tuple[str, dict[int, int], float, int]]


def placed(policy: Policy, world: World) -> Placed:
    outcomes, _ = run(policy, world)
    first = ((outcome, outcome.segments[0].placement) for outcome in outcomes)
    return {o.job.id: (at.pool, dict(at.nodes), o.start_s, at.alternative) for o, at in first}


def as_rules_say(schedule: nodes.Schedule) -> Placed:
    return {
        job_id: (held.pool, held.nodes, held.start, held.job.alternative) for job_id, held in schedule.items()
    }


@st.composite
def choices(draw: st.DrawFn) -> World:
    """Give some of the jobs other ways, with vectors, sizes and limits of their own."""
    world = draw(kinds())
    arrivals = []
    for arrival in world.arrivals:
        others, others_s = list[Job](), list[float]()
        for other in draw(st.lists(st.sampled_from(world.arrivals), max_size=2)):
            limit_s = float(draw(st.integers(1, 15)))
            more = {"units": other.job.units, "demand": other.job.demand, "estimates_s": {}}
            number = len(others) + 1
            others.append(replace(arrival.job, **more, estimate_s=limit_s, alternative=number))
            others_s.append(float(draw(st.integers(1, int(limit_s)))))
        job = replace(arrival.job, alternatives=tuple(others))
        arrivals.append(arrival._replace(job=job, others_s=tuple(others_s)))
    return World(world.cluster, tuple(arrivals))


@pytest.mark.parametrize("name", NAMES)
def test_they_place_and_start_as_their_rules_say(name: str) -> None:
    """Beside the rules written down a second time, on several nodes of several kinds."""

    @given(choices())
    def check(world: World) -> None:
        expected = nodes.Simulation(name, world.cluster.pools, world.arrivals).run()
        assert placed(create(name), world) == as_rules_say(expected)

    check()


def crowd(seed: int, unknown: float) -> World:
    """Make 30 jobs that soon fill one or two kinds of few nodes; a share of unknown run time."""
    rng = random.Random(seed)
    pools = tuple(
        Pool(name, rng.randint(1, 3), rank, RESOURCES, (8.0, 8.0, float(rng.choice((0, 4)))))
        for rank, name in enumerate("ab"[: rng.randint(1, 2)])
    )
    now, arrivals = 0, []
    for number in range(1, 31):
        now += rng.choice((0, 0, 1, 2))
        run_s = rng.randint(1, 20)
        limit_s = None if rng.random() < unknown else rng.choice((run_s, run_s + 3, 2 * run_s, 20))
        demand = (
            float(rng.choice((1, 2, 3, 5, 8))),
            float(rng.choice((0, 1, 4))),
            float(rng.choice((0, 0, 1))),
        )
        job = Job(number, now, rng.choice((1, 1, 1, 2, 3)), limit_s, demand=demand)
        if not ClusterState(Cluster(pools)).misfit(job):
            arrivals.append(Arrival(job, run_s))
    return World(Cluster(pools), tuple(arrivals))


@pytest.mark.parametrize("unknown", [0.0, 0.2])
@pytest.mark.parametrize("name", NAMES)
def test_long_queues_start_as_their_rules_say(name: str, unknown: float) -> None:
    for seed in range(examples(240)):
        world = crowd(seed, unknown)
        expected = nodes.Simulation(name, world.cluster.pools, world.arrivals).run()
        begun = starts(run(create(name), world)[0])
        assert begun == {job_id: held.start for job_id, held in expected.items()}, seed


@pytest.mark.parametrize("depth", [1, 5, 1000])
def test_conservative_reserves_for_long_queues_as_its_rules_say(depth: int) -> None:
    for seed in range(examples(60)):
        world = crowd(seed, 0.0)
        expected = nodes.Conservative(world.cluster.pools, world.arrivals, depth).run()
        begun = starts(run(create(f"conservative,depth={depth}"), world)[0])
        assert begun == {job_id: held.start for job_id, held in expected.items()}, seed


@pytest.mark.parametrize("depth", [1, 2, 1000])
def test_conservative_reserves_as_its_rules_say(depth: int) -> None:
    @given(choices())
    def check(world: World) -> None:
        brute = nodes.Conservative(world.cluster.pools, world.arrivals, depth)
        expected = brute.run()
        assert placed(create(f"conservative,depth={depth}"), world) == as_rules_say(expected)
        assert all(
            held.limit_end <= brute.promised.get(job_id, math.inf) for job_id, held in expected.items()
        )

    check()


@pytest.mark.parametrize("name", ALL)
def test_one_node_of_one_resource_in_each_pool_is_counted_classes(name: str) -> None:
    @given(limited_classes())
    def check(world: World) -> None:
        pools = tuple(
            Pool(pool.name, 1, pool.rank, ("cores",), (float(pool.units),)) for pool in world.cluster.pools
        )
        arrivals = [a._replace(job=replace(a.job, demand=(1.0,))) for a in world.arrivals]
        on_nodes = World(Cluster(pools), tuple(arrivals))
        assert starts(run(create(name), on_nodes)[0]) == starts(run(create(name), world)[0])

    check()


def test_a_reservation_moves_to_a_better_pool_where_it_ends_as_soon() -> None:
    """The fourth job ends early: from then on the sixth may have the better pool, and the last starts."""
    both, gpu, cpu = {"gpu": 1.0, "cpu": 1.0}, {"gpu": 1.0}, {"cpu": 1.0}
    limits = [(1, gpu), (1, both), (1, both), (1, {"gpu": 2.0}), (4, both), (4, both), (1, cpu)]
    jobs = [
        Job(number, 0, units, estimates_s=of, demand=(1.0,)) for number, (units, of) in enumerate(limits, 1)
    ]
    runs = [Arrival(job, 0.0, dict.fromkeys(job.estimates_s or (), 1.0)) for job in jobs]
    pools = tuple(Pool(name, 1, rank, ("cores",), (4.0,)) for rank, name in enumerate(("gpu", "cpu")))
    begun = starts(run(create("conservative"), World(Cluster(pools), tuple(runs)))[0])
    assert begun == {1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 1, 7: 1}


@st.composite
def failing(draw: st.DrawFn) -> World:
    """Kinds of nodes that go down and return; jobs of which some can be paused or checkpointed."""
    world = draw(kinds(most=14))
    at_s, changes = 0.5, list[Disturbance]()
    for _ in range(draw(st.integers(0, 5))):
        pool = draw(st.sampled_from(world.cluster.pools))
        node = draw(st.integers(0, pool.units - 1))
        changes.append((at_s, NodeDown(pool.name, node=node)))
        changes.append((at_s + draw(st.sampled_from((1, 3, 10))), NodeUp(pool.name, node=node)))
        at_s = changes[-1][0] + draw(st.sampled_from((0.5, 2, 5)))
    arrivals = tuple(
        a._replace(job=replace(a.job, stop=draw(st.sampled_from(list(Stop))))) for a in world.arrivals
    )
    return World(world.cluster, arrivals, SimulationSettings(disturbances=changes))


WORDS = {"cores": "core", "memory_mb": "memory", "gpu": "GPU"}


def check_reason(view: View, job: Job, sentence: str) -> None:
    """Check that a wait names all resources of which too little is free, or that no node has all of it."""
    names = [name for name in view.nodes if job.runs_on(name)]
    if any(view.nodes[name].room(job.demand).sum() >= job.units for name in names):
        assert "there is room, but" in sentence
        return
    for name in names:
        if view.nodes[name].misfit(job):
            continue
        lacking = {
            resource
            for resource, free, needed in zip(RESOURCES, view.nodes[name].free.T, job.demand, strict=True)
            if needed and sum(f // needed for f in free) < job.units
        }
        parts = sentence.split("; ", maxsplit=1)[0].split(", or for ")
        (part,) = [part for part in parts if len(view.nodes) == 1 or f" of {name}" in part]
        if not lacking:
            assert "no node has all of it free" in part
        else:
            assert {r for r, word in WORDS.items() if f" {word}" in part} == lacking, sentence


@pytest.mark.parametrize(
    "name", [*ALL, "weigh", "conservative,depth=1", "las", "las-mq", "las-drf", "kairos"]
)
def test_no_resource_of_a_node_is_given_twice_whatever_fails(name: str) -> None:
    @given(failing())
    def check(world: World) -> None:
        policy = create(name)

        def watch(view: View) -> None:
            if view.upcoming is not None:
                return
            for pool in world.cluster.pools:
                for node, held in enumerate(view.nodes[pool.name].jobs):
                    used = [
                        sum(tasks * view.state(job_id).job.demand[r] for job_id, tasks in held.items())
                        for r in range(len(RESOURCES))
                    ]
                    assert all(u <= c for u, c in zip(used, pool.capacity_of(node), strict=True))
            for job in view.waiting.values() if name in (*ALL, "weigh") else ():
                check_reason(view, job, policy.why(job, view).sentence)

        outcomes, summary = run(policy, world, watch)
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


@pytest.mark.parametrize("name", ["easy", "weigh"])
def test_no_job_that_passes_delays_the_first_one(name: str) -> None:
    """By the time at which it would have room if nobody started any more, seen when it became the first."""

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

        begun = starts(run(create(name), world, watch)[0])
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
        ((1.0, 8.0, 2.0), "waits for 2 GPUs (1 of 4 free) on a node"),
        ((6.0, 8.0, 0.0), "waits for 6 cores (4 of 12 free) on a node"),
        ((5.0, 60.0, 3.0), "waits for 5 cores (4 of 12 free) and 3 GPUs (1 of 4 free) on a node"),
        ((3.0, 8.0, 1.0), "no node has all of it free"),
    ],
)
@pytest.mark.parametrize("name", [*ALL, "weigh"])
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


@given(machines(3, exact=True), st.booleans())
def test_fcfs_tells_every_start_when_run_times_are_exact(world: World, as_units: bool) -> None:
    """All jobs are there, so no later one changes anything: each starts when it was said, counted or not."""
    if as_units:
        fits = [arrival for arrival in world.arrivals if arrival.job.units <= 8]
        jobs = [Arrival(replace(arrival.job, demand=()), arrival.run_s) for arrival in fits]
        world = World(Cluster((Pool("core", 3),)), tuple(jobs))
    policy, said = create("fcfs"), dict[int, float | None]()
    last = max((arrival.job.id for arrival in world.arrivals), default=0)

    def ask(view: View) -> None:
        if view.upcoming is None and last in view.waiting and not said:
            said.update({job.id: policy.why(job, view).expected_start_s for job in view.waiting.values()})

    outcomes, _ = run(policy, world, ask)
    begun = starts(outcomes)
    assert {job: at for job, at in said.items() if at is not None} == {
        job: pytest.approx(begun[job], abs=1e-3) for job in said
    }


@pytest.mark.parametrize("name", ["easy", "conservative"])
def test_the_first_jobs_are_told_when_they_start(name: str) -> None:
    pool = Pool("node", 1, resources=RESOURCES, capacity=(2.0, 64000.0, 4.0))
    jobs = [Job(1, 0, 1, 100, demand=(1.0, 8e3, 2.0)), Job(2, 0, 1, 60, demand=(1.0, 8e3, 1.0))]
    jobs += [Job(3, 1, 1, 50, demand=(1.0, 0.0, 3.0)), Job(4, 2, 1, 20, demand=(2.0, 56e3, 0.0))]
    said: list[Reason] = []
    policy = create(name)

    def ask(view: View) -> None:
        if view.upcoming is None and 4 in view.waiting and not said:
            said.extend(policy.why(view.waiting[job], view) for job in (3, 4))

    run(policy, World(Cluster((pool,)), tuple(Arrival(job, 20) for job in jobs)), ask)
    assert [reason.expected_start_s for reason in said] == [100.0, 150.0]
    assert said[0].sentence == "waits for 1 core (0 of 2 free) and 3 GPUs (1 of 4 free)"
    assert said[1].sentence == (
        "waits for 2 cores (0 of 2 free) and 56 GB memory (48 of 64 GB free); behind job 3"
    )


@pytest.mark.parametrize("name", ALL)
def test_nodes_beside_counted_pools_are_refused(name: str) -> None:
    pools = (Pool("a", 1, resources=RESOURCES, capacity=WHOLE), Pool("b", 4))
    with pytest.raises(BadInput, match="this cluster has a, b"):
        run(create(name), World(Cluster(pools), (Arrival(Job(1, 0, 1, 1, demand=WHOLE), 1),)))
