"""Paper B's evaluation: least attained service on several resources."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Outcome
from scheduler.workloads import load

# -- one simulation ----------------------------------------------------------------------------------------


SPARE_S = {"google": 60, "alibaba": 30, "trace": 60}  # W in the paper
TRACE = "google2011-task_events-part-00000.csv.gz"  # in the folder TENBIN_DATA
TRACE_CAPACITY = (0.43, 0.5)  # of a node, of the largest machine in the trace: kairos uses about 90 %
WARM = 0.1  # share of the time with submissions that is left out of utilisation: the machine fills
QUANTILES = (0.5, 0.95, 0.99, 0.999)
FIGURE_3 = {
    "google": (0.85, 1.0),
    "alibaba": (0.98, 1.0),
    "trace": (0.85, 1.0),
}  # the part of the distribution that was printed
POINTS = 61

Floats = NDArray[np.float64]


class LasCase(NamedTuple):
    """One simulation: policy with its parameters, trace, machine, seed."""

    policy: str
    like: str  # "google", "alibaba"; "trace": Google's own tasks
    nodes: int
    tasks: int
    seed: int
    more: str = ""  # parameters of the workload


class LasFigures(NamedTuple):
    """The results of one simulation."""

    p50: float
    p95: float
    p99: float
    p999: float
    preemptions: float
    tasks: int
    cpu: float  # share of the capacity in use while tasks are submitted
    memory: float
    curve: tuple[float, ...]  # slowdown at the points of figure 3
    turnaround_s: float  # mean
    longest_s: float  # wait, with all stops


class UsageSink:
    """A sink: what was in use of CPU and memory while tasks were submitted."""

    def __init__(self) -> None:
        self._held = array("d")
        self._last_s = 0.0

    def add(self, outcome: Outcome) -> None:
        job = outcome.job
        self._last_s = max(self._last_s, job.submit_s)
        for segment in outcome.segments:
            self._held.extend((segment.start_s, segment.end_s, job.demand[0], job.demand[1]))

    def shares(self, nodes: int, capacity: tuple[float, float] = (1.0, 1.0)) -> tuple[float, float]:
        """Compute the shares in use of what the nodes have, each ``capacity``."""
        starts, ends, cpu, memory = np.frombuffer(self._held).reshape(-1, 4).T
        begin_s = WARM * self._last_s
        inside = np.clip(np.minimum(ends, self._last_s) - np.maximum(starts, begin_s), 0.0, None)
        whole = nodes * (self._last_s - begin_s)
        return float(inside @ cpu / whole / capacity[0]), float(inside @ memory / whole / capacity[1])


class SlowdownSink:
    """A sink: the slowdown of each task."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, outcome: Outcome) -> None:
        self._values.append((outcome.end_s - outcome.job.submit_s) / outcome.run_s)

    def at(self, points: Floats) -> tuple[float, ...]:
        """Return quantiles."""
        return tuple(np.quantile(np.frombuffer(self._values), points, method="lower").tolist())


def simulate(case: LasCase) -> LasFigures:
    """Run one simulation."""
    capacity = TRACE_CAPACITY if case.like == "trace" else (1.0, 1.0)
    cluster = Cluster((Pool("node", case.nodes, resources=("cpu", "memory"), capacity=capacity),))
    workload = load(workload_of(case), cluster, case.seed)
    policy = create(_with_spare(case.policy, case.like))
    metrics, usage, slowdowns = Accumulator(cluster), UsageSink(), SlowdownSink()
    sinks = (metrics, usage, slowdowns)
    Simulator(cluster, workload.arrivals, policy, workload.settings, sinks=sinks).run()
    totals = metrics.metrics()
    curve = slowdowns.at(np.linspace(*FIGURE_3[case.like], POINTS))
    p50, p95, p99, p999 = slowdowns.at(np.array(QUANTILES))
    cpu, memory = usage.shares(case.nodes, capacity)
    return LasFigures(
        p50=p50,
        p95=p95,
        p99=p99,
        p999=p999,
        preemptions=totals.preemptions,
        tasks=totals.jobs,
        cpu=cpu,
        memory=memory,
        curve=curve,
        turnaround_s=totals.mean_turnaround_s or 0.0,
        longest_s=totals.max_wait_s or 0.0,
    )


def trace_file() -> Path | None:
    """Find Google's own tasks in TENBIN_DATA."""
    folder = os.environ.get("TENBIN_DATA")
    path = Path(folder, TRACE) if folder else None
    return path if path is not None and path.exists() else None


def workload_of(case: LasCase) -> str:
    """Describe the tasks as ``workloads.load`` takes them."""
    if case.like == "trace":
        spread = f"like=google,closed_load={math.sqrt(2)}"
        return f"generator:resample,trace={trace_file()},{spread},jobs={case.tasks}"
    text = f"generator:multiresource,like={case.like},jobs={case.tasks}"
    return f"{text},{case.more}" if case.more else text


def _with_spare(policy: str, like: str) -> str:
    stated = "spare-s" in policy or policy.startswith("weigh")
    return policy if stated else f"{policy},spare-s={SPARE_S[like]}"


# -- cases -------------------------------------------------------------------------------------------------


LIKES = ("google", "alibaba")
POLICIES = ("kairos", "las", "las-prompt", "las-mq")


class NodesAndTasks(NamedTuple):
    """So many nodes and tasks."""

    nodes: int
    tasks: int


@dataclass(frozen=True)
class LasSize:
    """The extent of the simulations: machines and seeds for each trace, and for cases of one seed.

    ``further_seeds``: for Alibaba's tasks under the policies that are not the paper's. ``trace``: for
    Google's own tasks, where there is a file of them; None: they are left out.
    """

    main: dict[str, NodesAndTasks]
    seeds: dict[str, int]
    further_seeds: int
    varied: NodesAndTasks
    overload: NodesAndTasks
    readings: dict[str, NodesAndTasks]
    trace: NodesAndTasks | None = None


SIZES: dict[Scale, LasSize] = {
    "small": LasSize(
        {"google": NodesAndTasks(128, 17_400), "alibaba": NodesAndTasks(64, 25_000)},
        {"google": 2, "alibaba": 2},
        1,
        NodesAndTasks(64, 8_700),
        NodesAndTasks(8, 8_000),
        {"google": NodesAndTasks(64, 8_700), "alibaba": NodesAndTasks(64, 12_500)},
    ),
    "full": LasSize(
        main={"google": NodesAndTasks(256, 69_524), "alibaba": NodesAndTasks(256, 648_052)},
        seeds={"google": 5, "alibaba": 3},
        further_seeds=1,
        varied=NodesAndTasks(256, 69_524),
        overload=NodesAndTasks(16, 40_000),
        readings={"google": NodesAndTasks(128, 17_400), "alibaba": NodesAndTasks(128, 50_000)},
        trace=NodesAndTasks(256, 69_524),
    ),
}
OWN = "L = 1.5, N = 4, W = 60 s"
L, N, W, PARTS = (3.0,), (1, 8), (30, 300), (2, 4)
LOADS = (0.9, 0.97, 1.05)
READINGS = {
    "google": ("demand=0.1", "run_median_s=37", "closed_load=1.3"),
    "alibaba": ("demand=0.03", "run_median_s=2", "closed_load=1.3,demand=0.05"),
}


def seeds(size: LasSize, like: str, policy: str) -> int:
    first = policy in ("kairos", "las") or like == "google"
    return size.seeds[like] if first else size.further_seeds


def main_cases(size: LasSize) -> list[LasCase]:
    return [
        LasCase(policy, like, *size.main[like], seed)
        for like, policy in product(LIKES, POLICIES)
        for seed in range(seeds(size, like, policy))
    ]


def settings(size: LasSize) -> list[tuple[str, LasCase]]:
    """List what is varied, and the simulation; the paper's own values come first."""
    machine = size.varied
    rows = [(OWN, LasCase("las", "google", *machine, 0))]
    rows += [(f"L = {v:g}", LasCase(f"las,load-limit={v:g}", "google", *machine, 0)) for v in L]
    rows += [(f"N = {v}", LasCase(f"las,victims={v}", "google", *machine, 0)) for v in N]
    rows += [(f"W = {v} s", LasCase(f"las,spare-s={v}", "google", *machine, 0)) for v in W]
    return rows + [(f"{machine.nodes // divisor} nodes", part(size, "las", divisor)) for divisor in PARTS]


def part(size: LasSize, policy: str, divisor: int) -> LasCase:
    """Take a part of the machine, with as many tasks a node."""
    return LasCase(policy, "google", size.varied.nodes // divisor, size.varied.tasks // divisor, 0)


def varied_cases(size: LasSize) -> list[LasCase]:
    cases = [case for _, case in settings(size)]
    cases += [part(size, "kairos", divisor) for divisor in (1, *PARTS)]
    cases += [overload_case(size, policy, at) for policy, at in product(POLICIES, LOADS)]
    return cases + [case for row in readings(size) for case in row[2:]]


def overload_case(size: LasSize, policy: str, at: float) -> LasCase:
    return LasCase(policy, "alibaba", *size.overload, 0, f"load={at:g}")


def readings(size: LasSize) -> list[tuple[str, str, LasCase, LasCase]]:
    """List trace, changed reading, and kairos and las with it."""
    rows = []
    for like in LIKES:
        for more in ("", *READINGS[like]):
            kairos, las = (
                LasCase(policy, like, *size.readings[like], 0, more) for policy in ("kairos", "las")
            )
            rows.append((like, more or "as above", kairos, las))
    return rows


def trace_cases(size: LasSize) -> list[LasCase]:
    """List the simulations of Google's own tasks, resampled; none without a file of them."""
    if size.trace is None or trace_file() is None:
        return []
    return [LasCase(policy, "trace", *size.trace, 0) for policy in POLICIES]


# -- the evaluation ----------------------------------------------------------------------------------------
#
# Section 4.3 (figures 3 and 4, preemptions) and 4.4 (sensitivity to L, N, W and the number of nodes), and
# beyond the paper ``las-prompt`` and ``las-mq`` beside them, far quantiles, and open arrivals up to
# overload.


PAPER = (
    "H. Yabuuchi, T. Shinagawa: A cluster scheduler without run-time estimates for several kinds of uneven "
    "resource demands. IPSJ SIG Technical Report 2019-OS-146 (in Japanese)"
)


def evaluate(scale: Scale, progress: Progress) -> Evaluation:
    """Reproduce the paper's evaluation."""
    size = SIZES[scale]
    cases = list(dict.fromkeys(main_cases(size) + varied_cases(size) + trace_cases(size)))
    # The longest first, so that no core is left with one of them at the end.
    order = sorted(cases, key=lambda case: -case.tasks)
    results = dict(zip(order, run_all(simulate, order, progress, _say), strict=True))
    findings = tuple(f for like in LIKES for f in _findings(results, size, like))
    return Evaluation(
        paper=PAPER,
        scale=scale,
        assumptions=_assumptions(results, size),
        findings=findings + _beyond(results, size) + _sensitivity_findings(results, size),
        tables=(
            _main_table(results, size),
            _overload_table(results, size),
            _readings_table(results, size),
            *_trace_tables(results, size),
        ),
        pictures=(*(_picture(results, size, like) for like in LIKES), _overload_picture(results, size)),
        remarks=_remarks(),
    )


def _say(case: LasCase) -> str:
    return f"{case.policy}, {case.like}-like {case.more}, {case.nodes} nodes, seed {case.seed}"


# -- what is told of them -------------------------------------------------------------------------------

Results = dict[LasCase, LasFigures]


def _runs(
    results: Results, size: LasSize, like: str, policy: str, *, only: int | None = None
) -> list[LasFigures]:
    most = seeds(size, like, policy) if only is None else only
    return [results[LasCase(policy, like, *size.main[like], seed)] for seed in range(most)]


def _change(results: Results, size: LasSize, like: str, policy: str, *, field: str) -> Estimate:
    """Compare with kairos on the same tasks, in percent."""
    runs = _runs(results, size, like, policy)
    bases = _runs(results, size, like, "kairos", only=len(runs))
    return changes([getattr(r, field) for r in runs], [getattr(b, field) for b in bases])


def _preemptions(results: Results, size: LasSize, like: str, policy: str) -> Estimate:
    """Express preemptions in percent of kairos's."""
    change = _change(results, size, like, policy, field="preemptions")
    return Estimate(100 + change.mean, 100 + change.low, 100 + change.high, change.n)


def _rough(value: float) -> tuple[float, float]:
    """Return half to one and a half times as much."""
    low, high = sorted((0.5 * value, 1.5 * value))
    return low, high


PRINTED = {
    "google": {"p95": -28.2, "p99": -30.7, "preemptions": 9.74},
    "alibaba": {"p99": -11.5, "preemptions": 7.94},
}


def _findings(results: Results, size: LasSize, like: str) -> list[Finding]:
    """Section 4.3."""
    name, printed = f"{like.title()}-like", PRINTED[like]
    rows = []
    if like == "alibaba":
        values = [run.p95 for run in _runs(results, size, like, "kairos")]
        rows.append(Finding("p95 slowdown of kairos", 1.00, over_seeds(values), "", (1.0, 1.02), of=name))
    for field in ("p95", "p99"):
        if field in printed:
            value = printed[field]
            change = _change(results, size, like, "las", field=field)
            what = f"{field} slowdown, las against kairos"
            rows.append(Finding(what, value, change, "%", _rough(value), of=name))
    rows.append(
        Finding(
            "preemptions of las, of kairos's",
            printed["preemptions"],
            _preemptions(results, size, like, "las"),
            "%",
            (printed["preemptions"] / 3, printed["preemptions"] * 3),
            "rests on how much room the load leaves: see the readings",
            of=name,
        )
    )
    for field, resource in (("cpu", "CPU"), ("memory", "memory")):
        more = [
            100 * (getattr(las, field) - getattr(kairos, field))
            for las, kairos in zip(
                _runs(results, size, like, "las"), _runs(results, size, like, "kairos"), strict=True
            )
        ]
        what = f"use of {resource} (of the machine), las above kairos"
        note = "printed as bars only: higher"
        rows.append(Finding(what, None, over_seeds(more), "%", (0.0, 100.0), note, of=name))
    return rows


def _beyond(results: Results, size: LasSize) -> tuple[Finding, ...]:
    """Add what the paper does not print."""
    rows = []
    for like in LIKES:
        for policy in POLICIES[1:]:
            name = f"{like.title()}-like"
            change = _change(results, size, like, policy, field="p999")
            rows.append(Finding(f"p99.9 slowdown, {policy} against kairos", None, change, "%", of=name))
            if policy != "las":
                change = _change(results, size, like, policy, field="p99")
                rows.append(Finding(f"p99 slowdown, {policy} against kairos", None, change, "%", of=name))
                share = _preemptions(results, size, like, policy)
                rows.append(Finding(f"preemptions of {policy}, of kairos's", None, share, "%", of=name))
    return tuple(rows)


def _sensitivity_findings(results: Results, size: LasSize) -> tuple[Finding, ...]:
    """Section 4.4, which tells directions only."""
    by = {what: results[case] for what, case in settings(size)}
    own = by[OWN]

    def versus(
        what: str, mine: LasFigures, base: LasFigures, field: str, *, same: tuple[float, float]
    ) -> Finding:
        change = changes([getattr(mine, field)], [getattr(base, field)])
        quantile = {"p999": "p99.9"}.get(field, field)
        return Finding(f"{quantile} slowdown, {what}", None, change, "%", same, of="Google-like, one seed")

    least, most = -100.0, 1e4
    rows = [
        versus("L = 3 against 1.5", by["L = 3"], own, "p99", same=(-5.0, 5.0)),
        versus("N = 1 against 8", by["N = 1"], by["N = 8"], "p95", same=(least, 0.0)),
        versus("N = 1 against 8", by["N = 1"], by["N = 8"], "p999", same=(0.0, most)),
        versus("W = 300 s against 30 s", by["W = 300 s"], by["W = 30 s"], "p95", same=(least, 0.0)),
        versus("W = 300 s against 30 s", by["W = 300 s"], by["W = 30 s"], "p999", same=(0.0, most)),
    ]
    for divisor in (1, *PARTS):
        las, kairos = (results[part(size, policy, divisor)] for policy in ("las", "kairos"))
        what = f"las against kairos, {size.varied.nodes // divisor} nodes"
        rows.append(versus(what, las, kairos, "p99", same=(least, 0.0)))
    return tuple(rows)


COLUMNS = ("slowdown: p50, p95, p99, p99.9", "preemptions a task", "CPU, memory in use")


def _row(runs: Sequence[LasFigures]) -> Row:
    """Means over the seeds."""
    columns = [(r.p50, r.p95, r.p99, r.p999, r.preemptions / r.tasks, r.cpu, r.memory) for r in runs]
    means = np.mean(columns, axis=0).round(4).tolist()
    return tuple(means[:4]), means[4], tuple(means[5:])


def _main_table(results: Results, size: LasSize) -> Table:
    rows: tuple[Row, ...] = tuple(
        (f"{like}, {runs[0].tasks:,} tasks", policy, *_row(runs))
        for like, policy in product(LIKES, POLICIES)
        for runs in [_runs(results, size, like, policy)]
    )
    return Table("Closed loop at load 1.414, means over the seeds", ("trace", "policy", *COLUMNS), rows)


def _overload_table(results: Results, size: LasSize) -> Table:
    rows: tuple[Row, ...] = tuple(
        (at, policy, *_row([results[overload_case(size, policy, at)]]))
        for at, policy in product(LOADS, POLICIES)
    )
    title = f"Open arrivals, Alibaba-like, {size.overload.nodes} nodes, one seed"
    return Table(title, ("offered load", "policy", *COLUMNS), rows)


def _readings_table(results: Results, size: LasSize) -> Table:
    rows = []
    for like, more, kairos, las in readings(size):
        mine, base = results[las], results[kairos]
        rows.append(
            (
                like,
                more,
                kairos.nodes,
                round(base.cpu, 3),
                round(100 * (mine.p95 / base.p95 - 1), 1),
                round(100 * (mine.p99 / base.p99 - 1), 1),
                round(base.preemptions / base.tasks, 3),
                round(100 * mine.preemptions / base.preemptions, 1),
            )
        )
    columns = ("trace", "reading", "nodes", "CPU in use, kairos", "p95, %", "p99, %")
    more_columns = ("preemptions a task, kairos", "las, % of them")
    return Table("las against kairos, read otherwise, one seed", columns + more_columns, tuple(rows))


def _trace_tables(results: Results, size: LasSize) -> list[Table]:
    """Google's own tasks, where there is a file of them."""
    cases = trace_cases(size)
    if not cases:
        return []
    first, (cpu, memory) = cases[0], TRACE_CAPACITY
    title = (
        "Tasks of Google 2011's first 93 minutes, drawn anew with table 1's spread (generator:resample): "
        f"{first.tasks} on {first.nodes} nodes of CPU {cpu}, memory {memory}, one seed"
    )
    rows: tuple[Row, ...] = tuple((case.policy, *_row([results[case]])) for case in cases)
    return [Table(title, ("policy", *COLUMNS), rows)]


def _picture(results: Results, size: LasSize, like: str) -> Picture:
    """Figure 3: the distribution of slowdowns (its upper end)."""
    points = tuple(np.linspace(*FIGURE_3[like], POINTS)[:-1].tolist())
    series = []
    for policy in POLICIES:
        curve = np.mean([run.curve for run in _runs(results, size, like, policy)], axis=0)[:-1]
        shown = curve <= 2.0
        x, y = curve[shown].tolist(), np.array(points)[shown].tolist()
        series.append(Series(policy, tuple(x), tuple(y)))
    title = f"Figure 3: slowdown, {like.title()}-like"
    return Picture(title, "slowdown", "share of the tasks", tuple(series), "lines")


def _overload_picture(results: Results, size: LasSize) -> Picture:
    series = tuple(
        Series(policy, LOADS, tuple(results[overload_case(size, policy, at)].p99 for at in LOADS))
        for policy in POLICIES
    )
    title = "p99 slowdown under open arrivals, Alibaba-like"
    return Picture(title, "offered load", "p99 slowdown", series, "lines", log_y=True)


def _assumptions(results: Results, size: LasSize) -> tuple[str, ...]:
    used = []
    for like in LIKES:
        runs = [(run.cpu, run.memory) for run in _runs(results, size, like, "kairos")]
        cpu, memory = np.mean(runs, axis=0)
        used.append(f"{like} CPU {cpu:.1%}, memory {memory:.1%}")
    return (
        "The paper's traces could not be had: generator:multiresource draws lognormal demands and run times "
        "with table 1's coefficients of variation and correlation. Google's own tasks of 93 minutes are "
        f"{'the last table' if trace_cases(size) else 'left out'}.",
        "Median run times: 370 s (Google 2011, first 93 minutes) and 20 s (Alibaba 2017, 12 hours).",
        "Mean demand: 0.03 (Google-like) and 0.1 (Alibaba-like) of a node in both resources, so that kairos "
        f"uses about 90 % between 10 % of the time with submissions and their end. Here: {'; '.join(used)}.",
        "Load: a closed loop that submits while the norm of the unfinished demand over the capacity of the "
        "machine is below sqrt 2. Scheduling, pausing and resuming cost nothing, as in the paper.",
        "Agreement: half to one and a half times the printed change of a quantile; a third to three times "
        "the printed share of preemptions.",
        f"Seeds: {size.seeds['google']} of Google-like tasks, {size.seeds['alibaba']} of Alibaba-like ones "
        f"({size.further_seeds} under las-prompt and las-mq), one in the tables that say so.",
    )


def _remarks() -> tuple[str, ...]:
    return (
        "From p99.9 on, las is worse than kairos with the Google-like tasks: a large new task for which no N "
        "tasks make room waits on its node until it drains. las-prompt lets it displace more. These tasks "
        "also hide what W does beyond p99.",
        "In overload las collapses: paused tasks lift all nodes above L; new tasks, mostly short, wait in "
        "the central queue. las-prompt has no L.",
        "How many of kairos's preemptions las saves rests on how much room the load leaves, not on the "
        "granularity of demands or on W. At sqrt 2 all of the machine is wanted, and tasks take turns every "
        "W under both. At 1.3 las finds room for nearly all tasks, while kairos, which counts tasks, still "
        "overloads some nodes: then the share is the paper's or less. las-mq saves most at sqrt 2: tasks of "
        "like age no longer take turns.",
        "L hardly matters above the load itself, sqrt 2; below the central queue holds tasks back.",
    )
