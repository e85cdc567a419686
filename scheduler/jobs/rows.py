"""Jobs as rows: in the journal, and in the folder of each attempt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from math import inf, isnan
from operator import attrgetter
from typing import Any

from profiles.errors import BadInput
from scheduler.jobs.entry import Entry, Phase, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Placement

CHOICE = "bring a copy of it back, or go on with what can be read: tenbin up --recover"
PLACEMENT = ("pool", "units", "nodes", "cap_w", "region", "binding")
# What the journal has of a job. The rest of an entry follows from it.
COLUMNS = (
    *("id", "spec", "environment", "submit_s", "array", "array_index"),
    *("stage", "attempt", "alive", "placement", "cores", "devices", "request", "want", "held_by_user"),
    *("start_s", "since_s", "served_s", "done", "kept", "kept_s", "preemptions", "migrations", "failures"),
    *("end_s", "code", "signal", "trouble", "usage", "goals", "predicted", "blocked", "limit_s", "tasks"),
    *("hosts", "retried", "not_before_s", "new_priority", "fixed", "ending", "promised_s", "eligible_s"),
)
AS_JSON = {"cores", "devices", "usage", "predicted", "hosts"}
CHANGING = COLUMNS[COLUMNS.index("stage") :]
Encoder = Callable[[Any], Any]
INDEX = COLUMNS.index("array_index")
SHARED = attrgetter(*(name for name in COLUMNS if name not in ("id", "array_index")))


class Damaged(BadInput):
    """A journal that is not whole."""

    def __init__(self, what: str) -> None:
        super().__init__(what, CHOICE)


def row_of(entry: Entry) -> dict[str, Any]:
    """Return a job's row for its folder, from which a lost journal is made anew."""
    return {
        name: value for name, value in zip(COLUMNS, as_row(entry, COLUMNS), strict=True) if value is not None
    }


def as_row(entry: Entry, columns: tuple[str, ...]) -> list[Any]:
    """Return these columns of a job, at least two, as SQLite takes them."""
    values_of, encoded = _reading(columns)
    values = list(values_of(entry))
    for place, encode in encoded:
        values[place] = encode(values[place])
    # SQLite has no number that is none.
    return [None if isinstance(value, float) and isnan(value) else value for value in values]


@cache
def _reading(columns: tuple[str, ...]) -> tuple[Callable[[Entry], Any], list[tuple[int, Encoder]]]:
    """Return what reads columns of an entry, and the encoder of each place that has one."""
    encoded = [(place, ENCODED[name]) for place, name in enumerate(columns) if name in ENCODED]
    return attrgetter(*columns), encoded


def new_rows(entries: Iterable[Entry]) -> Iterator[list[Any]]:
    """Yield the row of each job; what members of an array share is written out once."""
    before: object = None
    shared: list[Any] = []
    for entry in entries:
        properties = SHARED(entry)
        if properties != before:
            before, shared = properties, as_row(entry, COLUMNS)
        row = shared.copy()
        row[0], row[INDEX] = entry.id, entry.array_index
        yield row


def entry_of(row: Sequence[Any]) -> Entry:
    """Make the job of a row; Damaged if the row is."""
    try:
        return _parse(row)
    except (ValueError, TypeError, KeyError) as error:
        what = " ".join(str(error).split())[:200]
        raise Damaged(f"the journal is damaged: of job {row[0]} it says: {what}") from error


def _parse(row: Sequence[Any]) -> Entry:
    columns = zip(COLUMNS, row, strict=True)
    values = {name: value for name, value in columns if value is not None}  # None: its default
    values["spec"] = _spec_of(values["spec"])
    values.setdefault("array_index", values["spec"].array_index)  # before version 7 it was there only
    values["stage"] = Stage(values["stage"])
    if "ending" in values:
        values["ending"] = Stage(values["ending"])
    values["held_by_user"], values["alive"] = bool(values["held_by_user"]), bool(values["alive"])
    for name in AS_JSON & values.keys():
        values[name] = _loads(values[name])
    if "placement" in values:
        values["placement"] = placement_of(json.loads(values["placement"]))
    values["fallbacks"] = tuple(map(placement_of, _loads(values.pop("goals", "[]"))))
    values["cores"], values["devices"] = tuple(values["cores"]), tuple(values["devices"])
    entry = Entry(**values)
    entry.works_from_s = entry.since_s
    if entry.phase is Phase.MOVING and entry.fallbacks:
        entry.moves_to, *fallbacks = entry.fallbacks
        entry.fallbacks = tuple(fallbacks)
    elif entry.stage is Stage.STOPPING:
        entry.works_from_s = inf
    return entry


@lru_cache(maxsize=16)
def _spec_of(text: str) -> JobSpec:
    """Return the spec of a text; the members of an array, one after the other, share one."""
    return JobSpec.model_validate_json(text)


def _loads(text: str) -> Any:
    """Read JSON; most have nothing. A job's row takes 7 in place of 13 us so."""
    return None if text == "null" else [] if text == "[]" else json.loads(text)


def _dumps(value: Any) -> str:
    """Write JSON; most have nothing. A job's row takes 9 in place of 16 us so."""
    return "null" if value is None else json.dumps(value) if value else EMPTY_AS_JSON[type(value)]


ENCODED: dict[str, Encoder] = {
    "spec": JobSpec.model_dump_json,
    "placement": lambda value: None if value is None else json.dumps(flat(value)),
    "goals": lambda value: _dumps(tuple(map(flat, value))),
    "held_by_user": int,  # as it is read again
    "alive": int,
    **dict.fromkeys(AS_JSON, _dumps),
}
EMPTY_AS_JSON: dict[type, str] = {tuple: "[]", list: "[]", dict: "{}"}


def flat(placement: Placement) -> list[Any]:
    """Return a placement as JSON has it; the alternative only where one was chosen."""
    more = [placement.alternative] if placement.alternative else []
    return [getattr(placement, name) for name in PLACEMENT] + more


def placement_of(flat: list[Any]) -> Placement:
    """Make the placement that ``flat`` has written."""
    pool, units, nodes, *more = flat
    return Placement(pool, units, tuple((node, there) for node, there in nodes), *more)
