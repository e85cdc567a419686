"""``weigh`` on GPUs under power caps and a budget, beside rivals at their best settings; part of ``weigh``.

The rivals are ``parm`` with its best alpha, and ``mctbm-priced``, which knows no sizes and caps, with the
best cap and size, the same for all jobs. Best is the least mean turnaround over the very seeds that are
compared: the rivals are chosen after the fact, in their favour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scheduler.evaluations import Estimate, Finding, Progress, Row, Scale, Table, changes, over_seeds, run_all
from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.model.speeds import CapTable, TabulatedPower
from scheduler.model.state import POWER_TOLERANCE_W
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, OutcomeRecorder
from scheduler.workloads import load

CAPS_W = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)
GPUS, BASE_W, BUDGET_W = 8, 60.0, 1600.0
KWH_PRICE, LOAD = 6, 0.7
OWN, PARM, STATIC = f"weigh,kwh_price={KWH_PRICE}", "parm", "mctbm-priced"
PARMS = tuple(f"{PARM},alpha={alpha:g}" for alpha in (0, 0.5, 1))
JOBS: dict[Scale, int] = {"small": 40, "full": 200}
GROUNDS = {"fixed": "V100, fixed sizes", "malleable": "V100, sizes change"}


class CappedCase(NamedTuple):
    """One simulation; ``cap_w``: the cap of all jobs, ``most``: at the sizes at which they are fastest."""

    sizes: str
    policy: str
    jobs: int
    seed: int
    cap_w: float | None = None
    most: bool = False

    def __str__(self) -> str:
        cap = "" if self.cap_w is None else f" at {self.cap_w:g} W"
        return f"{GROUNDS[self.sizes]}, {self.policy}{cap}, {self.seed}"

    @property
    def setting(self) -> str:
        """Name what the rivals are chosen by."""
        size = ", fastest sizes" if self.most else ""
        return self.policy if self.cap_w is None else f"{self.policy} at {self.cap_w:g} W{size}"


class CappedFigures(NamedTuple):
    """Mean turnaround, energy of GPUs in use and its bound, worst fairness, instants above the budget."""

    turnaround_s: float
    energy_j: float
    least_j: float
    fairness: float
    violations: int


def cases(scale: Scale, seeds: Sequence[int]) -> list[CappedCase]:
    """List the simulations: of ``weigh``, and of each rival with each setting."""
    every = []
    for sizes in GROUNDS:
        for seed in seeds:
            of = JOBS[scale], seed
            every += [CappedCase(sizes, policy, *of) for policy in (OWN, *PARMS)]
            every += [
                CappedCase(sizes, STATIC, *of, cap, most)
                for cap in CAPS_W
                for most in ((False, True) if sizes == "malleable" else (False,))
            ]
    return every


def evaluate(scale: Scale, seeds: Sequence[int], progress: Progress) -> tuple[list[Finding], Table]:
    """Simulate all, and compare ``weigh`` with the best of each rival."""
    every = cases(scale, seeds)
    figures: dict[tuple[str, str], list[CappedFigures]] = {}
    for case, result in zip(every, run_all(simulate, every, progress), strict=True):
        if result is not None:
            figures.setdefault((case.sizes, case.setting), []).append(result)
    findings, rows = [], list[Row]()
    for sizes, label in GROUNDS.items():
        columns = {setting: column for (of, setting), column in figures.items() if of == sizes}
        own, chosen = columns[OWN], [OWN]
        for rival in (PARM, STATIC):
            able = [name for name in columns if name.startswith(rival) and len(columns[name]) == len(own)]
            best = min(able, key=lambda name: float(np.mean([row.turnaround_s for row in columns[name]])))
            chosen.append(best)
            findings += [
                Finding(f"{what} against {best}", None, change(own, columns[best], name), "%", goal, of=label)
                for what, name, goal in (
                    ("mean turnaround", "turnaround_s", (-100.0, -20.0)),
                    ("energy", "energy_j", (-100.0, -8.0)),
                )
            ]
            least = changes([row.least_j for row in own], [row.energy_j for row in columns[best]])
            findings.append(Finding(f"bound of energy against {best}", None, least, "%", of=label))
        fair, over = over_seeds([row.fairness for row in own]), over_seeds([row.violations for row in own])
        findings.append(Finding("worst finish-time fairness", None, fair, "", (0.0, 1.5), of=label))
        findings.append(Finding("instants above the budget", None, over, "", (0.0, 0.0), of=label))
        for name in chosen:
            means = (float(np.mean(column)) for column in zip(*columns[name], strict=True))
            rows.append((label, name, *means))
    header = (
        "ground",
        "policy",
        "mean turnaround, s",
        "energy, J",
        "its bound, J",
        "worst fairness",
        "above the budget",
    )
    return findings, Table("GPUs under caps, means over seeds", header, tuple(rows))


def change(own: Sequence[CappedFigures], rival: Sequence[CappedFigures], name: str) -> Estimate:
    """Compare one figure, seed by seed, in percent."""
    return changes(*([getattr(figures, name) for figures in column] for column in (own, rival)))


def machine() -> Cluster:
    pool = Pool("v100", GPUS, base_w=BASE_W, peak_w=CAPS_W[-1], caps_w=CAPS_W)
    return Cluster((pool,), BUDGET_W)


def simulate(case: CappedCase) -> CappedFigures | None:
    """Run one case; None: a job needs more GPUs than the budget carries at this cap."""
    cluster = machine()
    text = f"generator:labbench,jobs={case.jobs},load={LOAD},sizes={case.sizes}"
    workload = load(text, cluster, case.seed)
    assert isinstance(workload.arrivals, Iterable)
    arrivals = list(workload.arrivals)
    jobs = {arrival.job.id: arrival.job for arrival in arrivals}
    if case.cap_w is not None:
        carried = min(GPUS, int(BUDGET_W // (BASE_W + case.cap_w)))
        if carried < max(job.units for job in jobs.values()):
            return None
        cluster = Cluster((Pool("v100", carried, base_w=BASE_W, peak_w=case.cap_w),))
        arrivals = [fixed(arrival, case.cap_w, carried if case.most else 0) for arrival in arrivals]
    record = OutcomeRecorder()
    Simulator(cluster, arrivals, create(case.policy), workload.settings, sinks=[record]).run()
    outcomes = [outcome._replace(job=jobs[outcome.job.id]) for outcome in record.outcomes]
    return CappedFigures(
        float(np.mean([outcome.end_s - outcome.job.submit_s for outcome in outcomes])),
        sum(outcome.energy_j for outcome in outcomes),
        sum(least_j(outcome.job) for outcome in outcomes),
        max(finish_time_fairness(outcomes)),
        above_budget(record.outcomes, cluster.pools[0]),
    )


def fixed(arrival: Arrival, cap_w: float, most: int) -> Arrival:
    """Let a job run at one size under one cap; ``most``: up to so many units."""
    job = arrival.job
    units = max(job.units, min(job.max_units or job.units, most))
    assert job.speed is not None and job.power is not None and job.estimate_s is not None
    speed, power = job.speed(units, cap_w), TabulatedPower(CapTable((cap_w,), (job.power(1, cap_w),)))
    rigid = replace(job, units=units, max_units=None, malleable=False, speed=None, power=power)
    return Arrival(replace(rigid, estimate_s=job.estimate_s / speed), arrival.run_s / speed)


def least_j(job: Job) -> float:
    """Return the energy of a job at the size and cap at which it is least."""
    assert job.speed is not None and job.estimate_s is not None
    pool = machine().pools[0]
    return min(
        pool.power_w(units, cap, job.power) * job.estimate_s / job.speed(units, cap)
        for units in range(job.units, (job.max_units or job.units) + 1)
        for cap in CAPS_W
        if pool.power_w(units, cap, job.power) <= BUDGET_W
    )


def above_budget(outcomes: Sequence[Outcome], pool: Pool) -> int:
    """Count the instants at which the jobs draw more than the budget."""
    steps: dict[float, float] = {}
    for outcome in outcomes:
        for segment in outcome.segments:
            watts = pool.power_of(outcome.job, segment.placement)
            steps[segment.start_s] = steps.get(segment.start_s, 0.0) + watts
            steps[segment.end_s] = steps.get(segment.end_s, 0.0) - watts
    drawn = np.cumsum([watts for _, watts in sorted(steps.items())])
    return int((drawn > BUDGET_W + POWER_TOLERANCE_W).sum())


def finish_time_fairness(outcomes: Sequence[Outcome], gpus: int = GPUS) -> list[float]:
    """Divide the turnaround of each job by what it would be alone on its part of the machine (Themis, 2020).

    Its part is the GPUs over the mean number of jobs that were there while it was. There it runs uncapped on
    as many GPUs as it can use; a job that needs more than its part takes longer in proportion. Of several
    classes of as many GPUs it has each for as long.
    """
    submits = np.array([outcome.job.submit_s for outcome in outcomes])
    ends = np.array([outcome.end_s for outcome in outcomes])
    ratios = []
    for outcome, submit, end in zip(outcomes, submits, ends, strict=True):
        beside = np.clip(np.minimum(ends, end) - np.maximum(submits, submit), 0.0, None).sum() / (
            end - submit
        )
        part = gpus / beside
        ratios.append((end - submit) / (alone_s(outcome.job, int(part)) * max(1.0, outcome.job.units / part)))
    return ratios


def alone_s(job: Job, units: int) -> float:
    """Return the run time, uncapped, on the best number of units up to ``units``, or on its fewest."""
    times = job.estimates_s.values() or [job.estimate_s or math.nan]
    whole_s = len(times) / sum(1.0 / seconds for seconds in times)
    if job.speed is None:
        return whole_s
    most = max(job.units, min(job.max_units or job.units, units))
    return whole_s / max(job.speed(number, None) for number in range(job.units, most + 1))
