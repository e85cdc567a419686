"""Beliefs about waiting jobs, in a table, and the prices that form from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import truediv

import numpy as np
from numpy.typing import NDArray

from scheduler.model.jobs import STOPPING, Job, JobState, instant
from scheduler.policies.base import View

SOON_S = 1e-6  # least time until a running job is taken to end
PRIOR_S = 60.0  # believed time left of a job of which nothing is known
FLOOR_S = 10.0  # shorter jobs are no more urgent
LATE = 0.1  # a job that is late is believed to need such a share of what it has had
ROUNDS = 3  # in which prices form
ALIKE = 0.1  # classes of which one costs a job so much more count for it together
MOST_S = 1e300  # a job that costs more can run nowhere, and counts nowhere

# -- what is believed of a job ------------------------------------------------------------------------------


def left_s(state: JobState, now: float, pool: str) -> float:
    """Return the believed time left on a class.

    A job of unknown run time is believed to run for as long again as it has (a heavy tail).
    """
    left = state.remaining_s(now, pool)
    if left == math.inf:
        return max(state.attained_s(now), PRIOR_S)
    return left if left > 0.0 else max(1.0, LATE * state.attained_s(now))


def believed_end(state: JobState, view: View, holes: Mapping[int, float]) -> float:
    """Return when a running job is believed to give its units back."""
    now, end = view.now, state.expected_end_s
    if state.stage is STOPPING:
        end = state.since_s + view.costs.stop_s(state.job, state.place.pool)
    elif end <= now:
        end = now + max(1.0, LATE * state.attained_s(now))
    elif end == math.inf:
        end = now + max(PRIOR_S, state.attained_s(now))
    return instant(max(min(end, holes.get(state.job.id, math.inf)), now + SOON_S))


def lengths_of(state: JobState, view: View, pools: Iterable[str]) -> list[float]:
    """List the believed time left on each class; infinite where the job cannot run."""
    job, units = state.job, view.in_service
    return [
        left_s(state, view.now, pool) if job.runs_on(pool) and job.units <= units[pool] else math.inf
        for pool in pools
    ]


# -- the waiting jobs ----------------------------------------------------------------------------------

AREA, LEFT, SUBMITTED, PRIORITY, LENGTHS = range(5)
Rank = tuple[int, float]  # minus the priority, and the index


class Rows:
    """A table of the waiting jobs, to rank thousands at once; the order of its rows means nothing.

    Args:
        sizes: what each class has of each resource, classes x resources; a counted class has one, its units.
    """

    def __init__(self, sizes: NDArray[np.float64]) -> None:
        self.sizes = sizes
        self.prices = np.zeros_like(sizes)  # of a second of one of each resource, in seconds
        self._amounts = LENGTHS + len(sizes)
        self._table = np.zeros((64, self._amounts + sizes.shape[1]))
        self._ids: list[int] = []
        self._row_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def amounts(self) -> NDArray[np.float64]:
        """Amounts that they take of each resource, jobs x resources."""
        return self._table[: len(self), self._amounts :]

    @property
    def lengths(self) -> NDArray[np.float64]:
        """Believed run times, jobs x classes."""
        return self._table[: len(self), LENGTHS : self._amounts]

    def clear(self) -> None:
        self._ids.clear()
        self._row_of.clear()

    def add(self, job: Job, lengths: Sequence[float]) -> None:
        """Enter a job, with its believed time left on each class."""
        if job.id in self._row_of:
            return
        if len(self) == len(self._table):
            self._table = np.vstack((self._table, np.zeros_like(self._table)))
        area, left = least_area(job, lengths, self.sizes)
        facts = area, left, job.submit_s, job.priority
        self._table[len(self)] = *facts, *lengths, *amounts_of(job)
        self._row_of[job.id] = len(self)
        self._ids.append(job.id)

    def drop(self, job_id: int) -> None:
        """Take a job out, if it is there; the last row takes its place."""
        row = self._row_of.pop(job_id, None)
        if row is None:
            return
        last = self._ids.pop()
        if last != job_id:
            self._ids[row] = last
            self._row_of[last] = row
            self._table[row] = self._table[len(self)]

    def facts(self, job_id: int) -> NDArray[np.float64]:
        """Return what ranks a job (see ``index_of``), and its priority."""
        return self._table[self._row_of[job_id], :LENGTHS]

    def ranked(
        self, room: NDArray[np.float64], now: float, fairness: float, depth: int
    ) -> tuple[list[tuple[Rank, int]], list[tuple[Rank, int]]]:
        """List (rank, job) of the first ``depth`` that fit on a class now, and of the first that fit on none.

        Of the latter there is one for each class, for its reservation.
        """
        fits = ((self.amounts <= room) & np.isfinite(self.lengths)).any(axis=1)
        index = index_of(self._table[: len(self), :LENGTHS].T, now, fairness)
        return (
            self._first(np.flatnonzero(fits), index, depth),
            self._first(np.flatnonzero(~fits), index, len(self.sizes)),
        )

    def _first(self, rows: NDArray[np.intp], index: NDArray[np.float64], most: int) -> list[tuple[Rank, int]]:
        table = self._table
        if len(rows) > most:
            if np.ptp(table[rows, PRIORITY]):
                rows = rows[np.lexsort((index[rows], -table[rows, PRIORITY]))[:most]]
            else:
                rows = rows[np.argpartition(index[rows], most)[:most]]
        return [((-int(table[row, PRIORITY]), float(index[row])), self._ids[row]) for row in rows.tolist()]

    def form_prices(self, factor: float, more: Sequence[tuple[Job, Sequence[float]]] = ()) -> None:
        """Count jobs, and ``more`` with their lengths, for the class that is cheapest for them.

        Among classes that cost nearly the same a job is divided: else equal classes would take turns at being
        the dear one. On each it counts for the resource of which it takes the largest share. Iterated until
        prices and choices agree.
        """
        amounts, lengths, sizes = self.amounts, self.lengths, self.sizes
        if more:
            amounts = np.vstack((amounts, [amounts_of(job) for job, _ in more]))
            lengths = np.vstack((lengths, [length for _, length in more]))
        amounts, lengths = amounts.T.copy(), lengths.T.copy()  # by job in one stretch: three times as fast
        places = np.arange(sizes.size).reshape(sizes.shape)
        at = np.array([_scarcest(amounts, size) for size in sizes]) + places[:, :1]
        for _ in range(ROUNDS if len(sizes) > 1 else 1):
            costs = lengths * (1.0 + self.prices @ amounts)
            parts = np.maximum(1.0 + ALIKE - costs / np.minimum(costs.min(axis=0), MOST_S), 0.0)
            parts /= np.maximum(parts.sum(axis=0), ALIKE)
            counts = np.bincount(at.ravel(), parts.ravel(), sizes.size).reshape(sizes.shape)
            formed = factor * counts / sizes
            self.prices = 0.5 * (self.prices + formed) if len(sizes) > 1 else formed


def _scarcest(amounts: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the resource of which each job takes the largest share."""
    best, most = np.zeros(amounts.shape[1], dtype=np.intp), amounts[0] / size[0]
    for place in range(1, len(size)):
        share = amounts[place] / size[place]
        best[share > most] = place
        most = np.maximum(most, share)
    return best


def amounts_of(job: Job) -> tuple[float, ...]:
    """Return what a job takes of each resource; of a counted class, its units."""
    return tuple(job.units * d for d in job.demand) or (job.units,)


def least_area(job: Job, lengths: Sequence[float], sizes: NDArray[np.float64]) -> tuple[float, float]:
    """Return the least area, as a share of a class for so many seconds, and the time left there.

    Its share of a class is that of the resource of which it takes most (dominant share, Ghodsi et al., 2011).
    """
    amounts = amounts_of(job)
    return min(
        (length * max(map(truediv, amounts, size)), length)
        for length, size in zip(lengths, sizes.tolist(), strict=True)
    )


def index_of(facts: NDArray[np.float64], now: float, fairness: float) -> NDArray[np.float64]:
    """Return the index of jobs by their areas, times left and submissions: the least comes first."""
    patience = fairness * (now - facts[SUBMITTED]) / np.maximum(facts[LEFT], FLOOR_S)
    index: NDArray[np.float64] = facts[AREA] / (1.0 + patience)
    return index
