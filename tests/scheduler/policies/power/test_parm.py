"""Power-capped scheduling: equations by hand, every choice by brute force, budgets, caps, baselines."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from profiles.errors import BadInput
from scheduler.model.events import BudgetChanged
from scheduler.model.jobs import Cluster, EstimateKind, Job, Placement, Pool
from scheduler.model.speeds import CappedSpeed, CapTable, TabulatedPower
from scheduler.policies.base import View
from scheduler.policies.power import multiple_choice_knapsack, parm_ga
from scheduler.policies.power.multiple_choice_knapsack import Problem, Solution, solve
from scheduler.policies.power.parm import Parm, ParmParameters
from scheduler.policies.power.parm_ga import ParmGaParameters, search
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival, SimulationSettings
from scheduler.workloads import load
from scheduler.workloads.generators import lublin, power_sets
from scheduler.workloads.generators.power_sets import PROGRAMS, small_machine
from tests.support.amounts import examples
from tests.support.scheduling.schedule_audit import audit, power_w
from tests.support.scheduling.worlds import World, power, run

MANY = settings(max_examples=examples(150))
FEW = settings(MANY, max_examples=examples(40))


# -- equations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "nodes", "cap", "seconds"),
    [  # T1 of table 3 through equation 4.4, then divided by 4.5; worked by hand
        ("BT", 1, 30.0, 291.747),
        ("BT", 3, 30.0, (291.747 - 291.747 * 0.02 / 14) / 3 + 291.747 * 0.02 / 14),
        ("BT", 10, 30.0, 0.02 * (291.747 - 291.747 / 14) / 10 + 291.747 / 7 - 291.747 * 0.02 / 14),
        ("BT", 13, 30.0, 291.747 / 7),
        ("MG", 18, 30.0, 0.04 * (22.473 - 22.473 / 36) / 18 + 22.473 / 18 - 22.473 * 0.04 / 36),
        ("SP", 19, 50.0, ((297.194 - 297.194 * 0.05 / 40) / 19 + 297.194 * 0.05 / 40) / (20 * 0.080 + 1)),
        ("LU", 64, 40.0, 228.374 / 18 / (10 * 0.075 + 1)),
        ("EP", 32, 90.0, 43.867 / 32 / (20 * 0.065 + 1)),
    ],
)
def test_run_time_is_the_equations(program: str, nodes: int, cap: float, seconds: float) -> None:
    row = next(p for p in PROGRAMS if p.name == program)
    assert row.run_s / row.speed(nodes, cap) == pytest.approx(seconds, rel=1e-12)


def test_speed_beyond_variance_one_and_from_several_nodes() -> None:
    speed = CappedSpeed(10.0, 2.0, 0.05)
    assert speed(4, 30.0) == pytest.approx(4 * 10 * 3 / (2 * (4 + 9) + 10))  # nA(sigma+1) / (sigma(n+A-1)+A)
    assert speed(28, 30.0) == pytest.approx(10.0) and speed.useful_units == 28
    pair = replace(speed, least_units=2)
    assert pair(2, 30.0) == 1.0 and pair(8, None) == pytest.approx(speed(8, 50.0) / speed(2, 30.0))


@pytest.mark.parametrize(
    "wrong", [{"parallelism": 0.5}, {"variance": -1.0}, {"slope_per_w": math.nan}, {"knee_w": 20.0}]
)
def test_speed_refuses_nonsense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        CappedSpeed(**{"parallelism": 2.0, "variance": 0.0, "slope_per_w": 0.1} | wrong)


# -- the solver --------------------------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn, jobs: int = 5, options: int = 5) -> Problem:
    """Options as they come: dominated ones, equal jobs, jobs that must run, limits that are never met."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, k = draw(st.integers(1, jobs)), draw(st.integers(1, options))
    values = np.hstack((np.zeros((n, 1)), np.sort(rng.integers(0, 30, (n, k)) / 3, axis=1)))
    units = np.hstack((np.zeros((n, 1)), np.sort(rng.integers(1, 9, (n, k)), axis=1)))
    watts = np.hstack((np.zeros((n, 1)), np.sort(rng.integers(5, 90, (n, k)), axis=1))).astype(float)
    for row in range(1, n):
        if rng.random() < 0.4:  # the same job again
            values[row], units[row], watts[row] = values[0], units[0], watts[0]
    values[:, 2:][rng.random((n, k - 1)) < 0.2] = -np.inf
    if draw(st.booleans()):
        values[: n // 2, 0] = -np.inf
    return Problem(
        values,
        units,
        watts,
        draw(st.sampled_from((2.0, 7.0, 12.0, 100.0))),
        draw(st.sampled_from((20.0, 70.0, 130.0, math.inf))),
    )


def brute(problem: Problem) -> float | None:
    """Find the best value of all choices by brute force; None if none fits."""
    best = None
    for choice in itertools.product(range(problem.values.shape[1]), repeat=len(problem.values)):
        value = sum(problem.values[job, option] for job, option in enumerate(choice))
        units = sum(problem.units[job, option] for job, option in enumerate(choice))
        watts = sum(problem.watts[job, option] for job, option in enumerate(choice))
        if units <= problem.max_units and watts <= problem.max_watts and value > -math.inf:
            best = value if best is None else max(best, value)
    return best


@MANY
@given(problems())
def test_the_choice_is_the_best_of_all(problem: Problem) -> None:
    expected, found = brute(problem), solve(problem, gap=0.0)
    if expected is None or found is None:
        assert found is None and expected is None
        return
    assert problem.fits(found.choice)
    assert problem.totals(found.choice)[0] == pytest.approx(found.value) == pytest.approx(expected, rel=1e-9)
    assert found.bound >= expected * (1 - 1e-9)


@MANY
@given(problems(), st.sampled_from((0.001, 0.05, 0.3)))
def test_a_gap_is_kept_and_the_bound_is_one(problem: Problem, gap: float) -> None:
    expected, found = brute(problem), solve(problem, gap=gap)
    if expected is not None and found is not None:
        assert found.value >= expected / (1 + gap) - 1e-9 and found.bound >= expected * (1 - 1e-9)


@FEW
@given(problems(jobs=4, options=4))
def test_limits_leave_an_answer_and_an_honest_bound(problem: Problem) -> None:
    expected, found = brute(problem), solve(problem, gap=0.0, time_limit_s=1e-9, node_limit=1)
    if expected is not None and found is not None:
        assert problem.fits(found.choice) and found.bound >= expected * (1 - 1e-9)


@FEW
@given(problems(jobs=4, options=4))
def test_genetic_search_is_never_better(problem: Problem) -> None:
    expected = brute(problem)
    if expected is not None:
        small = ParmGaParameters(population=30, parents=5, generations=10)
        choice = search(problem, small, "seed")
        assert problem.fits(choice) and problem.totals(choice)[0] <= expected + 1e-9
        assert (search(problem, small, "seed") == choice).all()


def test_of_equal_jobs_the_earlier_runs() -> None:
    values = np.tile([0.0, 1.0, 1.5], (4, 1))
    problem = Problem(values, np.tile([0.0, 1.0, 2.0], (4, 1)), np.zeros((4, 3)), 2.0, math.inf)
    found = solve(problem, gap=0.0)
    assert found is not None and found.choice.tolist() == [1, 1, 0, 0]


# -- the policy against equations 4.1 to 3.5, written down again -------------------------------------------


class Checked(Parm):
    """Compares each decision with the best of all assignments of (n, p)."""

    checked = 0

    def solve(self, problem: Problem, view: View) -> Solution | None:
        found = super().solve(problem, view)
        if found is not None:
            best = enumerate_all(view, self.parameters)
            if best is not None:
                assert found.value == pytest.approx(best, rel=1e-9)
                Checked.checked += 1
        return found


def enumerate_all(view: View, given: ParmParameters) -> float | None:
    """Find the greatest (4.1) over waiting and malleable jobs; moldable jobs keep what they have."""
    pool, budget = view.cluster.pools[0], view.budget_w
    assert budget is not None
    units, watts = pool.units, budget
    per_job: list[list[tuple[float, int, float]]] = []
    beta = max(given.beta, given.least_beta)
    for job in [*(s.job for s in view.running.values()), *view.waiting.values()]:
        state = view.state(job.id)
        running = job.id in view.running
        if running and not job.malleable:
            assert state.placement is not None and state.placement.cap_w is not None
            units -= state.placement.units
            watts -= power_w(pool, job, state.placement)
            continue
        assert job.speed is not None and job.max_units is not None
        least = job.estimate_s or 0.0
        weight = max((1 - state.done_by(view.now)) * least + view.now - job.submit_s, 1.0) ** given.alpha
        choices = [] if running else [(0.0, 0, 0.0)]
        least_w = power_w(pool, job, Placement(pool.name, job.units, cap_w=pool.caps_w[0]))
        for n in range(job.units, job.max_units + 1):
            for p in pool.caps_w:
                s = job.speed(n, p)
                drawn_w = power_w(pool, job, Placement(pool.name, n, cap_w=p))
                energy = s * least_w / drawn_w
                choices.append(((beta * s + (1 - beta) * energy) * weight, n, drawn_w))
        per_job.append(choices)
    if math.prod(map(len, per_job)) > 20_000:
        return None
    every = (
        sum(c[0] for c in choice)
        for choice in itertools.product(*per_job)
        if sum(c[1] for c in choice) <= units and sum(c[2] for c in choice) <= watts + 1e-9
    )
    return max(every)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_decisions_are_the_best_of_all_assignments(alpha: float, beta: float) -> None:
    before = Checked.checked

    @settings(FEW, max_examples=12)
    @given(power(most=4))
    def check(world: World) -> None:
        run(Checked(ParmParameters(alpha=alpha, beta=beta, gap=0.0)), world)

    check()
    assert Checked.checked > before + 20


@pytest.mark.parametrize("watts_matter", [True, False])
def test_superfluous_configurations_are_left_out(watts_matter: bool) -> None:
    from scheduler.policies.power.parm import considered, every

    job = Job(1, 0.0, 1, 100.0, max_units=20, speed=CappedSpeed(8.0, 0.5, 0.06))
    pool = small_machine().pools[0]
    kept, all_of_them = considered(job, pool, 0.5, 64, watts_matter=watts_matter), every(job, pool, 0.5, 64)
    assert len(all_of_them) == 20 * 13 and len(kept) < 20 * 5 and max(cap or 0 for cap in kept.caps_w) <= 50
    for units, watts, merit in zip(all_of_them.units, all_of_them.watts, all_of_them.merit, strict=True):
        better = (kept.units <= units) & (kept.merit >= merit)
        assert (better & (kept.watts <= watts)).any() if watts_matter else better.any()


# -- running and changing jobs -----------------------------------------------------------------------------


def test_malleable_job_shrinks_for_the_next_and_grows_again() -> None:
    # Three nodes, 50 W: job 1 goes 4 times as fast on all, 3.2 times on two (A = 2, sigma = 1, m = 0.05).
    # Job 2 comes at 10 s, takes the node that is worth more to it, and runs 80 / 2 = 40 s.
    def arrival(number: int, submit: float, run_s: float, A: float) -> Arrival:
        speed = CappedSpeed(A, 1.0, 0.05)
        most = int(speed.useful_units)
        job = Job(
            number,
            submit,
            1,
            run_s,
            estimate_kind=EstimateKind.EXACT,
            max_units=most,
            malleable=True,
            speed=speed,
        )
        return Arrival(job, run_s)

    world = World(small_machine(3, None), (arrival(1, 0.0, 800.0, 2.0), arrival(2, 10.0, 80.0, 1.0)))
    outcomes, _ = run(create("parm,alpha=0"), world)
    first = next(o for o in outcomes if o.job.id == 1)
    held = [(s.placement.units, s.start_s, s.end_s) for s in first.segments if s.end_s > s.start_s]
    # 800 s of work: 10 s at 4, 40 s at 3.2, the rest at 4
    assert held == [(3, 0.0, 10.0), (2, 10.0, 50.0), (3, 50.0, pytest.approx(50 + (800 - 40 - 128) / 4))]
    assert {s.placement.cap_w for o in outcomes for s in o.segments} == {50.0}


@FEW
@given(power())
def test_moldable_jobs_keep_what_they_started_with(world: World) -> None:
    for outcome in run(create("parm,beta=0.5"), world)[0]:
        if not outcome.job.malleable:
            assert len({segment.placement for segment in outcome.segments}) == 1


@FEW
@given(power(), st.lists(st.sampled_from((45.0, 90.0, 150.0, 400.0)), min_size=1, max_size=4))
@pytest.mark.parametrize("name", ["parm", "fifo-max", "fifo-mid"])
def test_budgets_that_change_are_kept_as_far_as_running_jobs_can(
    name: str, world: World, budgets: list[float]
) -> None:
    changes = [(7.0 * i, BudgetChanged(watts)) for i, watts in enumerate(budgets, 1)]
    changes.append((7.0 * len(budgets) + 7.0, BudgetChanged(1e6)))
    drawn: list[float] = []

    def watch(view: View) -> None:
        if view.upcoming is not None or view.budget_w is None:
            return
        drawn.append(view.power_w)
        if name != "parm" or view.power_w <= view.budget_w + 1e-6:
            return
        pool, least_w = view.cluster.pools[0], 30.0
        stuck = sum(
            power_w(
                pool, s.job, Placement(pool.name, s.job.units, cap_w=least_w) if s.job.malleable else s.place
            )
            for s in view.running.values()
        )
        assert view.power_w == pytest.approx(stuck), "running jobs could draw less"
        for waiting in view.waiting.values():
            assert "cannot draw less" in policy.why(waiting, view).sentence

    policy = create(name)
    outcomes, summary = run(policy, replace(world, settings=SimulationSettings(disturbances=changes)), watch)
    assert len(outcomes) + sum(summary.refused.values()) == len(world.arrivals) and (drawn or not outcomes)


@pytest.mark.parametrize("name", ["fifo-min", "fifo-max", "parm", "parm-ga", "weigh"])
@pytest.mark.parametrize(("draws_w", "second_s"), [(None, 10.0), (41.0, 10.0), (40.0, 0.0)])
def test_a_job_is_charged_what_it_draws(name: str, draws_w: float | None, second_s: float) -> None:
    """Of 100 W a job takes 10 W and its cap of 50 W, or 10 W and what it states."""
    pool = Pool("node", 2, base_w=10.0, peak_w=50.0, caps_w=(50.0,))
    power = None if draws_w is None else TabulatedPower(CapTable((50.0,), (draws_w,)))
    jobs = [Job(number, 0.0, 1, 10.0, estimate_kind=EstimateKind.EXACT, power=power) for number in (1, 2)]
    outcomes, _ = run(create(name), World(Cluster((pool,), 100.0), tuple(Arrival(j, 10.0) for j in jobs)))
    assert sorted(outcome.start_s for outcome in outcomes) == [0.0, second_s]
    assert {outcome.energy_j for outcome in outcomes} == {10 * (10 + (draws_w or 50.0))}


@pytest.mark.parametrize(("draws_w", "units"), [(None, 1), (20.0, 3), (10.0, 4)])
def test_a_fixed_size_is_cut_to_what_the_budget_carries(draws_w: float | None, units: int) -> None:
    """Of 100 W a unit takes 60, 30 or 20; the job can use four."""
    pool = Pool("node", 4, base_w=10.0, peak_w=50.0, caps_w=(50.0,))
    power = None if draws_w is None else TabulatedPower(CapTable((50.0,), (draws_w,)))
    job = Job(1, 0.0, 1, 10.0, estimate_kind=EstimateKind.EXACT, max_units=4, power=power)
    [outcome], _ = run(create("fifo-max"), World(Cluster((pool,), 100.0), (Arrival(job, 10.0),)))
    assert outcome.segments[0].placement.units == units


def test_a_job_that_no_budget_carries_is_refused() -> None:
    pool = Pool("node", 4, base_w=10.0, peak_w=90.0, caps_w=(30.0, 90.0))
    wide = Arrival(Job(1, 0.0, 3, 10.0), 10.0)
    for name in ("parm", "fifo-min", "parm-ga"):
        _, summary = run(create(name), World(Cluster((pool,), 100.0), (wide,)))
        assert summary.refused == {"it needs at least 120 W, the budget is 100 W": 1}


@pytest.mark.parametrize("name", ["parm", "fifo-mid", "parm-ga"])
def test_several_classes_are_bad_input(name: str) -> None:
    with pytest.raises(BadInput, match="one class, the cluster has gpu, cpu"):
        run(create(name), World(Cluster((Pool("gpu", 1), Pool("cpu", 1))), ()))


def test_without_deap_the_genetic_policy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deap", None)
    with pytest.raises(BadInput, match=r"needs DEAP.*tenbin\[genetic\]"):
        run(create("parm-ga"), World(small_machine(), ()))


@pytest.mark.parametrize(
    "text",
    [
        "parm,beta=1.5",
        "parm,alpha=-1",
        "parm,gap=-1",
        "parm,depth=0",
        "parm-ga,parents=1",
        "fifo-max,level=x",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        create(text)


def test_at_beta_0_every_job_crawls_unless_speed_decides_between_equals() -> None:
    world = World(small_machine(), tuple(load("generator:power-set1,jobs=10", small_machine(), 1).arrivals))  # type: ignore[arg-type]
    literal, _ = run(create("parm,beta=0,least_beta=0"), world)
    assert {s.placement.units for o in literal for s in o.segments} == {1}
    held, _ = run(create("parm,beta=0"), world)
    assert max(o.end_s for o in held) < 0.5 * max(o.end_s for o in literal)


# -- baselines and jobs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("max", {"BT": (13, 50), "MG": (35, 50), "SP": (39, 50), "LU": (35, 50), "EP": (64, 50)}),
        ("mid", {"BT": (7, 40), "MG": (18, 40), "SP": (20, 40), "LU": (18, 40), "EP": (32, 40)}),
        ("min", {"BT": (1, 30), "MG": (1, 30), "SP": (1, 30), "LU": (1, 30), "EP": (1, 30)}),
    ],
)
def test_fifo_configurations_are_the_paper_s(level: str, expected: dict[str, tuple[int, int]]) -> None:
    cluster = small_machine()
    jobs = tuple(load("generator:power-set1,jobs=40", cluster, 3).arrivals)  # type: ignore[arg-type]
    outcomes, _ = run(create(f"fifo-{level}"), World(cluster, jobs))
    audit(World(cluster, jobs), outcomes)
    used = {(o.job.program, s.placement.units, s.placement.cap_w) for o in outcomes for s in o.segments}
    assert used == {(name, *configuration) for name, configuration in expected.items()}


def test_fifo_configurations_are_cut_to_the_budget() -> None:
    # SP wants 39 nodes at 50 W (2340 W). 600 W carry 10 at 50 W; 45 W carry one at 30 W.
    sp = next(p for p in PROGRAMS if p.name == "SP")
    one = Arrival(Job(1, 0.0, 1, 10.0, estimate_kind=EstimateKind.EXACT, max_units=39, speed=sp.speed), 10.0)
    for budget, expected in ((600.0, (10, 50.0)), (45.0, (1, 35.0))):
        outcomes, _ = run(create("fifo-max"), World(small_machine(budget_w=budget), (one,)))
        assert (outcomes[0].segments[0].placement.units, outcomes[0].segments[0].placement.cap_w) == expected


def test_job_set_1_is_table_3() -> None:
    cluster = small_machine()
    jobs = [a.job for a in load("generator:power-set1,jobs=4000,rate_per_s=2", cluster, 5).arrivals]  # type: ignore[union-attr]
    assert {(j.program, j.estimate_s, j.max_units) for j in jobs} == {
        ("BT", 291.747, 13),
        ("MG", 22.473, 35),
        ("SP", 297.194, 39),
        ("LU", 228.374, 35),
        ("EP", 43.867, 64),
    }
    assert jobs[-1].submit_s == pytest.approx(2000, rel=0.1) and all(j.malleable for j in jobs)
    with pytest.raises(BadInput, match="rate_per_s must be above 0"):
        load("generator:power-set1,rate_per_s=0", cluster)


def test_the_bound_of_prices_never_lies_below_the_linear_relaxation() -> None:
    """A hard case by hand: two jobs of value 3 and 2 units, room for 3 units; the relaxation has 4.5."""
    problem = Problem(
        np.array([[0.0, 3.0]] * 2), np.array([[0.0, 2.0]] * 2), np.array([[0.0, 10.0]] * 2), 3.0, 100.0
    )
    _, bound, _ = multiple_choice_knapsack._prices(problem)
    assert bound == pytest.approx(4.5, rel=1e-3) and bound >= 4.5 - 1e-9


def test_the_lowest_point_of_some_planes_is_the_linear_program_s() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        planes = [(*rng.normal(size=2), float(rng.normal()))]
        for _ in range(int(rng.integers(1, 12))):
            height, at = multiple_choice_knapsack._lowest(np.array(planes), 5.0)
            found = linprog(
                [0.0, 0.0, 1.0],
                A_ub=[(a, b, -1.0) for a, b, _ in planes],
                b_ub=[-c for _, _, c in planes],
                bounds=[(0, 5), (0, 5), (None, None)],
            )
            assert height == pytest.approx(found.fun, abs=1e-6)
            a, b = rng.normal(size=2)  # a plane that lies above the lowest point, as a cut of Kelley's does
            planes.append((a, b, height + float(rng.exponential()) - float(a * at[0] + b * at[1])))


def test_as_many_genes_mutate_as_if_each_were_drawn() -> None:
    with parm_ga._own_random("1"):
        mutants = [parm_ga._mutate([0] * 10, [1] * 10, [3] * 10, 0.1)[0] for _ in range(4000)]
        assert parm_ga._mutate([0], [1], [1], 1.0) == ([1],)
    changed = (np.array(mutants) > 0).astype(float)
    assert changed.mean(axis=0) == pytest.approx(np.full(10, 0.1), abs=0.02)
    assert (changed.sum(axis=1) == 0).mean() == pytest.approx(0.9**10, abs=0.03)
    assert set(np.unique(mutants)) == {0, 1, 2, 3}


@pytest.mark.parametrize("source", ["lublin", "theta"])
def test_job_set_2_is_scaled_to_the_machine(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if source == "theta":
        monkeypatch.setenv("TENBIN_DATA", os.environ.get("TENBIN_DATA", "../shared/data"))
        if power_sets.theta_log() is None:
            pytest.skip("theta_2022.swf.gz is not there")
    cluster = power_sets.large_machine()
    workload = load(f"generator:power-set2,jobs=200,source={source}", cluster, 1)
    jobs = [a.job for a in workload.arrivals]  # type: ignore[union-attr]
    assert len(jobs) == 200 and jobs[0].submit_s == 0 and "stands in" in workload.note
    assert all(1 <= (j.max_units or 0) <= 40_960 and j.units == 1 for j in jobs)
    at_once = load(f"generator:power-set2,jobs=200,spread=0,source={source}", cluster, 1).arrivals
    assert {a.job.submit_s for a in at_once} == {0.0}  # type: ignore[union-attr]
    outcomes, _ = run(create("fifo-mid"), World(cluster, tuple(load_jobs(20, source))))
    assert max(s.placement.units for o in outcomes for s in o.segments) <= 40_960


def load_jobs(count: int, source: str) -> list[Arrival]:
    return list(
        load(f"generator:power-set2,jobs={count},source={source}", power_sets.large_machine(), 2).arrivals
    )  # type: ignore[arg-type]


def test_job_set_2_takes_its_logged_time_on_its_nodes_at_the_middle_cap() -> None:
    jobs = load_jobs(30, "lublin")
    cluster = power_sets.large_machine()
    logged = lublin.Lublin(30, 40_960, power_sets.LOAD, "exact").generate(cluster, 2).arrivals
    for (job, run_s, *_), (before, before_s, *_) in zip(jobs, logged, strict=True):  # type: ignore[arg-type]
        assert job.speed is not None
        assert run_s / job.speed(before.units, 40.0) == pytest.approx(before_s)


def test_highs_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    libc = ctypes.CDLL(None)
    with multiple_choice_knapsack.silent_solver():
        libc.puts(b"HighsMipSolverData::...")
    print("still here", flush=True)
    assert capfd.readouterr().out == "still here\n"
