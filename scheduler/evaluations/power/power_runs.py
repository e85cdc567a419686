"""The simulations behind the evaluation of paper C: cases, what came out, what is run at which scale."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from scheduler.evaluations import Estimate, changes
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import OutcomeRecorder
from scheduler.workloads import load
from scheduler.workloads.generators import power_set1, power_set2

FIFO = ("fifo-max", "fifo-mid", "fifo-min")
FAST, SAVING, LITERAL = "parm,beta=1", "parm,beta=0", "parm,beta=0,least_beta=0"
GENETIC = "parm-ga,least_beta=0,beta={:g}"
# At set 2 jobs have thousands of configurations and hundreds wait.
LIMITED = ",depth=50,gap=0.02,unit_choices=24"
# Two resources that both run short: to 0.1 % a simulation can take minutes.
TIGHT = ",gap=0.005"
FIRST_DONE = 0.95
INTREPID_SPREAD = 0.22  # Intrepid's 1000 jobs take 3.5 days (68,936 in 8 months), Theta's 16


class PowerCase(NamedTuple):
    """One simulation."""

    policy: str
    workload: str = "power-set1"
    budget_w: float = 3850.0
    seed: int = 0


class PowerResult(NamedTuple):
    """The results of a case; of set 2 ``time_s`` and ``energy_j`` until 95 % of the jobs are done."""

    time_s: float
    energy_j: float
    machine_energy_j: float
    mean_wait: float
    longest_wait: float
    variance: float
    run_s: float
    worst_gap: float
    jobs: int


def simulate(case: PowerCase) -> PowerResult:
    """Run one case."""
    second = case.workload.startswith("power-set2")
    cluster = power_set2.machine() if second else power_set1.machine(budget_w=case.budget_w)
    record, policy = OutcomeRecorder(), create(case.policy, case.seed)
    workload = load(f"generator:{case.workload}", cluster, case.seed)
    Simulator(cluster, workload.arrivals, policy, workload.settings, sinks=[record]).run()
    outcomes = record.outcomes  # in the order of their ends
    first = min(o.job.submit_s for o in outcomes)
    end = outcomes[int(FIRST_DONE * len(outcomes)) - 1].end_s if second else outcomes[-1].end_s
    pool = cluster.pools[0]
    energy = used = 0.0
    for segment in (s for o in outcomes for s in o.segments if s.start_s < end):
        seconds = min(segment.end_s, end) - segment.start_s
        energy += pool.power_w(segment.placement.units, segment.placement.cap_w) * seconds
        used += segment.placement.units * seconds
    waits = np.array([o.start_s - o.job.submit_s for o in outcomes])
    return PowerResult(
        time_s=end - first,
        energy_j=energy,
        machine_energy_j=energy + pool.base_w * (pool.units * (end - first) - used),
        mean_wait=float(waits.mean()),
        longest_wait=float(waits.max()),
        variance=float(waits.var()),
        run_s=float(np.mean([o.run_s for o in outcomes])),
        worst_gap=float(getattr(policy, "worst_gap", 0.0)),
        jobs=len(outcomes),
    )


class PowerSize(NamedTuple):
    """The extent of the runs at a scale."""

    seeds: tuple[int, ...]
    betas: tuple[float, ...]
    genetic_seeds: tuple[int, ...]
    genetic_betas: tuple[float, ...]
    rates: tuple[float, ...]
    budgets: tuple[float, ...]
    second_seeds: tuple[int, ...]
    second_jobs: int


SIZES = {
    "small": PowerSize(
        seeds=(0, 1),
        betas=(0.0, 0.5, 1.0),
        genetic_seeds=(0,),
        genetic_betas=(0.0, 1.0),
        rates=(10.0, 0.2),
        budgets=(3850.0, 2000.0),
        second_seeds=(0,),
        second_jobs=150,
    ),
    "full": PowerSize(
        seeds=tuple(range(5)),
        betas=tuple(round(0.1 * i, 1) for i in range(11)),
        genetic_seeds=(0, 1, 2),
        genetic_betas=(0.0, 0.5, 1.0),
        rates=(10.0, 1.0, 0.2),
        budgets=(3850.0, 2000.0, 1000.0),
        second_seeds=tuple(range(5)),
        second_jobs=300,
    ),
}


class PowerResults(dict[PowerCase, PowerResult]):
    """Results by case."""

    def get_all(self, field: str, policy: str, seeds: tuple[int, ...], **other: object) -> list[float]:
        """Return one field for each seed."""
        cases = [PowerCase(policy=policy, seed=seed, **other) for seed in seeds]  # type: ignore[arg-type]
        return [float(getattr(self[case], field)) for case in cases]

    def mean(self, field: str, policy: str, seeds: tuple[int, ...]) -> float:
        """Average one field over the seeds."""
        return float(np.mean(self.get_all(field, policy, seeds)))

    def change(self, field: str, policy: str, base: str, seeds: tuple[int, ...], **other: object) -> Estimate:
        """Compare in percent, seed by seed."""
        return changes(self.get_all(field, policy, seeds, **other), self.get_all(field, base, seeds, **other))


def cases_of(plan: PowerSize) -> list[PowerCase]:
    """List all simulations of a plan, some of them twice."""
    seeds = plan.seeds
    cases = [PowerCase(policy, seed=seed) for policy in (*FIFO, FAST, SAVING, LITERAL) for seed in seeds]
    cases += [PowerCase(f"parm,beta={beta:g}", seed=seed) for beta in plan.betas for seed in seeds]
    cases += [PowerCase(GENETIC.format(b), seed=s) for b in plan.genetic_betas for s in plan.genetic_seeds]
    some = ("fifo-mid", FAST, SAVING, LITERAL)
    cases += [PowerCase(p, rate_text(r), seed=s) for p, r, s in product(some, plan.rates, seeds)]
    tight = (some[0], *(policy + TIGHT for policy in some[1:]))
    cases += [PowerCase(p, budget_w=b, seed=s) for p, b, s in product(tight, plan.budgets, seeds)]
    cases += [
        PowerCase(p, second_text(plan), seed=s)
        for p, s in product(("fifo-mid", "fifo-max", FAST + LIMITED, SAVING + LIMITED), plan.second_seeds)
    ]
    return cases


def rate_text(rate: float) -> str:
    """Describe job set 1 at this arrival rate."""
    return "power-set1" if rate == 10.0 else f"power-set1,rate_per_s={rate:g}"


def second_text(plan: PowerSize) -> str:
    """Describe job set 2."""
    return f"power-set2,jobs={plan.second_jobs},spread={INTREPID_SPREAD:g}"
