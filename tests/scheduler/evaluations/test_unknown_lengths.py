"""Tasks of unknown run times under weigh and las: figures beside the simulator's own, and the rows of all."""

from __future__ import annotations

import pytest

from scheduler.evaluations import unknown_lengths
from scheduler.evaluations.multiresource import LasCase, NodesAndTasks, simulate
from scheduler.model.clusters import parse_cluster
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import OutcomeRecorder
from scheduler.workloads import load


def test_figures_are_the_simulators() -> None:
    cluster = parse_cluster("2xnode[cpu=1,memory=1]")
    workload = load("generator:multiresource,like=alibaba,jobs=200", cluster, 7)
    record = OutcomeRecorder()
    Simulator(cluster, workload.arrivals, create("weigh,pause=true"), workload.settings, sinks=[record]).run()
    figures = simulate(LasCase("weigh,pause=true", "alibaba", 2, 200, 7))
    turnarounds = [outcome.end_s - outcome.job.submit_s for outcome in record.outcomes]
    assert figures.turnaround_s == pytest.approx(sum(turnarounds) / 200)
    assert figures.longest_s == pytest.approx(max(outcome.wait_s for outcome in record.outcomes))
    assert figures.preemptions == sum(outcome.preemptions for outcome in record.outcomes) > 0


@pytest.mark.slow
def test_every_stream_is_run_under_all(monkeypatch: pytest.MonkeyPatch) -> None:
    few = dict.fromkeys(("google", "alibaba"), NodesAndTasks(2, 60))
    monkeypatch.setattr(unknown_lengths, "SIZES", {"small": few})
    monkeypatch.setattr(unknown_lengths, "LOADS", (None, 1.0))
    findings, table = unknown_lengths.evaluate("small", range(2), lambda *_: None)
    streams = {f"B, {like}-like, {at}" for like in ("Google", "Alibaba") for at in ("closed loop", "load 1")}
    assert {finding.of for finding in findings} == streams == {str(row[0]) for row in table.rows}
    assert {row[1] for row in table.rows} == {"las", "las-mq"}
