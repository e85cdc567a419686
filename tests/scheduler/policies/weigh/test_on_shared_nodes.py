"""Weigh on shared nodes: its pairs, its bound on waits, and its schedules beside the best of all."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings

from profiles.errors import BadInput
from scheduler.engines.common.projection import terms_of
from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.interference import SPREAD, PairTable, Pressure
from scheduler.model.jobs import CHECKPOINT
from scheduler.policies.base import Reason, View
from scheduler.policies.registry import create
from scheduler.policies.weigh.on_shared_nodes import PASSES
from tests.scheduler.policies.sharing.test_sharing import FOUR, TABLE, two_kinds, where, world
from tests.support.amounts import examples
from tests.support.brute.shared import least_sum_of_ends
from tests.support.scheduling.worlds import World, run, sharing

HARMLESS = replace(
    TABLE,
    times_s={
        binding: {program: dict.fromkeys(row, TABLE.base_s[program]) for program, row in rows.items()}
        for binding, rows in TABLE.times_s.items()
    },
)
UNKNOWN = replace(TABLE, base_s={**TABLE.base_s, "unknown": 100.0})


def of_two_tasks(jobs: World) -> World:
    """Let each job take half of one node."""
    return replace(jobs, arrivals=tuple(a._replace(job=replace(a.job, units=2)) for a in jobs.arrivals))


def test_all_at_once_pairs_are_those_of_the_paper() -> None:
    """Of two jobs of each program, all as long: EP with MG, CG with LU, and FT with FT."""
    times = {
        b: {p: {q: t / TABLE.base_s[p] for q, t in row.items()} for p, row in rows.items()}
        for b, rows in TABLE.times_s.items()
    }
    equal = PairTable(dict.fromkeys(TABLE.base_s, 1.0), times, TABLE.pressures, "EP")
    outcomes, _ = run(create("weigh"), world(20, *(2 * TABLE.programs), table=equal))
    together: dict[tuple[int, ...], list[str]] = {}
    for outcome in outcomes:
        assert outcome.start_s == 0.0
        together.setdefault(where(outcomes)[outcome.job.id][2], []).append(outcome.job.program)
    pairs = Counter(tuple(sorted(programs)) for programs in together.values())
    assert pairs == {("EP", "MG"): 2, ("CG", "LU"): 2, ("FT", "FT"): 1}


def test_the_shorter_job_comes_first_beside_the_one_that_runs() -> None:
    """Two LU share all nodes; of EP and MG, which both wait, MG ends sooner."""
    outcomes, _ = run(create("weigh"), world(4, "LU", "LU", "LU", "EP", "MG"))
    starts = {outcome.job.id: outcome.start_s for outcome in outcomes}
    assert starts[5] < starts[4] or starts[5] == starts[4] == 0.0
    assert max(starts, key=lambda job: starts[job]) <= 3


@pytest.mark.parametrize(("beside_s", "begins"), [(110.0, 1.0), (250.0, 100.0)])
def test_who_would_lose_more_beside_another_than_by_a_wait_waits(beside_s: float, begins: float) -> None:
    times = {SPREAD: {"idle": {"idle": 100.0, "a": 100.0}, "a": {"idle": 100.0, "a": beside_s}}}
    pairs = PairTable({"idle": 100.0, "a": 100.0}, times, dict.fromkeys(("idle", "a"), Pressure(1.0)), "idle")
    outcomes, _ = run(create("weigh"), of_two_tasks(world(1, "a", "a", table=pairs, gap_s=1.0)))
    assert where(outcomes)[2] == (begins, SPREAD, (0,))


def test_jobs_alone_and_beside_others_are_near_the_best_schedule() -> None:
    """Three or four programs, all at once, of a quarter of their lengths to four times as much."""
    over: dict[str, list[float]] = {"weigh": [], "match": [], "exclusive": []}
    for seed in range(examples(160)):
        draw = random.Random(seed)
        programs = [draw.choice(TABLE.programs) for _ in range(draw.choice((3, 4)))]
        lengths = [TABLE.base_s[p] * 2.0 ** draw.uniform(-2, 2) for p in programs]
        jobs = world(2, *programs)
        arrivals = tuple(
            a._replace(job=replace(a.job, units=4, estimate_s=length), run_s=length)
            for a, length in zip(jobs.arrivals, lengths, strict=True)
        )
        best = least_sum_of_ends(tuple(zip(programs, lengths, strict=True)), TABLE)
        for policy, ratios in over.items():
            outcomes, _ = run(create(policy), replace(jobs, arrivals=arrivals))
            ratios.append(sum(outcome.end_s for outcome in outcomes) / best)
            assert ratios[-1] > 1 - 1e-6
    assert fmean(over["weigh"]) < min(1.06, fmean(over["match"]), fmean(over["exclusive"])), over


@settings(max_examples=examples(100))
@given(sharing(most=12))
def test_the_first_job_starts_when_all_that_waited_could_be_done(given_world: World) -> None:
    """And what runs then has ended, at most the longest run time later; other slow-downs were predicted."""
    jobs = replace(
        given_world,
        arrivals=tuple(
            a._replace(job=replace(a.job, estimate_s=a.run_s, program="unknown"))
            for a in given_world.arrivals
        ),
    )
    cores = 4.0 * jobs.cluster.pools[0].units
    latest: dict[int, float] = {}

    def look(view: View) -> None:
        if view.waiting and view.upcoming is None:
            work = sum(job.units * job.demand[0] * (job.estimate_s or 0.0) for job in view.waiting.values())
            latest.setdefault(next(iter(view.waiting)), view.now + work / cores)

    outcomes, _ = run(create("weigh"), jobs, look)
    longest = max((arrival.run_s for arrival in jobs.arrivals), default=0.0)
    for outcome in outcomes:
        assert outcome.start_s <= latest.get(outcome.job.id, outcome.start_s) + 2 * longest + 1e-3


def test_few_pass_the_first_job_where_run_times_are_unknown() -> None:
    """It needs both nodes; of a hundred that come later and take one, those do that 64 starts allow."""
    jobs = world(2, "unknown", "unknown", *(100 * ["unknown"]), table=UNKNOWN, gap_s=4.0)
    arrivals = tuple(
        a._replace(job=replace(a.job, units=8 if a.job.id == 2 else 4, estimate_s=None), run_s=10.0)
        for a in jobs.arrivals
    )
    outcomes, _ = run(create("weigh"), replace(jobs, arrivals=arrivals))
    starts = {outcome.job.id: outcome.start_s for outcome in outcomes}
    assert sum(start_s < starts[2] for start_s in starts.values()) == 1 + PASSES


def test_jobs_of_unknown_run_time_take_the_best_class_first() -> None:
    """Whatever is predicted: on the old nodes, which come second, they would not disturb each other."""
    jobs = of_two_tasks(two_kinds("LU", "LU", "LU", old=HARMLESS))
    unknown = dict.fromkeys(("node", "old"), math.inf)
    arrivals = tuple(a._replace(job=replace(a.job, estimates_s=unknown)) for a in jobs.arrivals)
    outcomes, _ = run(create("weigh"), replace(jobs, arrivals=arrivals))
    assert {outcome.segments[0].placement.pool for outcome in outcomes} == {"node"}


@pytest.mark.parametrize(("cost_s", "moves"), [(1.0, True), (1000.0, False)])
def test_a_job_moves_to_the_better_nodes_when_they_have_room_if_that_pays(cost_s: float, moves: bool) -> None:
    """Five wait for four places: who runs on old nodes, ten times as slow, may go on beside who is left."""
    jobs = two_kinds("EP", "EP", "EP", "EP", "EP", old=TABLE, slower=10.0, stop=CHECKPOINT)
    line = dict.fromkeys(("node", "old"), LinearCost(0.0, cost_s))
    costs = LinearCosts(line, line)
    outcomes, _ = run(create("weigh"), replace(jobs, settings=replace(jobs.settings, costs=costs)))
    moved = [outcome for outcome in outcomes if outcome.migrations]
    assert bool(moved) == moves
    assert all(
        o.segments[0].placement.pool == "old" and o.segments[-1].placement.pool == "node" for o in moved
    )


def test_who_waits_is_told_beside_whom_it_would_best_be() -> None:
    policy, told, jobs = create("weigh"), list[Reason](), world(4, "EP", "MG", "LU", gap_s=1.0)

    def ask(view: View) -> None:
        for job in view.waiting.values() if view.upcoming is None else ():
            told.append(policy.why(job, view))

    run(policy, jobs, ask)
    assert all("of those that run it goes best with job" in sentence for sentence, *_ in told) and told


def test_how_many_share_a_node_says_that_nodes_are_shared() -> None:
    assert terms_of("weigh", "here") == "either"
    assert terms_of("weigh,most=2", "here") == terms_of("match", "here") == "sharing"
    outcomes, _ = run(create("weigh,most=1"), world(4, "EP", "MG", "CG"))
    assert {placed[1] for placed in where(outcomes).values()} == {"packed"}
    outcomes, _ = run(create("weigh,most=4"), world(8, "EP", "EP", "EP", "EP"))
    assert len(outcomes) == 4 and FOUR
    with pytest.raises(BadInput, match="most must be at least 1"):
        create("weigh,most=0")
