"""Rows of jobs, and the lines above them, as wide as the terminal."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.cells import cell_len

from scheduler.jobs.literals import memory_text
from tenbin.commands.jobs.columns import HEADINGS, cell, since_s
from tenbin.commands.top.lines import Line, Piece, fit
from tenbin.text import label, number, printable

STYLES = {"running": "green", "suspended": "yellow", "failed": "red", "killed": "red"}
WIDE = 110  # from so many cells on the place has a column
LONGEST_NAME = 24  # cells, of 80
RIGHT = ("id", "cores", "since_s")


class Column(NamedTuple):
    """A column of the list, and its width in cells."""

    name: str
    width: int


def columns(rows: list[dict[str, Any]], width: int) -> list[Column]:
    """Choose the columns for these jobs in so many cells; job and name are as wide as they need."""
    users = [Column("user", 10)] if any(row["slurm"] for row in rows) else []
    place = [Column("place", 12)] if width >= WIDE else []
    fixed = [Column("stage", 9), Column("cores", 5), Column("since_s", 10), *place]
    ids = max((len(label(row)) for row in rows), default=0)
    names = max((cell_len(printable(row["name"][:width])) for row in rows), default=0)
    names = min(max(names, 8), LONGEST_NAME + max(width - 80, 0) // 2)
    found = [Column("id", max(ids, 4)), *users, Column("name", names), *fixed]
    rest = width - 2 - sum(column.width + 1 for column in found)
    return [*found, Column("trouble", max(rest, 0))]


def headings(shown: list[Column], width: int) -> Line:
    """Write the names of the columns."""
    texts = [
        fit(HEADINGS.get(column.name, column.name), column.width, right=column.name in RIGHT)
        for column in shown
    ]
    return ((fit("  " + " ".join(texts), width), "bold underline"),)


def row_line(
    row: dict[str, Any], shown: list[Column], now: float, *, here: bool = False, marked: bool = False
) -> Line:
    """Write one job. ``here``: the cursor is on it."""
    row = {**row, "since_s": steady_s(since_s(row, now))}
    base = "reverse" if here else ""
    pieces: list[Piece] = [(f"{'>' if here else ' '}{'*' if marked else ' '}", base)]
    for column in shown:
        style = f"{base} {STYLES.get(row['stage'], '')}".strip() if column.name == "stage" else base
        text = fit(cell(row, column.name), column.width, right=column.name in RIGHT)
        pieces += [(text, style), (" ", base)]
    return tuple(pieces[:-1])


def steady_s(seconds: int) -> int:
    """Round down to 10 s from a minute on: a row that is drawn each second fills a slow line."""
    return seconds if seconds < 60 else seconds - seconds % 10


def state_lines(state: dict[str, Any], listed: str, width: int) -> list[Line]:
    """Write the coordinator's state in three lines, of which the last one says what is listed."""
    counts = ", ".join(f"{count:,} {stage}" for stage, count in state["jobs"].items() if count) or "no jobs"
    used = [f"{one['name']} {number(one['used'])} of {number(one['total'])}" for one in state["in_use"]]
    if memory := state["memory"]:
        used.append(f"memory {memory_text(memory['set_aside_mb'])} of {memory_text(memory['total_mb'])}")
    if power := state["power"]:
        used.append(f"power {power['allotted_w']:g} of {power['budget_w']:g} W")
    return [
        (("tenbin top", "bold"), (fit(f"  policy {state['policy']}; {counts}", width - 10), "")),
        ((fit(f"in use: {', '.join(used)}", width), ""),),
        ((fit(listed, width), ""),),
    ]
