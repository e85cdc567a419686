"""The evaluation ``pairs-on-this-machine``: what it makes of known times; once for real, tiny."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from agent.job_profile import session
from agent.job_profile.pair_trials import RUNS_ALONE, Times
from scheduler.evaluations import pairs_here
from scheduler.evaluations.pairs_here import MeasuredPairs, PairsSize, choices, evaluate, group_s, noise_floor
from tests.agent.job_profile.conftest import compiled_once  # noqa: F401
from tests.support.job_profiles import RUN_S, make_job, samples, shorten_sessions
from tests.support.labs.components import processes_below, require

LAWS = {"a": (0.08, 9.0), "b": (0.06, 8.0), "c": (0.01, 0.5)}  # suffers a GB/s, presses with GB/s


@cache
def world(error: float = 0.0, repetitions: int = 4) -> MeasuredPairs:
    """Jobs whose times beside each other are what their profiles say, times 1 + error."""
    jobs = {
        name: make_job(name, *samples(suffers=suffers, pressure_gbs=presses))
        for name, (suffers, presses) in LAWS.items()
    }
    times = Times()
    for a, (suffers, _) in LAWS.items():
        times.alone[a] = [{"wall": RUN_S, "cpu": RUN_S}] * RUNS_ALONE * repetitions
        for b, (_, presses) in LAWS.items():
            slowed = RUN_S * (1 + suffers * presses) * (1 + error)
            times.beside[a, b] = [{"wall": slowed, "cpu": slowed}] * repetitions
    return MeasuredPairs(jobs, times)


def test_errors_are_those_that_were_put_in() -> None:
    seen = world(error=0.25)
    assert pairs_here._errors(seen, seen.predicted) == pytest.approx([-20.0] * 9)
    truth = [100 * (1 / (1.25 * (1 + s * p)) - 1) for s, _ in LAWS.values() for _, p in LAWS.values()]
    assert pairs_here._errors(seen, lambda a, b: 1.0) == pytest.approx(truth)
    assert noise_floor(seen) == pytest.approx([0.0] * 9)


@pytest.mark.parametrize(("slowed", "quiet"), [((0.5, -1.0, 2.0), True), ((8.0, -20.0, 30.0), False)])
def test_where_nothing_disturbs_it_is_said(slowed: tuple[float, ...], quiet: bool) -> None:
    said = pairs_here.remarks(world().jobs, slowed, (3.0, -4.0, 5.0))
    assert any("do not disturb each other" in remark for remark in said) == quiet


def test_bandwidths_that_fit_together_slow_nobody_down() -> None:
    """Memprobe writes 10 GB/s, and 10 / 1.5 beside itself: 13.3 GB/s in all; a and b want 17."""
    seen = world()
    assert seen.bandwidths("a", "b") == pytest.approx(17 / (20 / 1.5))
    assert seen.bandwidths("b", "c") == 1.0


def test_the_best_pairs_are_the_best_of_all_ways_and_matching_finds_them() -> None:
    seen = world()
    chosen = choices(seen)
    best_s = chosen[pairs_here.BEST][1]
    assert all(best_s <= seconds + 1e-9 for _, seconds in chosen.values())
    assert chosen[pairs_here.MATCHING][1] == pytest.approx(best_s)
    # a + c, a + c, b + b or the like: by hand, over the 5 different ways.
    ways = [
        [("a", "a"), ("b", "b"), ("c", "c")],
        [("a", "a"), ("b", "c"), ("b", "c")],
        [("a", "b"), ("a", "b"), ("c", "c")],
        [("a", "b"), ("a", "c"), ("b", "c")],
        [("a", "c"), ("a", "c"), ("b", "b")],
    ]
    assert best_s == pytest.approx(
        min(sum(group_s(seen, a, b, seen.measured) for a, b in way) for way in ways)
    )
    assert pairs_here.regret(75.0, 100.0) == 25.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tiny_kernels_are_really_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "two CPUs")
    monkeypatch.setattr("agent.measured_node.NAME", f"tenbin-{os.getpid()}")
    shorten_sessions(monkeypatch)
    for name, value in {"WARM_UP": 1, "QUICK_REFERENCES": (1, 1)}.items():
        monkeypatch.setattr(session, name, value)
    tiny = PairsSize({"cg": "S", "mg": "S"}, 0.1, 1, 60.0, quick=True, sessions=2)
    monkeypatch.setitem(pairs_here.SIZES, "small", tiny)
    monkeypatch.delenv("TENBIN_HOSTS", raising=False)
    found = evaluate("small", lambda done, of, what: None)
    kernels, pairs, errors, chosen = found.tables
    assert [row[0] for row in kernels.rows] == ["cg", "mg"]
    assert [row[0] for row in pairs.rows] == ["cg", "mg"] and [len(row) for row in pairs.rows] == [3, 3]
    assert pairs.columns == ("of", "beside cg", "beside mg")
    for predicted, measured, *interval in (cell for row in pairs.rows for cell in row[1:]):  # type: ignore[misc]
        assert predicted > 0 and measured > 0 and interval == [None, None]  # of two runs there is none
    assert "n = 2 each" in pairs.title  # once in each of two sessions
    assert len(errors.rows) == 4 and len(chosen.rows) == 7
    assert any("median error" in finding.what for finding in found.findings)
    assert not processes_below()
