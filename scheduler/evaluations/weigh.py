"""``weigh`` beside the policy that an operator would choose on each kind of machine; tenbin's own evaluation.

A **ground** is a machine and a stream of jobs, with the rival that suits it best. Both policies see the same
jobs, seed by seed or part by part of a log. A decision's seconds are of processor time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scheduler.evaluations import (
    Estimate,
    Evaluation,
    Finding,
    Progress,
    Row,
    Scale,
    Table,
    capped_gpus,
    changes,
    run_all,
    two_classes,
    unknown_lengths,
)
from scheduler.evaluations.prediction import path_of
from scheduler.model.clusters import parse_cluster
from scheduler.model.events import Action, Event
from scheduler.model.jobs import Cluster, Job, instant
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload, load
from scheduler.workloads.generators.power_sets import small_machine
from scheduler.workloads.logs.files import lines_of

PAPER = "tenbin's own: one policy, weigh, beside those made for one kind of machine"
FRESH = 2000  # the first seed; parameters were chosen on seeds below
SEEDS: dict[Scale, int] = {"small": 3, "full": 10}
LOADS = (0.7, 0.85, 0.95, 1.05, 1.2)
BUDGET_W = 3850.0
GPU_NODES = "4xv100[cores=32,memory_mb=256000,gpu=8]+8xp100[cores=32,memory_mb=256000,gpu=4]"
GPU_PODS = "2xg3[cores=128,memory_mb=824634,gpu=8]+1xv100m32[cores=48,memory_mb=395828,gpu=4]"
CQSIM = "cqsim-SDSC-SP2-1998-4.rst.gz"  # a schedule of the log by another simulator
SIZED = "generator:labbench,jobs={},load=0.7"
PAIRS = "generator:labbench,jobs={},load=0.9,shared=1,knowledge=pairs"


@dataclass(frozen=True)
class Ground:
    """A machine and its jobs.

    Attributes:
        cluster: as ``--cluster`` takes it; "": the machine of paper C under ``BUDGET_W``.
        workload: as ``--workload`` takes it, or the name of a log in TENBIN_DATA.
        policy, rival: specifications. goals: the figures that count there.
        others: rivals by policy, cluster and workload ("": as above), of which the best counts; () the rival.
        part: jobs of each part of a log; 0: not of a log. first: the first part that is simulated.
    """

    label: str
    cluster: str
    workload: str
    rival: str
    policy: str = "weigh"
    goals: tuple[str, ...] = ("wait_s", "slowdown", "longest_s")
    others: tuple[tuple[str, str, str], ...] = ()
    part: int = 0
    first: int = 0

    def cases(self, number: int) -> list[WeighCase]:
        """List the simulations of a seed, or of a part of a log; the last is of ``weigh``."""
        rivals = self.others or ((self.rival, "", ""),)
        return [WeighCase(self, policy, number, *on) for policy, *on in (*rivals, (self.policy, "", ""))]

    def machine(self) -> Cluster:
        return parse_cluster(self.cluster) if self.cluster else small_machine(budget_w=BUDGET_W)


class WeighCase(NamedTuple):
    """One simulation; ``number`` counts seeds, or parts of a log."""

    ground: Ground
    policy: str
    number: int
    cluster: str = ""  # other than the ground's, as the workload
    workload: str = ""

    def __str__(self) -> str:
        return f"{self.ground.label}, {self.policy}, {self.number}"


class WeighFigures(NamedTuple):
    """Figures of one simulation: means over jobs, the longest wait, and two of decisions (processor time)."""

    wait_s: float
    slowdown: float
    longest_s: float
    turnaround_s: float
    makespan_s: float
    decision_s: float
    longest_decision_s: float


WORDS = {
    "wait_s": "mean wait",
    "slowdown": "bounded slow-down",
    "longest_s": "longest wait",
    "turnaround_s": "mean turnaround",
    "makespan_s": "makespan",
}
# A part of weigh that is left out, and the grounds on which it should count.
ABLATIONS = {
    "price=0": ("A, few units", "V100, P100, sizes", "V100, P100, pairs", "D, load 0.95"),
    "move=false": ("A, few units", "V100, P100, sizes", "V100, P100, pairs"),
    "holes=false": ("A, many units, load 0.99", "V100, P100, sizes"),
    "fairness=0": ("KTH-SP2", "Lublin, load 0.95", "nodes, GPUs"),
    "depth=8": ("Lublin, load 0.95", "A, many units", "D, load 0.95"),
    "most=1": ("D, load 0.95", "V100, P100, pairs"),
}
# Fixed before the runs: better than the rival, or no worse than by so many percent.
GOALS = {
    "wait_s": (-100.0, 0.0),
    "slowdown": (-100.0, 0.0),
    "longest_s": (-100.0, 10.0),
    "turnaround_s": (-100.0, 0.0),
    "makespan_s": (-100.0, 1.0),
}


def grounds(scale: Scale) -> list[Ground]:
    """List them; logs only where TENBIN_DATA has them."""
    full = scale == "full"
    logs = [
        Ground("KTH-SP2", "100", "KTH-SP2-1996-2.swf.gz", "easy", part=2800 if full else 800),
        Ground(
            "HPC2N", "240", "HPC2N-2002-2.1-cln.swf.gz", "easy", part=5000 if full else 800, first=15 * full
        ),
        Ground("Theta", "4360", "theta_2022.swf.gz", "easy", part=2300 if full else 800),
        Ground("SDSC-SP2", "128", CQSIM, "easy", part=5400 if full else 800),
        Ground(
            "Alibaba 2017",
            "2000xnode[cores=64,memory=1]",
            "alibaba2017-batch_task.csv.gz,estimate=exact,stop=never",
            "easy",
            part=6600 if full else 800,
        ),
        Ground(
            "Alibaba GPU 2023",
            GPU_PODS,
            "alibaba-gpu2023-openb_pod_list_default.csv.gz,estimate=exact,stop=never",
            "easy",
            part=720,
        ),
    ]
    jobs = 3000 if full else 500
    two = "512xhigh+512xlow"
    return [
        *(ground for ground in logs if path_of(ground.workload.partition(",")[0]).exists()),
        *(
            Ground(f"Lublin, load {offered:g}", "256", f"generator:lublin,jobs={jobs},load={offered}", "easy")
            for offered in (LOADS if full else LOADS[::2])
        ),
        *(
            Ground(
                label, two, f"generator:migration,jobs={jobs},{more}", "mctbm-priced", goals=("turnaround_s",)
            )
            for label, more in (
                ("A, few units", "mix=small,per=harmonic,load=0.9"),
                ("A, many units", "mix=even,per=units,load=0.9"),
                ("A, many units, load 0.99", "mix=even,per=harmonic,load=0.99"),
            )
        ),
        *(
            Ground(
                f"D, {label}",
                "8xnode[cores=4]",
                f"generator:kernels,jobs={400 if full else 200},{more}",
                "match",
                policy,
                goals,
            )
            for label, more, policy, goals in (
                ("equal lengths", "mix=even,lengths=equal", "weigh", ("makespan_s", "turnaround_s")),
                ("early end", "lengths=table", "weigh,aim=makespan", ("makespan_s",)),
                ("turnaround", "lengths=table", "weigh", ("turnaround_s",)),
                *(
                    (f"load {offered:g}", f"lengths=table,load={offered}", "weigh", ("turnaround_s",))
                    for offered in LOADS[:3]
                ),
            )
        ),
        Ground(
            "V100, P100, sizes",
            "8xv100+8xp100",
            f"{SIZED.format(400 if full else 100)},sizes=moldable",
            "mctbm-priced",
            goals=("turnaround_s",),
            others=tuple(
                ("mctbm-priced", "", f"{SIZED.format(400 if full else 100)},times={times}")
                for times in (1, 2, 4, 8)
            ),
        ),
        Ground(
            "V100, P100, pairs",
            "8xv100[gpu=1]+8xp100[gpu=1]",
            PAIRS.format(200 if full else 60),
            "match, or mctbm-priced without sharing",
            goals=("turnaround_s", "makespan_s"),
            others=(
                ("match", "", ""),
                ("mctbm-priced", "8xv100+8xp100", PAIRS.format(200 if full else 60).rpartition(",")[0]),
            ),
        ),
        Ground("nodes, GPUs", GPU_NODES, "generator:labbench,jobs=1000,load=0.95", "easy"),
        *([Ground("E, a week", "9216", "generator:k-mix,mix=1", "easy")] if full else []),
        Ground("C, early end", "", "generator:power-set1", "parm", "weigh,aim=makespan", ("makespan_s",)),
        Ground("C, turnaround", "", "generator:power-set1", "parm", goals=("turnaround_s",)),
    ]


def evaluate(scale: Scale, progress: Progress) -> Evaluation:
    """Simulate every ground under ``weigh`` and its rival."""
    chosen = grounds(scale)
    cases = [
        case
        for ground in chosen
        for number in range(SEEDS[scale])
        for case in ground.cases(ground.first + number)
    ]
    parts = [
        WeighCase(ground, f"{ground.policy},{part}", ground.first + number)
        for part, labels in ABLATIONS.items()
        for ground in chosen
        if ground.label in labels
        for number in range((SEEDS[scale] + 1) // 2)
    ]
    figures = dict(zip((*cases, *parts), run_all(simulate, [*cases, *parts], progress), strict=True))
    results = {ground: _columns(ground, {case: figures[case] for case in cases}) for ground in chosen}
    findings = []
    for ground, (rival, own) in results.items():
        findings += [
            Finding(
                f"{WORDS[name]} against {ground.rival}",
                None,
                change(rival, own, name),
                "%",
                GOALS[name],
                of=ground.label,
            )
            for name in ground.goals
        ]
    seeds = range(FRESH, FRESH + SEEDS[scale])
    on_gpus, on_gpus_table = capped_gpus.evaluate(scale, seeds, progress)
    on_classes, on_classes_table = two_classes.evaluate(scale, seeds, progress)
    unknown, unknown_table = unknown_lengths.evaluate(
        scale, range(FRESH, FRESH + (SEEDS[scale] + 1) // 2), progress
    )
    findings += on_gpus + on_classes + unknown
    tables = _table(results), _without(parts, figures), on_gpus_table, on_classes_table, unknown_table
    return Evaluation(PAPER, scale, _assumptions(scale), tuple(findings), tables)


def _columns(
    ground: Ground, figures: Mapping[WeighCase, WeighFigures]
) -> tuple[list[WeighFigures], list[WeighFigures]]:
    """Return the figures of the rival on the workload that suits it best, and of ``weigh``."""
    columns: dict[tuple[str, str, str], list[WeighFigures]] = {}
    for case, its in figures.items():
        if case.ground == ground:
            columns.setdefault((case.policy, case.cluster, case.workload), []).append(its)
    *rivals, own = columns.values()
    return min(rivals, key=lambda rival: sum(getattr(its, ground.goals[0]) for its in rival)), own


def simulate(case: WeighCase) -> WeighFigures:
    """Run one case."""
    ground, number = case.ground, case.number
    cluster = parse_cluster(case.cluster) if case.cluster else ground.machine()
    of_log = bool(ground.part)
    source = str(path_of(ground.workload)) if of_log else case.workload or ground.workload
    of_cqsim = ground.workload == CQSIM
    workload = _cqsim(path_of(CQSIM)) if of_cqsim else load(source, cluster, 0 if of_log else FRESH + number)
    arrivals = workload.arrivals
    assert isinstance(arrivals, Iterable)
    if of_log:
        arrivals = islice(arrivals, ground.part * number, ground.part * (number + 1))
    policy = create(case.policy)
    seconds: list[float] = []
    policy.decide = timed(policy.decide, seconds)  # type: ignore[method-assign, assignment]
    metrics = Accumulator(cluster)
    Simulator(cluster, arrivals, policy, workload.settings, sinks=[metrics]).run()
    totals = metrics.metrics()
    means = (totals.mean_wait_s, totals.bsld_mean, totals.max_wait_s, totals.mean_turnaround_s)
    wait_s, slowdown, longest_s, turnaround_s = (math.nan if mean is None else mean for mean in means)
    decided = np.array(seconds)
    return WeighFigures(
        wait_s=wait_s,
        slowdown=slowdown,
        longest_s=longest_s,
        turnaround_s=turnaround_s,
        makespan_s=totals.makespan_s or 0.0,
        decision_s=float(np.median(decided)),
        longest_decision_s=float(decided.max()),
    )


def _cqsim(path: Path) -> Workload:
    """Read the jobs of a schedule by CQSim: submissions, processors, limits and run times."""
    jobs = []
    for line in lines_of(path):
        number, units, _, limit_s, run_s, _, submit_s, *_ = line.split(";")
        job = Job(int(number), instant(float(submit_s)), int(units), float(limit_s))
        jobs.append(Arrival(job, float(run_s)))
    return Workload(jobs, path.name)


Decide = Callable[[View, Event], Sequence[Action]]


def timed(decide: Decide, seconds: list[float]) -> Decide:
    """Note the processor time of each decision."""

    def decide_timed(view: View, event: Event) -> Sequence[Action]:
        begin = time.thread_time()
        actions = decide(view, event)
        seconds.append(time.thread_time() - begin)
        return actions

    return decide_timed


def change(rival: Sequence[WeighFigures], own: Sequence[WeighFigures], name: str) -> Estimate:
    """Compare one figure, pair by pair, in percent."""
    return changes(*([getattr(figures, name) for figures in column] for column in (own, rival)))


def _table(results: Mapping[Ground, Sequence[Sequence[WeighFigures]]]) -> Table:
    """All figures of every ground: the mean change, half its interval, and the worst of the pairs."""
    rows: list[Row] = []
    for ground, (rival, own) in results.items():
        cells = []
        for name in WORDS:
            mean = change(rival, own, name)
            worst = max(change([r], [o], name).mean for r, o in zip(rival, own, strict=True))
            cells.append(tuple(round(value, 1) for value in (mean.mean, mean.half, worst)))
        median_ms = 1e3 * float(np.median([figures.decision_s for figures in own]))
        longest_ms = 1e3 * max(figures.longest_decision_s for figures in own)
        rows.append(
            (ground.label, ground.rival, len(own), *cells, (round(median_ms, 2), round(longest_ms, 1)))
        )
    columns = ("ground", "against", "n", *WORDS.values(), "decision, ms: median, longest")
    return Table("Changes in %: mean, half its 95 % interval, worst", columns, tuple(rows))


def _without(parts: Sequence[WeighCase], figures: Mapping[WeighCase, WeighFigures]) -> Table:
    """Compare weigh without a part of it with all of it, on half the seeds or parts of a log."""
    rows: list[Row] = []
    names = ("turnaround_s", "wait_s", "longest_s", "makespan_s")
    for (policy, ground), some in groupby(parts, lambda case: (case.policy, case.ground)):
        cases = list(some)
        whole = [figures[case._replace(policy=ground.policy)] for case in cases]
        left = [figures[case] for case in cases]
        means = [change(whole, left, name) for name in names]
        cells = [(round(mean.mean, 1), round(mean.half, 1)) for mean in means]
        rows.append((policy.removeprefix(f"{ground.policy},"), ground.label, len(cases), *cells))
    columns = ("without", "ground", "n", *map(WORDS.__getitem__, names))
    return Table("Parts of weigh left out: changes in %, half their 95 % interval", columns, tuple(rows))


def _assumptions(scale: Scale) -> tuple[str, ...]:
    return (
        "Parts of a log are simulated by themselves. fairness and price were chosen on ground A (seeds 988 "
        "to 999) and seen on Lublin's model, KTH-SP2, Theta and HPC2N's first 50,000 jobs. HPC2N's parts "
        "here come after its first 75,000.",
        f"Generators' seeds begin at {FRESH}: none was used to choose a parameter. All parameters are the "
        "defaults but aim=makespan where that counts.",
        "Limits are the users' in logs and in Lublin's model, exact in Alibaba's traces and on the grounds "
        "of papers A, C and D.",
        "SDSC-SP2 is read from a schedule of it by CQSim; instances of a task of Alibaba's start together. "
        "These logs, and machines for them, were chosen before they were run.",
        "D: jobs of 8 processes, all at once but where a load is named; that a job does not count for its "
        "own price there was chosen on seeds 1 to 4.",
        f"V100: labbench on {capped_gpus.V100.units}, load {capped_gpus.LOAD:g}, "
        f"{capped_gpus.V100.budget_w:g} W; beside as many P100 {capped_gpus.BOTH.budget_w:g} W. Rivals have "
        "their best alpha, or caps and multiple of least sizes. kwh_price, and who gives way, were chosen on "
        "seeds 988 to 997, below which size no job is begun on 1000 to 1007, how much slower than on its "
        "share it may be on 3000 to 3014.",
        "V100, P100, sizes: labbench; the rival's jobs have the multiple of their least sizes (1, 2, 4, 8) "
        "that suits it best. How many jobs are counted beside those that wait was chosen on 988 to 992.",
        f"Two classes: labbench on {two_classes.CLUSTER}, load {two_classes.LOAD:g}; gavel has its best "
        "length of rounds, mctbm-priced its best multiple of least sizes.",
        "B: half the seeds; las and las-mq spare tasks as in their paper. Chosen on seeds 900 to 911.",
        f"{SEEDS[scale]} pairs of simulations a ground; C: 64 nodes, {BUDGET_W:g} W.",
        "Fixed before the runs: mean wait, bounded slow-down and turnaround below the rival's, the longest "
        "wait at most 10 % above, makespan at most 1 % above.",
    )
