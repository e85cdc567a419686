"""Decisions of parm: time and objective of the exact solver beside the paper's genetic algorithm."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest

from scheduler.policies.base import View
from scheduler.policies.power.multiple_choice_knapsack import Integers, Problem, Solution, _branch, solve
from scheduler.policies.power.parm import Parm, ParmParameters, considered, every
from scheduler.policies.power.parm_ga import ParmGaParameters, search
from scheduler.simulator.simulator import Simulator
from scheduler.workloads import load
from scheduler.workloads.generators.power_sets import PROGRAMS, large_machine, small_machine
from tests.benchmarks import amount, few

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]
GAP, LIMIT_S = 0.001, 600.0  # no decision is cut short because the machine is busy


class Noting(Parm):
    """Keeps the problems it solves."""

    problems: list[Problem]

    def solve(self, problem: Problem, view: View) -> Solution | None:
        self.problems.append(problem)
        return super().solve(problem, view)


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def highs_alone(problem: Problem) -> Integers:
    """Choose without the steps before branch and bound, within the same limit of nodes."""
    options = np.isfinite(problem.values)
    return _branch(problem, options, problem.start, GAP, time_limit_s=LIMIT_S, node_limit=20_000)[0]


@pytest.mark.parametrize("budget_w", few([3850.0, 2000.0]))
@pytest.mark.parametrize("beta", few([1.0, 0.0]))
def test_decisions_of_job_set_1(budget_w: float, beta: float) -> None:
    cluster = small_machine(budget_w=budget_w)
    policy = Noting(ParmParameters(beta=beta, gap=GAP))
    policy.problems = []
    Simulator(cluster, load("generator:power-set1", cluster, 0).arrivals, policy).run()
    problems = policy.problems[: amount(None, None, 11)]
    exact = [seconds(lambda p=problem: solve(p, GAP, LIMIT_S)) for problem in problems]  # type: ignore[misc]
    alone = [seconds(lambda p=problem: highs_alone(p)) for problem in problems]  # type: ignore[misc]
    ratios, shares = [], []
    for problem, took in list(zip(problems, exact, strict=True))[10::20]:
        found = solve(problem, GAP, LIMIT_S)
        assert found is not None and found.gap <= GAP * 1.01
        began = time.process_time()
        choice = search(problem, ParmGaParameters(), "0")
        ratios.append((time.process_time() - began) / took)
        shares.append(problem.totals(choice)[0] / found.value)
        assert shares[-1] <= 1 + GAP
    print(
        f"BENCH parm, {budget_w:g} W, beta {beta:g}: median {1e3 * statistics.median(exact):.1f} ms, "
        f"longest {1e3 * max(exact):.0f} ms; HiGHS alone {1e3 * statistics.median(alone):.1f} ms; "
        f"genetic/parm time ratio {statistics.median(ratios):.1f}; "
        f"genetic objective {min(shares):.4f} to {max(shares):.4f} of parm's"
    )


def test_five_hundred_jobs_on_forty_thousand_nodes() -> None:
    cluster = large_machine()
    times, alone, shares = [], [], []
    for seed in range(amount(5, 5, 1)):
        rng = np.random.default_rng(seed)
        jobs = [
            a.job
            for a in load("generator:power-set2,jobs=500,spread=0,source=lublin", cluster, seed).arrivals
        ]  # type: ignore[union-attr]
        tables = [considered(job, cluster.pools[0], 1.0, 64, watts_matter=True) for job in jobs]
        widest = 1 + max(map(len, tables))
        values, taken = np.full((500, widest), -np.inf), np.zeros((2, 500, widest))
        values[:, 0] = 0.0
        for row, (job, table) in enumerate(zip(jobs, tables, strict=True)):
            weight = ((job.estimate_s or 0.0) + rng.uniform(0, 1e5)) ** 0.5
            values[row, 1 : 1 + len(table)] = weight * table.merit
            taken[:, row, 1 : 1 + len(table)] = table.units, table.watts
        problem = Problem(values, taken[0], taken[1], 40_960.0, 2.048e6)
        began = time.process_time()
        found = solve(problem, GAP, LIMIT_S)
        times.append(time.process_time() - began)
        assert found is not None and found.gap <= GAP * 1.01
        began = time.process_time()
        shares.append(problem.totals(highs_alone(problem))[0] / found.value)
        alone.append(time.process_time() - began)
    print(
        f"BENCH parm, 500 jobs, 40,960 nodes: median decision {statistics.median(times):.2f} s; "
        f"HiGHS alone {statistics.median(alone):.2f} s, objective {min(shares):.4f} of parm's"
    )


def test_superfluous_configurations() -> None:
    """Pruning leaves few of 64 nodes x 13 caps."""
    from scheduler.model.jobs import Job

    pool = small_machine().pools[0]
    left = []
    for program in PROGRAMS:
        job = Job(1, 0.0, 1, program.run_s, max_units=64, speed=program.speed)
        left.append(len(considered(job, pool, 1.0, 64, watts_matter=True)) / len(every(job, pool, 1.0, 64)))
    print(f"BENCH parm, configurations kept / all ratio {statistics.mean(left):.3f}")
