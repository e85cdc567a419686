"""Metrics, each with one definition, gathered while jobs end.

All submitted jobs count that were not refused, also killed ones. With a ``Window`` (warm-up and cool-down cut
off) only jobs submitted in it count; utilisation and machine energy are then those of the window, whoever
held the units. Without an end of its own a window reaches to the last end.

- turnaround: end - submission.
- wait: turnaround - time of progress - overhead (checkpoints, restarts, lost work).
  For a job that is never interrupted: start - submission.
- run time: time of progress, on whatever class, without lost work.
- slowdown: turnaround / run time (1 + wait / run time, if uninterrupted); jobs of run time 0 are left out.
- bounded slowdown (bsld): max(1, turnaround / max(run time, 10 s)).
- makespan: last end - first submission.
- utilisation: unit-seconds held by jobs / (units of the cluster x makespan, or window); in pools with nodes
  the share of the first resource, as nodes' worth of it (a demand of half a node for 2 s is one unit-second).
- preemptions: suspensions and checkpoints of running jobs. migrations: restarts of jobs elsewhere.
- energy: of the units while jobs hold them. Machine energy: also of idle units, over the makespan.

Percentiles are exact values of jobs (numpy's "lower" of the ordered values).
"""

from __future__ import annotations

from array import array
from dataclasses import asdict, dataclass
from struct import Struct

import numpy as np

from scheduler.model.jobs import Cluster, Job, Placement
from scheduler.simulator.trace import Outcome
from scheduler.simulator.window import Window

BSLD_BOUND_S = 10.0
ROW = Struct("10d")
BATCH = 4096 * ROW.size  # bytes that are added up at a time


@dataclass(frozen=True)
class Metrics:
    """Figures of one simulation; None where no job counts. ``not_counted``: jobs outside the window."""

    jobs: int
    not_counted: int
    killed: int
    mean_wait_s: float | None
    p50_wait_s: float | None
    p95_wait_s: float | None
    p99_wait_s: float | None
    max_wait_s: float | None
    mean_turnaround_s: float | None
    max_turnaround_s: float | None
    bsld_mean: float | None
    mean_slowdown: float | None
    p50_slowdown: float | None
    p95_slowdown: float | None
    p99_slowdown: float | None
    p999_slowdown: float | None
    max_slowdown: float | None
    makespan_s: float
    utilisation_ratio: float
    mean_run_s: float | None
    mean_overhead_s: float | None
    preemptions: int
    migrations: int
    failures: int
    energy_j: float
    machine_energy_j: float

    def to_dict(self) -> dict[str, float | int | None]:
        """Return names with units, and values."""
        return asdict(self)


class Accumulator:
    """A sink that gathers the metrics, and keeps 16 bytes of each job for the percentiles.

    Args:
        window: jobs submitted in it count; None: all jobs.
    """

    def __init__(self, cluster: Cluster, window: Window | None = None) -> None:
        self._pools = {pool.name: pool for pool in cluster.pools}
        self._rows = bytearray()  # of jobs to be added up, as ``_add_up`` reads them
        self._waits = array("d")
        self._slowdowns = array("d")
        self._turnaround = self._run = self._overhead = self._bsld = self._energy = 0.0
        self._longest = 0.0
        self._counted = {pool.name for pool in cluster.pools if pool.counted}
        self._held = dict.fromkeys(self._pools, 0.0)
        self._first = float("inf")
        self._last = -float("inf")
        self._counts = np.zeros(4)  # of preemptions, migrations, failures, killed jobs
        self._jobs = self._not_counted = 0
        self._window = window
        self._last_of_all = -float("inf")  # end, also of jobs that do not count
        self._window_energy = 0.0  # of all jobs

    def add(self, outcome: Outcome) -> None:
        job, _, end, how, run, overhead, lost, stops, moves, failures, energy, segments = outcome
        if self._window is not None:
            self._hold_in(self._window, outcome)
            if not self._window.counts(job.submit_s):
                self._not_counted += 1
                return
        killed = how == "killed"
        self._rows += ROW.pack(job.submit_s, end, run, overhead, lost, energy, stops, moves, failures, killed)
        if len(self._rows) >= BATCH:
            self._add_up()
        if self._window is not None:
            return
        held, counted = self._held, self._counted
        for _, placement, start, until in segments:
            pool = placement.pool
            units = placement.units if pool in counted else self._nodes_worth(placement, job)
            held[pool] += units * (until - start)

    def _hold_in(self, window: Window, outcome: Outcome) -> None:
        """Add what a job held within the window, and its energy there."""
        self._last_of_all = max(self._last_of_all, outcome.end_s)
        for _, placement, start, end in outcome.segments:
            name, held_s = placement.pool, window.overlap_s(start, end)
            counted = name in self._counted
            self._held[name] += held_s * (
                placement.units if counted else self._nodes_worth(placement, outcome.job)
            )
            self._window_energy += held_s * self._pools[name].power_w(placement.units, placement.cap_w)

    def _add_up(self) -> None:
        """Add the rows up, and keep what the percentiles need."""
        if not self._rows:
            return
        columns = np.frombuffer(bytes(self._rows)).reshape(-1, 10).T
        submit, end, gross, overhead, lost, energy = columns[:6]
        self._counts += columns[6:].sum(axis=1)
        self._rows.clear()
        turnaround, run = end - submit, gross - lost
        wait = turnaround - gross - overhead
        self._waits.frombytes(np.where(wait > 1e-6, wait, 0.0).tobytes())
        ran = run > 0
        self._slowdowns.frombytes((turnaround[ran] / run[ran]).tobytes())
        self._bsld += float(np.maximum(turnaround / np.maximum(run, BSLD_BOUND_S), 1.0).sum())
        self._turnaround += float(turnaround.sum())
        self._longest = max(self._longest, float(turnaround.max()))
        self._run += float(run.sum())
        self._overhead += float((overhead + lost).sum())
        self._energy += float(energy.sum())
        self._first = min(self._first, float(submit.min()))
        self._last = float(end[-1])  # outcomes come in the order of their ends
        self._jobs += len(end)

    def _nodes_worth(self, placement: Placement, job: Job) -> float:
        """Count how many whole nodes the placement amounts to, by the first resource."""
        pool = self._pools[placement.pool]
        return sum(n * job.demand[0] / pool.capacity_of(node)[0] for node, n in placement.nodes)

    def metrics(self) -> Metrics:
        """Compute the figures of all jobs so far."""
        self._add_up()
        n = self._jobs
        makespan = self._last - self._first if n else 0.0
        span = self._span_s(makespan)
        units = sum(pool.units for pool in self._pools.values())
        held = sum(self._held.values())
        idle = sum(
            pool.idle_w * max(0.0, pool.units * span - self._held[name]) for name, pool in self._pools.items()
        )
        in_use = self._energy if self._window is None else self._window_energy
        preemptions, migrations, failures, killed = map(int, self._counts)
        wait = _quantiles(self._waits)
        slowdown = _quantiles(self._slowdowns)
        return Metrics(
            jobs=n,
            not_counted=self._not_counted,
            killed=killed,
            mean_wait_s=wait[0],
            p50_wait_s=wait[1],
            p95_wait_s=wait[2],
            p99_wait_s=wait[3],
            max_wait_s=wait[5],
            mean_turnaround_s=self._turnaround / n if n else None,
            max_turnaround_s=self._longest if n else None,
            bsld_mean=self._bsld / n if n else None,
            mean_slowdown=slowdown[0],
            p50_slowdown=slowdown[1],
            p95_slowdown=slowdown[2],
            p99_slowdown=slowdown[3],
            p999_slowdown=slowdown[4],
            max_slowdown=slowdown[5],
            makespan_s=makespan,
            utilisation_ratio=held / (units * span) if span > 0 else 0.0,
            mean_run_s=self._run / n if n else None,
            mean_overhead_s=self._overhead / n if n else None,
            preemptions=preemptions,
            migrations=migrations,
            failures=failures,
            energy_j=self._energy,
            machine_energy_j=in_use + idle,
        )

    def _span_s(self, makespan_s: float) -> float:
        """Return the time that utilisation is of, in seconds: the window, else the makespan."""
        if self._window is None or not self._jobs:
            return makespan_s
        return min(self._window.to_s, self._last_of_all) - self._window.from_s


def _quantiles(values: array[float]) -> tuple[float | None, ...]:
    """Return mean, median, 95 %, 99 %, 99.9 % and maximum; None of nothing."""
    if not values:
        return (None,) * 6
    data = np.frombuffer(values)
    quantiles = np.quantile(data, (0.5, 0.95, 0.99, 0.999), method="lower")
    return (float(data.mean()), *(float(q) for q in quantiles), float(data.max()))
