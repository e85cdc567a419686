"""Weigh: what it promises, and small cases worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given

from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.events import Action, Event, Start, Timer
from scheduler.model.jobs import CHECKPOINT, Cluster, EstimateKind, Job, Placement, Pool
from scheduler.model.quantiles import Quantiles, exactly
from scheduler.model.speeds import TabulatedSpeed
from scheduler.model.state import ClusterState
from scheduler.policies.backfill.availability import of_running
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.policies.weigh.weigh import SOON_S, Weigh, WeighParameters
from scheduler.simulator.trace import Arrival, Outcome, SimulationSettings
from tests.support.scheduling.schedule_audit import audit, starts
from tests.support.scheduling.worlds import LinearSpeed, World, counted, partly_unknown, run, sized_classes

ONE = Cluster((Pool("node", 3),))
TWO = Cluster((Pool("gpu", 1, 0), Pool("cpu", 1, 1)))


class Watched(Weigh):
    """Notes, in the first decision in which a job leads the queue, when it could start by what runs."""

    def begin(self, view: View) -> None:
        super().begin(view)
        self.latest: dict[int, float] = {}

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is None and view.waiting:
            first = next(iter(view.waiting.values()))
            pool = view.cluster.pools[0].name
            length_s = max(first.estimate_on(pool), SOON_S)
            at_s = of_running(view, pool).earliest(first.units, length_s, view.now)
            self.latest.setdefault(first.id, at_s)
        return super().decide(view, event)


@given(counted(most=12, exact=True))
def test_the_first_job_of_the_queue_starts_no_later_than_its_reservation(world: World) -> None:
    policy = Watched()
    outcomes, _ = run(policy, world)
    for outcome in outcomes:
        assert outcome.start_s <= policy.latest.get(outcome.job.id, math.inf) + 1e-5, outcome


def arrival(number: int, submit_s: float, units: int = 1, **times: float) -> Arrival:
    job = Job(
        number,
        submit_s,
        units,
        memory_mb=1000.0,
        estimate_kind=EstimateKind.EXACT,
        stop=CHECKPOINT,
        estimates_s=times,
    )
    return Arrival(job, max(times.values()), times)


def lived(
    cluster: Cluster, arrivals: Sequence[Arrival], cost_s: float = 0.0, **parameters: float
) -> dict[int, Outcome]:
    line = {pool.name: LinearCost(0.0, cost_s) for pool in cluster.pools}
    costs = LinearCosts(checkpoint=line, restart=line)
    policy = Weigh(WeighParameters(**parameters))  # type: ignore[arg-type]
    outcomes, _ = run(policy, World(cluster, tuple(arrivals), SimulationSettings(costs=costs)))
    return {outcome.job.id: outcome for outcome in outcomes}


def test_of_those_behind_the_first_job_the_smallest_area_starts_next() -> None:
    """Job 2 is the first when the machine is free; of jobs 3 to 5 the shortest takes the last unit."""
    machine = Cluster((Pool("node", 5),))
    asks = (5, 10), (4, 1000), (1, 40), (1, 5), (1, 20)
    jobs = [arrival(number, number, units, node=run_s) for number, (units, run_s) in enumerate(asks, 1)]
    outcomes = lived(machine, jobs)
    assert [outcomes[number].start_s for number in (2, 4)] == [11, 11]
    # Job 3 is the first of the queue now, and then job 5 alone is left.
    assert [outcomes[number].start_s for number in (3, 5)] == [16, 56]


@pytest.mark.parametrize(("submit_s", "run_s", "start_s"), [(3, 90, 100), (60, 90, 120), (3, 100, 120)])
def test_a_wide_job_that_has_waited_nearly_as_long_as_the_first_and_than_it_runs_comes_next(
    submit_s: int, run_s: int, start_s: float
) -> None:
    """Job 4 has half the machine; job 5 is as wide, shorter and younger; job 2 has the other half."""
    machine = Cluster((Pool("node", 4),))
    jobs = [arrival(1, 0, 4, node=100), arrival(2, 1, 2, node=500)]
    late = [arrival(4, submit_s, 2, node=run_s), arrival(5, 90, 2, node=20)]
    assert lived(machine, [*jobs, *late], holes=False)[4].start_s == start_s


@given(counted(most=14))
def test_where_no_run_time_is_known_jobs_start_as_under_easy(world: World) -> None:
    arrivals = [a._replace(job=replace(a.job, estimate_s=None)) for a in world.arrivals]
    unknown = World(world.cluster, tuple(arrivals))
    assert starts(run(create("weigh"), unknown)[0]) == starts(run(create("easy"), unknown)[0])


@given(partly_unknown())
def test_nobody_is_planned_beside_a_job_of_unknown_run_time(world: World) -> None:
    """The first of the queue starts no later than by what is known of those that run as it becomes first."""
    policy = Watched()
    outcomes, _ = run(policy, World(world.cluster, tuple(map(in_time, world.arrivals))))
    for outcome in outcomes:
        assert outcome.start_s <= policy.latest.get(outcome.job.id, math.inf) + 1e-5, outcome


def in_time(arrival: Arrival) -> Arrival:
    return arrival._replace(run_s=min(arrival.run_s, arrival.job.estimate_s or math.inf))


def test_equal_jobs_start_in_the_order_of_their_submission_however_many_there_are() -> None:
    jobs = [Job(number, 0, 1, 10.0, EstimateKind.EXACT) for number in range(1, 200)]
    outcomes, _ = run(create("weigh,depth=4"), World(ONE, tuple(Arrival(job, 10.0) for job in jobs)))
    assert list(starts(outcomes)) == [job.id for job in jobs]


def test_whoever_waits_is_told_when_it_starts_if_no_job_passes_another() -> None:
    """Job 1 has all three units until 10 s; behind job 2 the short job 4 comes before job 3."""
    asks = (3, 10), (2, 20), (2, 30), (2, 5)
    jobs = [Job(number, 0, units, float(run_s)) for number, (units, run_s) in enumerate(asks, 1)]
    state, policy = ClusterState(ONE), create("weigh")
    for job in jobs:
        state.submit(job)
    state.start(1, Placement("node", 3))
    policy.begin(state)
    assert policy.decide(state, Timer(0.0)) == []
    said = {job.id: policy.why(job, state) for job in jobs[1:]}
    assert {number: reason.expected_start_s for number, reason in said.items()} == {2: 10, 4: 30, 3: 35}
    assert said[4].sentence.startswith("waits for 2 nodes (0 of 3 free); behind job 2")


def test_a_job_waits_for_the_fast_class_only_if_it_ends_earlier_there() -> None:
    """Nobody else is there to pay."""
    jobs = [arrival(1, 0, gpu=10, cpu=100), arrival(2, 1, gpu=10, cpu=15)]
    outcomes = lived(TWO, jobs, cost_s=100.0, price=0.0)
    assert outcomes[2].segments[0].placement.pool == "cpu" and outcomes[2].start_s == 1
    jobs = [arrival(1, 0, gpu=10, cpu=100), arrival(2, 1, gpu=10, cpu=30)]
    outcomes = lived(TWO, jobs, cost_s=100.0, price=0.0)
    assert outcomes[2].segments[0].placement.pool == "gpu" and outcomes[2].start_s == 10


def test_a_job_that_waits_alone_counts_for_the_price_as_well() -> None:
    """As if one like it came later: it waits only where it gains more than without a price."""
    for cpu_s, pool, start_s in (30, "cpu", 1), (45, "gpu", 10):
        jobs = [arrival(1, 0, gpu=10, cpu=100), arrival(2, 1, gpu=10, cpu=cpu_s)]
        alone = lived(TWO, jobs, cost_s=100.0)[2]
        assert (alone.segments[0].placement.pool, alone.start_s) == (pool, start_s)


def test_a_job_runs_on_the_slow_class_until_its_turn_on_the_fast_one() -> None:
    """At 10 s a twelfth of job 2 is done; its checkpoint and restart take 2 s."""
    jobs = [arrival(1, 0, gpu=10, cpu=1000), arrival(2, 0, gpu=30, cpu=120)]
    moved = lived(TWO, jobs, cost_s=1.0)[2]
    assert moved.start_s == 0 and moved.migrations == 1
    assert moved.end_s == pytest.approx(10 + 2 + 30 * 11 / 12, abs=1e-3)
    alike = [jobs[0], arrival(2, 0, gpu=30, cpu=30)]
    assert lived(TWO, alike, cost_s=1.0)[2].end_s == 30  # it stays where it is as fast


def test_units_that_a_job_leaves_at_no_cost_are_free_a_moment_later() -> None:
    """At 10 s job 2 moves to the GPUs; job 4 needs its core in the same decision."""
    machine = Cluster((Pool("gpu", 3, 0), Pool("cpu", 1, 1)))
    jobs = [arrival(1, 0, 3, gpu=10), arrival(2, 0, gpu=30, cpu=120)]
    outcomes = lived(machine, [*jobs, arrival(3, 1, gpu=20), arrival(4, 2, cpu=1000)])
    assert outcomes[2].migrations == 1
    assert outcomes[4].start_s == pytest.approx(10, abs=1e-3)


def test_who_waits_pays_by_what_others_lose() -> None:
    """Where many wait for the fast class, a job that is hardly faster there takes the slow one."""
    long = [arrival(1, 0, gpu=100, cpu=10_000)]
    many = [arrival(number, 1, gpu=10, cpu=1000) for number in range(3, 13)]
    patient = arrival(2, 1, gpu=50, cpu=250)
    assert lived(TWO, [*long, patient], cost_s=1000.0)[2].segments[0].placement.pool == "gpu"
    assert lived(TWO, [*long, patient, *many], cost_s=1000.0)[2].segments[0].placement.pool == "cpu"
    assert (
        lived(TWO, [*long, patient, *many], cost_s=1000.0, price=0.0)[2].segments[0].placement.pool == "gpu"
    )


def test_jobs_of_several_sizes_have_a_price_too() -> None:
    """Two jobs of three are left to wait for four units, each counted 1.6 times."""
    pool, policy, prices = Pool("node", 4), Weigh(WeighParameters()), list[float]()
    jobs = [Job(n, 0, 4, 10.0, max_units=4, speed=LinearSpeed(4, 4)) for n in range(3)]
    world = World(Cluster((pool,)), tuple(Arrival(job, 10.0) for job in jobs))
    run(policy, world, lambda view: prices.append(policy.prices()["node"][""]))
    assert max(prices) == pytest.approx(1.6 * 2 / 4) and prices[-1] == 0.0


def test_a_hole_before_a_reservation_is_used_and_left() -> None:
    """Job 2 needs both units at 100 s; job 3 of 150 s runs until then, and ends after it."""
    machine = Cluster((Pool("node", 2),))
    jobs = [arrival(1, 0, node=100), arrival(2, 1, 2, node=50), arrival(3, 2, node=150)]
    outcomes = lived(machine, jobs, cost_s=1.0)
    assert outcomes[2].start_s == pytest.approx(100, abs=1e-3)
    assert outcomes[3].start_s == 2 and outcomes[3].end_s < 150 + 150
    assert lived(machine, jobs, cost_s=1.0, holes=False)[3].start_s == 150


def test_where_a_job_moves_to_it_stays_until_its_end() -> None:
    """Job 2 gets both cores when it has ended, 100 s from now; so job 3 may have one of them for 60 s."""
    machine = Cluster((Pool("gpu", 1, 0), Pool("cpu", 2, 1)))
    state = ClusterState(machine)
    jobs = [arrival(1, 0, gpu=100, cpu=100), arrival(2, 0, 2, cpu=50), arrival(3, 0, cpu=60)]
    for each in jobs:
        state.submit(each.job)
    moving = state.start(1, Placement("gpu", 1))
    state.begin_stop(moving)
    state.reserve(moving, Placement("cpu", 1))
    policy = Weigh(WeighParameters(holes=False))
    policy.begin(state)
    assert policy.decide(state, Timer(0.0)) == [Start(3, Placement("cpu", 1))]


SIZED = Cluster((Pool("gpu", 4, 0), Pool("cpu", 4, 1)))


def grows(number: int, submit_s: float, *speeds: float, **times: float) -> Arrival:
    """Make a job of one unit or more."""
    one = arrival(number, submit_s, **times)
    return one._replace(
        job=replace(one.job, max_units=len(speeds), speed=TabulatedSpeed(1, speeds), memory_mb=0.0)
    )


@given(sized_classes())
def test_jobs_that_change_class_and_size_get_what_they_need(world: World) -> None:
    outcomes, summary = run(Weigh(WeighParameters()), world)
    audit(world, outcomes, sum(summary.refused.values()))
    assert run(Weigh(WeighParameters()), world)[0] == outcomes


def test_class_and_size_are_chosen_together() -> None:
    """On 4 GPUs a job alone is 3 times as fast; 2 GPUs of 1.9 are cheaper when jobs would wait for them."""
    [alone] = lived(SIZED, [grows(1, 0, 1, 1.9, 2.5, 3.0, gpu=60, cpu=300)], price=0).values()
    assert alone.segments[0].placement == Placement("gpu", 4) and alone.end_s == pytest.approx(20)
    crowd = [grows(number, 0, 1, 1.9, 2.5, 3.0, gpu=60) for number in range(1, 9)]
    outcomes = lived(SIZED, crowd)
    assert {outcomes[job].segments[0].placement for job in (1, 2)} == {Placement("gpu", 2)}


def test_jobs_that_may_come_keep_one_alone_from_units_that_speed_it_up_little() -> None:
    """With two others a second costs 1 + 1.2 a GPU: 3.4 on two of 1.9, 5.8 on four of 3; else 1.8, 2.6."""
    job = grows(1, 0, 1, 1.9, 2.5, 3.0, gpu=60, cpu=300)
    for kwh_price, units in ((0.0, 2), (1e-9, 4)):
        assert lived(SIZED, [job], kwh_price=kwh_price)[1].segments[0].placement == Placement("gpu", units)


def test_a_job_changes_class_and_size_as_it_moves() -> None:
    """The GPUs are held until 100 s. A move costs 2 s, and 3 GPUs are ten times as fast as 3 cores."""
    line = dict.fromkeys(("gpu", "cpu"), LinearCost(0.0, 1.0))
    first = arrival(1, 0, 4, gpu=100)
    second = grows(2, 0, 1, 2, 2.5, gpu=60, cpu=600)
    settings = SimulationSettings(costs=LinearCosts(line, line))
    outcomes, _ = run(Weigh(WeighParameters(price=0.0)), World(SIZED, (first, second), settings))
    moved = next(outcome for outcome in outcomes if outcome.job.id == 2)
    places = [segment.placement for segment in moved.segments if segment.kind == "run"]
    assert places == [Placement("cpu", 3), Placement("gpu", 3)]
    left = 1 - 100 * 2.5 / 600
    assert moved.end_s == pytest.approx(102 + left * 60 / 2.5)


EXACT = {pool: exactly(seconds) for pool, seconds in (("gpu", 60.0), ("cpu", 120.0))}


@pytest.mark.parametrize(
    ("half_s", "quantiles", "moves"),
    [
        (0.0, EXACT, True),  # at 10 s it has 110 s left, or 55 s and 10 s for the move
        (25.0, EXACT, True),
        (40.0, EXACT, False),  # a move may take 10 + 57 s
        (0.0, {"gpu": Quantiles(48.0, 60.0, 75.0), "cpu": Quantiles(96.0, 120.0, 150.0)}, True),
        (0.0, {"gpu": Quantiles(6.0, 60.0, 600.0), "cpu": Quantiles(12.0, 120.0, 1200.0)}, False),
        (0.0, {"gpu": Quantiles(50.0, 60.0, 130.0), "cpu": Quantiles(110.0, 120.0, 130.0)}, False),
    ],
)
def test_a_job_moves_only_where_it_surely_gains(
    half_s: float, quantiles: dict[str, Quantiles], moves: bool
) -> None:
    """The first ends after 10 s instead of 1000; the second has begun on the core. Nobody else pays."""
    first, second = arrival(1, 0, gpu=1000, cpu=5000), arrival(2, 0, gpu=60, cpu=120)
    first = first._replace(
        job=replace(first.job, estimate_kind=EstimateKind.PREDICTED), runs_s={"gpu": 10.0, "cpu": 5000.0}
    )
    second = second._replace(job=replace(second.job, quantiles_s=quantiles))
    line = dict.fromkeys(("gpu", "cpu"), LinearCost(0.0, 5.0, 0.0, half_s))
    settings = SimulationSettings(costs=LinearCosts(line, line))
    outcomes, _ = run(Weigh(WeighParameters(price=0.0)), World(TWO, (first, second), settings))
    ends = {outcome.job.id: outcome.end_s for outcome in outcomes}
    assert ends[2] == pytest.approx(75 if moves else 120, abs=1e-3)


@pytest.mark.parametrize(("half_s", "start_s"), [(20.0, 2), (40.0, 150)])
def test_a_hole_must_be_long_beside_what_it_may_cost(half_s: float, start_s: float) -> None:
    """The hole is 98 s long; twice 2 s are the believed costs, and 30 or 59 s those at worst."""
    machine, line = Cluster((Pool("node", 2),)), {"node": LinearCost(0.0, 1.0, 0.0, half_s)}
    jobs = [arrival(1, 0, node=100), arrival(2, 1, 2, node=50), arrival(3, 2, node=150)]
    world = World(machine, tuple(jobs), SimulationSettings(costs=LinearCosts(line, line)))
    outcomes, _ = run(Weigh(WeighParameters()), world)
    assert {outcome.job.id: outcome.start_s for outcome in outcomes}[3] == start_s


@pytest.mark.parametrize(
    "wrong", [{"fairness": -1.0}, {"price": math.nan}, {"kwh_price": math.inf}, {"depth": 0}]
)
def test_parameters_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"from 0 on|at least 1"):
        WeighParameters(**wrong)  # type: ignore[arg-type]


def test_a_running_job_gives_way_to_a_far_shorter_one() -> None:
    """It would wait for 900 s; the one that stops loses its 50 s and two of a stop and a restart."""
    long = [arrival(number, 0.0, gpu=1000.0, cpu=1000.0) for number in (1, 2)]
    ended = lived(TWO, [*long, arrival(3, 100.0, gpu=50.0, cpu=500.0)], cost_s=1.0)
    assert ended[3].end_s == pytest.approx(151.0, abs=1e-3)  # the stop, and its run
    assert sorted(outcome.preemptions for outcome in ended.values()) == [0, 0, 1]


def test_no_job_gives_way_that_would_lose_more_than_is_gained() -> None:
    """With 25 s left a job stays where one of 50 s comes, and where a stop and a restart cost 1800 s."""
    long = [arrival(number, 0.0, gpu=1000.0, cpu=1000.0) for number in (1, 2)]
    for third, cost_s in ((arrival(3, 975.0, gpu=50.0, cpu=60.0), 1.0), (arrival(3, 100.0, gpu=50.0), 900.0)):
        ended = lived(TWO, [*long, third], cost_s=cost_s)
        assert [outcome.preemptions for outcome in ended.values()] == [0, 0, 0]
        assert ended[3].start_s == 1000.0


def test_nobody_gives_way_without_moves_or_run_times() -> None:
    long = [arrival(number, 0.0, gpu=1000.0, cpu=1000.0) for number in (1, 2)]
    third = arrival(3, 100.0, gpu=50.0, cpu=60.0)
    unknown = Arrival(replace(third.job, estimates_s={}, estimate_s=None), 50.0, {"gpu": 50.0, "cpu": 60.0})
    for jobs, move in (([*long, third], False), ([*long, unknown], True)):
        assert not any(outcome.preemptions for outcome in lived(TWO, jobs, 1.0, move=move).values())
