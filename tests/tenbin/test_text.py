"""Numbers as people read them."""

from __future__ import annotations

import pytest

from profiles.quantities import duration, memory, number
from profiles.records import Quality
from tenbin.text import interval, printable, unwrapped, value_with_unit
from tests.support.records import make_coefficient


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
        (9.0, None, Quality.NOISY, "at least 9 GB/s", "9 .."),
        (None, 11.0, Quality.NOISY, "at most 11 GB/s", ".. 11"),
        (9.0, None, Quality.POOR, "not known", "9 .."),
        (None, None, Quality.POOR, "10 GB/s", "unknown"),
    ],
)
def test_a_bound_is_shown_as_a_bound(
    low: float | None, high: float | None, quality: Quality, value_text: str, *, interval_text: str
) -> None:
    coefficient = make_coefficient(10.0, low, high, quality=quality)
    assert (value_with_unit(coefficient), interval(coefficient)) == (value_text, interval_text)


@pytest.mark.parametrize(
    ("value", "unit", "value_text", "interval_text"),
    [
        (4.87e-5, "s", "48.7 us", "43.8 .. 53.6"),
        (0.0123, "s", "12.3 ms", "11.1 .. 13.5"),
        (0.577, "s", "0.577 s", "0.519 .. 0.635"),
        (3e-10, "s", "0.3 ns", "0.27 .. 0.33"),
        (0.000145, "s/MB", "145 us/MB", "130 .. 160"),
        (139.0, "ns", "139 ns", "125 .. 153"),
        (2098.0, "MB/s", "2.1 GB/s", "1.89 .. 2.31"),
        (81436.0, "KiB", "79.5 MiB", "71.6 .. 87.5"),
        (0.0, "s", "0 s", "0 .. 0"),
    ],
)
def test_a_number_has_the_unit_in_which_people_read_it(
    value: float, unit: str, value_text: str, interval_text: str
) -> None:
    coefficient = make_coefficient(value, 0.9 * value, 1.1 * value, unit=unit)
    assert (value_with_unit(coefficient), interval(coefficient)) == (value_text, interval_text)


def test_memory_is_in_powers_of_two() -> None:
    assert [memory(mb) for mb in (100.0, 25_300.0, 540_000.0)] == ["95 MiB", "23.6 GiB", "503 GiB"]


def test_durations() -> None:
    shown = {
        -1: "0 s",
        1.02e-05: "10.2 us",
        0.0353: "35.3 ms",
        0.451: "0.451 s",
        8.4: "8.4 s",
        59.94: "59.9 s",
        59.96: "1:00 min",
        65: "1:05 min",
        600: "10:00 min",
        3599.4: "59:59 min",
        3599.6: "1:00 h",
        12_000: "3:20 h",
        172_769: "47:59 h",
        172_771: "2 d",
        1_080_000: "12.5 d",
    }
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_text_from_elsewhere_is_harmless() -> None:
    assert printable("a b\n\x1b[2Jé名\u202e\x9b\t") == "a b\\n\\x1b[2Jé名\\u202e\\x9b\\t"


def test_paragraphs_and_items_are_joined_and_examples_are_not() -> None:
    text = """First line
    goes ``on``.

    - an item
      of two lines
    - another
    1. a third

      tenbin one
      tenbin two

    Attributes:
        name: of
            it.
        other: one
    """
    assert unwrapped(text).splitlines() == [
        *("First line goes on.", "", "- an item of two lines", "- another", "1. a third", ""),
        *("  tenbin one", "  tenbin two", "", "Attributes:", "    name: of it.", "    other: one"),
    ]
    assert unwrapped("") == ""
