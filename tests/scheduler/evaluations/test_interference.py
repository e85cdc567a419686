"""The evaluation of paper D: its findings from tables, and one small simulation of each kind."""

from __future__ import annotations

import pytest

from scheduler.evaluations import EVALUATIONS, interference, run_all
from scheduler.evaluations.interference import (
    BATCH,
    NAME,
    SharingCase,
    evaluate,
    from_choices,
    from_tables,
    gains,
    printed_tables,
    simulate,
)
from scheduler.model.interference import load_pairs

TABLE = load_pairs(NAME)


def test_all_that_follows_from_the_tables_agrees_but_one() -> None:
    findings = [*from_tables(TABLE, printed_tables()), *from_choices(TABLE)]
    apart = [finding for finding in findings if not finding.agrees]
    assert [finding.what for finding in apart] == ["rule against counters, all pairs left on 2x4"]
    assert apart[0].tenbin.mean == pytest.approx(2.83 - 3.46, abs=0.01) and apart[0].note
    assert "73 different" in gains(TABLE).title


def test_a_simulation_is_repeated_exactly_and_within_the_bound() -> None:
    case = SharingCase("match", BATCH, 20, None, 1)
    result = simulate(case)
    assert result == simulate(case)
    assert result.least_s < result.makespan_s
    assert result.turnaround_s < simulate(case._replace(policy="exclusive")).turnaround_s


def test_small_evaluation_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EVALUATIONS["interference"] == "scheduler.evaluations.interference"
    monkeypatch.setattr(interference, "JOBS", {"small": 5, "full": 5})
    monkeypatch.setattr(interference, "SEEDS", 2)
    monkeypatch.setattr(
        interference,
        "run_all",
        lambda work, cases, progress, say: [work(case) for case in cases if say(case)],
    )
    assert run_all is not interference.run_all
    small = evaluate("small", lambda done, of, what: None)
    full = evaluate("full", lambda done, of, what: None)
    assert len(full.tables) == len(small.tables) + 1 and small.pictures and small.remarks
    for series in full.pictures[1].series:
        assert len(series.x) == len(series.y) == len(series.error) == 7
    for table in full.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
