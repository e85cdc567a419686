"""Faults injected for real: a check has every figure, and names what is wrong.

Each cause by itself: ``tests/profiles/checks/test_causes.py``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from agent.node_check import make_check
from probes.registry import BATTERY, CHECKS, DEVICES
from profiles.checks.check import EXIT_CODES, Check, Figure, Verdict, stamp
from profiles.checks.figures import LEAST_REFERENCES
from profiles.checks.verdict import Reference, give_verdict, is_disturbed
from profiles.records import Settings
from tests.support.labs.components import require
from tests.support.labs.network_lab import NetLab, netlab, require_netlab

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
QUANTITIES = {
    "stream_bandwidth_gbs",
    "access_latency_ns",
    "compute_gflops",
    "compute_clock_ghz",
    "message_latency_s",
    "storage_read_mbs",
    "storage_fsync_p50_s",
}


def noisy(figure: Figure, factor: float) -> Figure:
    rounds = tuple(value * factor for value in figure.rounds)
    return figure.model_copy(update={"value": figure.value * factor, "rounds": rounds})


def history(check: Check) -> list[Check]:
    """Make the reference: of the machine as it is one check, and others that differ by 2 % of noise."""
    rng = np.random.default_rng(1)
    checks = []
    for number in range(LEAST_REFERENCES):
        created = check.created - timedelta(hours=LEAST_REFERENCES - number)
        figures = tuple(noisy(figure, float(np.exp(rng.normal(0, 0.02)))) for figure in check.figures)
        about = {"id": stamp(created), "created": created, "verdict": Verdict.PASS}
        checks.append(check.model_copy(update={**about, "figures": figures}))
    return checks


@contextmanager
def faulty(lab: NetLab) -> Iterator[str]:
    """Shape the link and switch huge pages off; yields what they were."""
    before = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    HUGE_PAGES.write_text("never")
    lab.shape(100)
    try:
        yield before
    finally:
        HUGE_PAGES.write_text(before)
        for number in range(1, len(lab.hosts) + 1):
            tc = f"ip netns exec {lab.prefix}n{number} tc qdisc del dev eth0 root".split()
            subprocess.run(tc, check=False)


@pytest.mark.measures
@pytest.mark.slow
@pytest.mark.usefixtures("mpi", "own_lock")
def test_a_check_has_every_figure_and_names_a_shaped_link_and_huge_pages_that_are_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others use the machine, the causes are named all the same, and the verdict is another."""
    require_netlab()
    require(os.access(HUGE_PAGES, os.W_OK), "transparent huge pages that can be switched off")
    monkeypatch.setitem(CHECKS, BATTERY, replace(CHECKS[BATTERY], quick_s=4.0))
    monkeypatch.delitem(CHECKS, DEVICES)  # whose figures no test asks for here
    with netlab(tmp_path) as lab:
        for name, value in lab.env.items():
            monkeypatch.setenv(name, value)
        settings = Settings(quick=True, storage=(Path.home(),), hosts=lab.hosts)
        usual = make_check(settings, None)
        with faulty(lab) as before:
            check = make_check(settings, None)
    missing = QUANTITIES - {figure.quantity for figure in usual.figures}
    if is_disturbed(usual.conditions) and (missing or usual.absent):  # its time was up before
        pytest.skip(f"others use this machine: {usual.conditions.consumers}")
    assert not missing and [record.what for record in usual.absent] == []
    latencies = [f for f in usual.figures if f.quantity == "access_latency_ns"]
    assert "memory" in {f.labels["level"] for f in latencies}
    values = [f.value for f in latencies]
    assert max(values) > 3 * min(values) or len(values) == 1
    check = give_verdict(check, Reference("", checks=history(usual), facts=usual.facts))
    causes = [cause.name for cause in check.causes]
    assert f"transparent huge pages {before} -> never" in check.differences
    worse = {change.quantity for change in check.changes if change.state == "worse"}
    if worse & {"access_latency_ns", "stream_bandwidth_gbs"}:  # a small effect on some machines
        assert "huge-pages" in causes
    disturbed = is_disturbed(check.conditions)
    if disturbed and "link" not in causes:  # ranks that wait for a processor
        pytest.skip(f"others use this machine: {check.conditions.consumers}")
    assert check.verdict is (Verdict.DISTURBED if disturbed else Verdict.CHANGED)
    assert EXIT_CODES[check.verdict] == (3 if disturbed else 1)
    assert "link" in causes
