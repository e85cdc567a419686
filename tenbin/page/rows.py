"""Jobs as the page keeps them: light, all of them in memory, made from the journal's rows."""

from __future__ import annotations

import json
import math
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from agent.users import user_name
from scheduler.jobs.entry import FINAL, Stage
from scheduler.jobs.job_list import JobRow, Reading

COLUMNS = (
    *("id", "spec", "array", "array_index", "stage", "held_by_user", "placement", "cores", "hosts"),
    *("submit_s", "start_s", "since_s", "end_s", "limit_s", "predicted", "code", "trouble", "attempt"),
    *("done", "served_s", "blocked", "new_priority"),
)
STAGES = {stage.value: stage for stage in Stage}
BEGUN = frozenset(stage for stage in Stage if stage.begun)
ENDED = frozenset(FINAL)
USER = user_name()  # whose jobs those are that name nobody


@dataclass(frozen=True, slots=True)
class Expected:
    """A run time in seconds: the middle, and the 10 and 90 % quantiles where they are known."""

    run_s: float
    low_s: float | None
    high_s: float | None
    basis: str


@dataclass(slots=True)
class Row(JobRow):
    """One job of the page, or an array as one.

    Attributes:
        lane: where it runs or ran last: the nodes, else the pool; () before its first start.
        cap_w: of all its units there; None: uncapped. region: that it is charged to.
        expected: its run time; None: nothing is known.
        members, stages: of an array how many jobs it has, and how many are in each stage.
    """

    lane: tuple[str, ...]
    since_s: float
    expected: Expected | None
    attempt: int
    served_s: float
    cap_w: float | None = None
    region: str = ""
    members: int | None = None
    stages: Mapping[str, int] | None = None


READING: Reading[Row] = Reading(
    stage=attrgetter("stage"),
    name=attrgetter("name"),
    user=attrgetter("user"),
    cores=attrgetter("cores"),
    trouble=attrgetter("trouble"),
    nodes=attrgetter("lane"),
    places=lambda row: (row.place or "", *row.lane),
)


class _Asked(NamedTuple):
    """The parts of a specification that lists show."""

    name: str
    slurm: str | None
    user: str
    cores: int
    priority: int
    time_s: float | None
    expect_s: dict[str, float]
    member: int | None


@lru_cache(maxsize=256)
def _asked(text: str) -> _Asked:
    """Read a specification; the members of an array, one after the other, share one."""
    spec = json.loads(text)
    slurm = spec.get("slurm") or {}
    return _Asked(
        name=spec.get("name") or posixpath.basename(spec["command"][0]),
        slurm=slurm.get("id"),
        user=slurm.get("user") or USER,
        cores=spec.get("tasks", 1) * spec.get("cores", 1),
        priority=spec.get("priority", 0),
        time_s=spec.get("time_s"),
        expect_s=spec.get("expect_s") or {},
        member=spec.get("array_index"),
    )


def row_of(values: Sequence[Any]) -> Row:
    """Make the row of a job from ``COLUMNS``."""
    found = dict(zip(COLUMNS, values, strict=True))
    asked = _asked(found["spec"])
    array, index = found["array"], found["array_index"]
    pool, units, nodes, cap_w, region = "", 1, list[list[int]](), None, ""
    if found["placement"] not in (None, "null"):
        pool, units, nodes, cap_w, region, *_ = json.loads(found["placement"])
    hosts = _listed(found["hosts"]) or [f"{pool}{node}" for node, _ in nodes]
    stage, held = STAGES[found["stage"]], bool(found["held_by_user"])
    limit_s = asked.time_s if found["limit_s"] is None else found["limit_s"]
    return Row(
        id=found["id"],
        name=asked.name,
        array=array,
        array_index=asked.member if index is None else index,
        stage=Stage.SUSPENDED if stage is Stage.HELD and held else stage,
        slurm=asked.slurm,
        user=asked.user,
        held_by_user=held,
        cores=len(_listed(found["cores"])) or asked.cores,
        priority=asked.priority if found["new_priority"] is None else found["new_priority"],
        place=pool or None,
        submit_s=found["submit_s"],
        start_s=found["start_s"],
        end_s=found["end_s"],
        time_limit_s=None if limit_s is None or math.isinf(limit_s) else limit_s,
        code=found["code"],
        trouble=found["blocked"] or found["trouble"] or "",
        lane=tuple(hosts) or ((pool,) if pool else ()),
        since_s=found["since_s"],
        expected=_expected(asked, found["predicted"], pool),
        attempt=found["attempt"],
        served_s=found["served_s"] or 0.0,
        cap_w=None if cap_w is None else cap_w * units,
        region=region,
    )


def _listed(text: str | None) -> list[Any]:
    return [] if text in (None, "null", "[]") else json.loads(text)


def _expected(asked: _Asked, predicted: str | None, pool: str) -> Expected | None:
    """Return the run time that the owner states, else what earlier runs say, on the job's pool."""
    if asked.expect_s:
        run_s = asked.expect_s.get(pool, next(iter(asked.expect_s.values())))
        return Expected(run_s, None, None, "stated by the user")
    told = {} if predicted in (None, "null") else (json.loads(predicted).get("run_s") or {})
    if not told:
        return None
    found = told.get(pool) or next(iter(told.values()))
    return Expected(found["middle"], found["low"], found["high"], found["rule"])
