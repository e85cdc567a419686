"""The rectangles of the Gantt view: which job was where, when; what runs, what is planned, and power."""

from __future__ import annotations

import heapq
import json
import math
import threading
import time
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from scheduler.engines.common.job_folders import JobFolders
from tenbin.page.explainer import Explainer
from tenbin.page.mirror import BEGUN, Mirror, Row, Span

# -- stays as columns --------------------------------------------------------------------------------------


class Columns:
    """Stays as columns of numbers; ``end_s`` is infinite while one goes on.

    ``lane`` and ``how`` are places in the lists of names.
    """

    def __init__(self) -> None:
        self.start_s, self.end_s = array("d"), array("d")
        self.lane, self.row, self.job, self.how = array("q"), array("q"), array("q"), array("q")

    def append(self, start_s: float, end_s: float, lane: int, *, row: int, job: int, how: int) -> None:
        """Add a stay."""
        self.start_s.append(start_s)
        self.end_s.append(end_s)
        self.lane.append(lane)
        self.row.append(row)
        self.job.append(job)
        self.how.append(how)

    def overlapping(self, from_s: float, until_s: float) -> NDArray[np.intp]:
        """Return the places of the stays that a window shows."""
        start_s, end_s = np.frombuffer(self.start_s), np.frombuffer(self.end_s)
        return np.flatnonzero((start_s < until_s) & (end_s >= from_s))

    def take(self, places: NDArray[np.intp]) -> dict[str, NDArray[np.generic]]:
        """Return these stays, a copy of each column."""
        names = {"start_s": "d", "end_s": "d", "lane": "q", "row": "q", "job": "q", "how": "q"}
        return {name: np.frombuffer(getattr(self, name), dtype=kind)[places] for name, kind in names.items()}


class Packing:
    """The row of each stay in its lane: the lowest that is free when it begins, and the same ever after.

    Attributes:
        lanes, hows: names. hows[0] is that of a stay that goes on.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._epoch = self._version = -1
        self._clear()

    def _clear(self) -> None:
        self.columns = Columns()
        self.lanes: list[str] = []
        self.hows = ["running"]
        self._places: dict[tuple[int, int, str], int] = {}  # job, its how manieth stay, lane
        self._last: dict[str, list[int]] = {}  # the last stay in each row of a lane

    def refresh(self) -> None:
        """Take in what has begun or ended since."""
        mirror, version = self._mirror, self._mirror.version
        if version == self._version:
            return
        jobs = mirror.changed_since(self._version) if mirror.epoch == self._epoch else None
        if jobs is None:
            self._clear()
            self._epoch = mirror.epoch
            self._pack_all()
        for job in jobs or ():
            for place, span in enumerate(mirror.spans.get(job, ())):
                for lane in self._lanes_of(job, span):
                    self._update(job, place, lane, span)
        self._version = version

    def last(self, lane: str) -> list[tuple[int, bool]]:
        """Return the last job in each row of a lane, and whether it is there still."""
        columns = self.columns
        return [(columns.job[at], math.isinf(columns.end_s[at])) for at in self._last.get(lane, ())]

    def _lanes_of(self, job: int, span: Span) -> tuple[str, ...]:
        if span.lane is not None:
            return span.lane
        row = self._mirror.rows.get(job)
        return row.lane if row is not None else ()

    def _pack_all(self) -> None:
        stays = sorted(
            (span.start_s, job, place, lane, span)
            for job, of_job in list(self._mirror.spans.items())
            for place, span in enumerate(of_job)
            for lane in self._lanes_of(job, span)
        )
        free: dict[str, list[int]] = {}
        busy: dict[str, list[tuple[float, int]]] = {}
        for start_s, job, place, lane, span in stays:
            rows, ends = free.setdefault(lane, []), busy.setdefault(lane, [])
            while ends and ends[0][0] <= start_s:
                heapq.heappush(rows, heapq.heappop(ends)[1])
            row = heapq.heappop(rows) if rows else len(self._last.get(lane, ()))
            self._put(job, place, lane, span, row=row)
            heapq.heappush(ends, (math.inf if span.end_s is None else span.end_s, row))

    def _update(self, job: int, place: int, lane: str, span: Span) -> None:
        at = self._places.get((job, place, lane))
        if at is None:
            ends = [self.columns.end_s[stay] for stay in self._last.get(lane, ())]
            row = next((row for row, end_s in enumerate(ends) if end_s <= span.start_s), len(ends))
            self._put(job, place, lane, span, row=row)
        elif span.end_s is not None:
            self.columns.end_s[at] = span.end_s
            self.columns.how[at] = _number(self.hows, span.how)

    def _put(self, job: int, place: int, lane: str, span: Span, *, row: int) -> None:
        at = len(self.columns.job)
        end_s = math.inf if span.end_s is None else span.end_s
        how = _number(self.hows, span.how or "running")
        self.columns.append(span.start_s, end_s, _number(self.lanes, lane), row=row, job=job, how=how)
        self._places[job, place, lane] = at
        self._last.setdefault(lane, [])[row : row + 1] = [at]


def _number(names: list[str], name: str) -> int:
    """Return the place of a name in a list, added if it is new."""
    if name not in names:
        names.append(name)
    return names.index(name)


# -- power over time ---------------------------------------------------------------------------------------


STEPS = 200  # of a window
MOST_JOBS, MOST_READ = 5000, 200  # of a window; whose samples are read for it


class Held(NamedTuple):
    """A job at its place for a time, under a cap of all its units; ``cap_w`` None: uncapped."""

    job: int
    attempt: int
    start_s: float
    end_s: float
    cap_w: float | None


class Meter(NamedTuple):
    """Readings of a job's meter: when, and the energy so far."""

    at_s: NDArray[Any]
    energy_j: NDArray[Any]
    emulated: bool


class Power:
    """Power of the jobs of a mirror; nothing where the coordinator schedules none."""

    def __init__(self, mirror: Mirror, explainer: Explainer) -> None:
        self._mirror, self._explainer = mirror, explainer
        self._folders = JobFolders(mirror.store)

    def find(self, from_s: float, until_s: float, jobs: Sequence[int]) -> dict[str, Any] | None:
        """Return the mean power of each step of a window, in W; None: no power is scheduled.

        ``allotted_w`` is the sum of the caps, with what idle packages may draw now; ``drawn_w`` is what the
        packages of jobs have drawn. Either is None where there are too many jobs; ``drawn_w`` also where no
        job has a meter.

        Args:
            jobs: those that the window shows.
        """
        power = (self._explainer.status or {}).get("power")
        if power is None or until_s <= from_s:
            return None
        edges = np.linspace(from_s, until_s, STEPS + 1)
        few = len(jobs) <= MOST_JOBS
        held = [stay for job in jobs for stay in self._held(job)] if few else []
        held = [stay for stay in held if stay.start_s < until_s and stay.end_s > from_s]
        meters = map(self._metered, held if len(held) <= MOST_READ else ())
        metered = [meter for meter in meters if meter is not None]
        rest_w = power["allotted_w"] - sum(stay.cap_w or 0.0 for stay in self._running())
        drawn = sum((drawn_of(edges, meter) for meter in metered), np.zeros(STEPS))
        return {
            "budget_w": power["budget_w"],
            "edges_s": edges.tolist(),
            "allotted_w": (rest_w + allotted(edges, held)).round(2).tolist() if few else None,
            "drawn_w": drawn.round(2).tolist() if metered else None,
            "emulated": any(meter.emulated for meter in metered),
            "too_many": not few or len(held) > MOST_READ,
        }

    def _running(self) -> list[Held]:
        rows = list(self._mirror.rows.values())
        held = [stay for row in rows if row.stage in BEGUN for stay in self._held(row.id)[-1:]]
        return [stay for stay in held if math.isinf(stay.end_s)]  # a paused job has given its power back

    def _held(self, job: int) -> list[Held]:
        row = self._mirror.rows.get(job)
        if row is None:
            return []
        return [
            Held(
                job,
                span.attempt,
                span.start_s,
                math.inf if span.end_s is None else span.end_s,
                row.cap_w if span.attempt == row.attempt else earlier_cap(self._folders, job, span.attempt),
            )
            for span in self._mirror.spans.get(job, ())
        ]

    def _metered(self, held: Held) -> Meter | None:
        """Return what an attempt's meter has shown; None: it has none."""
        samples = self._folders.samples(held.job, held.attempt)
        rows = [row for row in samples if row.energy_j is not None]
        if len(rows) < 2:
            return None
        times, energies = np.array([(row.at_s, row.energy_j) for row in rows], float).T
        return Meter(times, energies, bool(self._folders.order(held.job, held.attempt).get("emulated")))


def allotted(edges: NDArray[Any], held: Sequence[Held]) -> NDArray[Any]:
    """Return the mean of the sum of the caps in each step between two edges."""
    energy = np.zeros(len(edges))
    for stay in held:
        energy += (stay.cap_w or 0.0) * np.clip(edges - stay.start_s, 0.0, stay.end_s - stay.start_s)
    mean_w: NDArray[Any] = np.diff(energy) / np.diff(edges)
    return mean_w


def drawn_of(edges: NDArray[Any], meter: Meter) -> NDArray[Any]:
    """Return the mean power of one meter in each step; 0 before its first reading and after its last."""
    mean_w: NDArray[Any] = np.diff(np.interp(edges, meter.at_s, meter.energy_j)) / np.diff(edges)
    return mean_w


@lru_cache(maxsize=4096)
def earlier_cap(folders: JobFolders, job: int, attempt: int) -> float | None:
    """Return the cap of all units of an earlier attempt by its order; None: uncapped, or not known."""
    try:
        _, units, _, cap_w, *_ = json.loads(folders.order(job, attempt)["journalled"]["placement"])
        return None if cap_w is None else cap_w * units
    except (ValueError, KeyError, TypeError):
        return None


# -- the view ----------------------------------------------------------------------------------------------


MOST_RECTANGLES, MOST_LANES, MOST_ROWS, LISTED = 4000, 400, 60, 100
PLANNED = 40  # jobs at the head of the queue whose start is asked for
UNPLACED = "not placed yet"
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
    """The Gantt view of a mirror."""

    def __init__(self, mirror: Mirror, explainer: Explainer) -> None:
        self._mirror, self._explainer = mirror, explainer
        self._packing = Packing(mirror)
        self._power = Power(mirror, explainer)
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
        with self._lock:  # of what is packed and its columns
            return self._find(window, planned)

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
        known = [self._rectangle(stays, at) for at in newest]
        runs = [rectangle for rectangle in known if rectangle.end_s is None]
        listed = runs + later + known[len(runs) :]
        lanes = self._lanes(shown)
        return {
            "now_s": now_s,
            "lanes": lanes[:MOST_LANES],
            "left_out": max(len(lanes) - MOST_LANES, 0),
            "rectangles": shown,
            "jobs": [self._listed(rectangle) for rectangle in listed[:LISTED]],
            "total": len(stays["job"]) + len(later),
            "power": self._power.find(
                window.from_s, min(window.until_s, now_s), sorted(set(stays["job"].tolist()))
            ),
        }

    def _rectangles(self, stays: Stays, groups: list[NDArray[np.intp]]) -> list[Rectangle]:
        rectangles = []
        for group in groups:
            rectangle = self._rectangle(stays, group[0])
            if len(group) > 1:
                end_s = float(stays["end_s"][group].max())
                rectangle = Rectangle(
                    rectangle.lane, rectangle.row, rectangle.start_s, end_s, "several", len(group)
                )
            rectangles.append(rectangle)
        return rectangles

    def _rectangle(self, stays: Stays, at: Any) -> Rectangle:
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
        rectangles: list[Rectangle] = []
        ends = {
            lane: [
                _free_from(rows.get(job) if runs else None, now_s) for job, runs in self._packing.last(lane)
            ]
            for lane in names
        }
        starts = [
            (answer["expected_start_s"], job) for job in jobs if (answer := self._explainer.answer_of(job))
        ]
        for start_s, job in sorted((at, job) for at, job in starts if at is not None):
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
                rectangles.append(
                    Rectangle(lane, at, start_s, end_s, how="planned", job=job, label=row.label)
                )
        return rectangles

    def names(self) -> list[str]:
        """Name the lanes: the coordinator's nodes, else its pools, else those where jobs have been."""
        status = self._explainer.status
        nodes = status["nodes"] if status else []
        with_jobs = [node["name"] for node in nodes if "jobs" in node]
        return with_jobs or [node["name"] for node in nodes] or sorted(self._packing.lanes)

    def _lanes(self, shown: list[Rectangle]) -> list[dict[str, Any]]:
        deepest: dict[str, int] = dict.fromkeys(self.names(), 0)
        for rectangle in shown:
            deepest[rectangle.lane] = max(deepest.get(rectangle.lane, 0), rectangle.row)
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

    def _listed(self, rectangle: Rectangle) -> dict[str, Any]:
        row = self._mirror.rows.get(rectangle.job or 0)
        more = (row.name, row.cores, row.region) if row else ("", 0, "")
        return rectangle._asdict() | dict(zip(("name", "cores", "region"), more, strict=True))


def region_names(node: dict[str, Any]) -> list[str]:
    """Name the regions that a node, or a pool, lies in: as ``GET /status`` lists them."""
    regions = node.get("regions") or {}
    return list(regions) if isinstance(regions, dict) else [region["name"] for region in regions]


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
