"""``tenbin history``: use of CPU, memory and energy by jobs that have begun or ended."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tenbin.commands.jobs.columns import (
    SHOWN,
    CsvOption,
    NameOption,
    PlaceOption,
    StateOption,
    UserOption,
    check_formats,
    chosen_columns,
    chosen_states,
    print_csv,
    print_table,
)
from tenbin.commands.options import HomeOption, JsonOption, complete_job
from tenbin.text import print_json

COLUMNS = (
    *("id", "array", "array_index", "name", "user", "slurm", "stage", "submit_s", "start_s", "end_s"),
    *("elapsed_s", "running_s", "cores", "cpu_s", "cpu_efficiency", "memory_asked_mb", "peak_memory_mb"),
    *("memory_efficiency", "energy_j", "emulated", "place", "hosts", "attempts", "migrations"),
    *("preemptions", "time_limit_s", "code", "signal", "held_by_user", "trouble"),
)
SHOWN_COLUMNS = (
    *("id", "name", "stage", "elapsed_s", "cores", "cpu_s", "cpu_efficiency", "peak_memory_mb"),
    *("memory_asked_mb", "energy_j", "place", "migrations", "attempts", "code"),
)
UNSAID = {"memory_asked_mb": None, "energy_j": None, "migrations": 0, "attempts": 1}  # not worth a column
STATES = ("running", "stopping", "suspended", "done", "failed", "cancelled", "killed")


def history(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            help="Jobs and arrays: 7, 7[3], 3-9.", metavar="[JOB]...", autocompletion=complete_job
        ),
    ] = None,
    *,
    state: StateOption = None,
    name: NameOption = None,
    user: UserOption = None,
    since: Annotated[
        str | None, typer.Option(help="Not ended before: 2h (ago), yesterday, 2026-11-20.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Submitted by then.")] = None,
    place: PlaceOption = None,
    array: Annotated[int | None, typer.Option(min=1, help="Only of this array.")] = None,
    columns: Annotated[str | None, typer.Option(help="Only these: id,name,cpu_s; 'help' lists all.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, the last ones.")] = SHOWN,
    csv: CsvOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show what jobs used: CPU time, memory, energy, place; those that run, and those that have ended."""
    from tenbin.client.client import Client
    from tenbin.commands.jobs.selection import select
    from tenbin.option_values import past_instant

    chosen = chosen_columns(columns, COLUMNS, "history")
    if columns == "help":
        print("\n".join(COLUMNS))
        return
    check_formats(csv=csv, json=json)
    wanted: dict[str, Any] = {
        "stages": chosen_states(state, STATES),
        "name": name,
        "user": user,
        "since_s": None if since is None else past_instant(since, "--since"),
        "until_s": None if until is None else past_instant(until, "--until"),
        "place": place,
        "array": array,
        "limit": None if which else limit,
    }
    client = Client(home)
    if which:
        wanted["ids"] = select(client, which, members=False).ids
    rows = client.call("POST", "/history", wanted)
    told = [{column: row[column] for column in chosen or COLUMNS} for row in rows]
    if json:
        print_json(told)
    elif csv:
        print_csv(told, chosen or COLUMNS)
    else:
        said = {c for c in SHOWN_COLUMNS if any(row[c] != UNSAID.get(c, row) for row in rows)}
        print_table(rows, chosen or tuple(c for c in SHOWN_COLUMNS if c in said))
