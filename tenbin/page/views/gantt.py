"""The rectangles of the Gantt view: which job was where, when; what runs, and what is planned."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import OrderedDict
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from tenbin.page.mirror import Mirror
from tenbin.page.rows import Row
from tenbin.page.views.explainer import Explainer
from tenbin.page.views.packing import Packing
from tenbin.page.views.power import Power

MOST_RECTANGLES, MOST_LANES, MOST_ROWS, LISTED = 4000, 400, 60, 100
PLANNED = 40  # jobs at the head of the queue whose start is asked for
UNPLACED = "not placed yet"
KEPT = 32  # answers
Stays = dict[str, NDArray[Any]]


class Window(BaseModel):
    """The part of the time that is seen, in seconds since 1970, and how many pixels it has."""

    model_config = ConfigDict(extra="forbid")

    from_s: Annotated[float, Field(ge=0, le=1e11)]
    until_s: Annotated[float, Field(ge=0, le=1e11)]
    width: Annotated[int, Field(ge=50, le=8000)] = 1000


class Rectangle(NamedTuple):
    """One stay of a job in a row of a lane, or of ``jobs`` jobs that are too short to be seen apart.

    Attributes:
        end_s: None: it goes on.
        how: the event that ended it, "running", "planned" or "several".
        expected_s: when it should end; None: not known.
        region: the region of its pool that it is charged to.
    """

    lane: str
    row: int
    start_s: float
    end_s: float | None
    how: str
    jobs: int = 1
    job: int | None = None
    label: str = ""
    expected_s: float | None = None
    region: str = ""


class Gantt:
    """The Gantt view of a mirror; answers are kept until jobs change."""

    def __init__(self, mirror: Mirror, explainer: Explainer) -> None:
        self._mirror, self._explainer = mirror, explainer
        self._packing = Packing(mirror)
        self._power = Power(mirror, explainer)
        self._kept: OrderedDict[object, dict[str, Any]] = OrderedDict()
        self._head: tuple[int, list[int]] = -1, []
        self._lock = threading.Lock()

    def head(self) -> list[int]:
        """Return the waiting jobs at the head of the queue, whose starts are to be asked for."""
        version = self._mirror.version
        if self._head[0] != version:
            waiting = (row for row in list(self._mirror.rows.values()) if row.stage == "waiting")
            head = heapq.nsmallest(PLANNED, waiting, key=lambda row: (-row.priority, row.id))
            self._head = version, [row.id for row in head]
        return self._head[1]

    def find(self, window: Window, planned: list[int]) -> dict[str, Any]:
        """Return at most ``MOST_RECTANGLES`` rectangles that the window shows, and a list."""
        versions = self._mirror.version, self._explainer.version
        name = *versions, window.from_s, window.until_s, window.width
        with self._lock:
            found = self._kept.get(name)
            if found is None or time.time() - found["now_s"] > 1.0:
                found = self._kept[name] = self._find(window, planned)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return found

    def _find(self, window: Window, planned: list[int]) -> dict[str, Any]:
        self._packing.refresh()
        now_s = time.time()
        columns = self._packing.columns
        stays = columns.take(columns.overlapping(window.from_s, window.until_s))
        later = self._planned(window, planned, now_s)
        pixel_s = max((window.until_s - window.from_s) / window.width, 1e-3)
        groups = merged(stays, pixel_s)
        while len(groups) > MOST_RECTANGLES - len(later):
            pixel_s *= 2
            groups = merged(stays, pixel_s)
        shown = self._rectangles(stays, groups) + later
        # What runs, what is planned, then what ended last.
        newest = np.argsort(stays["end_s"], kind="stable")[: -LISTED - 1 : -1]
        known = [self._one(stays, at) for at in newest]
        runs = [one for one in known if one.end_s is None]
        listed = runs + later + known[len(runs) :]
        lanes = self._lanes(shown)
        return {
            "now_s": now_s,
            "lanes": lanes[:MOST_LANES],
            "left_out": max(len(lanes) - MOST_LANES, 0),
            "rectangles": shown,
            "jobs": [self._listed(one) for one in listed[:LISTED]],
            "total": len(stays["job"]) + len(later),
            "power": self._power.find(
                window.from_s, min(window.until_s, now_s), sorted(set(stays["job"].tolist()))
            ),
        }

    def _rectangles(self, stays: Stays, groups: list[NDArray[np.intp]]) -> list[Rectangle]:
        found = []
        for group in groups:
            one = self._one(stays, group[0])
            if len(group) > 1:
                end_s = float(stays["end_s"][group].max())
                one = Rectangle(one.lane, one.row, one.start_s, end_s, "several", len(group))
            found.append(one)
        return found

    def _one(self, stays: Stays, at: Any) -> Rectangle:
        job, end_s = int(stays["job"][at]), float(stays["end_s"][at])
        row = self._mirror.rows.get(job)
        runs = math.isinf(end_s)
        return Rectangle(
            lane=self._packing.lanes[stays["lane"][at]],
            row=min(int(stays["row"][at]), MOST_ROWS - 1),
            start_s=float(stays["start_s"][at]),
            end_s=None if runs else end_s,
            how=self._packing.hows[stays["how"][at]],
            job=job,
            label=row.label if row else str(job),
            expected_s=expected_end(row) if row and runs else None,
            region=row.region if row else "",
        )

    def _planned(self, window: Window, jobs: list[int], now_s: float) -> list[Rectangle]:
        """Return what waits and has an expected start, in rows below each other where they overlap."""
        names, rows = self.names(), self._mirror.rows
        found: list[Rectangle] = []
        ends = {
            lane: [
                _free_from(rows.get(job) if runs else None, now_s) for job, runs in self._packing.last(lane)
            ]
            for lane in names
        }
        told = [(answer["expected_start_s"], job) for job in jobs if (answer := self._explainer.told(job))]
        for start_s, job in sorted((at, job) for at, job in told if at is not None):
            row = rows.get(job)
            if row is None or row.stage != "waiting":
                continue
            lane = row.lane[0] if row.lane else names[0] if len(names) == 1 else UNPLACED
            run_s = row.expected.run_s if row.expected else row.time_limit_s
            end_s = None if run_s is None else start_s + run_s
            free = ends.setdefault(lane, [])
            place = next((place for place, end in enumerate(free) if end <= start_s + 1.0), len(free))
            free[place : place + 1] = [math.inf if end_s is None else end_s]
            if start_s < window.until_s and (end_s is None or end_s > window.from_s):
                at = min(place, MOST_ROWS - 1)
                found.append(Rectangle(lane, at, start_s, end_s, how="planned", job=job, label=row.label))
        return found

    def names(self) -> list[str]:
        """Name the lanes: the coordinator's nodes, else its pools, else those where jobs have been."""
        status = self._explainer.status
        nodes = status["nodes"] if status else []
        with_jobs = [node["name"] for node in nodes if "jobs" in node]
        return with_jobs or [node["name"] for node in nodes] or sorted(self._packing.lanes)

    def _lanes(self, shown: list[Rectangle]) -> list[dict[str, Any]]:
        deepest: dict[str, int] = dict.fromkeys(self.names(), 0)
        for one in shown:
            deepest[one.lane] = max(deepest.get(one.lane, 0), one.row)
        status = self._explainer.status or {"nodes": []}
        trouble = {node["name"]: node.get("trouble", "") for node in status["nodes"]}
        regions = {node["name"]: region_names(node) for node in status["nodes"]}
        return [
            {
                "name": name,
                "rows": row + 1,
                "trouble": trouble.get(name, ""),
                "regions": regions.get(name, []),
            }
            for name, row in deepest.items()
        ]

    def _listed(self, one: Rectangle) -> dict[str, Any]:
        row = self._mirror.rows.get(one.job or 0)
        more = (row.name, row.cores, row.region) if row else ("", 0, "")
        return one._asdict() | dict(zip(("name", "cores", "region"), more, strict=True))


def region_names(node: dict[str, Any]) -> list[str]:
    """Name the regions that a node, or a pool, lies in: as ``GET /status`` lists them."""
    found = node.get("regions") or {}
    return list(found) if isinstance(found, dict) else [region["name"] for region in found]


def expected_end(row: Row) -> float | None:
    """Return when a running job should end; None: nothing is known."""
    run_s = row.expected.run_s if row.expected else row.time_limit_s
    return None if run_s is None else row.since_s + max(run_s - row.served_s, 0.0)


def _free_from(running: Row | None, now_s: float) -> float:
    """Return when a row of a lane should be free; now, if its last job is gone."""
    return now_s if running is None else max(expected_end(running) or now_s, now_s)


def merged(stays: Stays, pixel_s: float) -> list[NDArray[np.intp]]:
    """Group what is shorter than a pixel with its neighbours of a row that are, too; the others alone."""
    order = np.lexsort((stays["start_s"], stays["row"], stays["lane"]))
    if not len(order):
        return []
    start_s, end_s = stays["start_s"][order], stays["end_s"][order]
    lane, row = stays["lane"][order], stays["row"][order]
    long = end_s - start_s >= pixel_s
    apart = long[1:] | long[:-1] | (lane[1:] != lane[:-1]) | (row[1:] != row[:-1])
    apart |= start_s[1:] - end_s[:-1] >= pixel_s
    return np.split(order, np.flatnonzero(apart) + 1)
