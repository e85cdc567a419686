"""``tenbin efficiency``: how much of what jobs asked for they used, and what to ask for next time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from profiles.errors import BadInput
from tenbin.commands.jobs.columns import CsvOption, check_formats, print_csv
from tenbin.commands.jobs.jobs import Which
from tenbin.commands.options import HomeOption, JsonOption
from tenbin.text import duration, number

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
    which: Which, csv: CsvOption = False, home: HomeOption = None, json: JsonOption = False
) -> None:
    """Say how much of cores, memory and time limit jobs used, with advice; of several jobs quantiles."""
    from tenbin.client.client import Client
    from tenbin.commands.jobs.selection import select
    from tenbin.text import print_json

    check_formats(csv=csv, json=json)
    client = Client(home)
    rows = client.call("POST", "/history", {"ids": select(client, which, members=False).ids})
    ended = [row for row in rows if row["end_s"] is not None and row["elapsed_s"] is not None]
    if not ended:
        raise BadInput("none of these jobs has run and ended", "tenbin info shows what a running job uses")
    found = shares(ended)
    if json:
        print_json({"jobs": len(ended), **found, "advice": advice(ended)})
        return
    if csv:
        lines = [{"share": key, "jobs": len(ended), **(found[key] or {})} for key in SHARES]
        print_csv([{**dict.fromkeys(TABLE), **line} for line in lines], TABLE)
        return
    left_out = f"; {len(rows) - len(ended):,} left out, which have not run and ended"
    print(f"{len(ended):,} job{'s' * (len(ended) != 1)}{left_out * (len(rows) > len(ended))}")
    for key, (_, words) in SHARES.items():
        print(f"  {words}: {_share_words(found[key])}")
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
    found = (_cores(rows), _memory(rows), _limit(rows))
    return [sentence for sentence in found if sentence]


def _cores(rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row for row in rows if row["cpu_efficiency"] is not None and row["running_s"] >= SHORTEST_S]
    asked = max((row["cores"] for row in known), default=1)
    used = max((row["cpu_efficiency"] * row["cores"] for row in known), default=0.0)
    fit = max(math.ceil(used - 0.1), 1)
    if not known or fit > ENOUGH * asked:
        return ""
    return f"used {number(used)} of {asked} cores: {fit} would do (-n tasks x -c cores)"


def _memory(rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row for row in rows if row["memory_efficiency"] is not None and row["stage"] == "done"]
    asked = max((row["memory_asked_mb"] for row in known), default=0.0)
    used = max((row["peak_memory_mb"] for row in known), default=0.0)
    if asked < LEAST_MB or used > ENOUGH * asked:
        return ""
    fit_mb = max(math.ceil(used * ROOM / LEAST_MB) * LEAST_MB, LEAST_MB)
    if fit_mb >= asked:
        return ""
    told = f"asked for {_size(asked)}, used {_size(used)}"
    return f"{told}: ask for {_size(fit_mb)} in all (--memory is of a task)"


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


def _share_words(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "not known"
    if found["min"] == found["max"]:
        return f"{found['median']:.0%}"
    low, middle, high = (f"{found[name]:.0%}" for name in ("q10", "median", "q90"))
    return f"{middle} ({low} .. {high} in 8 of 10 jobs)"


def _size(mb: float) -> str:
    return f"{number(mb / 1000)} GB" if mb >= 1000 else f"{number(mb)} MB"
