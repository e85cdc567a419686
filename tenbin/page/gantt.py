"""The rectangles of the Gantt view: which job was where, when; what runs, and what is planned."""

from __future__ import annotations

import heapq
import math
import time
from collections import OrderedDict
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from tenbin.page.explainer import Explainer
from tenbin.page.mirror import Mirror
from tenbin.page.rows import Row
from tenbin.page.spans import Span

MOST_RECTANGLES, MOST_LANES, MOST_ROWS, LISTED = 4000, 400, 60, 100
PLANNED = 40  # jobs at the head of the queue whose start is asked for
UNPLACED = "not placed yet"
KEPT = 32  # answers


class Window(BaseModel):
    """The part of the time that is seen, in seconds since 1970, and how many pixels it has."""

    model_config = ConfigDict(extra="forbid")

    from_s: float = Field(ge=0, le=1e11)
    until_s: float = Field(ge=0, le=1e11)
    width: int = Field(1000, ge=50, le=8000)


class Rectangle(NamedTuple):
    """One stay of a job in a row of a lane, or of ``jobs`` jobs that are too short to be seen apart.

    Attributes:
        end_s: None: it goes on.
        how: the event that ended it, "running" or "planned".
        expected_s: when it should end; None: not known.
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


class Packing:
    """The row of each stay in its lane: the lowest that is free when it begins, and the same ever after."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._epoch = self._version = -1
        self._rows: dict[tuple[int, int, str], int] = {}  # job, its how manieth stay, lane
        self._last: dict[str, list[tuple[int, int]]] = {}  # of each row of a lane, the last stay there

    def refresh(self) -> None:
        """Take in the stays that have begun since."""
        mirror, version = self._mirror, self._mirror.version
        if version == self._version:
            return
        jobs = mirror.changed_since(self._version) if mirror.epoch == self._epoch else None
        if jobs is None:
            self._rows, self._last, self._epoch = {}, {}, mirror.epoch
            self._pack_all()
        for job in jobs or ():
            for place, span in enumerate(mirror.spans.get(job, ())):
                for lane in self.lanes(job, span):
                    if (job, place, lane) not in self._rows:
                        self._put(job, place, lane, span.start_s)
        self._version = version

    def lanes(self, job: int, span: Span) -> tuple[str, ...]:
        """Return the lanes of a stay."""
        if span.lane is not None:
            return span.lane
        row = self._mirror.rows.get(job)
        return row.lane if row is not None else ()

    def last(self, lane: str) -> list[tuple[int, int]]:
        """Return the last stay in each row of a lane: its job, and its place among the job's stays."""
        return self._last.get(lane, [])

    def names(self) -> list[str]:
        """Name the lanes in which jobs have been."""
        return sorted(self._last)

    def row(self, job: int, place: int, lane: str) -> int:
        """Return the row of a stay."""
        return min(self._rows.get((job, place, lane), 0), MOST_ROWS - 1)

    def _pack_all(self) -> None:
        stays = sorted(
            (span.start_s, job, place, lane, math.inf if span.end_s is None else span.end_s)
            for job, of_job in list(self._mirror.spans.items())
            for place, span in enumerate(of_job)
            for lane in self.lanes(job, span)
        )
        free: dict[str, list[int]] = {}
        busy: dict[str, list[tuple[float, int]]] = {}
        for start_s, job, place, lane, end_s in stays:
            rows, ends = free.setdefault(lane, []), busy.setdefault(lane, [])
            last = self._last.setdefault(lane, [])
            while ends and ends[0][0] <= start_s:
                heapq.heappush(rows, heapq.heappop(ends)[1])
            if not rows:
                rows.append(len(last))
                last.append((job, place))
            row = heapq.heappop(rows)
            last[row] = job, place
            heapq.heappush(ends, (end_s, row))
            self._rows[job, place, lane] = row

    def _put(self, job: int, place: int, lane: str, start_s: float) -> None:
        last = self._last.setdefault(lane, [])
        ends = [self._mirror.spans[other][its_place].end_s for other, its_place in last]
        free = (row for row, end_s in enumerate(ends) if end_s is not None and end_s <= start_s)
        row = next(free, len(last))
        last[row : row + 1] = [(job, place)]
        self._rows[job, place, lane] = row


class Gantt:
    """The Gantt view of a mirror; answers are kept until jobs change."""

    def __init__(self, mirror: Mirror, explainer: Explainer) -> None:
        self._mirror, self._explainer = mirror, explainer
        self._packing = Packing(mirror)
        self._kept: OrderedDict[object, dict[str, Any]] = OrderedDict()

    def watch(self) -> list[int]:
        """Have the coordinator asked when the jobs at the head of the queue should start; return these."""
        waiting = [row for row in list(self._mirror.rows.values()) if row.stage == "waiting"]
        head = heapq.nsmallest(PLANNED, waiting, key=lambda row: (-row.priority, row.id))
        jobs = [row.id for row in head]
        self._explainer.watch(jobs)
        return jobs

    def find(self, window: Window, planned: list[int]) -> dict[str, Any]:
        """Return at most ``MOST_RECTANGLES`` rectangles that the window shows, and a list of the newest."""
        versions = self._mirror.version, self._explainer.version
        name = *versions, window.from_s, window.until_s, window.width
        if (found := self._kept.get(name)) is not None and time.time() - found["now_s"] < 1.0:
            return found
        self._packing.refresh()
        now_s = time.time()
        stays = self._stays(window) + self._planned(window, planned, now_s)
        pixel_s = max((window.until_s - window.from_s) / window.width, 1e-3)
        shown = merged(stays, pixel_s, now_s)
        while len(shown) > MOST_RECTANGLES:
            pixel_s *= 2
            shown = merged(stays, pixel_s, now_s)
        lanes = self._lanes(shown)
        found = {
            "now_s": now_s,
            "lanes": lanes[:MOST_LANES],
            "left_out": max(len(lanes) - MOST_LANES, 0),
            "rectangles": shown,
            "jobs": [self._listed(one) for one in heapq.nlargest(LISTED, stays, key=lambda one: one.start_s)],
            "total": len(stays),
        }
        self._kept[name] = found
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found

    def _stays(self, window: Window) -> list[Rectangle]:
        found = []
        packing, rows = self._packing, self._mirror.rows
        for job, of_job in list(self._mirror.spans.items()):
            for place, span in enumerate(of_job):
                end_s = span.end_s
                if span.start_s >= window.until_s or (end_s is not None and end_s < window.from_s):
                    continue
                row = rows.get(job)
                if row is None:
                    continue
                expected_s = expected_end(row) if end_s is None else None
                for lane in packing.lanes(job, span):
                    at = packing.row(job, place, lane)
                    how = span.how or "running"
                    found.append(Rectangle(lane, at, span.start_s, end_s, how, 1, job, row.label, expected_s))
        return found

    def _planned(self, window: Window, jobs: list[int], now_s: float) -> list[Rectangle]:
        """Return what waits and has an expected start, in rows below each other where they overlap."""
        names = self.names()
        found: list[Rectangle] = []
        ends: dict[str, list[float]] = {}
        for lane in names:
            ends[lane] = [
                max(expected_end(row) or now_s, now_s) if (row := self._running(last)) else now_s
                for last in self._packing.last(lane)
            ]
        told = [(answer["expected_start_s"], job) for job in jobs if (answer := self._explainer.told(job))]
        for start_s, job in sorted((at, job) for at, job in told if at is not None):
            row = self._mirror.rows.get(job)
            if row is None or row.stage != "waiting":
                continue
            lane = row.lane[0] if row.lane else names[0] if len(names) == 1 else UNPLACED
            run_s = row.expected.run_s if row.expected else row.limit_s
            end_s = start_s + run_s if run_s is not None else None
            free = ends.setdefault(lane, [])
            place = next((place for place, end in enumerate(free) if end <= start_s + 1.0), len(free))
            free[place : place + 1] = [end_s if end_s is not None else math.inf]
            if start_s < window.until_s and (end_s is None or end_s > window.from_s):
                at = min(place, MOST_ROWS - 1)
                found.append(Rectangle(lane, at, start_s, end_s, "planned", 1, job, row.label))
        return found

    def _running(self, stay: tuple[int, int]) -> Row | None:
        job, place = stay
        span = self._mirror.spans[job][place]
        return self._mirror.rows.get(job) if span.end_s is None else None

    def names(self) -> list[str]:
        """Name the lanes: the coordinator's nodes and pools, else those where jobs have been."""
        status = self._explainer.status
        names = [node["name"] for node in status["nodes"]] if status else []
        hosts = [node["name"] for node in status["nodes"] if "jobs" in node] if status else []
        return hosts or names or self._packing.names()

    def _lanes(self, shown: list[Rectangle]) -> list[dict[str, Any]]:
        deepest: dict[str, int] = dict.fromkeys(self.names(), 0)
        for one in shown:
            deepest[one.lane] = max(deepest.get(one.lane, 0), one.row)
        status = self._explainer.status or {"nodes": []}
        trouble = {node["name"]: node.get("trouble", "") for node in status["nodes"]}
        return [
            {"name": name, "rows": row + 1, "trouble": trouble.get(name, "")} for name, row in deepest.items()
        ]

    def _listed(self, one: Rectangle) -> dict[str, Any]:
        row = self._mirror.rows.get(one.job or 0)
        return one._asdict() | {"name": row.name if row else "", "cores": row.cores if row else 0}


def expected_end(row: Row) -> float | None:
    """Return when a running job should end; None: nothing is known."""
    run_s = row.expected.run_s if row.expected else row.limit_s
    return None if run_s is None else row.since_s + max(run_s - row.served_s, 0.0)


def merged(stays: list[Rectangle], pixel_s: float, now_s: float) -> list[Rectangle]:
    """Join what is shorter than a pixel with its neighbours of a row that are, too."""
    found: list[Rectangle] = []
    rows: dict[tuple[str, int], tuple[float, float, int, Rectangle]] = {}  # start, end, count, the first

    def close(blob: tuple[float, float, int, Rectangle]) -> None:
        start_s, end_s, count, first = blob
        if count == 1:
            found.append(first)
        else:
            found.append(Rectangle(first.lane, first.row, start_s, end_s, "several", count))

    for one in sorted(stays, key=lambda one: one.start_s):
        end_s = max(one.start_s, now_s) if one.end_s is None else one.end_s
        key = one.lane, one.row
        blob = rows.get(key)
        if one.end_s is None or end_s - one.start_s >= pixel_s:
            if blob is not None:
                close(rows.pop(key))
            found.append(one)
        elif blob is not None and one.start_s - blob[1] < pixel_s:
            rows[key] = blob[0], max(blob[1], end_s), blob[2] + 1, blob[3]
        else:
            if blob is not None:
                close(blob)
            rows[key] = one.start_s, end_s, 1, one
    for blob in rows.values():
        close(blob)
    return found
