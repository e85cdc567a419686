"""``weigh`` on two classes of GPUs beside Gavel's and Sia's policies; part of ``weigh``.

Each rival has the setting of least mean turnaround over the very seeds that are compared: the length of
Gavel's rounds, and where sizes may be chosen, for policies that choose none, the same multiple of their least
sizes for all jobs. Figures that are compared by job (fairness) are against what it could do at any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from scheduler.evaluations import Finding, Progress, Row, Scale, Table, changes, run_all
from scheduler.evaluations.capped_gpus import finish_time_fairness
from scheduler.model.clusters import parse_cluster
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import OutcomeRecorder
from scheduler.workloads import load

CLUSTER, LOAD = "8xv100+8xp100", 0.9
JOBS: dict[Scale, int] = {"small": 40, "full": 200}
OWN = "weigh"
ROUNDS_S = (360, 1800, 3600)
TIMES = tuple(f",times={times}" for times in (1, 2, 4, 8))
MOLDABLE = ",sizes=moldable"
# By ground, what is added to the workload for policies that choose sizes, and each policy's settings.
GROUNDS: dict[str, tuple[str, dict[str, tuple[tuple[str, str], ...]]]] = {
    "fixed sizes": (
        "",
        {
            OWN: ((OWN, ""),),
            "mctbm-priced": (("mctbm-priced", ""),),
            "gavel": tuple((f"gavel,round_s={seconds}", "") for seconds in ROUNDS_S),
            "sia": (("sia", ""),),
        },
    ),
    "sizes 1 to 8": (
        MOLDABLE,
        {
            OWN: ((OWN, MOLDABLE),),
            "mctbm-priced": tuple(("mctbm-priced", times) for times in TIMES),
            "sia": (("sia", MOLDABLE),),
        },
    ),
}


class ClassesCase(NamedTuple):
    """One simulation; ``more`` and ``sizes`` are added to the workload: for the policy, and for fairness."""

    policy: str
    more: str
    sizes: str
    jobs: int
    seed: int

    def __str__(self) -> str:
        return f"two classes{self.more}, {self.policy}, {self.seed}"


class ClassesFigures(NamedTuple):
    """Mean and p99 of turnarounds, longest wait, makespan, restarts a job, worst finish-time fairness."""

    turnaround_s: float
    p99_s: float
    longest_s: float
    makespan_s: float
    restarts: float
    fairness: float


def evaluate(scale: Scale, seeds: Sequence[int], progress: Progress) -> tuple[list[Finding], Table]:
    """Simulate all, and compare ``weigh`` with each rival at its best setting."""
    cases = {
        (label, policy, setting): [ClassesCase(*setting, sizes, JOBS[scale], seed) for seed in seeds]
        for label, (sizes, settings_of) in GROUNDS.items()
        for policy, settings in settings_of.items()
        for setting in settings
    }
    every = [case for several in cases.values() for case in several]
    figures = dict(zip(every, run_all(simulate, every, progress), strict=True))
    columns = {key: [figures[case] for case in several] for key, several in cases.items()}
    findings, rows = [], list[Row]()
    for label, (_, settings_of) in GROUNDS.items():
        best = {}
        for policy, settings in settings_of.items():
            able = {setting: columns[label, policy, setting] for setting in settings}
            setting = min(able, key=lambda one: float(np.mean([its.turnaround_s for its in able[one]])))
            best[policy] = able[setting], "".join(setting)
        own, _ = best[OWN]
        for policy, (column, name) in best.items():
            rows.append((label, name, *(float(np.mean(values)) for values in zip(*column, strict=True))))
            if policy != OWN:
                change = changes([its.turnaround_s for its in own], [its.turnaround_s for its in column])
                what, of = f"mean turnaround against {policy}", f"two classes, {label}"
                findings.append(Finding(what, None, change, "%", (-100.0, 0.0), of=of))
    header = (
        *("ground", "policy", "mean turnaround, s", "p99, s", "longest wait, s", "makespan, s"),
        *("restarts a job", "worst fairness"),
    )
    return findings, Table("Two classes, means over seeds", header, tuple(rows))


def simulate(case: ClassesCase) -> ClassesFigures:
    """Run one case."""
    cluster, record = parse_cluster(CLUSTER), OutcomeRecorder()
    text = f"generator:labbench,jobs={case.jobs},load={LOAD}"
    workload, as_wished = (load(text + more, cluster, case.seed) for more in (case.more, case.sizes))
    assert isinstance(workload.arrivals, Iterable) and isinstance(as_wished.arrivals, Iterable)
    jobs = {arrival.job.id: arrival.job for arrival in as_wished.arrivals}
    Simulator(cluster, workload.arrivals, create(case.policy), workload.settings, sinks=[record]).run()
    outcomes = [outcome._replace(job=jobs[outcome.job.id]) for outcome in record.outcomes]
    turnarounds = [outcome.end_s - outcome.job.submit_s for outcome in outcomes]
    return ClassesFigures(
        turnaround_s=float(np.mean(turnarounds)),
        p99_s=float(np.percentile(turnarounds, 99)),
        longest_s=max(outcome.wait_s for outcome in outcomes),
        makespan_s=max(outcome.end_s for outcome in outcomes) - min(job.submit_s for job in jobs.values()),
        restarts=float(np.mean([outcome.preemptions for outcome in outcomes])),
        fairness=max(finish_time_fairness(outcomes, cluster.units)),
    )
