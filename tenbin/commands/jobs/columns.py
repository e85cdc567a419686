"""Tables of jobs: options to choose jobs and columns, and the forms of the answer."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

import typer

from profiles.errors import BadInput
from profiles.instants import clock, local
from tenbin.commands.options import complete_place
from tenbin.text import duration, label, number, printable

SHOWN = 50
HEADINGS = {
    "id": "job",
    "since_s": "since",
    "elapsed_s": "elapsed",
    "cpu_s": "CPU\ntime",
    "cpu_efficiency": "CPU\nuse",
    "peak_memory_mb": "used\nMB",
    "memory_asked_mb": "asked\nMB",
    "energy_j": "energy\nJ",
    "migrations": "moves",
    "attempts": "tries",
    "code": "exit",
    "trouble": "",
}

StateOption = Annotated[str | None, typer.Option(help="Only of these: failed,killed.")]
NameOption = Annotated[str | None, typer.Option(help="Only of a name like this: 'fit*'.")]
UserOption = Annotated[str | None, typer.Option(help="Only of this user.")]
PlaceOption = Annotated[
    str | None, typer.Option(help="Only on this device or node.", autocompletion=complete_place)
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV, with a line of names.")]


def check_formats(*, csv: bool, json: bool) -> None:
    """Refuse two forms of one answer."""
    if csv and json:
        raise BadInput("--csv and --json are both given", "give one of them")


def chosen_states(text: str | None, known: tuple[str, ...]) -> list[str]:
    """Read ``failed,killed``; none: empty."""
    found = [part.strip() for part in text.split(",")] if text is not None else []
    if unknown := [part for part in found if part not in known]:
        raise BadInput(f"--state {unknown[0]!r} is no state of these jobs", f"one of {', '.join(known)}")
    return found


def chosen_columns(text: str | None, known: tuple[str, ...], command: str) -> tuple[str, ...]:
    """Read ``id,name``; none, or ``help``: empty."""
    found = tuple(part.strip() for part in text.split(",")) if text not in (None, "help") else ()
    if unknown := [part for part in found if part not in known]:
        raise BadInput(
            f"--columns {unknown[0]!r} is no column", f"tenbin {command} --columns help lists them"
        )
    return found


def print_csv(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print rows as CSV; lists as JSON, nothing for what is not known; control characters escaped."""
    import csv

    writer = csv.writer(sys.stdout)
    writer.writerow(columns)
    for row in rows:
        values = (json_module.dumps(row[c]) if isinstance(row[c], list) else row[c] for c in columns)
        writer.writerow("" if value is None else printable(str(value)) for value in values)


def print_table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print rows as a table for people."""
    from rich.markup import escape

    from tenbin.terminal import SafeConsole, table

    left = ("name", "user", "stage", "place", "hosts", "")
    listed = table(*(HEADINGS.get(column, column) for column in columns), left=left, collapse_padding=True)
    for row in rows:
        listed.add_row(*(escape(printable(cell(row, column))) for column in columns))
    SafeConsole().print(listed)


def since_s(job: dict[str, Any], now: float) -> int:
    """Return the seconds since the job's end, else since its start, else since its submission."""
    begin_s: float = job["end_s"] or job["start_s"] or job["submit_s"]
    return round(now - begin_s)


def cell(row: dict[str, Any], column: str) -> str:
    """Write one value for people."""
    value = row[column]
    if column == "id":
        text = label(row)
    elif column == "trouble":
        counts = ", ".join(f"{stage} {count:,}" for stage, count in row.get("stages", {}).items())
        text = counts or local(value)
    elif value is None or value == []:
        text = "-"
    elif column in ("submit_s", "start_s", "end_s"):
        text = clock(value, date=True)
    elif column.endswith("_s"):
        text = duration(round(value, 2))
    elif column.endswith("efficiency"):
        text = f"{value:.0%}"
    elif isinstance(value, list):
        text = ", ".join(map(str, value))
    else:
        emulated = " (EMULATED)" if column == "energy_j" and row["emulated"] else ""
        text = f"{number(value) if isinstance(value, float) else value}{emulated}"
    return text
