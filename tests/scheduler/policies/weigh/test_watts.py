"""Weigh on several classes under caps and a budget, which they share."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.events import BudgetChanged, NodeDown, NodeUp
from scheduler.model.jobs import CHECKPOINT, NEVER, RUNNING, Cluster, EstimateKind, Job, Pool
from scheduler.policies.base import View
from scheduler.policies.registry import POLICIES, create
from scheduler.simulator.simulator import objection
from scheduler.simulator.trace import Arrival, Disturbance, Outcome, SimulationSettings
from tests.support.amounts import examples
from tests.support.scheduling.schedule_audit import audit, power_w
from tests.support.scheduling.worlds import LinearSpeed, World, powers, run

EXACT = EstimateKind.EXACT
CAPS_W = (30.0, 40.0, 50.0)
POWERED = Cluster(tuple(Pool(name, 2, rank, base_w=10.0, peak_w=50.0) for rank, name in enumerate("ab")))
CAPPED = Cluster(tuple(replace(pool, caps_w=CAPS_W) for pool in POWERED.pools))


@st.composite
def machines(draw: st.DrawFn) -> Cluster:
    """Draw two or three classes, most of them with caps, and a budget."""
    pools = []
    for rank, name in enumerate("abc"[: draw(st.integers(2, 3))]):
        caps = draw(st.sampled_from((CAPS_W, CAPS_W, ())))
        base_w = draw(st.sampled_from((0.0, 10.0)))
        pools.append(Pool(name, draw(st.integers(1, 4)), rank, base_w=base_w, peak_w=50.0, caps_w=caps))
    full_w = sum(pool.units * pool.power_w(1, None) for pool in pools)
    share = draw(st.sampled_from((None, 0.3, 0.5, 0.6, 0.8, 1.0)))
    return Cluster(tuple(pools), None if share is None else max(60.0, full_w * share))


@st.composite
def worlds(draw: st.DrawFn, cluster: Cluster | None = None) -> World:
    """Draw jobs of several sizes, some with a checkpoint, and the costs of stops and of changed caps."""
    cluster = cluster or draw(machines())
    now, arrivals = 0, list[Arrival]()
    for number in range(1, draw(st.integers(1, 9)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 5, 20)))
        where = draw(st.lists(st.sampled_from(cluster.pools), min_size=1, unique=True))
        least = draw(st.integers(1, max(pool.units for pool in where)))
        most = least + draw(st.integers(0, 2))
        times = {pool.name: float(draw(st.integers(1, 90))) for pool in where}
        job = Job(
            number,
            float(now),
            least,
            estimate_kind=EXACT,
            memory_mb=1000.0,
            stop=draw(st.sampled_from((NEVER, CHECKPOINT, CHECKPOINT))),
            max_units=most if most > least else None,
            estimates_s=times,
            speed=draw(st.sampled_from((None, LinearSpeed(least, most), LinearSpeed(least, most)))),
            power=draw(powers(most, CAPS_W)),
        )
        others = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 90)), max_size=2))
        for place, (units, run_s) in enumerate(others, 1):
            pool = draw(st.sampled_from(cluster.pools))
            takes = {"units": min(units, pool.units), "max_units": None, "speed": None, "power": None}
            way = replace(job, **takes, estimates_s={pool.name: float(run_s)}, alternative=place)
            job = replace(job, alternatives=(*job.alternatives, replace(way, alternatives=())))
        arrivals.append(Arrival(job, 0.0, times, others_s=tuple(float(run_s) for _, run_s in others)))
    stop_s = draw(st.sampled_from((0.0, 2.0)))
    line = {pool.name: LinearCost(0.0, stop_s) for pool in cluster.pools}
    return World(
        cluster, tuple(arrivals), SimulationSettings(LinearCosts(line, line, cap_change_s=stop_s / 4))
    )


def disturbed(world: World, share: float, at_s: float) -> World:
    """Let the budget fall to a share for 300 s, and units fail meanwhile."""
    cluster, first = world.cluster, world.cluster.pools[0].name
    events: list[Disturbance] = [(at_s + 5.0, NodeDown(first)), (at_s + 200.0, NodeUp(first))]
    if cluster.budget_w is not None:
        events.append((at_s, BudgetChanged(cluster.budget_w * share)))
        events.append((at_s + 300.0, BudgetChanged(cluster.budget_w)))
    events.sort(key=lambda event: event[0])
    return replace(world, settings=replace(world.settings, disturbances=tuple(events)))


def drawn_w(view: View, *, least: bool = False, stay: bool = False) -> float:
    """Add what running jobs draw; under the lowest caps, or of those that stay alone."""
    total = 0.0
    for state in view.running.values():
        runs = state.stage is RUNNING
        for place in state.places[0 if runs or not stay else 1 :]:
            pool = view.cluster[place.pool]
            low = least and pool.caps_w and runs
            total += power_w(pool, state.job, replace(place, cap_w=CAPS_W[0]) if low else place)
    return total


def mind_budget(view: View) -> None:
    """See that the budget is kept, or that all is done to keep it again."""
    drawn = drawn_w(view)
    assert drawn == pytest.approx(view.power_w, abs=1e-6)
    if view.upcoming is not None or view.budget_w is None or drawn <= view.budget_w + 1e-6:
        return
    assert drawn == pytest.approx(drawn_w(view, least=True), abs=1e-6)
    if drawn_w(view, stay=True) > view.budget_w + 1e-6:
        running = [state.job.stop for state in view.running.values() if state.stage is RUNNING]
        assert CHECKPOINT not in running


WEIGHS = ("weigh", "weigh,kwh_price=20", "weigh,move=false", "weigh,price=0,holes=false")


@settings(max_examples=examples(100))
@given(worlds(), st.sampled_from(WEIGHS))
def test_the_budget_is_kept_and_all_jobs_end(world: World, policy: str) -> None:
    outcomes, summary = run(create(policy), world, mind_budget)
    audit(world, outcomes, sum(summary.refused.values()))
    for outcome in outcomes:
        drawn = [
            power_w(world.cluster[s.placement.pool], outcome.job, s.placement) * (s.end_s - s.start_s)
            for s in outcome.segments
        ]
        assert outcome.energy_j == pytest.approx(sum(drawn), abs=1e-3)
    assert run(create(policy), world)[0] == outcomes


@settings(max_examples=examples(100))
@given(worlds(), st.sampled_from(WEIGHS), st.sampled_from((0.2, 0.5, 0.8)), st.integers(0, 60))
def test_a_lower_budget_lowers_caps_and_stops_jobs(
    world: World, policy: str, share: float, at_s: int
) -> None:
    world = disturbed(world, share, float(at_s))
    outcomes, summary = run(create(policy), world, mind_budget)
    audit(world, outcomes, sum(summary.refused.values()))


@settings(max_examples=examples(60))
@given(worlds(CAPPED))
def test_caps_and_a_budget_that_do_not_bind_change_nothing(world: World) -> None:
    def lived(cluster: Cluster) -> list[tuple[int, float, list[tuple[object, ...]]]]:
        outcomes, _ = run(create("weigh"), replace(world, cluster=cluster))
        return [
            (
                o.job.id,
                o.end_s,
                [(s.kind, s.placement.pool, s.placement.units, s.start_s) for s in o.segments],
            )
            for o in outcomes
        ]

    assert lived(replace(CAPPED, budget_w=1000.0)) == lived(CAPPED) == lived(POWERED)


def job(number: int, at_s: float, units: int = 1, **times: float) -> Arrival:
    made = Job(number, at_s, units, estimate_kind=EXACT, estimates_s=times, speed=LinearSpeed(units, units))
    return Arrival(made, 0.0, times)


def by_number(world: World, policy: str = "weigh") -> dict[int, Outcome]:
    return {outcome.job.id: outcome for outcome in run(create(policy), world)[0]}


def test_the_first_job_does_not_starve_for_watts() -> None:
    """Job 2 needs all of 120 W when job 1 ends; small jobs of the other class pass until then."""
    small = [job(3 + number, 2.0 + 10 * number, b=28.0) for number in range(12)]
    arrivals = (job(1, 0.0, a=140.0), job(2, 1.0, 2, a=14.0), *small)
    outcomes = by_number(World(replace(POWERED, budget_w=120.0), arrivals))
    assert outcomes[2].start_s == pytest.approx(100.0)
    assert outcomes[3].start_s == 2.0


def test_what_is_left_of_the_budget_is_lent_and_given_back() -> None:
    """160 W are 40 W for each unit, the lowest cap; alone, and with one more, a job has the highest."""
    arrivals = job(1, 0.0, a=140.0), job(2, 10.0, a=14.0, b=14.0), job(3, 10.0, 2, b=14.0)
    first, *_ = by_number(World(replace(CAPPED, budget_w=160.0), arrivals)).values()
    outcomes = by_number(World(replace(CAPPED, budget_w=160.0), arrivals))
    caps = [segment.placement.cap_w for segment in outcomes[1].segments]
    assert caps[0] == caps[-1] == 50.0 and 30.0 in caps
    assert outcomes[2].start_s == outcomes[3].start_s == 10.0
    assert first.job.id == 2  # of those beside each other the shortest has the highest cap


@pytest.mark.parametrize(("budget_w", "stops"), [(80.0, 0), (79.0, 1)])
def test_under_a_lower_budget_the_longest_job_stops(budget_w: float, stops: int) -> None:
    """At their lowest caps two jobs draw 80 W."""
    arrivals = [job(1, 0.0, a=100.0, b=100.0), job(2, 0.0, a=200.0, b=200.0)]
    arrivals = [a._replace(job=replace(a.job, stop=CHECKPOINT)) for a in arrivals]
    settings = SimulationSettings(disturbances=((10.0, BudgetChanged(budget_w)),))
    outcomes = by_number(World(replace(CAPPED, budget_w=240.0), tuple(arrivals), settings))
    assert [outcomes[number].preemptions for number in (1, 2)] == [0, stops]


def test_energy_has_a_price_on_several_classes() -> None:
    """From 0.1 s a joule, 100 hours a kWh, on the lowest cap is cheaper, as on one class."""
    for price, run_s in ((90, 100.0), (110, 140.0)):
        alone = by_number(World(CAPPED, (job(1, 0.0, a=140.0, b=300.0),)), f"weigh,kwh_price={price}")
        assert alone[1].end_s == pytest.approx(run_s)


def least_sum_of_ends(cluster: Cluster, jobs: Sequence[Job]) -> float:
    """Try each order of the jobs, each on each class, as soon as units and watts are free."""
    best, budget_w = float("inf"), cluster.budget_w or 0.0
    for order in itertools.permutations(jobs):
        for pools in itertools.product(cluster.pools, repeat=len(jobs)):
            held, ends = list[tuple[float, float, Pool]](), 0.0
            for each, pool in zip(order, pools, strict=True):
                length_s = each.estimates_s[pool.name]
                for start_s in sorted({0.0, *(end for _, end, _ in held)}):
                    moments = [start_s, *(s for s, _, _ in held if start_s < s < start_s + length_s)]
                    beside = [[p for s, e, p in held if s <= moment < e] for moment in moments]
                    if all(
                        sum(p is pool for p in others) < pool.units
                        and sum(p.peak_w for p in others) + pool.peak_w <= budget_w
                        for others in beside
                    ):
                        break
                held.append((start_s, start_s + length_s, pool))
                ends += start_s + length_s
            best = min(best, ends)
    return best


def test_where_watts_bind_ends_are_near_the_optimum() -> None:
    """Four jobs, all there at once; two of three units may be in use."""
    cluster = Cluster((Pool("a", 1, 0, peak_w=100.0), Pool("b", 2, 1, peak_w=60.0)), 160.0)
    ratios = []
    for seed in range(examples(40)):
        chance = random.Random(seed)
        times = [{"a": chance.randint(1, 20), "b": chance.randint(5, 40)} for _ in range(4)]
        jobs = [Job(n, 0.0, 1, estimate_kind=EXACT, estimates_s=of) for n, of in enumerate(times, 1)]
        arrivals = tuple(Arrival(each, 0.0, each.estimates_s) for each in jobs)
        outcomes, _ = run(create("weigh"), World(cluster, arrivals))
        ratios.append(sum(outcome.end_s for outcome in outcomes) / least_sum_of_ends(cluster, jobs))
    assert min(ratios) > 1 - 1e-9
    assert statistics.fmean(ratios) < 1.15


@pytest.mark.parametrize("name", POLICIES)
def test_policies_that_keep_no_budget_refuse_one(name: str) -> None:
    """On several classes all others do, on one class those that choose no caps, on nodes all."""
    node = Pool("node", 2, resources=("cores",), capacity=(4.0,), base_w=10.0, peak_w=50.0)
    machines = CAPPED.pools, CAPPED.pools[:1], (node,)
    refused = [
        objection(create(name), Cluster(pools, 160.0), SimulationSettings()) is not None for pools in machines
    ]
    assert refused == [name != "weigh", "power" not in POLICIES[name].load().suits, True]


def test_a_job_that_needs_more_than_the_budget_is_refused() -> None:
    cluster = replace(CAPPED, budget_w=60.0)
    policy = create("weigh")
    assert policy.refuses(job(1, 0.0, 2, a=1.0).job, cluster) == "it needs at least 80 W, the budget is 60 W"
    assert not policy.refuses(job(1, 0.0, 1, a=1.0).job, cluster)


def test_a_job_starts_in_an_alternative_where_the_budget_carries_no_other() -> None:
    """On its fastest class it would draw 180 W of 80 W."""
    cluster = Cluster((Pool("a", 2, 0, peak_w=40.0), Pool("b", 3, 1, peak_w=60.0)), 80.0)
    wide = Job(1, 0.0, 3, estimate_kind=EXACT, estimates_s={"a": 9.0, "b": 1.0})
    narrow = replace(wide, units=2, estimates_s={"a": 50.0}, alternative=1)
    arrival = Arrival(replace(wide, alternatives=(narrow,)), 0.0, wide.estimates_s, others_s=(50.0,))
    outcomes = by_number(World(cluster, (arrival,)))
    assert (outcomes[1].segments[0].placement.pool, outcomes[1].end_s) == ("a", 50.0)
