"""``tenbin history``: what jobs used.

CPU time, memory and energy; how much that is of what they asked for, and what to ask for next time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from profiles.errors import BadInput
from profiles.quantities import counted, duration, number
from scheduler.jobs.literals import memory_text
from tenbin.commands.jobs import jobs
from tenbin.commands.jobs.account import NO_ENERGY
from tenbin.commands.options import HomeOption, JsonOption, client_of
from tenbin.option_values import past_instant
from tenbin.text import print_json

COLUMNS = (
    *("id", "array", "array_index", "name", "user", "slurm", "stage", "submit_s", "start_s", "end_s"),
    *("elapsed_s", "running_s", "cores", "cpu_s", "cpu_efficiency", "memory_asked_mb", "peak_memory_mb"),
    *("memory_efficiency", "energy_j", "emulated", "place", "hosts", "attempts", "migrations"),
    *("preemptions", "time_limit_s", "code", "signal", "held_by_user", "trouble"),
)
GPU_COLUMNS = (*jobs.GPU_COLUMNS, "gpu_efficiency")  # where a job has GPUs
SHOWN_COLUMNS = (
    *("id", "name", "stage", "elapsed_s", "cores", "cpu_s", "cpu_efficiency", "peak_memory_mb"),
    *("memory_asked_mb", "energy_j", "gpus_asked", "gpus_used", "peak_gpu_memory_mb", "gpu_energy_j"),
    *("place", "migrations", "attempts", "code"),
)
UNSAID: dict[str, Any] = {  # not worth a column
    **dict.fromkeys(("memory_asked_mb", "energy_j", *jobs.GPU_COLUMNS)),
    **{"migrations": 0, "attempts": 1},
}
STAGES = ("running", "stopping", "suspended", "done", "failed", "cancelled", "killed")


def history(
    which: jobs.OfJobs = None,
    *,
    stage: jobs.StageOption = None,
    name: jobs.NameOption = None,
    user: jobs.UserOption = None,
    since: str | None = None,
    until: str | None = None,
    place: jobs.PlaceOption = None,
    array: Annotated[int | None, typer.Option(min=1)] = None,
    efficiency: bool = False,
    columns: str | None = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"At most this many, the last ones. (default: {jobs.SHOWN}; CSV, JSON, --efficiency: all)",
        ),
    ] = None,
    csv: jobs.CsvOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Show what jobs used: CPU time, memory, energy, place; those that run, and those that have ended.

    Args:
        since: Not ended before: 2h (ago), yesterday, 2026-11-20.
        until: Submitted by then.
        array: Only of this array.
        efficiency: How much that is of cores, memory and time limit, with advice; of all jobs.
        columns: Only these: id,name,cpu_s; 'help' lists all.
    """
    chosen = jobs.chosen_columns(columns, COLUMNS + GPU_COLUMNS, "history")
    jobs.check_formats(csv=csv, json=json)
    request: dict[str, Any] = {
        "stages": jobs.chosen_stages(stage, STAGES),
        "name": name,
        "user": user,
        "since_s": None if since is None else past_instant(since, "--since"),
        "until_s": None if until is None else past_instant(until, "--until"),
        "place": place,
        "array": array,
        "limit": None if which else limit or (None if efficiency or csv or json else jobs.SHOWN),
    }
    client = client_of(home)
    if which:
        request["ids"] = jobs.known(client, which)
    rows = client.call("POST", "/history", request)
    shown = COLUMNS + GPU_COLUMNS * _with_gpus(rows)
    if efficiency:
        _print_efficiency(rows, csv=csv, json=json)
    elif not jobs.print_rows(rows, chosen or shown, csv=csv, json=json):
        said = {c for c in SHOWN_COLUMNS if any(row[c] != UNSAID.get(c, row) for row in rows)}
        jobs.print_table(rows, chosen or tuple(c for c in SHOWN_COLUMNS if c in said))
        if rows and not chosen and "energy_j" not in said:
            print(NO_ENERGY)
        if len(rows) == request["limit"]:
            print(f"the last {len(rows)} are shown; more: --limit")


# -- ``--efficiency`` --------------------------------------------------------------------------------------


ENOUGH = 0.5  # of what was asked for: less is worth a sentence
ROOM = 1.25  # of what was used, to ask for next time
SHORTEST_S = 10.0  # a shorter run says little about cores
LEAST_MB = 100.0  # less memory is in nobody's way
LEAST_LIMIT_S = 600.0
QUANTILES = {"min": 0.0, "q10": 0.1, "median": 0.5, "q90": 0.9, "max": 1.0}
TABLE = ("share", "jobs", *QUANTILES)
SHARES = {
    "cpu": ("cpu_efficiency", "CPU time of run time x cores", "their use was not recorded"),
    "memory": ("memory_efficiency", "memory used of asked", "none asked for memory, or too short to see it"),
    "time": ("time_share", "run time of limit", "none had a limit (--time)"),
    "gpus": ("gpu_efficiency", "GPUs at work of asked", "no counter of the GPUs could be read"),
}


def _print_efficiency(rows: Sequence[Mapping[str, Any]], *, csv: bool, json: bool) -> None:
    """Say how much of cores, memory and time limit jobs used, with advice; of several jobs quantiles."""
    ended = [row for row in rows if row["end_s"] is not None and row["elapsed_s"] is not None]
    if not ended:
        raise BadInput("none of these jobs has run and ended", "tenbin info shows what a running job uses")
    by_share = shares(ended)
    if json:
        print_json({"jobs": len(ended), **by_share, "advice": advice(ended)})
        return
    if csv:
        lines = [{"share": key, "jobs": len(ended), **(share or {})} for key, share in by_share.items()]
        jobs.print_csv([{**dict.fromkeys(TABLE), **line} for line in lines], TABLE)
        return
    left_out = f"; {len(rows) - len(ended):,} left out, which have not run and ended"
    print(f"{len(ended):,} job{'s' * (len(ended) != 1)}{left_out * (len(rows) > len(ended))}")
    for key, share in by_share.items():
        _, words, unknown = SHARES[key]
        print(f"  {words}: {_share_words(share) if share else f'not known: {unknown}'}")
    for sentence in advice(ended):
        print(f"  {sentence}")


def shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float] | None]:
    """Return the least, the 10, 50 and 90 % quantiles and the most of each share; None: of none known."""
    fields = {key: field for key, (field, *_) in SHARES.items() if key != "gpus" or _with_gpus(rows)}
    return {key: quantiles([_share(row, field) for row in rows]) for key, field in fields.items()}


def _with_gpus(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row["gpus_asked"] for row in rows)


def quantiles(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return quantiles by nearest rank of what is known."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return {name: known[max(math.ceil(share * len(known)) - 1, 0)] for name, share in QUANTILES.items()}


def advice(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in a sentence each what to ask for next time; of several jobs the one that used most counts."""
    cores = _count(rows, "cpu_efficiency", "cores", unit="core", option="-n tasks x -c cores")
    gpus = _count(rows, "gpu_efficiency", "gpus_asked", unit="GPU", option="--gpus")
    return [sentence for sentence in (cores, _memory(rows), _limit(rows), gpus) if sentence]


def _count(rows: Sequence[Mapping[str, Any]], share: str, size: str, *, unit: str, option: str) -> str:
    known = [row for row in rows if row[share] is not None and row["running_s"] >= SHORTEST_S]
    requested = max((row[size] for row in known), default=1)
    used = max((row[share] * row[size] for row in known), default=0.0)
    fit = max(math.ceil(used - 0.1), 1)
    if not known or fit > ENOUGH * requested:
        return ""
    return f"used {number(used)} of {counted(requested, unit)}: {fit} would do ({option})"


def _memory(rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row for row in rows if row["memory_efficiency"] is not None and row["stage"] == "done"]
    requested = max((row["memory_asked_mb"] for row in known), default=0.0)
    used = max((row["peak_memory_mb"] for row in known), default=0.0)
    if requested < LEAST_MB or used > ENOUGH * requested:
        return ""
    fit_mb = max(math.ceil(used * ROOM / LEAST_MB) * LEAST_MB, LEAST_MB)
    if fit_mb >= requested:
        return ""
    comparison = f"asked for {memory_text(requested)}, used {memory_text(used)}"
    return f"{comparison}: ask for {memory_text(fit_mb)} in all (--memory is of a task)"


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


def _share_words(share: Mapping[str, float]) -> str:
    if share["min"] == share["max"]:
        return f"{share['median']:.0%}"
    low, middle, high = (f"{share[name]:.0%}" for name in ("q10", "median", "q90"))
    return f"{middle} ({low} .. {high} in 8 of 10 jobs)"
