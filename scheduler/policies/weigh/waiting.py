"""Beliefs about waiting jobs, in a table, and the prices that form from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import truediv

import numpy as np
from numpy.typing import NDArray

from scheduler.model.jobs import RUNNING, STOPPING, Job, JobState, instant
from scheduler.model.quantiles import Quantiles, exactly
from scheduler.policies.base import View

SOON_S = 1e-6  # least time until a running job is taken to end
PRIOR_S = 60.0  # believed time left of a job of which nothing is known
FLOOR_S = 10.0  # shorter jobs are no more urgent
LATE = 0.1  # a job that is late is believed to need such a share of what it has had
ROUNDS = 3  # in which prices form
OLD, WIDE = 0.8, 0.25  # who has waited so long beside the first of the queue, and takes more of a class
AHEAD = 1e-9  # factor on their index
ALIKE = 0.1  # classes of which one costs a job so much more count for it together
MOST_S = 1e300  # a job that costs more can run nowhere, and counts nowhere

# -- what is believed of a job ------------------------------------------------------------------------------


def is_unknown(job: Job) -> bool:
    """Tell if no run time is known of a job, on any class."""
    believed_s = job.estimates_s.values() or (math.inf if job.estimate_s is None else job.estimate_s,)
    return min(believed_s) == math.inf


def left_s(state: JobState, now: float, pool: str) -> float:
    """Return the believed time left on a class.

    A job of unknown run time is believed to run for as long again as it has (a heavy tail).
    """
    left = state.remaining_s(now, pool)
    if left == math.inf:
        return max(state.attained_s(now), PRIOR_S)
    return left if left > 0.0 else max(1.0, LATE * state.attained_s(now))


def left_quantiles(state: JobState, now: float, pool: str) -> Quantiles:
    """Return quantiles of the time left on a class; all are ``left_s`` unless the run time is predicted."""
    if not state.job.quantiles_s or (left := state.left(now, pool)).middle == math.inf:
        return exactly(left_s(state, now, pool))
    return Quantiles(*(max(value, SOON_S) for value in left))


def believed_end(state: JobState, view: View, holes: Mapping[int, float]) -> float:
    """Return when a running job is believed to give its units back.

    On one class nothing is planned beside a job of unknown run time: its end is infinite.
    """
    now, end = view.now, state.expected_end_s
    if now < end < math.inf and state.stage is RUNNING and state.job.id not in holes:
        return end
    if state.stage is STOPPING:
        end = state.since_s + view.costs.stop_s(state.job, state.place.pool)
    elif end <= now:
        end = now + max(1.0, LATE * state.attained_s(now))
    elif end == math.inf and len(view.cluster.pools) > 1:
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

Floats = NDArray[np.float64]
AREA, LEFT, SUBMITTED, PRIORITY, LENGTHS = range(5)
Rank = tuple[float, float]  # minus the priority, and the index


class Rows:
    """A table of the waiting jobs, to rank thousands at once: a column for each job, in no order.

    Args:
        sizes: what each class has of each resource, classes x resources; a counted class has one, its units.
        shared: of the last resource, if all classes share it: which part of the whole one of it is there.
    """

    def __init__(self, sizes: Floats, shared: Floats | None = None) -> None:
        self.sizes, self.shared = sizes, shared
        self.prices = np.zeros_like(sizes)  # of a second of one of each resource, in seconds
        self._table = np.zeros((LENGTHS + sum(sizes.shape), 64))
        self._ids: list[int] = []
        self._place_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def _split(self) -> tuple[Floats, Floats]:
        """Return believed run times, classes x jobs, and amounts taken, resources x jobs."""
        first, table = LENGTHS + len(self.sizes), self._table[:, : len(self)]
        return table[LENGTHS:first], table[first:]

    def clear(self) -> None:
        self._ids.clear()
        self._place_of.clear()

    def add(self, job: Job, lengths: Sequence[float], amounts: Sequence[float] = ()) -> None:
        """Enter a job, with its believed time left on each class.

        Args:
            amounts: what it takes of each resource at least; (): as it is.
        """
        if job.id in self._place_of:
            return
        if len(self) == self._table.shape[1]:
            self._table = np.hstack((self._table, np.zeros_like(self._table)))
        facts = *least_area(job, lengths, self.sizes), job.submit_s, job.priority
        self._table[:, len(self)] = *facts, *lengths, *(amounts or amounts_of(job))
        self._place_of[job.id] = len(self)
        self._ids.append(job.id)

    def drop(self, job_id: int) -> None:
        """Take a job out, if it is there; the last one takes its place."""
        place = self._place_of.pop(job_id, None)
        if place is None:
            return
        last = self._ids.pop()
        if last != job_id:
            self._ids[place] = last
            self._place_of[last] = place
            self._table[:, place] = self._table[:, len(self)]

    def order(self, weights: tuple[float, float, float]) -> list[int]:
        """List all jobs by their ranks."""
        facts = self._table[:LENGTHS, : len(self)]
        places = self._first(np.arange(len(self)), index_of(facts, *weights), facts[PRIORITY], len(self))
        return [job_id for _, job_id in sorted(places)]

    def facts(self, job_ids: Iterable[int]) -> Floats:
        """Return what ranks these jobs (see ``index_of``), and their priorities."""
        return self._table[:LENGTHS, [self._place_of[job_id] for job_id in job_ids]]

    def ranked(
        self, room: Floats, weights: tuple[float, float, float], depth: int
    ) -> tuple[list[tuple[Rank, int]], list[tuple[Rank, int]]]:
        """List (rank, job) of the first ``depth`` that fit on a class now, and of the first that fit on none.

        Of the latter there is one for each class, for its reservation.

        Args:
            room: what is free, classes x resources.
        """
        lengths, amounts = self._split()
        fits = ((amounts <= room[:, :, None]).all(axis=1) & np.isfinite(lengths)).any(axis=0)
        facts = self._table[:LENGTHS, : len(self)]
        index = index_of(facts, *weights)
        return (
            self._first(np.flatnonzero(fits), index, facts[PRIORITY], depth),
            self._first(np.flatnonzero(~fits), index, facts[PRIORITY], len(self.sizes)),
        )

    def _first(
        self, places: NDArray[np.intp], index: Floats, priorities: Floats, most: int
    ) -> list[tuple[Rank, int]]:
        if len(places) > most:
            if not np.ptp(priorities):
                places = places[index[places] <= np.partition(index[places], most - 1)[most - 1]]
            ids = [self._ids[place] for place in places.tolist()]
            places = places[np.lexsort((ids, index[places], -priorities[places]))[:most]]
        ranks = zip((-priorities[places]).tolist(), index[places].tolist(), strict=True)
        return [(rank, self._ids[place]) for rank, place in zip(ranks, places.tolist(), strict=True)]

    def form_prices(
        self, factor: float, later: float = 0.0, more: Sequence[Sequence[Sequence[float]]] = ()
    ) -> None:
        """Count jobs, and ``more`` by their lengths and amounts, for the class that is cheapest for them.

        Among classes that cost nearly the same a job is divided: else equal classes would take turns at being
        the dear one. On each it counts for the resource of which it takes the largest share. Iterated until
        prices and choices agree. ``later``: jobs that are counted on each class beside those that wait.
        """
        (lengths, amounts), sizes = self._split(), self.sizes
        if more:
            its_lengths, its_amounts = zip(*more, strict=True)
            lengths = np.hstack((lengths, np.transpose(its_lengths)))
            amounts = np.hstack((amounts, np.transpose(its_amounts)))
        places = np.arange(sizes.size).reshape(sizes.shape)
        at = np.array([_scarcest(amounts, size) for size in sizes]) + places[:, :1]
        for _ in range(ROUNDS if len(sizes) > 1 else 1):
            costs = lengths * (1.0 + self.prices @ amounts)
            parts = np.maximum(1.0 + ALIKE - costs / np.minimum(costs.min(axis=0), MOST_S), 0.0)
            parts /= np.maximum(parts.sum(axis=0), ALIKE)
            counts = np.bincount(at.ravel(), parts.ravel(), sizes.size).reshape(sizes.shape)
            formed = factor * counts / sizes
            formed[:, 0] += factor * later / sizes[:, 0]
            if self.shared is not None:
                formed[:, -1] = factor * counts[:, -1].sum() * self.shared
            self.prices = 0.5 * (self.prices + formed) if len(sizes) > 1 else formed


def _scarcest(amounts: Floats, size: Floats) -> NDArray[np.intp]:
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


def least_area(job: Job, lengths: Sequence[float], sizes: Floats) -> tuple[float, float]:
    """Return the least area, as a share of a class for so many seconds, and the time left there.

    Its share of a class is that of the resource of which it takes most (dominant share, Ghodsi et al., 2011).
    A job of unknown run time counts as if it took all of it, so that such jobs come in the order of their
    submission.
    """
    if is_unknown(job):
        return min(lengths), min(lengths)
    amounts = amounts_of(job)
    return min(
        (length * max(map(truediv, amounts, size)), length)
        for length, size in zip(lengths, sizes.tolist(), strict=True)
    )


def index_of(facts: Floats, now: float, first_s: float, fairness: float) -> Floats:
    """Return the index of jobs by their areas, times left and submissions: the least comes first.

    Wide jobs that have waited nearly as long as the first of the queue, submitted at ``first_s``, and longer
    than they will run, come before all others (minus infinity: none does).
    """
    area, left, submitted = facts[:PRIORITY]
    waits = np.maximum(now - submitted, 0.0)  # less than none after a clock was set back
    index = area / (1.0 + fairness * waits / np.maximum(left, FLOOR_S))
    old = (waits >= OLD * (now - first_s)) & (waits > left) & (area > WIDE * left)
    ranked: Floats = np.where(old, AHEAD * index, index)
    return ranked
