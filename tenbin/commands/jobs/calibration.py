"""``tenbin program calibration``: predictions of jobs, beside what then happened."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from profiles.errors import BadInput
from profiles.quantities import number
from tenbin.commands.options import (
    HomeOption,
    JsonOption,
    StoreOption,
    complete_selector,
    coordinator_folder,
    names_in,
)
from tenbin.terminal import SafeConsole, table
from tenbin.text import print_json, say

CAPTION = "medians of n outcomes; error: (predicted - measured) / measured; 95 %: of the outcomes within"

if TYPE_CHECKING:
    from profiles.records import Profile
    from scheduler.prediction.predictions import AccuracyRow, TrackedPrediction


complete_kind = names_in("scheduler.prediction.predictions:UNITS")


def calibration(
    *,
    kind: Annotated[str | None, typer.Option(autocompletion=complete_kind)] = None,
    last: Annotated[int | None, typer.Option(min=1)] = None,
    refit: bool = False,
    profile: Annotated[str, typer.Option(autocompletion=complete_selector)] = "last",
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

      tenbin program calibration --kind migration

      tenbin program calibration --refit && tenbin up --devices --policy weigh --profile last

    Args:
        kind: Only these: migration, restart, ...
        last: Only this many predictions, the last ones.
        refit: Fit checkpoint costs anew from jobs, into a new profile.
        profile: With --refit: the profile to begin with.
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
        say(f"\nstored {new.id} ({new.origin}): {path}\nsee: tenbin profile show last")


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
        "summary": [row.as_json() for row in rows],
        "forecasts": [prediction.as_json() for prediction in predictions],
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
