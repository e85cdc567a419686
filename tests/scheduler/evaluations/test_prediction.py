"""The evaluation of predictions: what is known when, on a log worked by hand, and on one of a known law."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from profiles.errors import BadInput
from scheduler.evaluations import EVALUATIONS, evaluate, prediction
from scheduler.evaluations.prediction import LogCase, look, predicted, waits_of
from scheduler.model.jobs import Job
from scheduler.simulator.trace import Arrival

pytestmark = pytest.mark.computes


def arrival(number: int, submit: float, run: float, user: str = "7", *, request: float = 1000.0) -> Arrival:
    return Arrival(Job(number, submit, 4, request, user), run)


def test_only_what_has_ended_is_known() -> None:
    """Job 1 ends at 110 (it waited 10 s), job 2 at 150: job 3 at 120 knows the first only, job 4 both."""
    jobs = [
        arrival(1, 0, 100),
        arrival(2, 50, 100),
        arrival(3, 120, 5),
        arrival(4, 160, 5),
        arrival(5, 160, 5, "8"),
    ]
    rows = predicted(jobs, {1: 10.0})
    assert [row.easy for row in rows] == [1000, 1000, 100, pytest.approx((100 + 5) / 2), 1000]
    assert [row.history for row in rows[:3]] == [1000, 1000, 100] and rows[4].high == math.inf
    other = predicted([arrival(1, 0, 100), arrival(2, 200, 50, request=60.0)], {})
    assert other[1].easy == 60.0 and other[1].history == 60.0  # never above the request


def test_a_log_of_known_habits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each user has two programs, told apart by their requests: tenbin knows them, EASY++ mixes them."""
    rng = np.random.default_rng(2)
    lines = []
    for number in range(1, 1201):
        user, long = int(rng.integers(4)), bool(rng.integers(2))
        run = (3000 if long else 60) * math.exp(rng.normal(0, 0.2))
        request = 10_000 if long else 900
        lines.append(
            f"{number} {400 * number} 0 {run:.0f} 8 -1 -1 8 {request} -1 1 {user + 1} -1 -1 -1 -1 -1 -1\n"
        )
    name = next(iter(prediction.LOGS))
    with gzip.open(tmp_path / name, "wt") as file:
        file.writelines(["; a header\n", *lines])
    monkeypatch.setenv("TENBIN_DATA", str(tmp_path))
    assert waits_of(tmp_path / name)[1200] == 0.0
    found = look(LogCase(name, 1200))
    assert found.accuracy["exact"] == 1.0 and found.short["exact"] == 0.0
    assert found.accuracy["history"] > 0.8 > found.accuracy["easy++"] > found.accuracy["requested"]
    assert found.factor["history"] < 1.3 and found.below == pytest.approx((0.1, 0.9), abs=0.04)
    whole = evaluate("prediction", "small")
    assert len(whole.findings) == 3 and len(whole.tables[0].rows) == 6


def test_without_a_log_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENBIN_DATA", str(tmp_path))
    assert "prediction" in EVALUATIONS
    with pytest.raises(BadInput, match="no log"):
        evaluate("prediction", "small")
