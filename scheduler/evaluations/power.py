"""Paper C's evaluation: jobs under a power budget."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from scheduler.evaluations import (
    Estimate,
    Evaluation,
    Finding,
    Picture,
    Progress,
    Row,
    Scale,
    Series,
    Table,
    changes,
    over_seeds,
    run_all,
)
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import OutcomeRecorder
from scheduler.workloads import load
from scheduler.workloads.generators import power_sets

# -- simulations -------------------------------------------------------------------------------------------


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
    cluster = power_sets.large_machine() if second else power_sets.small_machine(budget_w=case.budget_w)
    record, policy = OutcomeRecorder(), create(case.policy, case.seed)
    workload = load(f"generator:{case.workload}", cluster, case.seed)
    Simulator(cluster, workload.arrivals, policy, workload.settings, sinks=[record]).run()
    outcomes = record.outcomes  # in the order of their ends
    first = min(o.job.submit_s for o in outcomes)
    end = outcomes[int(FIRST_DONE * len(outcomes)) - 1].end_s if second else outcomes[-1].end_s
    pool = cluster.pools[0]
    energy = used = 0.0
    for job, segment in ((o.job, s) for o in outcomes for s in o.segments if s.start_s < end):
        seconds = min(segment.end_s, end) - segment.start_s
        energy += pool.power_of(job, segment.placement) * seconds
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
    policies = ("fifo-mid", FAST, SAVING, LITERAL)
    cases += [PowerCase(p, rate_text(r), seed=s) for p, r, s in product(policies, plan.rates, seeds)]
    tight = (policies[0], *(policy + TIGHT for policy in policies[1:]))
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


# -- the evaluation ----------------------------------------------------------------------------------------


PAPER = (
    "W. Huang, N. Iwazawa, T. Cao, Y. He, M. Kondo, H. Nakamura: Throughput-oriented job scheduling under "
    "power constraints considering energy efficiency (IPSJ SIG HPC, 2014)"
)
WAITS = (  # table 4
    ("mean wait", "s", "mean_wait", (54.57, 25.11, 0.0, 17.21, 20.87)),
    ("longest wait", "s", "longest_wait", (213.29, 106.32, 0.0, 61.66, 55.08)),
    ("variance of waits", "s^2", "variance", (4012.98, 909.07, 0.0, 406.06, 370.44)),
)
RELATIVE = (1.0, 1.46, 31.39, 2.13, 3.40)  # table 4: mean run time over that of FIFO_max


def evaluate(scale: Scale, progress: Progress) -> Evaluation:
    """All figures and tables."""
    plan = SIZES[scale]
    cases = list(dict.fromkeys(cases_of(plan)))
    cases.sort(key=lambda case: ("-ga" not in case.policy, "set2" not in case.workload))  # the longest first
    results = run_all(simulate, cases, progress, lambda case: f"{case.policy} on {case.workload}")
    runs = PowerResults(zip(cases, results, strict=True))
    stand_in = "the log of Theta" if power_sets.theta_log() else "the Lublin-Feitelson model"
    return Evaluation(
        paper=PAPER,
        scale=scale,
        assumptions=_assumptions(plan, stand_in),
        findings=(
            *_set1(runs, plan),
            *_table4(runs, plan),
            *_both_zeros(runs, plan),
            *_set2(runs, plan, stand_in),
        ),
        tables=(_sweep(runs, plan), _rates_and_budgets(runs, plan)),
        pictures=_pictures(runs, plan),
        remarks=_remarks(runs, plan),
    )


# -- findings ----------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """A field under one policy against another: the printed change, and the range that agrees, in %."""

    what: str
    paper: float | None
    field: str
    policy: str
    base: str = "fifo-mid"
    same: tuple[float, float] | None = None
    note: str = ""
    of: str = ""

    def finding(self, runs: PowerResults, seeds: tuple[int, ...], **jobs: object) -> Finding:
        """Compare the runs of these seeds."""
        change = runs.change(self.field, self.policy, self.base, seeds, **jobs)
        return Finding(self.what, self.paper, change, "%", same=self.same, note=self.note, of=self.of)


FASTER, SHORTER, SAVES, EQUAL = (-60.0, -20.0), (-50.0, -12.0), (-20.0, -5.0), (-10.0, 10.0)
ABOUT_EQUAL = 'printed as "about equal"'


def _set1(runs: PowerResults, plan: PowerSize) -> list[Finding]:
    """Compare as figure 3 does."""
    rate, idle = "depends on the rate, see the remarks", "nodes not in use draw their base power"
    machine = "energy of the whole machine, beta = 0 against beta = 1"
    rows = (
        Comparison("makespan, beta = 1 against FIFO_mid", -39.0, "time_s", FAST, same=FASTER),
        Comparison("energy, beta = 1 against FIFO_mid", 0.0, "energy_j", FAST, same=EQUAL, note=ABOUT_EQUAL),
        Comparison(
            "energy, beta = 0 against beta = 1", -10.0, "energy_j", SAVING, FAST, same=SAVES, note=rate
        ),
        Comparison("makespan, beta = 0 against FIFO_mid", -25.0, "time_s", SAVING, same=SHORTER),
        Comparison(machine, None, "machine_energy_j", SAVING, FAST, note=idle),
    )
    return [row.finding(runs, plan.seeds) for row in rows]


def _table4(runs: PowerResults, plan: PowerSize) -> list[Finding]:
    """Compare waits and run times with the printed ones."""
    findings = []
    columns = (*FIFO, FAST, SAVING)
    for name, unit, field, printed in WAITS:
        wide = 4.0 if field == "variance" else 2.0
        for policy, paper in zip(columns, printed, strict=True):
            got = over_seeds(runs.get_all(field, policy, plan.seeds))
            around = (paper / wide, paper * wide)
            findings.append(Finding(name, paper, got, unit, around, of=policy))
    base = runs.get_all("run_s", "fifo-max", plan.seeds)
    for policy, paper in zip(columns, RELATIVE, strict=True):
        ratios = [r / b for r, b in zip(runs.get_all("run_s", policy, plan.seeds), base, strict=True)]
        around = (paper / 2, paper * 2)
        findings.append(
            Finding("mean run time over FIFO_max's", paper, over_seeds(ratios), "", around, of=policy)
        )
    return findings


def _both_zeros(runs: PowerResults, plan: PowerSize) -> list[Finding]:
    """Compare beta = 0 as the equation has it, and both ends by genetic search."""
    literal, fast = GENETIC.format(0.0), GENETIC.format(1.0)
    note = "one node is best for every job at beta = 0, so the optimum crawls; see the remarks"
    makespan = "makespan, beta = 0 taken literally against FIFO_mid"
    energy = "energy, beta = 0 taken literally against beta = 1"
    rows = []
    for of, seeds, zero, base in (
        ("exact", plan.seeds, LITERAL, FAST),
        ("genetic", plan.genetic_seeds, literal, fast),
    ):
        rows += [
            (seeds, Comparison(makespan, -25.0, "time_s", zero, same=SHORTER, note=note, of=of)),
            (seeds, Comparison(energy, -10.0, "energy_j", zero, base, SAVES, of=of)),
        ]
    seeds, fastest = plan.genetic_seeds, "makespan, beta = 1 by search against FIFO_mid"
    dearest = "energy, beta = 1 by search against FIFO_mid"
    rows += [
        (seeds, Comparison(fastest, -39.0, "time_s", fast, same=FASTER, of="genetic")),
        (seeds, Comparison(dearest, 0.0, "energy_j", fast, same=EQUAL, note=ABOUT_EQUAL, of="genetic")),
    ]
    return [row.finding(runs, seeds) for seeds, row in rows]


def _set2(runs: PowerResults, plan: PowerSize, stand_in: str) -> list[Finding]:
    """Compare as figure 7 does."""
    fast, saving = FAST + LIMITED, SAVING + LIMITED
    note = f"{stand_in} stands in"
    which = f"{note}; the paper does not say which FIFO"
    rows = []
    for policy, paper, name in ((fast, -71.0, "beta = 1"), (saving, -68.0, "beta = 0")):
        for base in ("fifo-max", "fifo-mid"):
            what, of = f"set 2, time of the first 95 %, {name}", f"against {base}"
            rows.append(
                Comparison(what, paper, "time_s", policy, base, same=(-85.0, -50.0), note=which, of=of)
            )
    what = "set 2, energy, beta = 0 against beta = 1"
    rows.append(Comparison(what, -14.0, "energy_j", saving, fast, same=(-28.0, -7.0), note=note))
    return [row.finding(runs, plan.second_seeds, workload=second_text(plan)) for row in rows]


# -- tables and pictures -----------------------------------------------------------------------------------


def _sweep(runs: PowerResults, plan: PowerSize) -> Table:
    rows = []
    for beta in plan.genetic_betas:
        exact, genetic = (f"parm,beta={beta:g}", plan.seeds), (GENETIC.format(beta), plan.genetic_seeds)
        seconds = (runs.mean("time_s", *exact), runs.mean("time_s", *genetic))
        joules = (runs.mean("energy_j", *exact), runs.mean("energy_j", *genetic))
        rows.append((beta, *seconds, *(1e-3 * energy for energy in joules)))
    columns = ("beta", "makespan exact, s", "makespan genetic, s", "energy exact, kJ", "energy genetic, kJ")
    return Table("Figure 5: beta (exact: at least 0.001; genetic: taken literally)", columns, tuple(rows))


def _compare(runs: PowerResults, plan: PowerSize, limits: str = "", **other: object) -> list[float]:
    fast, saving, literal = (policy + limits for policy in (FAST, SAVING, LITERAL))
    return [
        runs.change("time_s", fast, "fifo-mid", plan.seeds, **other).mean,
        runs.change("time_s", saving, "fifo-mid", plan.seeds, **other).mean,
        runs.change("energy_j", saving, fast, plan.seeds, **other).mean,
        runs.change("energy_j", literal, fast, plan.seeds, **other).mean,
    ]


COMPARED = (
    "makespan, beta = 1 against FIFO_mid",
    "makespan, beta = 0 against FIFO_mid",
    "energy, beta = 0 against beta = 1",
    "energy, beta = 0 literally against beta = 1",
)


def _rates_and_budgets(runs: PowerResults, plan: PowerSize) -> Table:
    rows: list[Row] = [(f"{r:g} a second", *_compare(runs, plan, workload=rate_text(r))) for r in plan.rates]
    rows += [(f"{b:g} W", *_compare(runs, plan, TIGHT, budget_w=b)) for b in plan.budgets]
    title = "Figure 6: submissions; and budgets (not in the paper). Changes in %"
    return Table(title, ("submissions, or budget", *COMPARED), tuple(rows))


def _pictures(runs: PowerResults, plan: PowerSize) -> tuple[Picture, ...]:
    names = ("FIFO_max", "FIFO_mid", "FIFO_min", "beta = 1", "beta = 0")
    policies = (*FIFO, FAST, SAVING)

    def bars(field: str, scale: float) -> Series:
        estimates = [over_seeds(runs.get_all(field, policy, plan.seeds)) for policy in policies]
        return Series.of("job set 1", names, estimates, scale)

    def lines(field: str, scale: float) -> tuple[Series, ...]:
        exact = [runs.mean(field, f"parm,beta={b:g}", plan.seeds) for b in plan.betas]
        genetic = [runs.mean(field, GENETIC.format(b), plan.genetic_seeds) for b in plan.genetic_betas]
        middle = runs.mean(field, "fifo-mid", plan.seeds) * scale
        return (
            Series("exact", plan.betas, tuple(y * scale for y in exact)),
            Series("genetic", plan.genetic_betas, tuple(y * scale for y in genetic)),
            Series("FIFO_mid", (0.0, 1.0), (middle, middle)),
        )

    return (
        Picture("Figure 3: makespan", "policy", "s", (bars("time_s", 1.0),)),
        Picture("Figure 3: energy", "policy", "kJ", (bars("energy_j", 1e-3),)),
        Picture("Figure 5: makespan", "beta", "s", lines("time_s", 1.0), "lines"),
        Picture("Figure 5: energy", "beta", "kJ", lines("energy_j", 1e-3), "lines"),
    )


# -- words -------------------------------------------------------------------------------------------------


def _assumptions(plan: PowerSize, stand_in: str) -> tuple[str, ...]:
    return (
        "beta = 1 is performance, beta = 0 energy, as equation 4.1 and the results have it; beta counts as "
        "at least 0.001 unless it says literally, so that speed decides between nearly equal energies.",
        "Rates are submissions a second; alpha = 0.5; jobs are malleable at no cost; caps: 30 to 90 W by 5 "
        "W.",
        "FIFO_max: 2A - 1 nodes at 50 W; FIFO_mid: A at 40 W; FIFO_min: 1 at 30 W; EP: 64, 32, 1 nodes.",
        "Energy is that of the nodes in use, n (p + 10 W); the whole machine's counts the base power of the "
        "others, too.",
        f"Job set 1: {len(plan.seeds)} seeds, solved exactly. The genetic search, ten times slower or more: "
        f"{len(plan.genetic_seeds)} of them, {len(plan.genetic_betas)} values of beta, taken literally, from "
        "a random first generation.",
        f"Job set 2, cut down: {plan.second_jobs} of 1000 jobs, {len(plan.second_seeds)} seed(s); {stand_in} "
        f"stands in for Intrepid's log, times between submissions times {INTREPID_SPREAD:g} (Intrepid's 1000 "
        "jobs take 3.5 days, Theta's 16). A job of n nodes has A = n and took its logged time at 40 W. "
        "Considered: all running jobs and the 50 that have waited longest, 24 numbers of nodes each, gap 2 "
        "%.",
        "In the table of budgets the gap is 0.5 %.",
    )


def _remarks(runs: PowerResults, plan: PowerSize) -> tuple[str, ...]:
    exact = [case for case in runs if case.policy.startswith("parm,")]
    set1 = [case for case in exact if case.workload.startswith("power-set1")]
    first = max(runs[case].worst_gap for case in set1 if TIGHT not in case.policy)
    tight = max(runs[case].worst_gap for case in set1 if TIGHT in case.policy)
    second = max(runs[case].worst_gap for case in exact if case.workload.startswith("power-set2"))
    seeds, literal, genetic = plan.genetic_seeds, GENETIC.format(0.0), GENETIC.format(1.0)
    slow = runs.change("time_s", LITERAL, "fifo-mid", plan.seeds).mean
    searched = runs.change("time_s", literal, "fifo-mid", seeds).mean
    costly = runs.change("energy_j", genetic, FAST, seeds).mean
    jobs, second_seeds = {"workload": second_text(plan)}, plan.second_seeds
    over_max, over_mid = (
        runs.change("time_s", FAST + LIMITED, base, second_seeds, **jobs).mean for base in FIFO[:2]
    )
    return (
        f"The largest gap that the exact solver left open in any decision: {100 * first:.2f} % on set 1 "
        f"({100 * tight:.2f} % in the table of budgets), {100 * second:.2f} % on set 2.",
        "At beta = 1 the optimum needs less energy than FIFO_mid because it runs at 50 W, FIFO_mid at 40 W: "
        "by equations 4.2 and 4.5 that alone saves 11 to 17 % with the slopes of table 3.",
        "Er is largest on one node for every job (none scales better than linearly, and 50 W is the best "
        "cap), so with at most as many jobs as nodes beta = 0 taken literally gives everybody one node: "
        "nobody waits, all crawl.",
        "The printed -25 % of makespan at beta = 0 did not come out of beta taken literally: exactly solved "
        f"it is {slow:+.0f} %, by the genetic search {searched:+.0f} % on {len(seeds)} seed(s) (the paper's "
        "population, generations and rates; its first generation, mutations and treatment of choices that do "
        "not fit are not printed). With beta at least 0.001 makespans are shorter than printed, and jobs get "
        "some nodes at once, so that nobody waits.",
        "Up to its mean parallelism a job needs about the same energy on any number of nodes (sigma is at "
        "most 0.05), so beta = 0 saves only where beta = 1 spreads jobs beyond that: hardly at 10 "
        "submissions a second, when nodes are scarce, much at 0.2. The paper prints about 10 % at all rates.",
        f"At beta = 1 the genetic search uses {costly:+.0f} % energy against the exact solver: some caps "
        "stay above 50 W, which brings nothing. So it has more to save at beta = 0.",
        "3850 W never bind on 64 nodes: all under 50 W draw 3840 W, and no program is faster under more.",
        f"On set 2, beta = 1 changes the time by {over_max:+.0f} % against FIFO_max, by {over_mid:+.0f} % "
        "against FIFO_mid, which can use all nodes: with 10 W of base power its 40 W are the 50 W a node "
        f"that 2.048 MW allow. What more than {plan.second_jobs} jobs change was not tested.",
        "Under tight budgets beta = 0 did not save energy against beta = 1; why was not examined.",
    )
