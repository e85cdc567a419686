"""Durations and sizes in words. The truth of Slurm is sbatch(1), and what Slurm 22.05 was seen to take."""

from __future__ import annotations

import pytest

from scheduler.jobs.literals import UNITS_S, duration_s, resource_text, size_bytes

MINUTE, HOUR, DAY = 60, 3600, 86_400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("45s", 45),
        ("10m", 10 * MINUTE),
        ("10min", 10 * MINUTE),
        ("1.5h", 90 * MINUTE),
        ("2d", 2 * DAY),
        ("1w", 7 * DAY),
        ("1h30m", 90 * MINUTE),
        ("1d 12h", 36 * HOUR),
        ("1H30M", 90 * MINUTE),
        ("2 days", 2 * DAY),
        ("1 hour 5 minutes", 65 * MINUTE),
        (" 90s ", 90),
        ("1:30", 90),
        ("90:00", 90 * MINUTE),
        ("1:30:00", 90 * MINUTE),
        ("100:00:00", 100 * HOUR),
        ("1-12", 36 * HOUR),
        ("1-12:30", 36 * HOUR + 30 * MINUTE),
        ("2-12:00", 60 * HOUR),
        ("2-12:00:05", 60 * HOUR + 5),
        ("0:00", 0),
        ("0", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "-", ":", "s", "soon", "1:99", "1:60:00", "1:00:60", "1-24", "1-0:60", "1-0:0:60"),
        *("5ms", "10x", "1h30", "30m1h", "1h1h", "1h-30m", "-5", "+5", "1e3", "1,5h", "1:2:3:4", "1.5:00"),
        *("inf", "nan", "9" * 400, "1" * 40 + "!", "1h" * 5000),
    ],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="write for instance"):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "minutes"), [("30", 30), ("1:30", 1.5), ("0:90", 1.5), ("1-25", 49 * 60), ("100:90", 101.5)]
)
def test_a_limit_of_slurm(text: str, minutes: float) -> None:
    assert duration_s(text, slurm=True) == minutes * 60


def test_units_are_those_that_people_write() -> None:
    assert {UNITS_S[word] for word in ("s", "second", "seconds")} == {1}
    assert {UNITS_S[word] for word in ("w", "week", "weeks")} == {7 * DAY}
    assert "ms" not in UNITS_S and "month" not in UNITS_S


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500", 500e6),
        ("500K", 500e3),
        ("500M", 500e6),
        ("2g", 2e9),
        ("2GB", 2e9),
        ("1.5 TB", 1.5e12),
        ("1T", 1e12),
        ("2Gi", 2 * 2**30),
        ("2gib", 2 * 2**30),
        ("3KiB", 3 * 2**10),
        ("1Ti", 2**40),
    ],
)
def test_sizes(text: str, number: float) -> None:
    assert size_bytes(text) == number


@pytest.mark.parametrize(
    ("text", "number"), [("500", 500 * 2**20), ("2G", 2**31), ("4k", 4096), ("1.5M", 1572864)]
)
def test_sizes_of_slurm(text: str, number: float) -> None:
    assert size_bytes(text, slurm=True) == number


@pytest.mark.parametrize("text", ["", "G", "2X", "2 Gigs", "-1G", "1e9", "2iB", "1,5G", "1" * 40])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="write for instance"):
        size_bytes(text)


@pytest.mark.parametrize(
    ("resource", "amounts", "words"),
    [
        ("cores", (1.0,), "1 core"),
        ("cores", (0.0, 2.0), "0 of 2 cores"),
        ("memory_mb", (24_700.0, 25_314.2), "24.7 of 25.31 GB memory"),
        ("memory_mb", (500.0,), "500 MB memory"),
        ("gpu", (1.0, 4.0), "1 of 4 GPUs"),
        ("gpu:a100", (1.0,), "1 a100 GPU"),
        ("gpu:a100", (3.0,), "3 a100 GPUs"),
        ("licences", (1.0, 2.0), "1 of 2 licences"),
    ],
)
def test_resources_as_people_say_them(resource: str, amounts: tuple[float, ...], words: str) -> None:
    assert resource_text(resource, *amounts) == words
    assert words.startswith(resource_text(resource, *amounts, named=False) + " ")
