"""``weigh`` on GPUs under power caps and a budget, beside rivals at their best settings; part of ``weigh``.

The rivals are ``parm`` (one class) with its best alpha, and ``mctbm-priced``, which knows no sizes and caps,
with the best cap of each class, and the best multiple of least sizes for all jobs. Best is the least mean
turnaround over the very seeds that are compared: the rivals are chosen after the fact, in their favour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scheduler.evaluations import Estimate, Finding, Progress, Row, Scale, Table, changes, over_seeds, run_all
from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.model.state import POWER_TOLERANCE_W
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, OutcomeRecorder
from scheduler.workloads import load

CAPS_W = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)  # those of P100 begin with the second
V100 = Cluster((Pool("v100", 8, base_w=60.0, peak_w=CAPS_W[-1], caps_w=CAPS_W),), 1600.0)
BOTH = Cluster(
    (
        Pool("v100", 8, 0, peak_w=CAPS_W[-1], caps_w=CAPS_W),
        Pool("p100", 8, 1, peak_w=CAPS_W[-1], caps_w=CAPS_W[1:]),
    ),
    2400.0,
)
KWH_PRICE, LOAD = 6, 0.7
OWN, PARM, STATIC = f"weigh,kwh_price={KWH_PRICE}", "parm", "mctbm-priced"
PARMS = tuple(f"{PARM},alpha={alpha:g}" for alpha in (0, 0.5, 1))
TIMES = (1, 2, 4, 8)
JOBS: dict[Scale, int] = {"small": 40, "full": 200}
# Caps of the rival: on both classes those that carry all GPUs and use the budget; fewer GPUs under higher
# caps have turnarounds a fifth longer, or more.
ALONE_W = tuple((cap_w,) for cap_w in CAPS_W)
TOGETHER_W = ((100.0, 200.0), (125.0, 175.0), (150.0, 150.0), (175.0, 125.0))
# By ground, the machine, the sizes of jobs, and the caps of the rival.
GROUNDS = {
    "V100, fixed sizes": (V100, "fixed", ALONE_W),
    "V100, sizes change": (V100, "malleable", ALONE_W),
    "V100, P100, fixed sizes, a budget": (BOTH, "fixed", TOGETHER_W),
    "V100, P100, sizes, a budget": (BOTH, "moldable", TOGETHER_W),
}
GOALS = {"turnaround_s": (-100.0, -20.0), "energy_j": (-100.0, -8.0), "fairness": (0.0, 1.5)}  # on V100


class CappedCase(NamedTuple):
    """One simulation; ``caps_w``: the caps of each class, ``times``: sizes, over the least, of all jobs."""

    ground: str
    policy: str
    jobs: int
    seed: int
    caps_w: tuple[float, ...] = ()
    times: int = 1

    def __str__(self) -> str:
        return f"{self.ground}, {self.setting}, {self.seed}"

    @property
    def setting(self) -> str:
        """Name what the rivals are chosen by."""
        size = f", {self.times} times the least sizes" if self.times > 1 else ""
        caps = " and ".join(f"{cap_w:g}" for cap_w in self.caps_w)
        return f"{self.policy} at {caps} W{size}" if caps else self.policy


class CappedFigures(NamedTuple):
    """Mean turnaround, makespan, energy of GPUs in use, its bound, fairness, instants above the budget."""

    turnaround_s: float
    makespan_s: float
    energy_j: float
    least_j: float
    fairness: float
    violations: int


def cases(scale: Scale, seeds: Sequence[int]) -> list[CappedCase]:
    """List the simulations: of ``weigh``, and of each rival with each setting."""
    every = []
    for ground, (cluster, sizes, every_w) in GROUNDS.items():
        for seed in seeds:
            of = JOBS[scale], seed
            every += [
                CappedCase(ground, policy, *of) for policy in (OWN, *(PARMS if cluster == V100 else ()))
            ]
            every += [
                CappedCase(ground, STATIC, *of, caps, times)
                for caps in every_w
                for times in (TIMES[:1] if sizes == "fixed" else TIMES)
            ]
    return every


def evaluate(scale: Scale, seeds: Sequence[int], progress: Progress) -> tuple[list[Finding], Table]:
    """Simulate all, and compare ``weigh`` with the best of each rival."""
    every = cases(scale, seeds)
    figures: dict[tuple[str, str], list[CappedFigures]] = {}
    for case, result in zip(every, run_all(simulate, every, progress), strict=True):
        if result is not None:
            figures.setdefault((case.ground, case.setting), []).append(result)
    findings, rows = [], list[Row]()
    for label, (cluster, *_) in GROUNDS.items():
        goals = GOALS if cluster == V100 else {}
        columns = {setting: column for (of, setting), column in figures.items() if of == label}
        own, chosen = columns[OWN], [OWN]
        for rival in (PARM, STATIC) if cluster == V100 else (STATIC,):
            able = [name for name in columns if name.startswith(rival) and len(columns[name]) == len(own)]
            best = min(able, key=lambda name: float(np.mean([row.turnaround_s for row in columns[name]])))
            chosen.append(best)
            findings += [
                Finding(f"{what} against {best}", None, change(own, columns[best], name), "%", goal, of=label)
                for what, name, goal in (
                    ("mean turnaround", "turnaround_s", goals.get("turnaround_s")),
                    ("makespan", "makespan_s", None),
                    ("energy", "energy_j", goals.get("energy_j")),
                )
            ]
            least = changes([row.least_j for row in own], [row.energy_j for row in columns[best]])
            findings.append(Finding(f"bound of energy against {best}", None, least, "%", of=label))
        findings += [
            Finding(what, None, over_seeds([getattr(row, name) for row in own]), "", goal, of=label)
            for what, name, goal in (
                ("worst finish-time fairness", "fairness", goals.get("fairness")),
                ("instants above the budget", "violations", (0.0, 0.0)),
            )
        ]
        for name in chosen:
            means = (float(np.mean(column)) for column in zip(*columns[name], strict=True))
            rows.append((label, name, *means))
    header = (
        "ground",
        "policy",
        "mean turnaround, s",
        "makespan, s",
        "energy, J",
        "its bound, J",
        "worst fairness",
        "above the budget",
    )
    return findings, Table("GPUs under caps, means over seeds", header, tuple(rows))


def change(own: Sequence[CappedFigures], rival: Sequence[CappedFigures], name: str) -> Estimate:
    """Compare one figure, seed by seed, in percent."""
    return changes(*([getattr(figures, name) for figures in column] for column in (own, rival)))


def under(cluster: Cluster, caps_w: Sequence[float]) -> Cluster:
    """Return the units that the budget carries at these caps, the best class first, without power."""
    assert cluster.budget_w is not None
    left_w, pools = cluster.budget_w, []
    for pool, cap_w in zip(cluster.pools, caps_w, strict=True):
        units = min(pool.units, int(left_w // (pool.base_w + cap_w)))
        left_w -= units * (pool.base_w + cap_w)
        pools.append(Pool(pool.name, units, pool.rank))
    return Cluster(tuple(pools))


def simulate(case: CappedCase) -> CappedFigures | None:
    """Run one case; None: a job needs more GPUs than the budget carries at these caps."""
    cluster, sizes, _ = GROUNDS[case.ground]
    workload = load(f"generator:labbench,jobs={case.jobs},load={LOAD},sizes={sizes}", cluster, case.seed)
    assert isinstance(workload.arrivals, Iterable)
    arrivals, carried = list(workload.arrivals), cluster
    jobs = {arrival.job.id: arrival.job for arrival in arrivals}
    caps = dict(zip((pool.name for pool in cluster.pools), case.caps_w, strict=False))
    if caps:
        carried = under(cluster, case.caps_w)
        most = max(pool.units for pool in carried.pools)
        if most < max(job.units for job in jobs.values()):
            return None
        arrivals = [fixed(arrival, caps, case.times, most) for arrival in arrivals]
    record = OutcomeRecorder()
    Simulator(carried, arrivals, create(case.policy), workload.settings, sinks=[record]).run()
    outcomes = [charged(outcome, jobs[outcome.job.id], caps) for outcome in record.outcomes]
    return CappedFigures(
        float(np.mean([outcome.end_s - outcome.job.submit_s for outcome in outcomes])),
        max(outcome.end_s for outcome in outcomes) - min(job.submit_s for job in jobs.values()),
        sum(energy_j(outcome, cluster) for outcome in outcomes),
        sum(least_j(job, cluster) for job in jobs.values()),
        max(finish_time_fairness(outcomes, cluster.units)),
        above_budget(outcomes, cluster),
    )


def fixed(arrival: Arrival, caps: Mapping[str, float], times: int, most: int) -> Arrival:
    """Let a job run at one size, at most ``most`` units, under the cap of each class."""
    job = arrival.job
    units = max(job.units, min(times * job.units, job.max_units or job.units, most))
    assert job.speed is not None
    speeds = {pool: job.speed(units, cap_w) for pool, cap_w in caps.items()}
    first, *_ = speeds.values()
    rigid = replace(
        job,
        units=units,
        max_units=None,
        malleable=False,
        speed=None,
        power=None,
        estimate_s=None if job.estimate_s is None else job.estimate_s / first,
        estimates_s={pool: seconds / speeds[pool] for pool, seconds in job.estimates_s.items()},
    )
    runs_s = {pool: seconds / speeds[pool] for pool, seconds in arrival.runs_s.items()}
    return Arrival(rigid, arrival.run_s / first, runs_s)


def charged(outcome: Outcome, job: Job, caps: Mapping[str, float]) -> Outcome:
    """Return what a job that was fixed did, as of the job itself under the cap of each class."""
    segments = (
        segment._replace(placement=replace(segment.placement, cap_w=caps[segment.placement.pool]))
        if caps
        else segment
        for segment in outcome.segments
    )
    return outcome._replace(job=job, segments=tuple(segments))


def energy_j(outcome: Outcome, cluster: Cluster) -> float:
    """Return the energy of the units of a job, while it held them."""
    return sum(
        cluster[segment.placement.pool].power_of(outcome.job, segment.placement)
        * (segment.end_s - segment.start_s)
        for segment in outcome.segments
    )


def least_j(job: Job, cluster: Cluster) -> float:
    """Return the energy of a job at the class, size and cap at which it is least."""
    assert cluster.budget_w is not None
    return min(
        watts * job.estimate_on(pool.name, units, cap_w)
        for pool in cluster.pools
        for units in range(job.units, (job.max_units or job.units) + 1)
        for cap_w in pool.caps_w
        if (watts := pool.power_w(units, cap_w, job.power)) <= cluster.budget_w
    )


def above_budget(outcomes: Sequence[Outcome], cluster: Cluster) -> int:
    """Count the instants at which the jobs draw more than the budget."""
    assert cluster.budget_w is not None
    steps: dict[float, float] = {}
    for outcome in outcomes:
        for segment in outcome.segments:
            watts = cluster[segment.placement.pool].power_of(outcome.job, segment.placement)
            steps[segment.start_s] = steps.get(segment.start_s, 0.0) + watts
            steps[segment.end_s] = steps.get(segment.end_s, 0.0) - watts
    drawn = np.cumsum([watts for _, watts in sorted(steps.items())])
    return int((drawn > cluster.budget_w + POWER_TOLERANCE_W).sum())


def finish_time_fairness(outcomes: Sequence[Outcome], gpus: int = V100.units) -> list[float]:
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
