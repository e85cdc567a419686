"""Table of a job's resource use over time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tenbin.terminal import table
from tenbin.text import number

if TYPE_CHECKING:
    from rich.table import Table

LINES = 25


def sample_table(samples: list[dict[str, Any]], start_s: float | None) -> Table:
    """Make at most ``LINES`` lines, each of the span since the line before; memory is its maximum."""
    metered = any(row["energy_j"] is not None for row in samples)
    columns = ("after", "cores", "memory", "read", "written", "processes", "threads")
    made = table(*columns, *["power"] * metered)
    for before, row in pairwise(_thinned(_from_start(samples, start_s))):
        span = max(row["at_s"] - before["at_s"], 1e-9)
        made.add_row(
            f"{row['at_s'] - (start_s or samples[0]['at_s']):.1f} s",
            f"{(row['cpu_s'] - before['cpu_s']) / span:.2f}",
            f"{row['memory_mb']:.0f} MB",
            f"{number((row['read_mb'] - before['read_mb']) / span)} MB/s",
            f"{number((row['written_mb'] - before['written_mb']) / span)} MB/s",
            str(row["processes"]),
            str(row["threads"]),
            *[f"{number(_power_w(before, row, span))} W"] * metered,
        )
    return made


def used_now(samples: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return what a job uses, between its last two samples; None before the second.

    Returns:
        Cores in use, memory now and at most, rates of I/O in MB/s, power in W (None without a meter).
    """
    if len(samples) < 2:
        return None
    before, row = samples[-2:]
    span = max(row["at_s"] - before["at_s"], 1e-9)
    return {
        "cores": (row["cpu_s"] - before["cpu_s"]) / span,
        "memory_mb": row["memory_mb"],
        "peak_memory_mb": max(each["memory_mb"] for each in samples),
        "read_mb_s": (row["read_mb"] - before["read_mb"]) / span,
        "written_mb_s": (row["written_mb"] - before["written_mb"]) / span,
        "power_w": _power_w(before, row, span),
    }


def _from_start(samples: list[dict[str, Any]], start_s: float | None) -> list[dict[str, Any]]:
    """Add a row of nothing used at the job's start."""
    if start_s is None or not samples:
        return samples
    return [{**dict.fromkeys(samples[0], 0), "at_s": start_s, "energy_j": None}, *samples]


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the first row, and the last of each group of rows, with the most memory in the group."""
    size = max(-(-(len(rows) - 1) // LINES), 1)
    spans = [rows[begin : begin + size] for begin in range(1, len(rows), size)]
    return rows[:1] + [{**span[-1], "memory_mb": max(row["memory_mb"] for row in span)} for span in spans]


def _power_w(before: dict[str, Any], row: dict[str, Any], span: float) -> float | None:
    if row["energy_j"] is None or before["energy_j"] is None:
        return None
    return float((row["energy_j"] - before["energy_j"]) / span)
