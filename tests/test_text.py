"""Numbers as people read them."""

from __future__ import annotations

import pytest

from profiles.records import Quality
from tenbin.text import duration, interval, number, value_with_unit
from tests.factory import make_coefficient


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12.345, "12.3"),
        (0.00034, "0.00034"),
        (45678.0, "45678"),
        (1.2e-7, "1.20e-07"),
        (None, "-"),
        (-3.0, "-3"),
    ],
)
def test_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("low", "high", "quality", "value_text", "interval_text"),
    [
        (9.0, 11.0, Quality.GOOD, "10 GB/s", "9 .. 11"),
        (9.0, None, Quality.NOISY, ">= 9 GB/s", "9 .."),
        (None, 11.0, Quality.NOISY, "<= 11 GB/s", ".. 11"),
        (9.0, None, Quality.POOR, "not known", "9 .."),
        (None, None, Quality.POOR, "10 GB/s", "unknown"),
    ],
)
def test_a_bound_is_shown_as_a_bound(
    low: float | None, high: float | None, quality: Quality, value_text: str, interval_text: str
) -> None:
    coefficient = make_coefficient(10.0, low, high, quality=quality)
    assert (value_with_unit(coefficient), interval(coefficient)) == (value_text, interval_text)


def test_durations() -> None:
    assert [duration(s) for s in (-1, 8.4, 59.6, 65, 600)] == [
        "0 s",
        "8 s",
        "1:00 min",
        "1:05 min",
        "10:00 min",
    ]
