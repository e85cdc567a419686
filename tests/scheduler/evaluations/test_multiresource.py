"""The evaluation ``multiresource`` on a machine too small to show anything but that it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from scheduler import evaluations
from scheduler.evaluations import multiresource
from scheduler.evaluations.multiresource import (
    POLICIES,
    SIZES,
    LasCase,
    LasFigures,
    LasSize,
    NodesAndTasks,
    UsageSink,
    trace_cases,
)
from scheduler.model.jobs import Job, Placement
from scheduler.simulator.trace import Outcome, Segment


def outcome(submit: float, demand: tuple[float, float], *runs: tuple[float, float]) -> Outcome:
    placement = Placement("node", 1, ((0, 1),))
    segments = tuple(Segment("run", placement, *run) for run in runs)
    run_s = sum(end - start for start, end in runs)
    job = Job(1, submit, demand=demand)
    return Outcome(job, runs[0][0], runs[-1][1], "done", run_s, 0.0, 0.0, 0, 0, 0, 0.0, segments)


def test_use_is_counted_while_tasks_are_submitted() -> None:
    usage = UsageSink()
    usage.add(outcome(0, (0.5, 1.0), (0, 20), (50, 70)))
    usage.add(outcome(100, (1.0, 0.2), (100, 500)))  # after the last submission
    # From 10 s (a tenth is left out) to 100 s on 2 nodes: 30 s of the first.
    assert usage.shares(2) == pytest.approx((30 * 0.5 / 180, 30 * 1.0 / 180))


@pytest.mark.slow
def test_the_evaluation_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    few = NodesAndTasks(4, 300)
    each = {"google": few, "alibaba": few}
    tiny = LasSize(each, {"google": 2, "alibaba": 2}, 1, few, few, each)
    monkeypatch.setitem(SIZES, "small", tiny)

    def one_by_one(work: object, cases: Sequence[LasCase], *rest: object) -> list[LasFigures]:
        return [multiresource.simulate(case) for case in cases]

    monkeypatch.setattr(multiresource, "run_all", one_by_one)
    found = evaluations.evaluate("multiresource", "small")
    assert {finding.paper for finding in found.findings} >= {-28.2, -30.7, 9.74, 1.0, -11.5, 7.94}
    assert all(np.isfinite(finding.tenbin.mean) for finding in found.findings)
    for table in found.tables:
        assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
    for picture in found.pictures:
        assert [series.name for series in picture.series] == list(POLICIES)
        assert all(len(series.x) == len(series.y) > 0 for series in picture.series)


def test_the_trace_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    size = SIZES["full"]
    monkeypatch.setenv("TENBIN_DATA", str(tmp_path))
    assert trace_cases(size) == []
    (tmp_path / multiresource.TRACE).touch()
    assert [case.policy for case in trace_cases(size)] == list(POLICIES)
    case = trace_cases(size)[0]
    assert f"trace={tmp_path / multiresource.TRACE},like=google" in multiresource.workload_of(case)
