"""Rows of jobs, and the lines above them, as wide as the terminal."""

from __future__ import annotations

from typing import Any, NamedTuple

from scheduler.jobs.sizes import memory_text
from tenbin.commands.jobs.columns import HEADINGS, cell, since_s
from tenbin.commands.top.lines import Line, Piece, fit
from tenbin.text import number

STYLES = {"running": "green", "suspended": "yellow", "failed": "red", "killed": "red"}
WIDE = 110  # from so many cells on the place has a column
RIGHT = ("id", "cores", "since_s")


class Column(NamedTuple):
    """A column of the list, and its width in cells."""

    name: str
    width: int


def columns(width: int, *, users: bool) -> list[Column]:
    """Choose the columns of a list that is so many cells wide."""
    names = min(max(width - 64 - 11 * users, 12), 32)
    found = [Column("id", 9), *([Column("user", 10)] if users else []), Column("name", names)]
    found += [Column("stage", 9), Column("cores", 5), Column("since_s", 10)]
    found += [Column("place", 12)] if width >= WIDE else []
    rest = width - 2 - sum(column.width + 1 for column in found)
    return [*found, Column("trouble", max(rest, 0))]


def headings(width: int, *, users: bool) -> Line:
    """Write the names of the columns."""
    texts = [
        fit(HEADINGS.get(column.name, column.name), column.width, right=column.name in RIGHT)
        for column in columns(width, users=users)
    ]
    return ((fit("  " + " ".join(texts), width), "bold underline"),)


def row_line(row: dict[str, Any], width: int, now: float, *, here: bool, marked: bool, users: bool) -> Line:
    """Write one job. ``here``: the cursor is on it."""
    row = {**row, "since_s": steady_s(since_s(row, now))}
    base = "reverse" if here else ""
    pieces: list[Piece] = [(f"{'>' if here else ' '}{'*' if marked else ' '}", base)]
    for column in columns(width, users=users):
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
