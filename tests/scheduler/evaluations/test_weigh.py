"""The evaluation of weigh: the grounds, parts of a log, and pairs of simulations that see the same jobs."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.evaluations import Table, weigh
from scheduler.evaluations.weigh import FRESH, Ground, WeighCase, WeighFigures, change, grounds, simulate
from scheduler.model.clusters import parse_cluster
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.workloads import load

LOG = "KTH-SP2-1996-2.swf.gz"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty jobs that each take the whole machine; one of the second half runs ten times as long."""
    lines = [
        f"{n} {10 * n} 0 {1000 if n == 21 else 100} 8 -1 -1 8 2000 -1 1 1 -1 -1 -1 -1 -1 -1"
        for n in range(1, 41)
    ]
    with gzip.open(tmp_path / LOG, "wt") as file:
        file.write("\n".join(["; MaxProcs: 8", *lines]) + "\n")
    monkeypatch.setenv("TENBIN_DATA", str(tmp_path))
    return tmp_path / LOG


def test_logs_are_grounds_where_they_are(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [ground.workload for ground in grounds("small") if ground.part] == [LOG]
    monkeypatch.delenv("TENBIN_DATA")
    assert not any(ground.part for ground in grounds("full"))


def test_parts_of_a_log_are_simulated_by_themselves(log: Path) -> None:
    """Twenty jobs one after the other, submitted every 10 s: the k-th waits for (k - 1) x (100 - 10) s."""
    ground = Ground("log", "8", LOG, "easy", part=20)
    first, second = (simulate(WeighCase(ground, "fcfs", part)) for part in (0, 1))
    assert first.wait_s == pytest.approx(90 * 19 / 2)
    assert first.longest_s == pytest.approx(90 * 19)
    assert second.wait_s == pytest.approx(90 * 19 / 2 + 900 * 19 / 20)
    assert simulate(WeighCase(replace(ground, first=1), "fcfs", 1)).wait_s == second.wait_s


def test_a_schedule_of_cqsim_is_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two jobs that take all the machine the second waits for the first."""
    with gzip.open(tmp_path / weigh.CQSIM, "wt") as file:
        file.write("1;8;8;900.0;300.0;0.0;0.0;0.0;300.0\n2;8;8;900.0;300.0;200.0;100.0;300.0;600.0\n")
    monkeypatch.setenv("TENBIN_DATA", str(tmp_path))
    figures = simulate(WeighCase(Ground("log", "8", weigh.CQSIM, "easy", part=2), "easy", 0))
    assert (figures.wait_s, figures.makespan_s) == (100.0, 600.0)


def test_figures_are_the_simulators_on_a_fresh_seed() -> None:
    ground = Ground("model", "64", "generator:lublin,jobs=100,load=0.9", "easy")
    cluster = parse_cluster("64")
    workload = load(ground.workload, cluster, FRESH + 3)
    metrics = Accumulator(cluster)
    Simulator(cluster, workload.arrivals, create("easy"), workload.settings, sinks=[metrics]).run()
    totals = metrics.metrics()
    figures = simulate(WeighCase(ground, "easy", 3))
    assert (figures.wait_s, figures.longest_s) == (totals.mean_wait_s, totals.max_wait_s)
    assert figures.makespan_s == totals.makespan_s and 0 <= figures.decision_s <= figures.longest_decision_s


def test_of_several_rivals_the_best_counts() -> None:
    """The one with the lower load."""
    loads = [f"generator:lublin,jobs=200,load={load}" for load in (1.5, 0.7)]
    others = tuple(("fcfs", "64", load) for load in loads)
    ground = Ground("model", "64", loads[0], "fcfs", "easy", ("wait_s",), others)
    figures = {case: simulate(case) for number in (1, 2) for case in ground.cases(number)}
    rival, own = weigh._columns(ground, figures)
    assert rival == [figures[WeighCase(ground, "fcfs", number, "64", loads[1])] for number in (1, 2)]
    assert own == [figures[WeighCase(ground, "easy", number)] for number in (1, 2)]


def test_changes_are_paired() -> None:
    def figures(wait_s: float) -> WeighFigures:
        return WeighFigures(wait_s, 1, 1, 1, 1, decision_s=0, longest_decision_s=0)

    rival, own = [figures(100), figures(10)], [figures(50), figures(5)]
    assert tuple(change(rival, own, "wait_s"))[:3] == (-50, -50, -50)


@pytest.mark.slow
def test_every_ground_is_run_under_both(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [replace(ground, workload="generator:lublin,jobs=60") for ground in grounds("small")[:1]]
    monkeypatch.setattr(weigh, "grounds", lambda _: few)
    monkeypatch.setattr(weigh, "ABLATIONS", {"depth=1": (few[0].label,)})
    for other in (weigh.capped_gpus, weigh.two_classes, weigh.unknown_lengths):
        monkeypatch.setattr(other, "evaluate", lambda *_: ([], Table("", (), ())))
    done: list[str] = []
    result = weigh.evaluate("small", lambda *said: done.append(said[2]))
    assert len(done) == 2 * weigh.SEEDS["small"] + 2 + 1
    assert {finding.of for finding in result.findings} == {few[0].label}
    assert [row[0] for row in result.tables[0].rows] == [few[0].label]
    assert [row[:3] for row in result.tables[1].rows] == [("depth=1", few[0].label, 2)]


def test_jobs_wait_where_their_waits_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENBIN_DATA", raising=False)
    compared = [ground for ground in grounds("small") if "wait_s" in ground.goals]
    cases = [WeighCase(ground, ground.rival, n) for ground in compared for n in range(weigh.SEEDS["small"])]
    assert [case for case in cases if not simulate(case).wait_s] == []
