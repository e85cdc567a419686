"""Rows of the journal's tables other than that of jobs: their columns, predictions, and tags of timers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from scheduler.jobs.rows import Damaged
from scheduler.prediction.predictions import Kind, TrackedPrediction

PREDICTION = tuple(field.name for field in fields(TrackedPrediction))
# Of each table whose rows have a checksum, the columns that it is of.
SUMMED = {
    "events": ("at_s", "job", "kind", "detail"),
    "timers": ("at_s", "tag"),
    "regions": ("pool", "name", "units", "max_units"),
    "forecasts": PREDICTION,
}


def insertion(table: str) -> str:
    """Return the statement that adds a row, or replaces one, with its checksum."""
    columns = SUMMED[table]
    values = ", ".join(f"?{place}" for place in range(1, len(columns) + 1))
    return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}, sum) VALUES ({values}, row_sum({values}))"


INSERT = {table: insertion(table) for table in SUMMED}


def read_predictions(
    db: sqlite3.Connection, *, job: int | None, kind: Kind | None, last: int | None, open: bool
) -> list[TrackedPrediction]:
    """See ``Journal.predictions``."""
    where = [f"{name} = ?" for name, value in (("job", job), ("kind", kind)) if value is not None]
    where += ["measured IS NULL AND void = ''"] if open else []
    query = f"SELECT {', '.join(PREDICTION)} FROM forecasts WHERE {' AND '.join(where) or 'true'}"
    values = [value for value in (job, kind) if value is not None]
    found = []
    for row in db.execute(f"{query} ORDER BY number DESC LIMIT ?", [*values, -1 if last is None else last]):
        found.append(from_row(row))
    return found[::-1]


def prediction_row(prediction: TrackedPrediction) -> list[Any]:
    values = (getattr(prediction, name) for name in PREDICTION)
    return [json.dumps(value) if isinstance(value, dict) else value for value in values]


def from_row(row: Sequence[Any]) -> TrackedPrediction:
    """Make the prediction of a row; Damaged if the row is."""
    named = dict(zip(PREDICTION, row, strict=True))
    try:
        named["emulated"], named["detail"] = bool(named["emulated"]), json.loads(named["detail"])
    except (ValueError, TypeError) as error:
        raise Damaged(f"the journal is damaged: prediction {row[0]}: {error}") from error
    return TrackedPrediction(**named)


def thaw(tag: object) -> object:
    """Make a timer's tag hashable again, because JSON has no tuples."""
    return tuple(map(thaw, tag)) if isinstance(tag, list) else tag
