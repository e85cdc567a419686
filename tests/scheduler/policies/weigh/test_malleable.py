"""Weigh where jobs may have more or fewer units, and under power caps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.evaluations import capped_gpus
from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.events import Action, BudgetChanged, Event, NodeDown, NodeUp, Start
from scheduler.model.jobs import CHECKPOINT, NEVER, Cluster, EstimateKind, Job, JobState, Pool, Stop
from scheduler.model.speeds import TabulatedSpeed
from scheduler.policies.base import Policy, View
from scheduler.policies.registry import create
from scheduler.policies.weigh.malleable import Claim, Machine, Way
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, SimulationSettings
from scheduler.workloads import load
from scheduler.workloads.generators import power_sets
from tests.support.amounts import examples
from tests.support.scheduling.worlds import LinearSpeed, World, powers, run


class DecidedError(Exception):
    """Ends the simulation when the first decision is made."""


class First(Policy):
    """Keeps the starts of another policy's first decision."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy, self.starts = policy, list[tuple[Job, Start]]()
        self.begin, self.refuses, self.why = policy.begin, policy.refuses, policy.why  # type: ignore[method-assign]

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        actions = self.policy.decide(view, event)
        if view.upcoming is None:
            self.starts = [(view.waiting[a.job_id], a) for a in actions if isinstance(a, Start)]
            raise DecidedError
        return actions


def merit(policy: str, cluster: Cluster, arrivals: Sequence[Arrival]) -> float:
    """Sum of (time left ^ 0.5) x speed of what a policy starts at first."""
    first = First(create(policy))
    with pytest.raises(DecidedError):
        Simulator(cluster, iter(arrivals), first, SimulationSettings()).run()
    total = 0.0
    for job, start in first.starts:
        assert job.speed is not None and job.estimate_s is not None
        total += job.estimate_s**0.5 * job.speed(start.placement.units, start.placement.cap_w)
    return total


def test_shares_are_worth_nearly_as_much_as_in_the_exact_program() -> None:
    """For the makespan parm (alpha 0.5) solves the same program exactly."""
    cluster = power_sets.small_machine()
    ratios = []
    for seed in range(examples(60)):
        arrivals = load("generator:power-set1", cluster, seed).arrivals
        assert isinstance(arrivals, Iterable)
        some = [a._replace(job=replace(a.job, submit_s=0.0)) for a in islice(arrivals, 2 + seed % 11)]
        best = merit("parm,alpha=0.5,gap=0.0001", cluster, some)
        ratios.append(merit("weigh,aim=makespan", cluster, some) / best)
    assert max(ratios) <= 1.0002
    assert statistics.median(ratios) >= 0.99 and min(ratios) >= 0.97


def test_of_equal_shares_the_faster_way_counts() -> None:
    pool = Pool("node", 4, base_w=10.0, peak_w=50.0, caps_w=(30.0, 50.0))
    job = Job(1, 0.0, 1, 10.0, max_units=4, speed=LinearSpeed(1, 4))

    def ways_of(watts: float, joule_s: float = 0.0) -> tuple[Way, ...]:
        claim = Machine(pool, 4, watts, joule_s).claim(JobState(job=job, since_s=0.0), 10.0, math.inf)
        return claim.ways.all

    ways = ways_of(1e9)
    # Watts are plenty, so each number of units has the highest cap alone.
    assert [(way.units, way.cap_w) for way in ways] == [(1, 50.0), (2, 50.0), (3, 50.0), (4, 50.0)]
    # 40 W a unit at the lowest cap, 60 W at the highest: two units at the highest cap hold as much as three.
    tight = [(way.units, way.cap_w, round(way.share, 3)) for way in ways_of(120.0)]
    assert tight[0] == (1, 30.0, round(40 / 120, 3)) and (2, 30.0, round(80 / 120, 3)) in tight
    assert all(a[2] < b[2] for a, b in pairwise(tight))
    # One unit, a second of work with its joules: (1 + 60 p) / 1.4 at the highest cap, (1 + 40 p) / 1 at the
    # lowest: that is cheaper where the price p is above 0.1 s a joule.
    for price, cheaper in ((0.09, False), (0.11, True)):
        assert ((1, 30.0) in [(way.units, way.cap_w) for way in ways_of(1e9, price)]) == cheaper


def test_a_job_that_is_alone_has_all_and_gives_it_back() -> None:
    """Of two jobs on four units: alone each would be four times as fast as on one."""
    machine = Cluster((Pool("node", 4),))
    jobs = [
        Job(
            number,
            at,
            1,
            run_s,
            estimate_kind=EstimateKind.EXACT,
            max_units=4,
            malleable=True,
            speed=LinearSpeed(1, 4),
        )
        for number, at, run_s in ((1, 0.0, 400.0), (2, 50.0, 40.0))
    ]
    world = World(machine, tuple(Arrival(job, job.estimate_s or 0.0) for job in jobs))
    outcomes = {outcome.job.id: outcome for outcome in run(create("weigh"), world)[0]}
    uncapped = 1.0 + 0.02 * 20  # of LinearSpeed
    # Job 2 comes first while it is there, and has all but the unit that job 1 keeps.
    end = 50 + 40 / (3 * uncapped)
    assert outcomes[2].end_s == pytest.approx(end, abs=1e-3)
    left = 400 - (4 * 50 + (end - 50)) * uncapped
    assert outcomes[1].end_s == pytest.approx(end + left / (4 * uncapped), abs=1e-3)


def lived(
    pool: Pool, budget_w: float, *jobs: tuple[float, int, float], policy: str = "weigh", **fields: object
) -> dict[int, Outcome]:
    """Live through jobs of fixed sizes, given as (submission, units, run time)."""
    made = [
        replace(Job(number, at, units, run_s, estimate_kind=EstimateKind.EXACT), **fields)  # type: ignore[arg-type]
        for number, (at, units, run_s) in enumerate(jobs, 1)
    ]
    world = World(Cluster((pool,), budget_w), tuple(Arrival(job, job.estimate_s or 0.0) for job in made))
    return {outcome.job.id: outcome for outcome in run(create(policy), world)[0]}


@pytest.mark.parametrize("aim", ["turnaround", "makespan"])
def test_jobs_start_beside_the_first_where_they_do_not_delay_it(aim: str) -> None:
    """The second waits for units and watts of the first until 100 s: whoever ends by then may go before."""
    pool, policy = Pool("node", 5, base_w=100.0), f"weigh,aim={aim}"
    jobs = (0.0, 2, 100.0), (1.0, 3, 50.0), (2.0, 1, 90.0), (3.0, 1, 200.0)
    for budget_w, last_s in ((300.0, 150.0), (400.0, 3.0)):
        starts = {job_id: o.start_s for job_id, o in lived(pool, budget_w, *jobs, policy=policy).items()}
        # Two units are left beside the second; at 300 W there is no power for them.
        assert starts == {1: 0.0, 2: 100.0, 3: 2.0, 4: last_s}


def test_a_job_goes_before_the_first_only_if_it_ends_by_then_under_the_lowest_cap() -> None:
    """Jobs are 1.4 times as fast as they may have to be. Job 1 has 97.2 s left at 2 s, when job 3 comes."""
    pool = Pool("node", 4, base_w=10.0, peak_w=50.0, caps_w=(30.0, 50.0))
    for run_s, goes in (97.0, True), (98.0, False):
        outcomes = lived(
            pool, 160.0, (0.0, 1, 100.0), (1.0, 4, 50.0), (2.0, 1, run_s), speed=LinearSpeed(1, 4)
        )
        assert outcomes[2].start_s == pytest.approx(100 / 1.4, abs=1e-3)
        assert (outcomes[3].start_s == 2.0) == goes


def test_a_hole_before_the_first_is_used_and_left() -> None:
    """The last runs beside the first job until the second begins, and goes on after that."""
    jobs = (0.0, 2, 100.0), (1.0, 4, 50.0), (2.0, 2, 200.0)
    pool, policy = Pool("node", 4, base_w=100.0), "weigh,move=false"
    outcomes = lived(pool, 400.0, *jobs, policy=policy, stop=CHECKPOINT)
    assert outcomes[2].start_s == 100 and outcomes[2].end_s == 150
    assert [(s.start_s, s.end_s) for s in outcomes[3].segments] == [(2, 100), (150, 252)]


def after_a_long_one(
    policy: str, *, cost_s: float, run_s: float, stop: Stop, half_s: float = 0.0
) -> tuple[Outcome, Outcome]:
    """Live through a job of 10,000 s and one that comes 100 s later; a stop costs as a restart."""
    first = Job(1, 0.0, 1, 10_000.0, estimate_kind=EstimateKind.EXACT, stop=stop)
    later = Job(2, 100.0, 1, run_s, estimate_kind=EstimateKind.EXACT, stop=CHECKPOINT)
    cost = {"node": LinearCost(0.0, cost_s, 0.0, half_s)}
    world = World(
        Cluster((Pool("node", 1, base_w=100.0),), 100.0),
        tuple(Arrival(job, job.estimate_s or 0.0) for job in (first, later)),
        SimulationSettings(costs=LinearCosts(cost, cost)),
    )
    one, two = sorted(run(create(policy), world)[0], key=lambda outcome: outcome.job.id)
    return one, two


def test_a_long_job_gives_way_to_a_short_one() -> None:
    long, short = after_a_long_one("weigh", cost_s=5.0, run_s=10.0, stop=CHECKPOINT)
    assert (short.start_s, short.end_s) == (105, 115)
    assert (long.preemptions, long.end_s) == (1, 10_000 + 5 + 10 + 5)


@pytest.mark.parametrize(("half_s", "stops"), [(4000.0, 1), (4500.0, 0)])
def test_a_stop_must_gain_more_than_it_may_cost(half_s: float, stops: int) -> None:
    """Stop and restart may take 400 + 5657 or 6364 s; 1.5 x (that + 10) s to 9900 s that are left."""
    policy = "weigh,fairness=0"
    long, _ = after_a_long_one(policy, cost_s=200.0, run_s=10.0, stop=CHECKPOINT, half_s=half_s)
    assert long.preemptions == stops


@pytest.mark.parametrize(
    ("policy", "cost_s", "run_s", "stop"),
    [
        ("weigh", 5.0, 9000.0, CHECKPOINT),  # hardly shorter
        ("weigh", 4000.0, 10.0, CHECKPOINT),  # 1.5 x (10 + 8000) s is more than the long one has left
        ("weigh", 5.0, 10.0, NEVER),
        ("weigh,move=false", 5.0, 10.0, CHECKPOINT),
        ("weigh,aim=makespan", 5.0, 10.0, CHECKPOINT),
    ],
)
def test_jobs_give_way_only_where_that_is_worth_while(
    policy: str, cost_s: float, run_s: float, stop: Stop
) -> None:
    """``fairness=0``: waits do not count, so that what holds when the second comes holds later too."""
    long, short = after_a_long_one(f"{policy},fairness=0", cost_s=cost_s, run_s=run_s, stop=stop)
    assert (long.preemptions, long.end_s, short.start_s) == (0, 10_000, 10_000)


def test_who_waits_for_many_times_its_length_is_let_in_without_another_event() -> None:
    """Of 4,000 s in all for stop and restart: worth while when the short one has waited for long enough."""
    long, short = after_a_long_one("weigh", cost_s=4000.0, run_s=10.0, stop=CHECKPOINT)
    assert long.preemptions == 1 and 100 + 4000 < short.start_s < 100 + 4000 + 60


def test_who_comes_while_a_job_restarts_has_its_turn_when_that_works() -> None:
    """The long one stops from 100 to 150 s and restarts from 160 to 210 s. The third comes meanwhile."""
    cost = {"node": LinearCost(0.0, 50.0)}
    arrivals = [
        Arrival(Job(number, at, 1, run_s, estimate_kind=EstimateKind.EXACT, stop=CHECKPOINT), run_s)
        for number, at, run_s in ((1, 0.0, 10_000.0), (2, 100.0, 10.0), (3, 170.0, 10.0))
    ]
    world = World(
        Cluster((Pool("node", 1, base_w=100.0),), 100.0),
        tuple(arrivals),
        SimulationSettings(costs=LinearCosts(cost, cost)),
    )
    outcomes = {outcome.job.id: outcome for outcome in run(create("weigh"), world)[0]}
    assert outcomes[2].start_s == 150
    assert outcomes[3].start_s == pytest.approx(260, abs=1e-3)


@pytest.mark.parametrize(("speed_on_four", "ends"), [(2.9, 100 + 200 / 2.9), (2.7, 100 + 100 / 2.7)])
def test_a_job_is_not_begun_on_units_of_which_it_makes_little(speed_on_four: float, ends: float) -> None:
    """On four units it is 2.9 (or 2.7) times as fast as on two; the others are free from 100 s on."""
    first = Job(1, 0.0, 2, 100.0, estimate_kind=EstimateKind.EXACT)
    speed = TabulatedSpeed(2, (1.0, 1.0, speed_on_four))
    exact = EstimateKind.EXACT
    later = Job(2, 0.0, 2, 200.0, estimate_kind=exact, max_units=4, malleable=True, speed=speed)
    world = World(Cluster((Pool("node", 4),)), (Arrival(first, 100.0), Arrival(later, 200.0)))
    outcomes = {outcome.job.id: outcome for outcome in run(create("weigh"), world)[0]}
    assert outcomes[2].end_s == pytest.approx(ends, abs=1e-3)


def test_units_are_given_back_before_somebody_is_stopped() -> None:
    """The first is four times as fast on four units as on two, and a stop would take 50 s."""
    exact, speed = EstimateKind.EXACT, TabulatedSpeed(2, (1.0, 1.0, 4.0))
    first = Job(1, 0.0, 2, 8000.0, "", None, exact, CHECKPOINT, max_units=4, malleable=True, speed=speed)
    short = Job(2, 100.0, 2, 10.0, "", None, exact)
    costs = {"node": LinearCost(0.0, 50.0)}
    settings = SimulationSettings(costs=LinearCosts(costs, costs))
    world = World(
        Cluster((Pool("node", 4),)),
        tuple(Arrival(job, job.estimate_s or 0.0) for job in (first, short)),
        settings,
    )
    outcomes = {outcome.job.id: outcome for outcome in run(create("weigh"), world)[0]}
    assert (outcomes[2].start_s, outcomes[2].end_s) == (100, 110)
    assert outcomes[1].preemptions == 0
    assert outcomes[1].end_s == pytest.approx(110 + (8000 - 4 * 100 - 10) / 4, abs=1e-3)


@pytest.mark.parametrize(("jobs", "speed"), [(1, 2.0), (2, 1.0)])
def test_energy_makes_no_job_much_slower_than_its_equal_share(jobs: int, speed: float) -> None:
    """One unit costs least: (1 + 0.1 s/J x 100 W) / 1. The speed on a share: 2.5 alone, 1.5 with two jobs."""
    sizes = TabulatedSpeed(1, (1.0, 1.5, 2.0, 2.5))
    every = [
        Job(number, 0.0, 1, 100.0, "", None, EstimateKind.EXACT, max_units=4, speed=sizes)
        for number in range(1, jobs + 1)
    ]
    world = World(Cluster((Pool("node", 4, base_w=100.0),)), tuple(Arrival(job, 100.0) for job in every))
    ends = [outcome.end_s for outcome in run(create("weigh,kwh_price=100"), world)[0]]
    assert ends == pytest.approx([100.0 / speed] * jobs)


def test_jobs_of_a_lab_are_stopped_less_than_once_each_and_fare_evenly() -> None:
    """Each as if it had its part of the machine, within a few times; before they gave way it was hundreds."""
    cluster = capped_gpus.V100
    workload = load("generator:labbench,jobs=100,load=0.7", cluster, 989)
    assert isinstance(workload.arrivals, Iterable)
    outcomes = run(create("weigh"), World(cluster, tuple(workload.arrivals), workload.settings))[0]
    assert statistics.fmean(outcome.preemptions for outcome in outcomes) < 1
    assert max(capped_gpus.finish_time_fairness(outcomes)) < 10


def test_caps_of_running_jobs_change_although_their_units_do_not() -> None:
    """80 W: the first job has 60 W while it is alone, and 40 W beside the second, like that."""
    pool = Pool("node", 2, base_w=10.0, peak_w=50.0, caps_w=(30.0, 50.0))
    jobs = (0.0, 1, 100.0), (10.0, 1, 20.0)
    outcomes = lived(pool, 80.0, *jobs, speed=LinearSpeed(1, 1))
    assert outcomes[2].end_s == pytest.approx(30.0)
    assert outcomes[1].end_s == pytest.approx(30 + (100 - 10 * 1.4 - 20) / 1.4, abs=1e-5)


def test_energy_has_a_price_where_the_operator_sets_one() -> None:
    """The lowest cap is cheaper from 0.1 s a joule, 100 hours a kWh, on (see above)."""
    pool = Pool("node", 1, base_w=10.0, peak_w=50.0, caps_w=(30.0, 50.0))
    for price, run_s in ((0, 140 / 1.4), (90, 140 / 1.4), (110, 140.0)):
        job = (0.0, 1, 140.0)
        for aim in ("turnaround", "makespan"):
            policy = f"weigh,kwh_price={price},aim={aim}"
            assert lived(pool, 1e3, job, policy=policy, speed=LinearSpeed(1, 1))[1].end_s == pytest.approx(
                run_s
            )


@dataclass(frozen=True)
class SquaredSpeed(LinearSpeed):
    """Twice the units are four times as fast."""

    def __call__(self, units: int, cap_w: float | None) -> float:
        return super().__call__(units, cap_w) * min(units, self.most) / self.least


def test_under_a_lower_budget_jobs_give_units_back_of_which_each_did_much() -> None:
    """Each of two jobs has two units, at least 80 W, until 100 W are left for both."""
    pool = Pool("node", 4, base_w=10.0, peak_w=50.0, caps_w=(30.0, 50.0))
    exact, speed = EstimateKind.EXACT, SquaredSpeed(1, 2)
    arrivals = tuple(
        Arrival(Job(number, 0.0, 1, 400.0, "", None, exact, max_units=2, malleable=True, speed=speed), 400.0)
        for number in (1, 2)
    )
    changed = SimulationSettings(disturbances=((10.0, BudgetChanged(100.0)),))
    outcomes = run(create("weigh"), World(Cluster((pool,), 200.0), arrivals, changed))[0]
    held = [
        [s.placement for s in outcome.segments if s.start_s <= at < s.end_s]
        for at in (5.0, 15.0)
        for outcome in outcomes
    ]
    assert [place.units for (place,) in held] == [2, 2, 1, 1]
    assert sum(pool.power_w(place.units, place.cap_w) for (place,) in held[2:]) <= 100


def test_without_any_power_nothing_begins() -> None:
    pool = Pool("node", 4, base_w=10.0, peak_w=50.0, caps_w=(30.0, 50.0))
    arrivals = tuple(
        Arrival(Job(number, at, 1, 100.0, "", None, EstimateKind.EXACT, speed=LinearSpeed(1, 1)), 100.0)
        for number, at in ((1, 0.0), (2, 20.0))
    )
    changed = SimulationSettings(disturbances=((10.0, BudgetChanged(0.0)), (50.0, BudgetChanged(200.0))))
    outcomes = run(create("weigh"), World(Cluster((pool,), 200.0), arrivals, changed))[0]
    assert {outcome.job.id: outcome.start_s for outcome in outcomes} == {1: 0.0, 2: 50.0}


@st.composite
def capped(draw: st.DrawFn) -> World:
    """Draw a machine with caps, mostly under a budget; rigid, moldable and malleable jobs of known length."""
    units, now, arrivals = draw(st.integers(2, 8)), 0, list[Arrival]()
    pool = Pool("node", units, base_w=10.0, peak_w=50.0, caps_w=(30.0, 40.0, 50.0))
    for number in range(1, draw(st.integers(2, 10)) + 1):
        now += draw(st.sampled_from((0, 1, 5, 20)))
        least = draw(st.integers(1, units))
        most = draw(st.integers(least, units))
        job = Job(
            number,
            float(now),
            least,
            float(draw(st.integers(1, 60))),
            estimate_kind=EstimateKind.EXACT,
            stop=draw(st.sampled_from((NEVER, CHECKPOINT))),
            max_units=most if most > least else None,
            malleable=most > least and draw(st.booleans()),
            speed=draw(st.sampled_from((LinearSpeed, SquaredSpeed)))(least, most),
            power=draw(powers(most, pool.caps_w)),
        )
        arrivals.append(Arrival(job, job.estimate_s or 0.0))
    budget_w = draw(st.sampled_from((None, 40.0 * units, 45.0 * units)))
    return World(Cluster((pool,), budget_w), tuple(arrivals))


@settings(max_examples=examples(200))
@given(capped(), st.sampled_from(("weigh", "weigh,aim=makespan", "weigh,kwh_price=20", "weigh,move=false")))
def test_a_reservation_is_kept(world: World, policy: str) -> None:
    """The oldest job's room never comes later than it was believed to come, if none can outrank it."""
    reserved, outranked = dict[int, float](), ("weigh", "weigh,kwh_price=20")
    reserve = Machine.reserve

    def observed(machine: Machine, head: Claim, running: Sequence[Claim]) -> None:
        reserve(machine, head, running)
        job_id, begins_s = head.state.job.id, clock[0] + machine.begins_s
        if head.state.job.stop is CHECKPOINT and policy in outranked:
            return
        assert begins_s <= reserved.get(job_id, math.inf) + 1e-3
        reserved[job_id] = begins_s

    clock = [0.0]
    weigh = create(policy)
    decide = weigh.decide

    def timed(view: View, event: Event) -> Sequence[Action]:
        clock[0] = view.now
        return decide(view, event)

    weigh.decide = timed  # type: ignore[method-assign, assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "reserve", observed)
        starts = {outcome.job.id: outcome for outcome in run(weigh, world)[0]}
    assert len(starts) == len(world.arrivals)
    for job_id, begins_s in reserved.items():
        assert starts[job_id].start_s <= begins_s + 1e-3


def test_a_failed_job_begins_anew_on_the_units_that_are_left() -> None:
    """It ran on four; two fail, for long."""
    job = Job(1, 0.0, 1, 100.0, estimate_kind=EstimateKind.EXACT, max_units=4, speed=LinearSpeed(1, 4))
    settings = SimulationSettings(disturbances=((10.0, NodeDown("node", 2)), (10_000.0, NodeUp("node", 2))))
    world = World(Cluster((Pool("node", 4),)), (Arrival(job, 100.0),), settings)
    (outcome,), _ = run(create("weigh"), world)
    assert outcome.failures == 1
    assert [segment.placement.units for segment in outcome.segments] == [4, 2]
    assert outcome.segments[1].start_s == 10.0
