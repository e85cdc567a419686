"""MCT and its family: by hand, against the readings written down by brute force, and where plans break."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.events import Action, Event, NodeDown, NodeUp
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, Stop
from scheduler.policies.backfill.availability import Availability
from scheduler.policies.base import View
from scheduler.policies.mct.mct import Mct
from scheduler.policies.mct.plan import (
    MctParameters,
    PlannedJob,
    PoolPlan,
    RemainingJob,
    Stay,
    plan,
    remaining_job,
)
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival, Outcome, SimulationSettings
from tests.support.brute.mct import SECOND, Planner
from tests.support.scheduling.schedule_audit import audit, starts
from tests.support.scheduling.worlds import World, classes, run

KINDS = {
    "mct": (False, False, False),
    "mctb": (True, False, False),
    "mctm": (False, True, False),
    "mctbm": (True, True, False),
    "mctm,literal=true": (False, True, True),
    "mctbm,literal=true": (True, True, True),
}
FAMILY = ["met", "mct", "mctb", "mctm", "mctbm", "mctbm,literal=true", "mctbm-priced"]
COSTS = LinearCosts(
    {"high": LinearCost(0.0, 2.0), "low": LinearCost(0.0, 2.0)},
    {"high": LinearCost(0.0, 3.0), "low": LinearCost(0.0, 3.0)},
)


def two(high: int, low: int, *jobs: tuple[float, int, float, float | None]) -> World:
    """Jobs as (submission, units, seconds on high, seconds on low or None: never), numbered from 1."""
    arrivals = []
    for number, (submit, wanted, fast, slow) in enumerate(jobs, 1):
        times = {"high": fast} if slow is None else {"high": fast, "low": slow}
        job = Job(
            number, submit, wanted, estimate_kind=EstimateKind.EXACT, stop=Stop.CHECKPOINT, estimates_s=times
        )
        arrivals.append(Arrival(job, 0.0, times))
    return World(
        Cluster((Pool("high", high, 0), Pool("low", low, 1))), tuple(arrivals), SimulationSettings(COSTS)
    )


def stays(outcome: Outcome) -> list[tuple[str, float, float]]:
    """List the job's places with their times; spans in one place without a gap are one stay."""
    found: list[tuple[str, float, float]] = []
    joined = False
    for kind, placement, start, end in outcome.segments:
        if found and joined and found[-1][0] == placement.pool and found[-1][2] == start:
            found[-1] = (placement.pool, found[-1][1], end)
        elif end > start or len(outcome.segments) == 1:
            found.append((placement.pool, start, end))
        joined = kind != "checkpoint"
    return found


def schedule(policy: str, world: World) -> dict[int, list[tuple[str, float, float]]]:
    outcomes = run(create(policy), world)[0]
    audit(world, outcomes)
    return {outcome.job.id: stays(outcome) for outcome in sorted(outcomes, key=lambda o: o.job.id)}


def about(*expected: tuple[str, float, float]) -> list[tuple[str, object, object]]:
    return [(pool, pytest.approx(a, abs=1e-5), pytest.approx(b, abs=1e-5)) for pool, a, b in expected]


# -- by hand ------------------------------------------------------------------------------------------


def test_mct_minds_the_queue_and_met_does_not() -> None:
    # Job 2: high ends at 10 + 10, low at 100. Job 3: high ends at 20 + 50, low at 60.
    world = two(1, 1, (0, 1, 10, 100), (0, 1, 10, 100), (0, 1, 50, 60))
    found = schedule("mct", world)
    assert found == {1: [("high", 0, 10)], 2: [("high", 10, 20)], 3: [("low", 0, 60)]}
    assert schedule("met", world) == {1: [("high", 0, 10)], 2: [("high", 10, 20)], 3: [("high", 20, 70)]}


def test_equal_ends_go_to_the_earlier_start() -> None:
    assert schedule("mct", two(1, 1, (0, 1, 100, 200), (0, 1, 100, 200)))[2] == [("low", 0, 200)]


def test_equal_run_times_go_to_the_class_of_better_rank() -> None:
    assert schedule("mct", two(1, 1, (0, 1, 10, 10)))[1] == [("high", 0, 10)]


def test_mct_keeps_the_order_on_each_class_and_mctb_does_not() -> None:
    # Job 2 needs both units of high and waits for 100. Job 3 would fit beside job 1 until then.
    world = two(2, 1, (0, 1, 100, 1e6), (0, 2, 10, 1e6), (0, 1, 50, 1e6), (0, 1, 101, 1e6))
    found = schedule("mct", world)
    assert found[3] == [("high", 110, 160)] and found[4] == [("high", 110, 211)]
    found = schedule("mctb", world)
    assert found[3] == [("high", 0, 50)]
    assert found[2] == [("high", 100, 110)]
    assert found[4] == [("high", 110, 211)]  # 101 s do not fit before job 2


def test_migration_by_hand() -> None:
    # Job 2 starts on low; 2 s before high is free at 100 its checkpoint begins: 98 of 250 s are done. Then
    # 3 s of restart, and 152/250 of 100 s.
    world = two(1, 1, (0, 1, 100, 500), (0, 1, 100, 250))
    for policy in ("mctm", "mctbm"):
        assert schedule(policy, world)[2] == about(("low", 0, 100), ("high", 100, 163.8))


def test_a_migration_that_does_not_pay_is_not_made() -> None:
    # 8 of 100 s would be done on low, worth 0.8 s on high, for a restart of 3 s.
    world = two(1, 1, (0, 1, 10, 100), (0, 1, 10, 100))
    for policy in ("mctm", "mctbm", "mctbm,literal=true"):
        assert schedule(policy, world)[2] == [("high", 10, 20)]


def test_a_job_is_cut_around_one_submitted_earlier() -> None:
    # High has 2 units. Job 1 holds one until 50; job 2 wants both at 50 for 10 s. Job 3 (100 s) works from 0
    # to 48, stops, and goes on at 60: 3 s of restart and 52 s. MCT: 60 + 100.
    world = two(2, 1, (0, 1, 50, None), (0, 2, 10, None), (0, 1, 100, None))
    found = schedule("mctbm", world)
    assert found[2] == [("high", 50, 60)]
    assert found[3] == about(("high", 0, 50), ("high", 60, 115))
    assert schedule("mctm", world)[3] == [("high", 60, 160)]


def test_a_better_hole_that_begins_where_the_queue_ends_is_taken_first() -> None:
    # Job 5: high would end at 530 + 100, low (free from 10) at 260. High has a hole from 10 to 30: 18 of
    # 100 s are done there until its checkpoint; then 3 s of restart on low, and 0.82 of 250 s.
    world = two(
        2, 1, (0, 1, 30, None), (0, 1, 10, None), (0, 1, 1e6, 10), (0, 2, 500, None), (0, 1, 100, 250)
    )
    assert schedule("mctb", world)[5] == [("low", 10, 260)]
    assert schedule("mctbm", world)[5] == about(("high", 10, 30), ("low", 30, 238))


def test_six_jobs_by_hand() -> None:
    # High 2 units, low 2. 1 and 2 fill high until 40 and 100. 3 (2 units): high 100 + 20 = 120, low 200; on
    # low until 100 it does 98/200: 100 + 3 + 10.2 = 113.2. 4 finds the unit of high that is free from 40 to
    # 100, and takes 30 s of it. 5 takes 10 s of the rest.
    # 6 begins in what is left of it (80..98: 18 of 30 s) and goes on at 113.200001.
    jobs = (
        (0, 1, 40, None),
        (0, 1, 100, None),
        (0, 2, 20, 200),
        (1, 1, 30, None),
        (2, 1, 10, None),
        (3, 1, 30, None),
    )
    found = schedule("mctbm", two(2, 2, *jobs))
    assert found[3] == about(("low", 0, 100), ("high", 100, 113.2))
    assert found[4] == about(("high", 40, 70)) and found[5] == about(("high", 70, 80))
    assert found[6] == about(("high", 80, 100), ("high", 113.2, 128.2))


def lane(name: str, units: int, *held: tuple[float, float, int]) -> PoolPlan:
    """Make a class with reservations (from, to, units); the last start of them rules its queue."""
    availability = Availability(units)
    for start, end, wanted in held:
        availability.reserve(start, end, wanted)
    return PoolPlan(name, units, availability, max((start for start, _, _ in held), default=0.0))


def task(
    lanes: Sequence[PoolPlan], run_s: Sequence[float], stop_s: float = 2.0, restart_s: float = 3.0
) -> RemainingJob:
    n = len(lanes)
    return RemainingJob(1, lanes, run_s, [stop_s] * n, [restart_s] * n, 0.0, 0.0, stoppable=True)


def test_the_printed_steps_make_a_job_later_that_the_guard_leaves_alone() -> None:
    # High is held until 20, low until 30 and from 90 on. MCT: high 20..60. The printed steps go on to the
    # region 30..90 of low (58 of 400 s) and come back to high at 90.
    lanes = [lane("high", 1, (0, 20, 1)), lane("low", 1, (0, 30, 1), (90, 1e6, 1))]
    mct = (Stay("high", 20.0, math.inf, 60.0),)
    assert plan(task(lanes, [40.0, 400.0]), MctParameters(backfill=True, migrate=True)) == mct
    printed = plan(task(lanes, [40.0, 400.0]), MctParameters(backfill=True, migrate=True, literal=True))
    assert [(part.pool, part.start_s) for part in printed] == [("low", 30.0), ("high", 90.0)]
    assert printed[-1].end_s == pytest.approx(90 + 3 + (1 - 58 / 400) * 40, abs=1e-5)


def test_a_region_is_cut_where_one_of_a_better_class_begins_that_is_of_use() -> None:
    # Fast has a hole 10..14, which is no longer than 2 + 3 s; good one of 10..40. Low is cut at good's.
    low, rules = lane("low", 1), MctParameters(backfill=True, migrate=True)
    good = lane("good", 1, (0, 10, 1), (40, 200, 1))
    fast = lane("fast", 1, (0, 10, 1), (14, 300, 1))
    parts = plan(task([fast, good, low], [100.0, 150.0, 600.0]), rules)
    assert [(part.pool, part.start_s, part.end_s) for part in parts] == about(
        ("low", 0, 10), ("good", 10, 40), ("good", 200, 200 + 3 + 150 * (1 - 8 / 600 - 25 / 150))
    )


def test_a_pause_is_taken_on_one_class_only() -> None:
    jobs = (
        Job(1, 0, 1, estimate_kind=EstimateKind.EXACT, estimates_s={"high": 50.0}),
        Job(2, 0, 2, estimate_kind=EstimateKind.EXACT, estimates_s={"high": 10.0}),
        Job(
            3,
            0,
            1,
            estimate_kind=EstimateKind.EXACT,
            stop=Stop.PAUSE,
            estimates_s={"high": 100.0, "low": 170.0},
        ),
    )
    arrivals = tuple(Arrival(job, 0.0, job.estimates_s) for job in jobs)
    world = World(Cluster((Pool("high", 2, 0), Pool("low", 2, 1))), arrivals, SimulationSettings(COSTS))
    # Paused and resumed on high at no cost: 50 s before job 2, 50 s after it.
    assert schedule("mctbm", world)[3] == about(("high", 0, 50), ("high", 60, 110))


# -- by brute force -----------------------------------------------------------------------------------


@given(classes())
def test_the_schedule_is_that_of_the_readings(world: World) -> None:
    for policy, (backfill, migrate, literal) in KINDS.items():
        planner = Planner(world.cluster, world.settings.costs, backfill, migrate, literal)
        expected = {
            job: about(*((s.pool, s.start / SECOND, s.end / SECOND) for s in plan))
            for job, plan in planner.run(world.arrivals).items()
        }
        assert schedule(policy, world) == expected, policy


class Watched(Mct):
    """Notes of each job, when it is planned, its own end, and how MCT would let it end."""

    def _plan_new(self, job: Job, view: View) -> None:
        queue = plan(remaining_job(view, self._pool_plans, True, PlannedJob(job)), MctParameters())
        super()._plan_new(job, view)
        notes[job.id] = (self._plans[job.id].end_s, queue[-1].end_s)


notes: dict[int, tuple[float, float]] = {}


@given(classes())
def test_no_job_ends_later_than_mct_lets_it_nor_than_planned(world: World) -> None:
    for backfill, migrate in ((True, False), (False, True), (True, True)):
        notes.clear()
        outcomes, _ = run(Watched(MctParameters(backfill=backfill, migrate=migrate)), world)
        for outcome in outcomes:
            planned, mct = notes[outcome.job.id]
            assert planned <= mct
            assert outcome.end_s == pytest.approx(planned, abs=1e-5)


# -- where plans break --------------------------------------------------------------------------------


@st.composite
def troubled(draw: st.DrawFn) -> World:
    """Two classes; costs and estimates believed to be other than they are; units that fail and return."""
    world = draw(classes(exact=False))
    costs = world.settings.costs
    assert isinstance(costs, LinearCosts)
    planned = replace(costs, factor=draw(st.sampled_from((0.0, 0.5, 1.0, 2.0, 3.0))))
    arrivals = []
    for arrival in world.arrivals:
        wrong = draw(st.sampled_from((0.3, 0.9, 1.0, 1.0, 1.5, 4.0)))
        job = replace(
            arrival.job,
            estimate_kind=EstimateKind.PREDICTED,
            stop=draw(st.sampled_from(tuple(Stop))),
            estimates_s={name: run_s * wrong for name, run_s in arrival.runs_s.items()},
        )
        arrivals.append(arrival._replace(job=job))
    events: list[tuple[float, NodeDown | NodeUp]] = []
    now = 0.0
    for _ in range(draw(st.integers(0, 4))):
        now += draw(st.sampled_from((0.0, 1.0, 10.0, 50.0)))
        pool = draw(st.sampled_from(("gpu", "cpu")))
        events.append((now, NodeDown(pool)))
        events.append((now + draw(st.sampled_from((1.0, 20.0))), NodeUp(pool)))
    events.sort(key=lambda event: event[0])
    return World(
        world.cluster,
        tuple(arrivals),
        SimulationSettings(costs, planned, disturbances=events, seed=draw(st.integers(0, 3))),
    )


@given(troubled())
def test_every_job_ends_whatever_happens(world: World) -> None:
    for policy in FAMILY:
        outcomes, _ = run(create(policy), world)
        audit(world, outcomes)


def test_time_over_estimated_comes_back_at_the_real_end() -> None:
    # Planned with 3 x 5 s of costs: job 2 runs on low until 94 (94/250 done), restarts on high at 100. In
    # truth the restart takes 3 s, not 9: it ends at 103 + 62.4, and job 3 moves up from 171.4 to there.
    world = two(1, 1, (0, 1, 100, None), (0, 1, 100, 250), (1, 1, 10, None))
    dear = SimulationSettings(COSTS, replace(COSTS, factor=3.0))
    found = schedule("mctbm", World(world.cluster, world.arrivals, dear))
    assert found[2] == about(("low", 0, 96), ("high", 100, 165.4))
    assert found[3] == about(("high", 165.4, 175.4))


@given(classes(), st.integers(1, 30), st.booleans())
def test_plans_are_rebuilt_after_a_restart(world: World, at: int, priced: bool) -> None:
    """Whenever a new policy takes over, it goes on with what it finds."""

    class Relay(Mct):
        count = 0

        def decide(self, view: View, event: Event) -> Sequence[Action]:
            self.count += 1
            if self.count == at:
                super().begin(view)
                return self._act(view, *self._due.collect(view.now))
            return super().decide(view, event)

    outcomes, _ = run(Relay(MctParameters(backfill=True, migrate=True, priced=priced)), world)
    audit(world, outcomes)


def test_unknown_run_times_wait_for_what_ends() -> None:
    jobs = [Arrival(Job(i, float(i), 1 + i % 4), 3.0 + i % 5) for i in range(1, 30)]
    world = World(Cluster((Pool("node", 4),)), tuple(jobs))
    for policy in FAMILY:
        outcomes, _ = run(create(policy), world)
        audit(world, outcomes)


def test_without_a_run_time_a_job_waits_where_it_fits() -> None:
    """The second one fits on the worse class only, which the first one holds for a known time."""
    jobs = [Arrival(Job(1, 0.0, 3, 5.0), 5.0), Arrival(Job(2, 1.0, 3), 4.0)]
    world = World(Cluster((Pool("gpu", 1, 0), Pool("cpu", 3, 1))), tuple(jobs))
    for policy in FAMILY:
        assert starts(run(create(policy), world)[0]) == {1: 0.0, 2: 5.0}


def test_a_job_of_unknown_start_is_tried_after_others_that_wait_elsewhere() -> None:
    """Under ``met`` six jobs wait for the first class: the last one gets what ends on its own."""
    fast, slow = {"gpu": math.inf, "cpu": math.inf}, {"cpu": math.inf}
    rows = [(1, slow, 50.0), *((1, fast, 100.0) for _ in range(7)), (1, slow, 5.0)]
    jobs = [
        Arrival(Job(i, float(i), units, estimates_s=times), run_s)
        for i, (units, times, run_s) in enumerate(rows, 1)
    ]
    world = World(Cluster((Pool("gpu", 1, 0), Pool("cpu", 1, 1))), tuple(jobs))
    for policy in FAMILY:
        audit(world, run(create(policy), world)[0])


def test_a_job_that_ends_early_lets_others_move_up() -> None:
    early = [
        Arrival(Job(1, 0.0, 2, 100.0), 30.0),
        Arrival(Job(2, 1.0, 1, 10.0), 10.0),
        Arrival(Job(3, 2.0, 2, 10.0), 10.0),
        Arrival(Job(4, 3.0, 1, 10.0), 10.0),
    ]
    world = World(Cluster((Pool("node", 2),)), tuple(early))
    for policy, expected in (("mct", {1: 0, 2: 30, 3: 40, 4: 50}), ("mctb", {1: 0, 2: 30, 3: 40, 4: 30})):
        assert starts(run(create(policy), world)[0]) == expected


def late(world: World, by: dict[int, float]) -> World:
    """Copy the world; the jobs ``by`` run so many times longer than believed."""
    arrivals = []
    for job, _, runs_s, *_ in world.arrivals:
        longer = {pool: seconds * by.get(job.id, 1.0) for pool, seconds in runs_s.items()}
        arrivals.append(Arrival(replace(job, estimate_kind=EstimateKind.PREDICTED), 0.0, longer))
    return World(world.cluster, tuple(arrivals), world.settings)


def test_a_little_late_does_not_drive_others_away() -> None:
    # From 10 on job 1 is late, for how long nobody knows; low is free at 20. At 15 high is.
    world = two(1, 1, (0, 1, 10, None), (0, 1, 1000, 20), (1, 1, 12, 40))
    found = schedule("mct", late(world, {1: 1.5}))
    assert found[3] == about(("high", 15, 27))


@pytest.mark.parametrize("policy", ["mct", "mctb", "mctbm"])
def test_a_little_late_is_a_little_worse(policy: str) -> None:
    """As long as a class has nothing to do while jobs wait, everything piles up."""
    chance = random.Random(1)
    at, jobs = 0.0, []
    for _ in range(300):
        fast, slow = chance.choice([(3.6, 14.3), (4.1, 11.7), (3.3, 8.5), (3.8, 4.9)])
        jobs.append((at, 1, fast, slow))
        at += chance.expovariate(1 / 2.8)
    world = two(1, 1, *jobs)
    cheap = LinearCosts(
        {"high": LinearCost(0.0, 0.15)}, {"high": LinearCost(0.0, 0.45), "low": LinearCost(0.0, 0.45)}
    )
    world = World(world.cluster, world.arrivals, SimulationSettings(cheap))

    def turnaround(world: World) -> float:
        return statistics.mean(o.end_s - o.job.submit_s for o in run(create(policy), world)[0])

    assert turnaround(late(world, dict.fromkeys(range(1, 301), 1.05))) < 1.7 * turnaround(world)


def test_prices_count_who_waits_also_after_a_restart() -> None:
    # 1 unit each. Four jobs wait for high; a job that both classes serve alike goes to low, although high
    # would let it end a second earlier, if its second there costs others more.
    world = two(1, 1, (0, 1, 10, None), (0, 1, 10, None), (0, 1, 10, None), (0, 1, 10, None), (0, 1, 9, 50))
    assert schedule("mctb", world)[5] == [("high", 40, 49)]
    assert schedule("mctb,priced=true", world)[5] == [("low", 0, 50)]

    class Restarted(Mct):
        def decide(self, view: View, event: Event) -> Sequence[Action]:
            if view.upcoming is None and view.now == 0:
                self.begin(view)
                return self._act(view, *self._due.collect(view.now))
            return super().decide(view, event)

    outcomes, _ = run(Restarted(MctParameters(backfill=True, priced=True)), world)
    assert {outcome.job.id: stays(outcome) for outcome in outcomes}[5] == [("low", 0, 50)]


def test_parameters_that_contradict_each_other() -> None:
    for text in ("met,backfill=true", "mct,literal=true", "mctm,priced=true", "mct,tries=0"):
        with pytest.raises(BadInput):
            create(text)


def test_pools_with_nodes_are_refused() -> None:
    nodes = World(Cluster((Pool("n", 2, resources=("cpu",), capacity=(1.0,)),)), ())
    with pytest.raises(BadInput, match="schedules units"):
        run(create("mct"), nodes)


@pytest.mark.parametrize("policy", ["mctm", "mctbm", "mctbm-priced"])
@pytest.mark.parametrize("believed_s", [0.0, 0.01])
def test_moves_that_cost_more_than_believed(policy: str, believed_s: float) -> None:
    """Each job gets a tenth of its work done between two stops, so that it comes to its end."""
    chance, at, jobs = random.Random(3), 0.0, []
    for _ in range(24):
        run_s = 3.0 * (20 / 3) ** chance.random()
        jobs.append((at, 1, run_s, 3 * run_s))
        at += chance.expovariate(1.1 * (1 + 2 / 3) / run_s)
    real = LinearCosts(
        {"high": LinearCost(0.0, 0.1), "low": LinearCost(0.0, 0.1)},
        {"high": LinearCost(0.0, 0.5), "low": LinearCost(0.0, 0.5)},
    )
    line = {"high": LinearCost(0.0, believed_s), "low": LinearCost(0.0, believed_s)}
    world = two(1, 2, *jobs)
    exact = turnaround_s(replace(world, settings=SimulationSettings(real)), policy)
    beliefs = SimulationSettings(real, planned_costs=LinearCosts(line, line))
    assert turnaround_s(replace(world, settings=beliefs), policy) < 1.2 * exact


def turnaround_s(world: World, policy: str) -> float:
    return statistics.mean(outcome.end_s - outcome.job.submit_s for outcome in run(create(policy), world)[0])
