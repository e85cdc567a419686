"""Values of sbatch's options, as Slurm 22.05 was seen to read them (scontrol show job)."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from scheduler.jobs.literals import instant_s, limit_s
from tenbin.commands.jobs.sbatch import (
    adjustment,
    array_indices,
    dependencies,
    exported_variables,
    node_range,
    output_pattern,
)

NOW = datetime(2026, 11, 24, 1, 9, 12)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("30", 30),
        ("0:30", 1),
        ("1:30", 2),
        ("1:30:00", 90),
        ("1-", 1440),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("2-0:0:1", 2881),
        ("0", None),
        ("INFINITE", None),
        ("unlimited", None),
        ("-1", None),
        ("100:90", 102),
        ("1-25", 2940),
        ("24:00:00", 1440),
        ("0:61", 2),
    ],
)
def test_limits(text: str, minutes: int | None) -> None:
    assert limit_s(text) == (None if minutes is None else minutes * 60)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("16:00", "2026-11-24T16:00:00"),
        ("now+1hour", "2026-11-24T02:09:12"),
        ("now+60", "2026-11-24T01:10:12"),
        ("now+2days", "2026-11-26T01:09:12"),
        ("now+5 minutes", "2026-11-24T01:14:12"),
        ("now + 2 hours", "2026-11-24T03:09:12"),
        ("now+1week", "2026-12-01T01:09:12"),
        ("2030-01-20T12:34:00", "2030-01-20T12:34:00"),
        ("2030-01-20", "2030-01-20T00:00:00"),
        ("010130", "2030-01-01T00:00:00"),
        ("01/02/30", "2030-01-02T00:00:00"),
        ("01/02", "2027-01-02T00:00:00"),
        ("noon", "2026-11-24T12:00:00"),
        ("midnight", "2026-11-25T00:00:00"),
        ("fika", "2026-11-24T15:00:00"),
        ("teatime", "2026-11-24T16:00:00"),
        ("tomorrow", "2026-11-25T00:00:00"),
        ("today", None),
        ("now", None),
        ("4:30 PM", "2026-11-24T16:30:00"),
        ("4:30PM", "2026-11-24T16:30:00"),
        ("12:30AM", "2026-11-25T00:30:00"),
        ("noon tomorrow", "2026-11-25T12:00:00"),
        ("tomorrow 10:00", "2026-11-25T10:00:00"),
        ("16:00tomorrow", "2026-11-25T16:00:00"),
        ("2030-01-20 12:34", "2030-01-20T12:34:00"),
        ("12/31-10:00", "2026-12-31T10:00:00"),
        ("10:00 12/01", "2026-12-01T10:00:00"),
        ("1230", "2026-12-30T00:00:00"),
        ("0130", "2027-01-30T00:00:00"),
        ("00:00:01", "2026-11-25T00:00:01"),
        ("12.31.30", "2030-12-31T00:00:00"),
        ("2020-01-01", None),
        ("1/2/30", "2030-01-02T00:00:00"),
    ],
)
def test_instants(text: str, at: str | None) -> None:
    assert instant_s(text, NOW) == (None if at is None else datetime.fromisoformat(at).timestamp())


BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"  # on 25 October 2026 the clocks show 02:00 to 03:00 twice


@pytest.mark.parametrize(
    ("now", "text", "at"),
    [  # in UTC; the second 02:xx hour of local time begins at 01:00
        ("2026-10-25T00:10", "02:30", "2026-10-25T00:30"),
        ("2026-10-25T00:40", "02:30", "2026-10-25T01:30"),
        ("2026-10-25T01:10", "02:30", "2026-10-25T01:30"),
        ("2026-10-25T01:10", "02:30 10/25", "2026-10-25T01:30"),
        ("2026-10-25T01:10", "2026-10-25T02:30", "2026-10-25T01:30"),
        ("2026-10-25T01:40", "02:30", "2026-10-26T01:30"),
        ("2026-10-25T01:40", "2026-10-25T02:30", None),
        ("2026-10-25T01:10", "03:00", "2026-10-25T02:00"),
        ("2026-10-25T01:10", "now+30", "2026-10-25T01:10:30"),
        ("2026-03-28T23:00", "02:30", "2026-03-29T01:30"),  # clocks skip this hour: an hour later
        ("2028-01-01T00:00", "02/29", "2028-02-28T23:00"),
    ],
)
def test_instants_where_clocks_are_set_back(
    now: str, text: str, at: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", BERLIN)
    time.tzset()
    try:
        found = instant_s(text, datetime.fromtimestamp(datetime.fromisoformat(f"{now}Z").timestamp()))
        assert found == (None if at is None else datetime.fromisoformat(f"{at}Z").timestamp())
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    [
        "4PM",
        "13PM",
        "2030-01-20T12",
        "now+1h",
        "now+1min",
        "now+1month",
        "+1hour",
        "31.12.30",
        "2030-1-2",
        "1700000000",
        "uptime",
        "24:00",
    ],
)
def test_what_is_no_instant(text: str) -> None:
    with pytest.raises(ValueError):
        instant_s(text, NOW)


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [
        ("0-15%4", list(range(16)), 4),
        ("1,3,5-7", [1, 3, 5, 6, 7], None),
        ("0-100:4", list(range(0, 101, 4)), None),
        ("1,1,2", [1, 2], None),
        ("3,1", [1, 3], None),
        ("0-3%0", [0, 1, 2, 3], None),
        ("[1-3]", [1, 2, 3], None),
        ("1-4,8-10:2%3", [1, 2, 3, 4, 8, 10], 3),
        ("1-3,2-5", [1, 2, 3, 4, 5], None),
        ("1-3%", [1, 2, 3], None),
    ],
)
def test_arrays(text: str, indices: list[int], limit: int | None) -> None:
    assert array_indices(text) == (indices, limit)


def test_an_array_beyond_all_bounds_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="at most 100,000"):
        array_indices("0-999999999")


def test_dependencies() -> None:
    assert dependencies("afterok:20:21,afterany:23") == {"after": [20, 21], "after_any": [23]}
    assert dependencies("AfterOK:2:2") == {"after": [2]}
    assert dependencies("7") == {"after_any": [7]}
    assert dependencies("aftercorr:7,afternotok:8,afterok:9_*") == {
        "after_corr": [7],
        "after_not_ok": [8],
        "after": [9],
    }


def test_other_values() -> None:
    assert node_range("1k") == (1024, 1024) and node_range("2-4") == (2, 4)
    assert (adjustment(None), adjustment("-5")) == (100, -5)
    assert exported_variables("ALL,A=1,B", {"B": "2", "C": "3"}) == (True, {"A": "1", "B": "2"})
    assert exported_variables("A='x,y',D", {}) == (False, {"A": "x,y"})


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("%x_%A_%a.out", "%x_%A_%a.out"),
        ("a%4j", "a%4j"),
        ("none", "/dev/null"),
        ("%u-%J", "me-%j"),
        ("%n%t%s", "00batch"),
        ("50%%", "50%%"),
        ("%q", "%%q"),
        (r"a\%j", "a%%j"),
        ("x%", "x%%"),
    ],
)
def test_output_patterns(text: str, pattern: str) -> None:
    assert output_pattern(text, "me") == pattern
