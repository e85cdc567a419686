"""All stays of jobs at their places as columns, each with its row in the lane where it is drawn."""

from __future__ import annotations

import heapq
import math
from array import array

import numpy as np
from numpy.typing import NDArray

from tenbin.page.mirror import Mirror
from tenbin.page.spans import Span


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
            ends = [self.columns.end_s[one] for one in self._last.get(lane, ())]
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
