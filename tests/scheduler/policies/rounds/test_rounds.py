"""Gavel and Sia: shares and restarts worked by hand, choices against brute force, turns for everybody."""

from __future__ import annotations

import random
from itertools import pairwise, product

import pytest
from hypothesis import given

from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.jobs import Cluster, EstimateKind, Job, JobState, Pool, Stop, counted
from scheduler.model.speeds import TabulatedSpeed
from scheduler.policies.registry import create
from scheduler.policies.rounds.gavel import max_min
from scheduler.policies.rounds.rounds import Configuration
from scheduler.policies.rounds.sia import least, restart_factor, sizes
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, SimulationSettings
from tests.scheduler.policies.test_every_policy import QUICK
from tests.support.scheduling.schedule_audit import audit
from tests.support.scheduling.worlds import World, run, sized_classes

LONG_S = 1e5


def job(number: int, gpu_s: float, cpu_s: float, units: int = 1, **more: object) -> Job:
    return Job(
        number,
        0.0,
        units,
        estimate_kind=EstimateKind.EXACT,
        estimates_s={"gpu": gpu_s, "cpu": cpu_s},
        **{"stop": Stop.CHECKPOINT, **more},  # type: ignore[arg-type]
    )


def world(gpus: int, cpus: int, *jobs: Job, cost_s: float = 0.0) -> World:
    """Make a machine on which stops cost nothing, and restarts ``cost_s``."""
    line = dict.fromkeys(("gpu", "cpu"), LinearCost(0.0, cost_s))
    arrivals = tuple(Arrival(one, 0.0, one.estimates_s) for one in jobs)
    pools = Pool("gpu", gpus, 0), Pool("cpu", cpus, 1)
    return World(Cluster(pools), arrivals, SimulationSettings(LinearCosts({}, line)))


def one_gpu(*jobs: Job) -> World:
    """Make a machine of one GPU, on which stops and restarts cost nothing."""
    return World(Cluster((Pool("gpu", 1),)), tuple(Arrival(one, 0.0, one.estimates_s) for one in jobs))


def played(policy: str, of: World) -> dict[int, Outcome]:
    outcomes, _ = run(create(policy), of)
    audit(of, outcomes)
    return {outcome.job.id: outcome for outcome in outcomes}


def stays(outcome: Outcome) -> list[tuple[str, int, float, float]]:
    """List where the job was, on how many units, from when to when."""
    found: list[tuple[str, int, float, float]] = []
    for _, at, start, end in outcome.segments:
        if found and found[-1][:2] == (at.pool, at.units) and found[-1][3] == start:
            found[-1] = (*found[-1][:3], end)
        elif end > start:
            found.append((at.pool, at.units, start, end))
    return found


# -- Gavel: shares ----------------------------------------------------------------------------------------


def shares(room: dict[str, int], *jobs: Job) -> list[dict[str, float]]:
    """Compute X of each job."""
    options = [(JobState(job=one, since_s=0.0), (pool, one.units)) for one in jobs for pool in room]
    x = max_min(options, room, room)
    return [dict(zip(room, row, strict=True)) for row in x.reshape(len(jobs), -1).tolist()]


def test_like_jobs_have_equal_shares() -> None:
    rows = shares({"gpu": 1, "cpu": 1}, *(job(number, 10, 40) for number in range(1, 5)))
    assert [row["gpu"] + row["cpu"] / 4 for row in rows] == pytest.approx([1.25 / 4] * 4)


def test_shares_of_two_classes_by_hand() -> None:
    """Two jobs are four times as fast on the GPU, and a third is not.

    Their means over both units are 2.5, 2.5 and 1. The third stays on the CPU for b; the others share the GPU
    and 1 - b of the CPU: (4 / 2 + (1 - b) / 2) / 2.5 = b, so b = 5/6 for all.
    """
    first, second, third = shares({"gpu": 1, "cpu": 1}, job(1, 10, 40), job(2, 10, 40), job(3, 40, 40))
    assert third == pytest.approx({"gpu": 0, "cpu": 5 / 6}, abs=1e-6)
    for row in (first, second):
        assert (4 * row["gpu"] + row["cpu"]) / 2.5 == pytest.approx(5 / 6)


def test_shares_are_of_units() -> None:
    """Of two units a job of two has half of the time when one of one unit has all that it can take."""
    one, two = shares({"gpu": 2}, job(1, 10, 10), job(2, 10, 10, units=2))
    assert (one["gpu"], two["gpu"]) == pytest.approx((1.0, 0.5))


def test_unknown_run_times_are_alike() -> None:
    unknown = Job(1, 0.0, estimates_s={"gpu": float("inf"), "cpu": float("inf")}, stop=Stop.CHECKPOINT)
    rows = shares({"gpu": 1, "cpu": 1}, unknown, job(2, 40, 40))
    assert [sum(row.values()) for row in rows] == pytest.approx([1.0, 1.0])


# -- Gavel: rounds ----------------------------------------------------------------------------------------


def test_like_jobs_take_turns() -> None:
    """Each has half of every four rounds of one GPU, and a stay lasts a whole number of rounds."""
    outcomes = played("gavel,round_s=100", one_gpu(*(job(number, 7200, LONG_S) for number in (1, 2))))
    for outcome in outcomes.values():
        times = [(start, end) for *_, start, end in stays(outcome)]
        for part in range(0, 7200, 400):
            had = sum(max(0.0, min(end, part + 400) - max(start, part)) for start, end in times)
            assert had == pytest.approx(200, abs=100)
        assert all((end - start) % 100 == 0 for start, end in times)
    assert outcomes[1].end_s > 14000 and outcomes[2].end_s > 14000


def test_who_gains_by_a_class_has_it_and_nobody_is_stopped() -> None:
    outcomes = played("gavel", world(1, 1, job(1, 4000, 4000), job(2, 1000, 4000), cost_s=10.0))
    assert stays(outcomes[1]) == [("cpu", 1, 0, 4000)] and stays(outcomes[2]) == [("gpu", 1, 0, 1000)]


def test_without_a_checkpoint_a_job_keeps_what_it_has() -> None:
    fixed = job(1, 5000, 5000, stop=Stop.NEVER)
    of = World(
        Cluster((Pool("gpu", 1),)), tuple(Arrival(j, 0.0, j.estimates_s) for j in (fixed, job(2, 99, 99)))
    )
    outcomes = played("gavel", of)
    assert stays(outcomes[1]) == [("gpu", 1, 0, 5000)] and outcomes[2].start_s == 5040


@pytest.mark.parametrize("cost_s", [0.0, 45.0, 300.0])
def test_every_job_has_its_turn(cost_s: float) -> None:
    """Ten jobs of an hour each start within ten rounds, and go on within ten of each stop."""
    jobs = [job(number, 3000, 6000) for number in range(1, 11)]
    of = world(1, 1, *jobs, cost_s=cost_s)
    for outcome in played("gavel,round_s=120", of).values():
        assert outcome.start_s <= 10 * 120
        times = stays(outcome)
        # A job that restarts is not stopped, so a turn may last as long as its restart and a round more.
        assert all(after[2] - before[3] <= 10 * (cost_s + 2 * 120) for before, after in pairwise(times))


# -- Sia --------------------------------------------------------------------------------------------------


def brute(columns: list[tuple[int, Configuration]], costs: list[float], room: dict[str, int]) -> float:
    """Find the least sum by trying all."""
    rows = sorted({row for row, _ in columns})
    choices = [[None, *(at for at, (row, _) in enumerate(columns) if row == one)] for one in rows]
    best = 0.0
    for chosen in product(*choices):
        taken = [at for at in chosen if at is not None]
        used = dict.fromkeys(room, 0)
        for at in taken:
            pool, units = columns[at][1]
            used[pool] += units
        if all(used[pool] <= room[pool] for pool in room):
            best = min(best, sum(costs[at] for at in taken))
    return best


@pytest.mark.parametrize("seed", range(10))
def test_the_least_sum_is_found(seed: int) -> None:
    chance = random.Random(seed)
    room = {"gpu": chance.randint(1, 4), "cpu": chance.randint(1, 4)}
    places = [(pool, units) for pool in room for units in (1, 2, 4)]
    columns = [(row, place) for row in range(5) for place in chance.sample(places, 3)]
    costs = [-chance.random() for _ in columns]
    chosen = least(columns, costs, room)
    assert len({row for row, _ in chosen}) == len(chosen)
    assert all(sum(n for _, (at, n) in chosen if at == pool) <= room[pool] for pool in room)
    by_place = dict(zip(columns, costs, strict=True))
    assert sum(by_place[one] for one in chosen) == pytest.approx(brute(columns, costs, room))


@pytest.mark.parametrize(
    ("cost_s", "moves_s"), [(20.0, 60.0), (100.0, 120.0), (150.0, 180.0), (1000.0, None)]
)
def test_a_restart_is_worth_it_when_the_job_is_old_enough(cost_s: float, moves_s: float | None) -> None:
    """A job has the CPU while another has the GPU, on which it is twice as fast; that one ends after 10 s.

    2 x age / (age + cost) > 1 from the first round on in which it is older than its restart takes.
    """
    outcomes = played("sia", world(1, 1, job(1, 10, 90), job(2, 500, 1000), cost_s=cost_s))
    where = stays(outcomes[2])
    if moves_s is None:
        assert where == [("cpu", 1, 0, 1000)]
    else:
        assert where[0] == ("cpu", 1, 0, moves_s) and where[1][:3] == ("gpu", 1, moves_s)
        assert where[1][3] == pytest.approx(moves_s + cost_s + (1000 - moves_s) / 2)


def test_each_restart_makes_the_next_one_dearer() -> None:
    """At an age of 300 s, of restarts of 100 s: (300 - n x 100) / (300 + 100)."""

    class SomeView:
        now, costs = 300.0, LinearCosts({}, {"gpu": LinearCost(0.0, 100.0)})

    state = JobState(job=job(1, 10, 10), since_s=0.0)
    state.placement = counted("cpu", 1)
    factors = []
    for state.preemptions in range(4):
        factors.append(restart_factor(state, SomeView(), "gpu"))  # type: ignore[arg-type]
    assert factors == pytest.approx([0.75, 0.5, 0.25, 0.0])


def test_sizes_are_shared() -> None:
    """Jobs of up to 4 units, as much faster as they have more. Alone: all 4; beside another: 2."""
    jobs = [
        job(number, 1200, LONG_S, max_units=4, speed=TabulatedSpeed(1, (1.0, 2.0, 3.0, 4.0)))
        for number in (1, 2)
    ]
    alone, both = (played("sia", world(4, 1, *some)) for some in (jobs[:1], jobs))
    assert stays(alone[1]) == [("gpu", 4, 0, 300)]
    assert [stays(both[number])[0] for number in (1, 2)] == [("gpu", 2, 0, 600)] * 2


def test_sizes_double() -> None:
    numbers = {most: sizes(Job(1, 0.0, 1, max_units=most)) for most in (None, 1, 2, 6, 8)}
    assert numbers == {None: (1,), 1: (1,), 2: (1, 2), 6: (1, 2, 4, 6), 8: (1, 2, 4, 8)}
    assert sizes(Job(1, 0.0, 3, max_units=7)) == (3, 6, 7)


@pytest.mark.parametrize("policy", ["gavel", "gavel,round_s=7", "sia", "sia,round_s=7"])
def test_jobs_of_any_size_on_two_classes(policy: str) -> None:
    @QUICK
    @given(sized_classes())
    def check(of: World) -> None:
        outcomes, summary = run(create(policy), of)
        audit(of, outcomes, sum(summary.refused.values()))
        assert all(
            before.placement == after.placement
            for outcome in outcomes
            if outcome.job.stop is Stop.NEVER
            for before, after in pairwise(outcome.segments)
        )

    check()


@pytest.mark.parametrize("policy", ["gavel", "sia"])
def test_nodes_are_refused_in_one_line(policy: str) -> None:
    with pytest.raises(BadInput, match=f"^policy {policy} schedules units, node has nodes"):
        Simulator(parse_cluster("8xnode[cores=4]"), (), create(policy)).run()
