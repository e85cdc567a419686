"""Waiting time, divided by whether enough units were free (A) or not (B), as in paper A.

A waiting job of n units waits under A while at least n units of some class on which it can run are free,
reserved or not. The division is made on the finished schedule.
"""

from __future__ import annotations

from array import array
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from scheduler.model.jobs import Cluster, Job
from scheduler.simulator.trace import Outcome

Key = tuple[int, tuple[str, ...]]  # units of a job, and the classes that it can run on


class WaitBreakdown:
    """A sink that keeps when each job held units and waited (100 bytes a job); counted pools only."""

    def __init__(self, cluster: Cluster) -> None:
        self._units = {pool.name: pool.units for pool in cluster.pools}
        self._changes = {name: (array("d"), array("q")) for name in self._units}
        self._waits: dict[Key, array[float]] = defaultdict(lambda: array("d"))  # from, to, from, to, ...
        self._jobs = 0

    def add(self, outcome: Outcome) -> None:
        self._jobs += 1
        waits = self._waits[outcome.job.units, self._classes(outcome.job)]
        before = outcome.job.submit_s
        for _, placement, start, end in outcome.segments:
            if start > before:
                waits.extend((before, start))
            before = end
            times, changes = self._changes[placement.pool]
            times.extend((start, end))
            changes.extend((-placement.units, placement.units))

    def means(self) -> tuple[float, float]:
        """Return mean wait A and B over all jobs, in seconds."""
        if not self._jobs:
            return 0.0, 0.0
        times, free = self._free()
        under_a = total = 0.0
        for (units, classes), waits in self._waits.items():
            enough = np.any([free[name] >= units for name in classes], axis=0)
            reached = np.concatenate(([0.0], np.cumsum(np.diff(times) * enough[:-1])))
            spans = np.frombuffer(waits).reshape(-1, 2)
            under_a += float(np.diff(np.interp(spans, times, reached)).sum())
            total += float(np.diff(spans).sum())
        return under_a / self._jobs, max(0.0, total - under_a) / self._jobs

    def _classes(self, job: Job) -> tuple[str, ...]:
        return tuple(name for name in self._units if job.runs_on(name))

    def _free(self) -> tuple[NDArray[np.float64], dict[str, NDArray[np.int64]]]:
        """Return every time of a change, and the free units of each class from then on."""
        columns = {name: (np.array(t), np.array(c, np.int64)) for name, (t, c) in self._changes.items()}
        waits = [np.frombuffer(w) for w in self._waits.values() if w]
        times = np.unique(np.concatenate([t for t, _ in columns.values()] + waits))
        free = {}
        for name, (at, change) in columns.items():
            steps = np.zeros(len(times), np.int64)
            np.add.at(steps, np.searchsorted(times, at), change)
            free[name] = self._units[name] + np.cumsum(steps)
        return times, free
