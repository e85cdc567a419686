"""Jobs as rows: in the journal, and in the folder of each attempt."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from profiles.errors import BadInput
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Placement

CHOICE = "bring a copy of it back, or go on with what can be read: tenbin up --recover"
PLACEMENT = ("pool", "units", "nodes", "cap_w", "region", "binding")
COLUMNS = tuple(field.name for field in fields(Entry))
AS_JSON = {"cores", "devices", "usage", "predicted", "hosts"}
CHANGING = COLUMNS[COLUMNS.index("stage") :]


def row_of(entry: Entry) -> dict[str, Any]:
    """Return a job's row for its folder, from which a lost journal is made anew."""
    return {
        name: value for name, value in zip(COLUMNS, as_row(entry, COLUMNS), strict=True) if value is not None
    }


def as_row(entry: Entry, columns: Sequence[str]) -> list[Any]:
    """Return these columns of a job as SQLite takes them."""
    values = [getattr(entry, name) for name in columns]
    for place, name in enumerate(columns):
        value = values[place]
        if name in ENCODED:
            values[place] = ENCODED[name](value)
        elif isinstance(value, float) and math.isnan(value):
            values[place] = None  # SQLite has no number that is none
    return values


def entry_of(row: Sequence[Any]) -> Entry:
    """Make the job of a row; BadInput if the row is damaged."""
    try:
        return _parse(row)
    except (ValueError, TypeError, KeyError) as error:
        what = " ".join(str(error).split())[:200]
        raise BadInput(f"the journal is damaged: of job {row[0]} it says: {what}", CHOICE) from error


def _parse(row: Sequence[Any]) -> Entry:
    found = zip(COLUMNS, row, strict=True)
    values = {name: value for name, value in found if value is not None}  # None: its default
    values["spec"] = JobSpec.model_validate_json(values["spec"])
    values["stage"] = Stage(values["stage"])
    values["held_by_user"], values["alive"] = bool(values["held_by_user"]), bool(values["alive"])
    for name in AS_JSON & values.keys():
        values[name] = json.loads(values[name])
    if "placement" in values:
        values["placement"] = placement_of(json.loads(values["placement"]))
    values["goals"] = tuple(map(placement_of, json.loads(values.get("goals", "[]"))))
    values["cores"], values["devices"] = tuple(values["cores"]), tuple(values["devices"])
    return Entry(**values)


def _dumps(value: Any) -> str:
    """As JSON; most have nothing."""
    return "null" if value is None else json.dumps(value) if value else EMPTY_AS_JSON[type(value)]


ENCODED: dict[str, Callable[[Any], Any]] = {
    "spec": JobSpec.model_dump_json,
    "placement": lambda value: None if value is None else json.dumps(flat(value)),
    "goals": lambda value: _dumps(tuple(map(flat, value))),
    "held_by_user": int,  # as it is read again
    "alive": int,
    **dict.fromkeys(AS_JSON, _dumps),
}
EMPTY_AS_JSON: dict[type, str] = {tuple: "[]", list: "[]", dict: "{}"}


def flat(placement: Placement) -> list[Any]:
    """Return a placement as JSON has it."""
    return [getattr(placement, name) for name in PLACEMENT]


def placement_of(flat: list[Any]) -> Placement:
    """Make the placement that ``flat`` has written."""
    pool, units, nodes, cap_w, region, binding = flat
    return Placement(pool, units, tuple((node, there) for node, there in nodes), cap_w, region, binding)
