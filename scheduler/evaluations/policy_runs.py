"""Simulations of policies on one workload, on resampled ones, or as the file of an experiment says it."""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from profiles.errors import BadInput, plain
from scheduler.evaluations import Picture, Series, over_seeds
from scheduler.model.jobs import Cluster
from scheduler.policies.registry import create
from scheduler.simulator.metrics import (
    NO_CUT,
    Accumulator,
    Cut,
    Metrics,
    PolicyDifference,
    Window,
    counted_window,
    differences,
    submissions,
)
from scheduler.simulator.simulator import Simulator, objection, suitable
from scheduler.simulator.trace import (
    Arrival,
    ClosedLoop,
    OutcomeRecorder,
    SimulationSettings,
    SimulationSummary,
    Sink,
)
from scheduler.workloads import PREFIX, Workload, load
from scheduler.workloads.arrivals import Blocks, Unstated, estimated_on_all

if TYPE_CHECKING:
    from scheduler.prediction.profiles import MeasuredCluster

# Says while a simulation lasts how far it is: jobs that have ended, and the time.
Progress = Callable[[str], AbstractContextManager[Callable[[int, float], None] | None]]


class Unsuitable(Exception):
    """A policy that cannot schedule the cluster, or has no job to run there.

    Args:
        reason: for people. remedy: the next step if it is the only policy.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


@dataclass(frozen=True)
class Setup:
    """The jobs to simulate and the cluster; ``measured`` has its costs where a profile is given.

    Attributes:
        limit: so many jobs; None: all. warm_up, cool_down: parts that do not count.
    """

    workload: str
    machine: Cluster
    seed: int
    limit: int | None
    measured: MeasuredCluster | None
    substitute: Unstated
    warm_up: Cut = NO_CUT
    cool_down: Cut = NO_CUT

    def read(self) -> SimulatedJobs:
        """Open the workload.

        Raises:
            BadInput: there is none, or an option does not fit it.
        """
        work = load(self.workload, self.machine, self.seed)
        substitute, arrivals = replace(self.substitute), work.arrivals
        if isinstance(arrivals, Iterable):
            arrivals = substitute.filled(islice(arrivals, self.limit))
            arrivals = estimated_on_all(arrivals, self.machine.ratios)
        elif self.limit is not None:
            raise BadInput("--limit: this workload reacts to the schedule", "give its own parameter jobs=")
        elif substitute.actual or substitute.time_s is not None:
            raise BadInput("--without-estimate: this workload reacts to the schedule", "leave it out")
        settings = replace(work.settings, seed=self.seed)
        if self.measured is not None:
            settings = settings.with_measured(self.measured)
        return SimulatedJobs(work, arrivals, settings, substitute)

    def window(self) -> Window | None:
        """Return the counted window, from a first reading of the workload; None where nothing is cut off.

        Raises:
            BadInput: nothing is left, or the workload reacts to the schedule.
        """
        if self.warm_up == self.cool_down == NO_CUT:
            return None
        arrivals = self.read().arrivals
        if isinstance(arrivals, Iterable):
            return counted_window(submissions(arrivals), self.warm_up, self.cool_down)
        if self.cool_down != NO_CUT or not self.warm_up.is_time:
            raise BadInput(
                "--warm-up and --cool-down: this workload reacts to the schedule",
                "give a time of warm-up, for instance --warm-up 2h",
            )
        return Window(self.warm_up.seconds)

    def _check(self, text: str, settings: SimulationSettings) -> None:
        """Raise Unsuitable if the policy cannot schedule the cluster."""
        against = objection(create(text, self.seed), self.machine, settings)
        if against is not None:
            others = ", ".join(suitable(self.machine, settings))
            remedy = f"policies for this cluster: {others}" if others else against.remedy
            raise Unsuitable(against.what, remedy)

    def run(self, text: str, window: Window | None, progress: Progress, *, keep: bool) -> PolicyResult:
        """Run a policy on the whole workload; outcomes are kept on request.

        Raises:
            Unsuitable: the policy cannot schedule the cluster, or has no job to run.
            BadInput: there is no such policy or workload.
        """
        jobs = self.read()
        self._check(text, jobs.settings)
        metrics, record = Accumulator(self.machine, window), OutcomeRecorder()
        sinks: list[Sink] = [metrics, record] if keep else [metrics]
        with progress(text) as show:
            policy = create(text, self.seed)
            summary = Simulator(
                self.machine, jobs.arrivals, policy, jobs.settings, sinks=sinks, progress=show
            ).run()
        figures = {"policy": text, "without_estimate": jobs.substitute.jobs}
        figures |= _figures(metrics.metrics(), summary, jobs.work)
        if not figures["jobs"]:
            reasons = "; ".join(left_out([figures])) or "there is none"
            what = f"workload {self.workload}: policy {text} has no job to run ({reasons})"
            raise Unsuitable(what, "choose another workload, cluster or policy")
        return PolicyResult(figures, record, jobs.work)


class SimulatedJobs(NamedTuple):
    """An opened workload; ``substitute`` counts the jobs that state no run time."""

    work: Workload
    arrivals: Iterable[Arrival] | ClosedLoop
    settings: SimulationSettings
    substitute: Unstated


class PolicyResult(NamedTuple):
    """Figures of one policy, its outcomes if they were kept, and the workload."""

    figures: dict[str, Any]
    record: OutcomeRecorder
    work: Workload


class PolicyComparison(NamedTuple):
    """Differences of each further policy against the first, from so many resampled workloads.

    Attributes:
        blocks, length_s: number and length of the blocks that were drawn from. left_out: jobs after the last.
    """

    against: str
    differences: dict[str, list[PolicyDifference]]
    resamples: int
    blocks: int
    length_s: float
    left_out: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, the differences as dictionaries."""
        by_policy = {name: [row.to_dict() for row in rows] for name, rows in self.differences.items()}
        return {**self._asdict(), "differences": by_policy}


def compare(
    setup: Setup, results: Sequence[dict[str, Any]], resamples: int, block_s: float, *, progress: Progress
) -> PolicyComparison:
    """Run the policies on resampled workloads, and compare each with the first.

    Raises:
        BadInput: the workload is too short, or reacts to the schedule.
    """
    jobs = setup.read()
    if not isinstance(jobs.arrivals, Iterable):
        raise BadInput("--resamples: this workload reacts to the schedule", "give a log or a trace")
    blocks = Blocks(list(jobs.arrivals), block_s)
    policies = [result["policy"] for result in results]
    drawn: dict[str, list[dict[str, Any]]] = {text: [] for text in policies}
    with progress("resampled workloads") as show:
        for number in range(resamples):
            arrivals = blocks.drawn(np.random.default_rng([setup.seed, number]))
            window = None
            if not setup.warm_up == setup.cool_down == NO_CUT:
                window = counted_window(submissions(arrivals), setup.warm_up, setup.cool_down)
            for text in policies:
                metrics = Accumulator(setup.machine, window)
                policy = create(text, setup.seed)
                Simulator(
                    setup.machine, arrivals, policy, jobs.settings, sinks=[metrics], progress=show
                ).run()
                drawn[text].append(metrics.metrics().to_dict())
    first, *others = results
    by_policy = {
        other["policy"]: differences(
            (other, first),
            list(zip(drawn[other["policy"]], drawn[first["policy"]], strict=True)),
            blocks.count,
        )
        for other in others
    }
    return PolicyComparison(first["policy"], by_policy, resamples, blocks.count, block_s, blocks.left_out)


def _figures(metrics: Metrics, summary: SimulationSummary, work: Workload) -> dict[str, Any]:
    return {
        **metrics.to_dict(),
        "refused": sum(summary.refused.values()),
        "refused_reasons": summary.refused,
        "skipped": sum(work.skipped.values()),
        "skipped_reasons": dict(work.skipped),
        "decisions": summary.decisions,
        "most_jobs_in_system": summary.most_in_system,
        "wall_s": summary.wall_s,
        "jobs_per_s": summary.jobs / summary.wall_s if summary.wall_s > 0 else None,
    }


MOST_REASONS = 6  # lines of jobs that are in no figure


def left_out(results: Sequence[dict[str, Any]]) -> list[str]:
    """Say how many jobs are in no figure, and why; policies are named where they refuse different ones."""
    first, *others = results
    lines = reasons("skipped", first["skipped_reasons"])
    if all(other["refused_reasons"] == first["refused_reasons"] for other in others):
        return lines + reasons("refused", first["refused_reasons"])
    return lines + [
        line
        for result in results
        for line in reasons(f"refused by {result['policy']}", result["refused_reasons"])
    ]


def reasons(what: str, counts: dict[str, int]) -> list[str]:
    """Write a line for each of the most frequent reasons, and one for all others."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    if len(ranked) > MOST_REASONS:
        rest = ranked[MOST_REASONS - 1 :]
        reason = f"{len(rest)} other reasons (--json names all)"
        ranked[MOST_REASONS - 1 :] = [(reason, sum(count for _, count in rest))]
    return [f"{what}: {count:,} job{'s' * (count != 1)}: {reason}" for reason, count in ranked]


# -- experiments from a file: policies x loads x seeds, as one table (CSV) and a page of pictures ----------


METRICS = (  # of the pictures: metric, title, axis, divisor
    ("mean_wait_s", "Mean wait", "mean wait, min", 60.0),
    ("p95_wait_s", "Wait that 95 % of the jobs do not exceed", "wait, min", 60.0),
    ("bsld_mean", "Mean bounded slowdown", "bounded slowdown", 1.0),
    ("utilisation_ratio", "Utilisation", "share of units in use", 1.0),
)
ONCE = AfterValidator(lambda values: list(dict.fromkeys(values)))
LEFT_OUT = ("policy", "refused_reasons", "skipped_reasons", "wall_s", "jobs_per_s")  # of a row of the table


class Experiment(BaseModel):
    """An experiment as its file describes it.

    cluster = "128"
    workload = "generator:lublin,jobs=2000"
    policies = ["fcfs", "easy", "conservative"]
    loads = [0.7, 0.8, 0.9]
    seeds = [1, 2, 3, 4, 5]

    Attributes:
        loads: the generator's parameter ``load``; empty: as the workload has it.
    """

    model_config = ConfigDict(extra="forbid")

    cluster: str
    workload: str
    policies: Annotated[list[str], Field(min_length=1), ONCE]
    loads: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], ONCE] = []
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), ONCE] = [0]

    @property
    def cases(self) -> list[float] | list[None]:
        """The loads; one None where the workload keeps its own."""
        return self.loads or [None]


class Run(NamedTuple):
    """One simulation of an experiment, and its metrics."""

    policy: str
    load: float | None
    seed: int
    metrics: dict[str, Any]


def read_experiment(file: Path) -> Experiment:
    """Read the file of an experiment.

    Raises:
        BadInput: it cannot be read, or a field is missing, unknown or of another kind.
    """
    remedy = "its fields: cluster, workload, policies, loads, seeds; see docs/simulate.md"
    try:
        return Experiment.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"--experiment {file}: {getattr(error, 'strerror', None) or error}", remedy) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"--experiment {file}: {where}: {plain(first['msg'])}", remedy) from error


def runs(experiment: Experiment, setup: Setup, progress: Progress) -> Iterator[Run]:
    """Simulate each policy at each load with each seed, with the options of ``setup``.

    Raises:
        BadInput: a policy, workload or load cannot be simulated.
    """
    if experiment.loads and not experiment.workload.startswith(PREFIX):
        remedy = "give a generator with the parameter load, or leave the loads out"
        raise BadInput(f"loads: {experiment.workload} is a log, whose load is as it is", remedy)
    for policy in experiment.policies:
        create(policy, 0)  # a slip of the pen in the last one is told before the first one runs
    for offered in experiment.cases:
        for seed in experiment.seeds:
            workload = experiment.workload if offered is None else f"{experiment.workload},load={offered:g}"
            case = replace(setup, workload=workload, seed=seed)
            window = case.window()
            for policy in experiment.policies:
                try:
                    result = case.run(policy, window, progress, keep=False)
                except Unsuitable as error:
                    raise BadInput(f"{policy}: {error.reason}", error.remedy) from error
                yield Run(policy, offered, seed, result.figures)


def csv_text(runs: Sequence[Run]) -> str:
    """Write a row for each simulation."""
    columns = [name for name in runs[0].metrics if name not in LEFT_OUT]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("policy", "load", "seed", *columns))
    for run in runs:
        offered = "" if run.load is None else run.load
        values = ("" if run.metrics[name] is None else run.metrics[name] for name in columns)
        writer.writerow((run.policy, offered, run.seed, *values))
    return text.getvalue()


def pictures(runs: Sequence[Run], experiment: Experiment) -> list[Any]:
    """Draw each metric over the load, a line for each policy; without loads a bar for each policy."""
    made = []
    for metric, title, axis, divisor in METRICS:
        series = []
        for policy in experiment.policies:
            estimates = []
            for offered in experiment.cases:
                alike = [run for run in runs if (run.policy, run.load) == (policy, offered)]
                estimates.append(over_seeds([run.metrics[metric] / divisor for run in alike]))
            series.append(Series.of(policy, experiment.loads or ["all jobs"], estimates))
        over = "offered load" if experiment.loads else ""
        kind: Literal["lines", "bars"] = "lines" if experiment.loads else "bars"
        made.append(Picture(title, over, axis, tuple(series), kind))
    return made
