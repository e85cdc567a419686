"""Nodes that failed their last check are drained in Slurm, and resumed when they pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.checks.check import CheckStore, Verdict
from tests.scheduler.engines.slurm.test_engine import START, run
from tests.support.checks import figures_of, make_check
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab


@pytest.mark.slow
def test_an_unfit_node_is_drained_and_resumed(
    lab: SlurmLab, up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    store, unfit, other = CheckStore(tmp_path / "store"), lab.nodes[0], lab.nodes[1]

    def checked(number: int, node: str, verdict: Verdict) -> None:
        figures = figures_of({"compute_gflops": 1.0})
        store.append(make_check(number, figures, node=node, verdict=verdict, reason="slow"))

    def said(node: str) -> str:
        return lab.call("scontrol", "--oneliner", "show", "node", node)

    checked(0, unfit, Verdict.CHANGED)
    up.start(*START, "--drain-unfit")
    up.until(lambda: "DRAIN" in said(unfit) and "Reason=tenbin check: slow" in said(unfit), 60)
    run(up, "submit", "--chdir", str(tmp_path), "--", "sh", "-c", "hostname > where")
    assert up.client.job(1).result(60) == 0
    assert (tmp_path / "where").read_text().strip() != unfit
    # Only what was drained for its check is resumed.
    lab.call("scontrol", "update", f"nodename={other}", "state=drain", "reason=by somebody else")
    checked(0, other, Verdict.PASS)
    checked(1, unfit, Verdict.PASS)
    up.until(lambda: "DRAIN" not in said(unfit), 60)
    assert "DRAIN" in said(other)
