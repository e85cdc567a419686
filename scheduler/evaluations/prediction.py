"""Run times predicted from history on real logs, and what EASY makes of them; tenbin's own evaluation."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from profiles.errors import BadInput
from scheduler.evaluations import Evaluation, Finding, Progress, Scale, Table, exactly, run_all
from scheduler.model.jobs import Cluster, EstimateKind, Pool
from scheduler.policies.registry import create
from scheduler.prediction.run_times import History, JobSignature, PastRun
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival
from scheduler.workloads.logs.files import lines_of
from scheduler.workloads.logs.swf import Swf

PAPER = "Tsafrir, Etsion, Feitelson: Backfilling using system-generated predictions, IEEE TPDS 18(6), 2007"
LOGS = {"KTH-SP2-1996-2.swf.gz": 100, "HPC2N-2002-2.1-cln.swf.gz": 240}  # processors
JOBS: dict[Scale, int] = {"small": 5_000, "full": 60_000}
RULES = ("nothing", "requested", "easy++", "history", "history90", "exact")
WORDS = {
    "nothing": "nothing is known",
    "requested": "what users asked for",
    "easy++": "EASY++, the user's last two",
    "history": "tenbin, same request before same user",
    "history90": "the same, its 90 % quantile (what the coordinator plans with)",
    "exact": "the run time itself",
}


class LogCase(NamedTuple):
    """One log."""

    log: str
    jobs: int


class PredictedJob(NamedTuple):
    """One job: seconds that it ran, and that each rule said; the 10 and 90 % quantiles of the last."""

    run: float
    requested: float
    easy: float
    history: float
    low: float
    high: float


class LogFigures(NamedTuple):
    """Accuracy of predictions on one log, and what EASY makes of them.

    Mean accuracy (smaller over larger of predicted and actual), share of jobs predicted too short, median
    factor of the error, share below the quantiles; mean wait and slowdown under EASY.
    """

    jobs: int
    accuracy: dict[str, float]
    short: dict[str, float]
    factor: dict[str, float]
    below: tuple[float, float]
    wait_h: dict[str, float]
    slowdown: dict[str, float]


def evaluate(scale: Scale, progress: Progress) -> Evaluation:
    """See ``PAPER``. Raises BadInput where TENBIN_DATA has none of the logs."""
    cases = [LogCase(log, JOBS[scale]) for log in LOGS if path_of(log).exists()]
    if not cases:
        raise BadInput(
            f"no log: {', '.join(LOGS)} in TENBIN_DATA", "get them from the Parallel Workloads Archive"
        )
    by_case = dict(zip(cases, run_all(look, cases, progress, lambda case: case.log), strict=True))
    findings, rows = [], []
    for case, figures in by_case.items():
        name = case.log.split("-")[0]
        gain = 100 * (figures.accuracy["easy++"] - figures.accuracy["requested"])
        own = 100 * (figures.accuracy["history"] - figures.accuracy["easy++"])
        inside = 100 * (figures.below[1] - figures.below[0])
        findings += [
            Finding("accuracy of EASY++ above users'", None, exactly(gain), "points", (0.0, 100.0), of=name),
            Finding("accuracy of tenbin's above EASY++", None, exactly(own), "points", of=name),
            Finding("jobs between the 10 and 90 % quantiles", None, exactly(inside), "%", of=name),
        ]
        for rule in RULES:
            rows.append(
                (
                    name,
                    WORDS[rule],
                    *(100 * figures.accuracy[rule], figures.factor[rule], 100 * figures.short[rule]),
                    *(figures.wait_h[rule], figures.slowdown[rule]),
                )
            )
    columns = ("log", "rule", "accuracy, %", "median factor", "too short, %", "mean wait, h", "mean slowdown")
    table = Table("Predictions, and EASY planning by them", columns, tuple(rows))
    return Evaluation(PAPER, scale, _assumptions(by_case), tuple(findings), (table,), remarks=_remarks())


def _assumptions(by_case: dict[LogCase, LogFigures]) -> tuple[str, ...]:
    jobs = ", ".join(f"{figures.jobs:,} of {case.log}" for case, figures in by_case.items())
    return (
        f"Jobs: {jobs}; those without a user's request or a run time are left out.",
        "A prediction rests on what had ended, in the log itself, when the job was submitted; none is above "
        "the request, at which jobs are killed and which stands before a user's first job has ended.",
        "Accuracy: the smaller over the larger of predicted and actual run time, averaged.",
        "Logs name no arguments: jobs of one user, size and request stand for runs of one program. Where "
        "there is nothing else the user alone counts; the coordinator does that only where it has proved "
        "right.",
        "EASY plans by the predictions alone: whoever takes longer counts as about to end. The paper's order "
        "by shortest job and its corrections are left out. Slowdowns are bounded at 10 s.",
    )


def _remarks() -> tuple[str, ...]:
    return (
        "EASY by a prediction of the middle makes jobs wait longer than by requests: half of the running "
        "jobs outlive it, count as about to end, and the reserved time is always now. By the 90 % quantile "
        "most of that is gone; with nothing known hardly anybody passes.",
        "The quantiles hold for runs that are exchangeable; users change their habits, so less is inside.",
    )


def path_of(log: str) -> Path:
    """Return where TENBIN_DATA has the log, if it is there."""
    return Path(os.environ.get("TENBIN_DATA", "/nonexistent"), log)


def look(case: LogCase) -> LogFigures:
    """Predict the jobs of one log, and let EASY plan by each rule."""
    path = path_of(case.log)
    log = Swf().read(path).arrivals
    assert isinstance(log, Iterable)
    usable = (arrival for arrival in log if arrival.run_s > 0 and arrival.job.estimate_s)
    arrivals = list(islice(usable, case.jobs))
    rows = predicted(arrivals, waits_of(path))
    run = np.array([row.run for row in rows])
    said = {
        "nothing": np.full(len(rows), np.inf),
        "requested": np.array([row.requested for row in rows]),
        "easy++": np.array([row.easy for row in rows]),
        "history": np.array([row.history for row in rows]),
        "history90": np.array([min(row.high, row.requested) for row in rows]),
        "exact": run,
    }
    known = [row for row in rows if row.high < math.inf]
    below = [float(np.mean([row.run <= bound for row, bound in pairs])) for pairs in _bounds(known)]
    planned = {rule: easy(arrivals, times.tolist(), LOGS[case.log]) for rule, times in said.items()}
    return LogFigures(
        jobs=len(rows),
        accuracy={rule: float(np.mean(np.minimum(t, run) / np.maximum(t, run))) for rule, t in said.items()},
        short={rule: float(np.mean(t < run)) for rule, t in said.items()},
        factor={rule: float(np.median(np.maximum(t, run) / np.minimum(t, run))) for rule, t in said.items()},
        below=(below[0], below[1]),
        wait_h={rule: wait for rule, (wait, _) in planned.items()},
        slowdown={rule: slowdown for rule, (_, slowdown) in planned.items()},
    )


def _bounds(
    rows: list[PredictedJob],
) -> tuple[list[tuple[PredictedJob, float]], list[tuple[PredictedJob, float]]]:
    """Pair each job with its 10 % quantile, and with its 90 % quantile."""
    return [(row, row.low) for row in rows], [(row, row.high) for row in rows]


def waits_of(path: Path) -> dict[int, float]:
    """Read how long each job of a log waited, in seconds (field 3); 0 where that is unknown."""
    fields = (line.split() for line in lines_of(path) if line[:1] != ";")
    return {int(f[0]): max(float(f[2]), 0.0) for f in fields if len(f) > 3}


def predicted(arrivals: list[Arrival], waits: dict[int, float]) -> list[PredictedJob]:
    """Predict each job from what was known when it was submitted."""
    alike, of_user = History(), History()
    ends: list[tuple[float, int, PastRun]] = []
    rows = []
    for job, run_s, *_ in arrivals:
        while ends and ends[0][0] <= job.submit_s:
            run = heapq.heappop(ends)[2]
            alike.add(run)
            of_user.add(run._replace(signature=run.signature._replace(program="")))
        request = job.estimate_s or math.inf
        signature = JobSignature(f"{job.user} {job.units} {request:g}", (), job.user, (job.units, 0))
        last_two = of_user.predict(signature)
        best = alike.predict(signature)
        easy_s = request if last_two is None else min(last_two.middle, request)
        if best is None:
            rows.append(PredictedJob(run_s, request, easy_s, request, 0.0, math.inf))
        else:
            rows.append(PredictedJob(run_s, request, easy_s, min(best.middle, request), best.low, best.high))
        heapq.heappush(
            ends, (job.submit_s + waits.get(job.id, 0.0) + run_s, job.id, PastRun(signature, run_s))
        )
    return rows


def easy(arrivals: list[Arrival], estimates: list[float], processors: int) -> tuple[float, float]:
    """Return mean wait in hours and mean bounded slowdown when EASY plans by these estimates."""
    cluster = Cluster((Pool("core", processors),))
    jobs = [
        arrival._replace(
            job=replace(arrival.job, estimate_s=max(estimate, 1.0), estimate_kind=EstimateKind.PREDICTED)
        )
        for arrival, estimate in zip(arrivals, estimates, strict=True)
        if arrival.job.units <= processors
    ]
    metrics = Accumulator(cluster)
    Simulator(cluster, iter(jobs), create("easy"), sinks=(metrics,)).run()
    totals = metrics.metrics()
    return (totals.mean_wait_s or 0.0) / 3600, totals.bsld_mean or 1.0
