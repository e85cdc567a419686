"""Real jobs on two OpenCL devices, by policies that move them and by one that does not.

    pytest -m benchmark tests/benchmarks/jobs/test_moving_policies.py -s

The devices are a GPU and the processor, or PoCL's twice where there is one driver only. Half of the jobs know
nothing of tenbin, half of them save themselves. Their run times are measured first, on each device alone.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from agent.opencl_layer import build
from scheduler.coordinator.journal.journal import predictions_of
from tenbin.client.client import Job
from tests.benchmarks import amount
from tests.support.coordinator import Up
from tests.support.moving import PROGRAMS, layer, two_devices
from tests.support.paths import STENCIL

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]
EACH = amount(6, 3, 1)
POLICIES = amount(*2 * [("mct", "mctm", "mctbm")], ("mctm",))
SORT = STENCIL.with_name("sort.py")
PROGRAM: dict[str, list[str]] = {
    "unmodified": [str(PROGRAMS / "bursts.py"), "20", "2000", "65536", "1", amount("40", "40", "2")],
    "saves itself": [str(SORT), "--values", amount("20000", "20000", "200")],
}


@pytest.fixture(autouse=True)
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the keys of two."""
    layer()  # skips where it cannot be built
    build.build()
    found, pocl = two_devices()
    monkeypatch.setenv("POCL_DEVICES", pocl)
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    return [one["key"] for one in found]


def submit(up: Up, kind: str, **needs: Any) -> Job:
    """Submit a program; ``kind``: of it."""
    saves = {"checkpoint_signal": int(signal.SIGURG)} if kind == "saves itself" else {}
    return up.client.submit([sys.executable, *PROGRAM[kind]], folder=str(SORT.parents[1]), **saves, **needs)


def ended(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    found = [job.wait(600) for job in jobs]
    assert all(one["stage"] == "done" for one in found), [one["trouble"] for one in found]
    return found


def test_makespan_and_moves(up: Up, devices: list[str]) -> None:
    up.start("--devices", "--policy", "fcfs", "--no-trials")
    alone: dict[str, dict[str, float]] = {kind: {} for kind in PROGRAM}
    said: dict[str, set[str]] = {kind: set() for kind in PROGRAM}
    for kind in PROGRAM:
        for key in devices:
            for _ in range(amount(2, 2, 1)):  # the first one compiles
                began_s = time.monotonic()
                (one,) = ended([submit(up, kind, device=key)])
                alone[kind][key] = time.monotonic() - began_s
            said[kind].add(Path(one["stdout"]).read_text())
        print(
            f"\nBENCH {kind} alone: {', '.join(f'{s:.1f} s on {key}' for key, s in alone[kind].items())}",
            end="",
        )
        print(f"; {'results are equal' if len(said[kind]) == 1 else 'results differ'}", end="")
    up.kill(signal.SIGTERM)
    for policy in POLICIES:
        before = len(predictions_of(up.home))
        up.start("--devices", "--policy", policy, "--no-trials")
        began_s = time.monotonic()
        kinds = [*PROGRAM] * EACH
        found = ended([submit(up, kind, expect_s=alone[kind]) for kind in kinds])
        makespan_s = time.monotonic() - began_s
        for kind, one in zip(kinds, found, strict=True):
            assert len(said[kind]) > 1 or {Path(one["stdout"]).read_text()} == said[kind]
        up.kill(signal.SIGTERM)
        print(f"\nBENCH {policy}: {len(found)} jobs in {makespan_s:.1f} s, ", end="")
        print(f"{sum(one['migrations'] for one in found)} moves", end="")
        moves = [
            one
            for one in predictions_of(up.home)[before:]
            if one.kind in ("migration", "suspension", "pause")
        ]
        for one in moves:
            where = f"{one.detail.get('pool', '')} to {one.detail.get('to', '')}"
            print(f"\n  job {one.job}, {one.kind} {where}: predicted {one.predicted:.3g} s, ", end="")
            print(f"measured {one.measured:.3g} s" if one.measured is not None else one.void, end="")
        whole = [(one.predicted, one.measured) for one in moves if one.kind != "pause" and one.measured]
        if whole:
            errors = [abs(predicted / measured - 1) for predicted, measured in whole]
            print(f"\n  predicted with a median error of {median(errors):.0%} (n = {len(errors)})", end="")
