"""Advice on what to ask for, by tables."""

from __future__ import annotations

from typing import Any

import pytest

from tenbin.commands.jobs.history import advice, quantiles, shares


def record(**more: Any) -> dict[str, Any]:
    """Make a job that used all it asked for."""
    values = {"cores": 1, "running_s": 100.0, "elapsed_s": 100.0, "cpu_efficiency": 1.0, "stage": "done"}
    return {
        **values,
        **dict.fromkeys(("memory_efficiency", "memory_asked_mb", "peak_memory_mb", "time_limit_s")),
        **more,
    }


def memory(asked_mb: float, used_mb: float) -> dict[str, Any]:
    return {
        "memory_asked_mb": asked_mb,
        "peak_memory_mb": used_mb,
        "memory_efficiency": used_mb / asked_mb,
    }


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([record()], []),
        ([record(cores=4, cpu_efficiency=0.25)], ["used 1 of 4 cores: 1 would do"]),
        ([record(cores=4, cpu_efficiency=0.25), record(cores=4, cpu_efficiency=0.9)], []),
        ([record(cores=4, cpu_efficiency=0.25, running_s=1.0)], []),
        ([record(cores=4, cpu_efficiency=None)], []),
        ([record(**memory(20_000, 1200))], ["asked for 20 GB, used 1.2 GB: ask for 1.5 GB"]),
        ([record(**memory(20_000, 11_000))], []),
        ([record(**memory(20_000, 1200), stage="failed")], []),
        ([record(**memory(90, 1))], []),
        (
            [record(running_s=180.0, time_limit_s=86_400.0)],
            ["ran 3:00 min of a limit of 24:00 h: --time 10m"],
        ),
        (
            [record(running_s=180.0, elapsed_s=9000.0, time_limit_s=86_400.0)],  # it was paused
            ["ran 3:00 min of a limit of 24:00 h: --time 10m"],
        ),
        ([record(running_s=None, cpu_efficiency=None, time_limit_s=86_400.0)], []),
        ([record(running_s=180.0, time_limit_s=900.0)], []),
        ([record(running_s=180.0, time_limit_s=86_400.0, stage="killed")], []),
    ],
)
def test_advice(rows: list[dict[str, Any]], said: list[str]) -> None:
    found = advice(rows)
    assert len(found) == len(said)
    assert all(sentence.startswith(begin) for sentence, begin in zip(found, said, strict=True))


def test_quantiles_are_by_nearest_rank() -> None:
    found = quantiles([None, *(float(value) for value in range(100, 0, -1))])
    assert found == {"min": 1.0, "q10": 10.0, "median": 50.0, "q90": 90.0, "max": 100.0}
    assert quantiles([None]) is None and quantiles([]) is None


def test_shares_of_what_is_known() -> None:
    found = shares([record(time_limit_s=200.0), record(time_limit_s=None)])
    assert found["time"] is not None and found["time"]["max"] == 0.5
    assert found["memory"] is None
