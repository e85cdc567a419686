"""The evaluation of paper A: its parts on few jobs, and the cost model of its table 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from scheduler.evaluations import EVALUATIONS, Evaluation, evaluate, migration
from scheduler.evaluations.migration import (
    CLUSTER,
    A,
    B,
    MigrationCase,
    MigrationResult,
    count_later,
    migration_s,
    simulate,
)
from scheduler.model.costs import LinearCosts
from scheduler.model.jobs import Job


@pytest.mark.slow
def test_the_parts_add_up_to_the_turnaround() -> None:
    for mix in (A, B):
        for policy, factor in (("mctb", 1.0), ("mctbm", 1.0), ("mctbm", 3.0)):
            found = simulate(MigrationCase(mix, policy, 1, 600, factor))
            assert found.turnaround_s == pytest.approx(sum(found[1:5]), abs=1e-3)
            assert (found.migrations > 0) == (policy == "mctbm") == (found.cost_s > 0)


def test_migration_costs_by_table_3() -> None:
    # cpu: 1.5e-2 * 1000 + 0.92; restart on gpu: 9.6e-3 * 1000 + 0.89.
    assert migration_s(1000.0, "cpu", "gpu") == pytest.approx(15.92 + 10.49)
    assert migration_s(1000.0, "gpu", "cpu") == pytest.approx(14.85 + 9.88)


def test_queued_kernels_end_before_a_checkpoint_and_code_is_compiled_after_it() -> None:
    costs = LinearCosts(drain_s={"cp": 7.0}, compile_s={"cp": 2.0}, factor=2.0)
    assert (
        costs.stop_s(Job(1, 0, program="cp"), "gpu"),
        costs.restart_s(Job(1, 0, program="cp"), "gpu"),
    ) == (14, 4)
    assert costs.stop_s(Job(1, 0, program="fft"), "gpu") == 0


def test_plans_that_the_printed_steps_make_later_are_found() -> None:
    later = count_later(CLUSTER, MigrationCase(B, "mct", 0, 1000).text())
    assert 0 < later.step_6.late < later.step_6.plans and later.step_6.mean_loss_s > 0
    assert later.step_7.late <= later.step_7.plans > 0


def _here(
    work: Callable[[MigrationCase], MigrationResult], cases: Sequence[MigrationCase], *_: object
) -> list[MigrationResult]:
    return [work(case) for case in cases]


def test_the_whole_evaluation_on_few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "run_all", _here)
    monkeypatch.setattr(migration, "SEEDS", 2)
    monkeypatch.setattr(migration, "JOBS", {"small": (30, 20)})
    found = evaluate("migration", "small")
    assert "migration" in EVALUATIONS and isinstance(found, Evaluation)
    assert [picture.kind for picture in found.pictures] == ["stacked"] * 6 + ["lines"] * 2
    for picture in found.pictures[:6]:  # the bar of mct is 1
        assert sum(series.y[0] for series in picture.series) == pytest.approx(1.0, abs=1e-6)
    for table in found.tables:
        assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
    assert {finding.paper for finding in found.findings} == {None, -19.7, -20.0, 25.0, 1.0}
    assert all("  " not in text for text in (*found.assumptions, *found.remarks))
