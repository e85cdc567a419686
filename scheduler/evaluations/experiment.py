"""Experiments from a file: policies x loads x seeds, as one table (CSV) and a page of pictures.

cluster = "128"
workload = "generator:lublin,jobs=2000"
policies = ["fcfs", "easy", "conservative"]
loads = [0.7, 0.8, 0.9]
seeds = [1, 2, 3, 4, 5]
"""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from profiles.errors import BadInput, plain
from scheduler.evaluations import Picture, Series, over_seeds
from scheduler.evaluations.policy_runs import Progress, Setup, Unsuitable
from scheduler.policies.registry import create
from scheduler.workloads import PREFIX

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


def read(file: Path) -> Experiment:
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
    for load in experiment.cases:
        for seed in experiment.seeds:
            workload = experiment.workload if load is None else f"{experiment.workload},load={load:g}"
            case = replace(setup, workload=workload, seed=seed)
            window = case.window()
            for policy in experiment.policies:
                try:
                    result = case.run(policy, window, progress, keep=False)
                except Unsuitable as error:
                    raise BadInput(f"{policy}: {error.reason}", error.remedy) from error
                yield Run(policy, load, seed, result.figures)


def csv_text(runs: Sequence[Run]) -> str:
    """Write a row for each simulation."""
    columns = [name for name in runs[0].metrics if name not in LEFT_OUT]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("policy", "load", "seed", *columns))
    for run in runs:
        load = "" if run.load is None else run.load
        values = ("" if run.metrics[name] is None else run.metrics[name] for name in columns)
        writer.writerow((run.policy, load, run.seed, *values))
    return text.getvalue()


def pictures(runs: Sequence[Run], experiment: Experiment) -> list[Any]:
    """Draw each metric over the load, a line for each policy; without loads a bar for each policy."""
    made = []
    for metric, title, axis, divisor in METRICS:
        series = []
        for policy in experiment.policies:
            estimates = []
            for load in experiment.cases:
                alike = [run for run in runs if (run.policy, run.load) == (policy, load)]
                estimates.append(over_seeds([run.metrics[metric] / divisor for run in alike]))
            series.append(Series.of(policy, experiment.loads or ["all jobs"], estimates))
        over = "offered load" if experiment.loads else ""
        kind: Literal["lines", "bars"] = "lines" if experiment.loads else "bars"
        made.append(Picture(title, over, axis, tuple(series), kind))
    return made
