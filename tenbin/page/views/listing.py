"""The window of a list of jobs that a viewer sees: filtered, sorted, an array as one row."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from scheduler.jobs.arrays import PRECEDENCE, array_stage
from scheduler.jobs.entry import Stage
from tenbin.page.mirror import Mirror
from tenbin.page.rows import BEGUN, ENDED, Row

MOST = 200  # rows of one answer
KEPT = 64  # sorted lists; viewers of one filter share one
RANK = {stage.value: place for place, stage in enumerate(PRECEDENCE)}


class Asked(BaseModel):
    """The rows that are asked for.

    Attributes:
        text: is a part of number, name, user, place or trouble; ``*`` makes it a pattern of the name.
        array: only members of this array, each in a row.
        sort: "queue": what runs, then what waits, then what ended last.
        start, count: the window.
    """

    model_config = ConfigDict(extra="forbid")

    stages: list[Stage] = Field(default_factory=list)
    text: Annotated[str, Field(max_length=200)] = ""
    array: int | None = None
    members: bool = False
    sort: Literal[
        "queue", "id", "name", "user", "stage", "cores", "place", "submit_s", "start_s", "end_s", "priority"
    ] = "queue"
    down: bool = False
    start: Annotated[int, Field(ge=0, le=10**9)] = 0
    count: Annotated[int, Field(ge=1, le=MOST)] = 50


class ArrayRow(NamedTuple):
    """An array among the jobs: its first member, how many are in each stage, and which one waits."""

    first: Row
    stages: dict[str, int]
    waits: int | None


class Lists:
    """Sorted lists of the jobs of a mirror; those that viewers look at are kept until jobs change."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._kept: OrderedDict[tuple[int, str], list[Row | ArrayRow]] = OrderedDict()
        self._lock = threading.Lock()
        self._arrays: tuple[int, dict[int, ArrayRow]] = -1, {}

    def find(self, asked: Asked) -> list[Row | ArrayRow]:
        """Return the whole list of which ``asked`` is a window."""
        version = self._mirror.version
        key = version, asked.model_dump_json(exclude={"start", "count"})
        with self._lock:
            if (found := self._kept.get(key)) is None:
                rows = list(self._mirror.rows.values())
                found = self._kept[key] = _sorted(self._as_rows(rows, asked, version), asked)
                while len(self._kept) > KEPT or next(iter(self._kept))[0] != version:
                    self._kept.popitem(last=False)
            return found

    def _as_rows(self, rows: list[Row], asked: Asked, version: int) -> list[Row | ArrayRow]:
        meant = [row for row in rows if matches(row, asked)]
        if asked.members or asked.array is not None:
            return list(meant)
        if self._arrays[0] != version:
            self._arrays = version, _arrays(rows)
        arrays = self._arrays[1]
        singles: list[Row | ArrayRow] = [row for row in meant if row.array is None]
        return singles + [
            arrays[array] for array in dict.fromkeys(r.array for r in meant) if array is not None
        ]


def matches(row: Row, asked: Asked) -> bool:
    """Return true if a job meets the conditions."""
    if asked.array is not None and row.array != asked.array:
        return False
    if asked.stages and row.stage not in asked.stages:
        return False
    if not asked.text:
        return True
    if "*" in asked.text:
        return fnmatchcase(row.name, asked.text)
    text = asked.text.casefold()
    return (
        text in row.name.casefold()
        or text in row.label
        or text in row.user.casefold()
        or text in row.place.casefold()
        or text in row.trouble.casefold()
    )


def _arrays(rows: Iterable[Row]) -> dict[int, ArrayRow]:
    first: dict[int, Row] = {}
    stages: dict[int, Counter[str]] = {}
    waits: dict[int, int] = {}
    for row in rows:
        if row.array is not None:
            first.setdefault(row.array, row)
            stages.setdefault(row.array, Counter())[row.stage] += 1
            if row.stage in ("waiting", "held"):
                waits.setdefault(row.array, row.id)
    return {array: ArrayRow(first[array], dict(stages[array]), waits.get(array)) for array in first}


def number_of(row: Row | ArrayRow) -> int:
    """Return the number of a job or an array."""
    return row.id if isinstance(row, Row) else row.first.array or 0


def _sorted(found: list[Row | ArrayRow], asked: Asked) -> list[Row | ArrayRow]:
    key = _key(asked.sort)

    def of(row: Row | ArrayRow) -> Any:
        if isinstance(row, ArrayRow):
            return key(row.first._replace(id=row.first.array or 0, stage=array_stage(row.stages).value))
        return key(row)

    found.sort(key=of, reverse=asked.down)
    return found


def _key(sort: str) -> Callable[[Row], Any]:
    if sort == "queue":
        return lambda row: (
            (0 if row.stage in BEGUN else 2 if row.stage in ENDED else 1),
            -(row.end_s or 0.0) if row.stage in ENDED else -row.priority if row.stage not in BEGUN else 0,
            row.id,
        )
    if sort == "stage":
        return lambda row: (RANK[row.stage], row.id)
    if sort in ("start_s", "end_s"):
        return lambda row: (getattr(row, sort) is None, getattr(row, sort) or 0.0, row.id)
    return lambda row: (getattr(row, sort), row.id)


def told(row: Row | ArrayRow) -> dict[str, Any]:
    """Return a row as JSON has it."""
    if isinstance(row, ArrayRow):
        first = row.first
        return {
            **_told(first),
            "id": first.array,
            "label": str(first.array),
            "member": None,
            "stage": array_stage(row.stages).value,
            "stages": {stage: row.stages[stage] for stage in RANK if stage in row.stages},
            "members": sum(row.stages.values()),
            "start_s": None,
            "end_s": None,
            "trouble": "",
            "asks": row.waits,
        }
    return _told(row) | {"asks": row.id if row.stage in ("waiting", "held", "suspended") else None}


def _told(row: Row) -> dict[str, Any]:
    found = row._asdict()
    found["expected"] = row.expected._asdict() if row.expected else None
    return found


def window(lists: Lists, asked: Asked) -> dict[str, Any]:
    """Return the rows that are shown, and how many there are."""
    found = lists.find(asked)
    rows = [told(row) for row in found[asked.start : asked.start + asked.count]]
    return {"total": len(found), "start": asked.start, "rows": rows}
