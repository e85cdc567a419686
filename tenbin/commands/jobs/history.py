"""``tenbin history``, ``efficiency`` and ``calibration``: what jobs used, and what was predicted of them.

CPU time, memory and energy; how much that is of what they asked for, and what to ask for next time.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from profiles.errors import BadInput
from tenbin.commands.jobs import jobs
from tenbin.commands.options import (
    HomeOption,
    JsonOption,
    StoreOption,
    client_of,
    complete_job,
    complete_selector,
    coordinator_folder,
    names_in,
)
from tenbin.option_values import past_instant
from tenbin.terminal import SafeConsole, table
from tenbin.text import duration, number, print_json, say

if TYPE_CHECKING:
    from profiles.records import Profile
    from scheduler.prediction.predictions import AccuracyRow, TrackedPrediction


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
    state: jobs.StateOption = None,
    name: jobs.NameOption = None,
    user: jobs.UserOption = None,
    since: Annotated[
        str | None, typer.Option(help="Not ended before: 2h (ago), yesterday, 2026-11-20.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Submitted by then.")] = None,
    place: jobs.PlaceOption = None,
    array: Annotated[int | None, typer.Option(min=1, help="Only of this array.")] = None,
    columns: Annotated[str | None, typer.Option(help="Only these: id,name,cpu_s; 'help' lists all.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, the last ones.")] = jobs.SHOWN,
    csv: jobs.CsvOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show what jobs used: CPU time, memory, energy, place; those that run, and those that have ended."""
    chosen = jobs.chosen_columns(columns, COLUMNS, "history")
    if columns == "help":
        print("\n".join(COLUMNS))
        return
    jobs.check_formats(csv=csv, json=json)
    request: dict[str, Any] = {
        "stages": jobs.chosen_states(state, STATES),
        "name": name,
        "user": user,
        "since_s": None if since is None else past_instant(since, "--since"),
        "until_s": None if until is None else past_instant(until, "--until"),
        "place": place,
        "array": array,
        "limit": None if which else limit,
    }
    client = client_of(home)
    if which:
        request["ids"] = jobs.select(client, which, members=False).ids
    rows = client.call("POST", "/history", request)
    if not jobs.print_rows(rows, chosen or COLUMNS, csv=csv, json=json):
        said = {c for c in SHOWN_COLUMNS if any(row[c] != UNSAID.get(c, row) for row in rows)}
        jobs.print_table(rows, chosen or tuple(c for c in SHOWN_COLUMNS if c in said))


# -- ``tenbin efficiency`` ---------------------------------------------------------------------------------


ENOUGH = 0.5  # of what was asked for: less is worth a sentence
ROOM = 1.25  # of what was used, to ask for next time
SHORTEST_S = 10.0  # a shorter run says little about cores
LEAST_MB = 100.0  # less memory is in nobody's way
LEAST_LIMIT_S = 600.0
QUANTILES = {"min": 0.0, "q10": 0.1, "median": 0.5, "q90": 0.9, "max": 1.0}
TABLE = ("share", "jobs", *QUANTILES)
SHARES = {
    "cpu": ("cpu_efficiency", "CPU time of run time x cores"),
    "memory": ("memory_efficiency", "memory used of asked"),
    "time": ("time_share", "run time of limit"),
}


def efficiency(
    which: jobs.Which, csv: jobs.CsvOption = False, home: HomeOption = None, json: JsonOption = False
) -> None:
    """Say how much of cores, memory and time limit jobs used, with advice; of several jobs quantiles."""
    jobs.check_formats(csv=csv, json=json)
    client = client_of(home)
    rows = client.call("POST", "/history", {"ids": jobs.select(client, which, members=False).ids})
    ended = [row for row in rows if row["end_s"] is not None and row["elapsed_s"] is not None]
    if not ended:
        raise BadInput("none of these jobs has run and ended", "tenbin info shows what a running job uses")
    by_share = shares(ended)
    if json:
        print_json({"jobs": len(ended), **by_share, "advice": advice(ended)})
        return
    if csv:
        lines = [{"share": key, "jobs": len(ended), **(by_share[key] or {})} for key in SHARES]
        jobs.print_csv([{**dict.fromkeys(TABLE), **line} for line in lines], TABLE)
        return
    left_out = f"; {len(rows) - len(ended):,} left out, which have not run and ended"
    print(f"{len(ended):,} job{'s' * (len(ended) != 1)}{left_out * (len(rows) > len(ended))}")
    for key, (_, words) in SHARES.items():
        print(f"  {words}: {_share_words(by_share[key])}")
    for sentence in advice(ended):
        print(f"  {sentence}")


def shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float] | None]:
    """Return the least, the 10, 50 and 90 % quantiles and the most of each share; None: of none known."""
    return {key: quantiles([_share(row, field) for row in rows]) for key, (field, _) in SHARES.items()}


def quantiles(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return quantiles by nearest rank of what is known."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return {name: known[max(math.ceil(share * len(known)) - 1, 0)] for name, share in QUANTILES.items()}


def advice(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in a sentence each what to ask for next time; of several jobs the one that used most counts."""
    sentences = (_cores(rows), _memory(rows), _limit(rows))
    return [sentence for sentence in sentences if sentence]


def _cores(rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row for row in rows if row["cpu_efficiency"] is not None and row["running_s"] >= SHORTEST_S]
    requested = max((row["cores"] for row in known), default=1)
    used = max((row["cpu_efficiency"] * row["cores"] for row in known), default=0.0)
    fit = max(math.ceil(used - 0.1), 1)
    if not known or fit > ENOUGH * requested:
        return ""
    return f"used {number(used)} of {requested} cores: {fit} would do (-n tasks x -c cores)"


def _memory(rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row for row in rows if row["memory_efficiency"] is not None and row["stage"] == "done"]
    requested = max((row["memory_asked_mb"] for row in known), default=0.0)
    used = max((row["peak_memory_mb"] for row in known), default=0.0)
    if requested < LEAST_MB or used > ENOUGH * requested:
        return ""
    fit_mb = max(math.ceil(used * ROOM / LEAST_MB) * LEAST_MB, LEAST_MB)
    if fit_mb >= requested:
        return ""
    comparison = f"asked for {_size(requested)}, used {_size(used)}"
    return f"{comparison}: ask for {_size(fit_mb)} in all (--memory is of a task)"


def _limit(rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row for row in rows if _share(row, "time_share") is not None and row["stage"] == "done"]
    limit = max((row["time_limit_s"] for row in known), default=0.0)
    ran = max((row["running_s"] for row in known), default=0.0)
    fit_s = max(math.ceil(ran * ROOM / 60) * 60.0, LEAST_LIMIT_S)
    if not known or fit_s > ENOUGH * limit:
        return ""
    minutes = f"--time {fit_s / 60:.0f}m"
    return f"ran {duration(ran)} of a limit of {duration(limit)}: {minutes} starts sooner under backfill"


def _share(row: Mapping[str, Any], field: str) -> float | None:
    if field == "time_share":
        ran_s, limit_s = row["running_s"], row["time_limit_s"]
        return ran_s / limit_s if limit_s and ran_s is not None else None
    value: float | None = row[field]
    return value


def _share_words(share: Mapping[str, float] | None) -> str:
    if share is None:
        return "not known"
    if share["min"] == share["max"]:
        return f"{share['median']:.0%}"
    low, middle, high = (f"{share[name]:.0%}" for name in ("q10", "median", "q90"))
    return f"{middle} ({low} .. {high} in 8 of 10 jobs)"


def _size(mb: float) -> str:
    return f"{number(mb / 1000)} GB" if mb >= 1000 else f"{number(mb)} MB"


# -- ``tenbin calibration``: what was predicted of jobs, beside what then happened -------------------------


CAPTION = "medians of n outcomes; error: (predicted - measured) / measured; 95 %: so many within"


complete_kind = names_in("scheduler.prediction.predictions:UNITS")


def calibration(
    *,
    kind: Annotated[
        str | None, typer.Option(help="Only these: migration, restart, ...", autocompletion=complete_kind)
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only this many predictions, the last ones.")
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Fit checkpoint costs anew from jobs, into a new profile.")
    ] = False,
    profile: Annotated[
        str, typer.Option(help="With --refit: the profile to begin with.", autocompletion=complete_selector)
    ] = "last",
    home: HomeOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show how good the predictions were: of checkpoints, restarts, moves, suspensions, run times and pairs.

    An error is (predicted - measured) / measured. Predictions follow what is measured by themselves, as long
    as the coordinator's folder is kept. What users stated by --expect is in rows of its own. --refit makes
    what was measured permanent: it stores a new profile, dated, whose checkpoint costs come from jobs; the
    old one stays as it is.

    [bold]Examples[/bold]

      tenbin calibration --kind migration

      tenbin calibration --refit && tenbin up --devices --policy mctbm --profile last
    """
    from scheduler.coordinator.journal.journal import predictions_of
    from scheduler.prediction.predictions import UNITS, summary

    if kind is not None and kind not in UNITS:
        raise BadInput(f"--kind {kind}: no such kind", f"choose from {', '.join(UNITS)}")
    folder = coordinator_folder(home)
    predictions = predictions_of(folder, kind=kind, last=last)
    made = _refit(predictions, folder, profile, store) if refit else None
    rows = summary(predictions)
    if json:
        _print_json(rows, predictions, made)
    elif not predictions:
        print("Nothing was predicted yet: jobs that are moved, suspended, share a node or ran before are.")
    else:
        _print_tables(rows, predictions)
    if made is not None and not json:
        new, path = made
        say(f"\nstored {new.id} ({new.origin}): {path}\nsee: tenbin show last")


def _refit(
    predictions: list[TrackedPrediction], folder: Path, selector: str, store: Path | None
) -> tuple[Profile, Path]:
    """Fit a new profile and store it; return it with its path."""
    import pandas as pd

    from profiles.files.store import Store, load, samples
    from profiles.fits.checkpoint import refitted
    from scheduler.prediction import predictions as calibrating

    in_store = Store(store)
    path = in_store.find(selector)
    old = load(path)
    if old.inventory.hostname != socket.gethostname():
        raise BadInput(
            f"profile {old.id} is of node {old.inventory.hostname}, jobs ran on {socket.gethostname()}",
            "choose one of this node: --profile",
        )
    rows = calibrating.samples([f for f in predictions if f.emulated == old.emulated], str(folder))
    seen = pd.DataFrame(rows, columns=None if rows else ["kind", "emulated"])
    if not rows:
        seen = seen.assign(emulated=pd.Series(dtype=bool))
    created = in_store.free_second(old.node, datetime.now(UTC))
    new, tables = refitted(old, samples(path), seen, created)
    return new, in_store.save(new, tables)


def _print_json(
    rows: list[AccuracyRow], predictions: list[TrackedPrediction], made: tuple[Profile, Path] | None
) -> None:
    from scheduler.prediction.predictions import within_bounds

    answer: dict[str, Any] = {
        "summary": [row.told() for row in rows],
        "forecasts": [prediction.told() for prediction in predictions],
    }
    bounded, inside = within_bounds(predictions)
    if bounded:
        answer["bounded"] = {"n": bounded, "within": inside}
    if made is not None:
        answer["refitted"] = {"profile": made[0].id, "origin": made[0].origin, "path": str(made[1])}
    print_json(answer)


def _print_tables(rows: list[AccuracyRow], predictions: list[TrackedPrediction]) -> None:
    from scheduler.prediction.predictions import parts, within_bounds

    console = SafeConsole()
    columns = ("kind", "where", "n", "predicted", "measured", "error", "95 %", "< 100 %", "worst")
    look = {"padding": (0, 1, 0, 0)}
    errors = table(*columns, left=("kind", "where"), caption=CAPTION, caption_justify="left", **look)
    for column in errors.columns:
        column.no_wrap = True
    for row in rows:
        unit = " s" if row.unit == "s" else ""
        cells = [row.kind, escape(row.place), str(row.n), *("",) * 6]
        if row.n:
            values = (f"{number(row.predicted)}{unit}", f"{number(row.measured)}{unit}")
            shares = (_percent(row.median), _percent(row.p95, ""), _percent(row.within, ""))
            cells[3:] = [*values, *shares, _percent(row.worst)]
        cells[1] += (", stated by users" if row.is_stated else "") + (" EMULATED" if row.emulated else "")
        errors.add_row(*cells)
    console.print(errors)
    counts = {"before anything was known": "blind", "not known yet": "open", "without outcome": "void"}
    others = {text: sum(getattr(row, name) for row in rows) for text, name in counts.items()}
    if remainder := ", ".join(f"{count} {text}" for text, count in others.items() if count):
        console.print(f"beside these: {remainder}")
    for kind in dict.fromkeys(row.kind for row in rows):
        bounded, inside = within_bounds([prediction for prediction in predictions if prediction.kind == kind])
        if bounded:
            console.print(f"{kind}: {inside} of {bounded} outcomes lie within the bounds of their prediction")
    if not (move_parts := parts(predictions)):
        return
    title = "Parts of a move (medians)"
    parts_of = ("part", "n", "predicted", "measured", "difference")
    moves = table(*parts_of, left=("part",), title=title, title_justify="left", **look)
    for part, n, predicted, measured in move_parts:
        moves.add_row(part, str(n), *(f"{number(v)} s" for v in (predicted, measured, predicted - measured)))
    console.print()
    console.print(moves)


def _percent(value: float | None, sign: str = "+") -> str:
    return "" if value is None else f"{value:{sign}.0%}"
