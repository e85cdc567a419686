"""Bounds of speeds against the truth of programs that use memory and arithmetic in shares of any kind."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.speeds import (
    ARITHMETIC,
    MEMORY,
    SpeedBounds,
    all_bounds,
    estimates_on_all,
    run_time_on,
    speed_bounds,
)

RESOURCES = (*MEMORY, *ARITHMETIC)
speeds = st.dictionaries(st.sampled_from(RESOURCES), st.floats(0.1, 1e5), min_size=len(RESOURCES))
widths = st.lists(st.floats(1.0, 2.0), min_size=2 * len(RESOURCES), max_size=2 * len(RESOURCES))
amounts = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e6)), min_size=5, max_size=5).filter(any)


def measured(truth: dict[str, float], width: list[float]) -> dict[str, tuple[float, float]]:
    """Make intervals that hold the truth."""
    pairs = zip(width[::2], width[1::2], strict=True)
    return {
        name: (truth[name] / low, truth[name] * high) for name, (low, high) in zip(truth, pairs, strict=True)
    }


@given(speeds, speeds, widths, amounts)
def test_every_mix_of_memory_and_arithmetic_is_within_the_bounds(
    a: dict[str, float], b: dict[str, float], width: list[float], amount: list[float]
) -> None:
    """The roofline: all at the same time, so that the slowest counts; and one after the other."""
    bounds = speed_bounds(measured(b, width), measured(a, width[::-1]))
    assert bounds is not None
    work = dict(zip(RESOURCES, amount, strict=True))
    for together in (max, sum):
        on_a, on_b = (together(work[name] / speed[name] for name in RESOURCES) for speed in (a, b))
        assert bounds.low * (1 - 1e-9) <= on_a / on_b <= bounds.high * (1 + 1e-9)
        told = run_time_on("b", {"a": on_a}, {("b", "a"): bounds})
        assert told is not None
        assert told.low_s * (1 - 1e-9) <= on_b <= told.high_s * (1 + 1e-9)
        assert told.middle_s**2 == pytest.approx(told.low_s * told.high_s)


def test_bounds_worked_out_by_hand() -> None:
    cpu = {"read": (40.0, 50.0), "single": (400.0, 500.0)}
    gpu = {"read": (2000.0, 2000.0), "copy": (1500.0, 1500.0), "single": (40_000.0, 50_000.0)}
    assert speed_bounds(gpu, cpu) == SpeedBounds(40.0, 125.0)
    assert all_bounds({"cpu": cpu, "gpu": gpu})["cpu", "gpu"] == pytest.approx((1 / 125, 1 / 40))
    assert SpeedBounds(4.0, 9.0).middle == 6.0


@pytest.mark.parametrize("known", [{}, {"read": (1.0, 1.0)}, {"single": (1.0, 1.0)}, {"half": (1.0, 1.0)}])
def test_without_memory_or_arithmetic_nothing_is_said(known: dict[str, tuple[float, float]]) -> None:
    whole = {"read": (1.0, 1.0), "single": (1.0, 1.0)}
    assert speed_bounds(known, whole) is speed_bounds(whole, known) is None
    assert all_bounds({"a": known, "b": whole}) == {}


def test_the_nearest_bounds_of_several_devices_count() -> None:
    ratios = {("c", "a"): SpeedBounds(1.0, 100.0), ("c", "b"): SpeedBounds(2.0, 8.0)}
    told = run_time_on("c", {"a": 10.0, "b": 40.0}, ratios)
    assert told is not None and (told.of, told.low_s, told.middle_s, told.high_s) == ("b", 5.0, 10.0, 20.0)
    assert run_time_on("c", {"a": math.inf}, ratios) is run_time_on("a", {"c": 1.0}, ratios) is None


def test_unknown_run_times_are_those_that_the_figures_tell_else_the_least() -> None:
    ratios = {("c", "a"): SpeedBounds(2.0, 8.0)}
    known = {"a": 40.0, "b": 20.0, "c": math.inf, "d": math.inf}
    assert estimates_on_all(known, ratios) == {"a": 40.0, "b": 20.0, "c": 10.0, "d": 20.0}
    assert estimates_on_all({"a": math.inf}, ratios) == {"a": math.inf}
