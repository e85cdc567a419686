"""Two classes of GPUs: each rival at its best setting, figures by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from scheduler.evaluations import two_classes
from scheduler.evaluations.capped_gpus import finish_time_fairness
from scheduler.evaluations.two_classes import CLUSTER, OWN, ClassesCase, ClassesFigures, simulate
from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import Job
from scheduler.model.speeds import TabulatedSpeed
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.workloads import load
from tests.scheduler.evaluations.test_capped_gpus import outcome

JOB = Job(1, 0.0, 2, estimates_s={"v100": 40.0, "p100": 120.0})


def test_fairness_is_against_as_long_on_each_class() -> None:
    """On half of each class the job does 1/40 and 1/120 of its work a second: 60 s.

    With a second one beside it, it has eight of sixteen GPUs, where one that can use four takes 40 s.
    """
    assert finish_time_fairness([outcome(JOB, 120.0)] * 2, 16) == pytest.approx([2.0, 2.0])
    wide = replace(JOB, max_units=4, speed=TabulatedSpeed(2, (1.0, 1.25, 1.5)))
    assert finish_time_fairness([outcome(wide, 120.0)] * 2, 16) == pytest.approx([3.0, 3.0])
    # Of sixteen jobs each has one GPU, and needs two of them for 60 s.
    assert finish_time_fairness([outcome(JOB, 120.0)] * 16, 16) == pytest.approx([1.0] * 16)


def test_figures_are_the_simulators() -> None:
    cluster = parse_cluster(CLUSTER)
    workload = load("generator:labbench,jobs=40,load=0.9", cluster, 7)
    metrics = Accumulator(cluster)
    Simulator(cluster, workload.arrivals, create("mctbm-priced"), workload.settings, sinks=[metrics]).run()
    totals = metrics.metrics()
    figures = simulate(ClassesCase("mctbm-priced", "", "", 40, 7))
    same = totals.mean_turnaround_s, totals.max_wait_s, totals.makespan_s, totals.preemptions / 40
    assert same == pytest.approx(
        (figures.turnaround_s, figures.longest_s, figures.makespan_s, figures.restarts)
    )
    assert totals.max_turnaround_s is not None and figures.turnaround_s < figures.p99_s
    assert figures.p99_s <= totals.max_turnaround_s


def test_the_jobs_are_the_same_whatever_their_sizes() -> None:
    """So a job of one multiple of sizes may be held against what it could do at any."""
    cluster = parse_cluster(CLUSTER)
    submissions, works = [], []
    for more in ("", ",sizes=moldable", *two_classes.TIMES):
        arrivals = load(f"generator:labbench,jobs=30,load=0.9{more}", cluster, 7).arrivals
        assert isinstance(arrivals, Iterable)
        jobs = [arrival.job for arrival in arrivals]
        submissions.append([job.submit_s for job in jobs])
        works.append([job.program for job in jobs])
    assert np.ptp(np.array(submissions), axis=0) == pytest.approx(0.0)
    assert all(programs == works[0] for programs in works)


def test_the_best_of_each_rival_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    means = {OWN: 50.0, "gavel,round_s=1800": 100.0, "sia": 80.0, "mctbm-priced,times=2": 125.0}

    def made(case: ClassesCase) -> ClassesFigures:
        return ClassesFigures(
            means.get(case.policy + case.more.removesuffix(",sizes=moldable"), 200.0), 1, 1, 1, 0, 1
        )

    monkeypatch.setattr(two_classes, "run_all", lambda work, cases, progress: [made(case) for case in cases])
    findings, table = two_classes.evaluate("small", (1, 2), lambda *_: None)
    found = {(finding.what.split()[-1], finding.of): finding.tenbin.mean for finding in findings}
    assert found == pytest.approx(
        {
            ("mctbm-priced", "two classes, fixed sizes"): -75.0,
            ("gavel", "two classes, fixed sizes"): -50.0,
            ("sia", "two classes, fixed sizes"): -37.5,
            ("mctbm-priced", "two classes, sizes 1 to 8"): -60.0,
            ("sia", "two classes, sizes 1 to 8"): -37.5,
        }
    )
    assert [row[1] for row in table.rows][2] == "gavel,round_s=1800" and len(table.rows) == 7
