"""Metrics, each with one definition, gathered while jobs end; differences of them between policies.

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
  A job that migrates holds both places while it writes its checkpoint.
- preemptions: suspensions and checkpoints of running jobs. migrations: restarts of jobs elsewhere.
- energy: of the units while jobs hold them. Machine energy: also of idle units, over the makespan.

Percentiles are exact values of jobs (numpy's "lower" of the ordered values).
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Job
from scheduler.simulator.trace import Arrival, Outcome

# -- window ------------------------------------------------------------------------------------------------
#
# A simulation begins with an empty machine and ends with one that drains, and the log's machine did
# neither. So jobs of a warm-up and of a cool-down are left out of the figures (Frachtenberg and Feitelson,
# "Pitfalls in Parallel Job Scheduling Evaluation", JSSPP 2005).


class Window(NamedTuple):
    """The time from ``from_s`` to ``to_s`` (exclusive); jobs submitted in it count."""

    from_s: float
    to_s: float = math.inf

    def counts(self, submit_s: float) -> bool:
        """Tell whether a job submitted then counts."""
        return self.from_s <= submit_s < self.to_s

    def overlap_s(self, start_s: float, end_s: float) -> float:
        """Return how long the interval lies in the window, in seconds."""
        return max(0.0, min(end_s, self.to_s) - max(start_s, self.from_s))


@dataclass(frozen=True)
class Cut:
    """A part at the beginning or the end of a workload.

    Attributes:
        seconds: a time from the first submission, or to the last. jobs: so many. share: of all jobs, 0 to 1.
    """

    seconds: float = 0.0
    jobs: int = 0
    share: float = 0.0

    @property
    def is_time(self) -> bool:
        """True if the cut does not depend on the number of jobs."""
        return not self.jobs and not self.share

    def count(self, jobs: int) -> int:
        """Return how many of so many jobs are cut."""
        return self.jobs + int(self.share * jobs + 0.5)


NO_CUT = Cut()


def submissions(arrivals: Iterable[Arrival]) -> array[float]:
    """List the times of submission, ascending, in seconds (8 bytes a job)."""
    return array("d", sorted(arrival.job.submit_s for arrival in arrivals))


def counted_window(submitted_s: array[float], warm_up: Cut, cool_down: Cut) -> Window:
    """Return the window between warm-up and cool-down.

    After a warm-up of n jobs the window begins with the submission of job n + 1. Jobs submitted at that very
    time count too, and likewise at the cool-down: jobs submitted with its first one do not count.

    Args:
        submitted_s: times of submission of all jobs, ascending.

    Raises:
        BadInput: no job is left to be counted.
    """
    n = len(submitted_s)
    if not n:
        return Window(0.0)
    skipped, left = warm_up.count(n), n - cool_down.count(n)
    if skipped < left:
        first = max(submitted_s[skipped], submitted_s[0] + warm_up.seconds)
        last = math.inf if left == n else submitted_s[left]
        if cool_down.seconds:
            last = min(last, submitted_s[-1] - cool_down.seconds)
        window = Window(first, last)
        if any(map(window.counts, submitted_s)):
            return window
    raise BadInput(f"--warm-up and --cool-down leave none of {n:,} jobs to be counted", "make them shorter")


# -- metrics -----------------------------------------------------------------------------------------------


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
            units = placement.units if pool in counted else self._pools[pool].nodes_worth(job, placement)
            held[pool] += units * (until - start)

    def _hold_in(self, window: Window, outcome: Outcome) -> None:
        """Add what a job held within the window, and its energy there."""
        self._last_of_all = max(self._last_of_all, outcome.end_s)
        for _, placement, start, end in outcome.segments:
            name, held_s = placement.pool, window.overlap_s(start, end)
            pool, counted = self._pools[name], name in self._counted
            self._held[name] += held_s * (
                placement.units if counted else pool.nodes_worth(outcome.job, placement)
            )
            self._window_energy += held_s * pool.power_of(outcome.job, placement)

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


# -- differences between policies --------------------------------------------------------------------------
#
# Policies are simulated on the same workload, and on the same resampled ones (weeks drawn with replacement;
# Zakay and Feitelson, "Workload resampling for performance evaluation of parallel job schedulers",
# Concurrency and Computation 26(12), 2014). Differences are paired: a busy week is busy for all policies.
#
# The interval is the difference on the workload itself, plus and minus t times the standard deviation of
# the differences on the resampled ones. A bootstrap of few weeks is too narrow by sqrt((n - 1) / n), which
# is put right. Both estimates vary: the degrees of freedom f of t are 1 / f = 1 / (n - 1) + 1 / (m - 1) for
# n weeks and m resampled workloads.


CONFIDENCE = 0.95
# Metric, and whether less of it is better
COMPARED = {
    "mean_wait_s": True,
    "p95_wait_s": True,
    "max_wait_s": True,
    "mean_turnaround_s": True,
    "bsld_mean": True,
    "p95_slowdown": True,
    "makespan_s": True,
    "utilisation_ratio": False,
    "energy_j": True,
}
Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class PolicyDifference:
    """A metric of a policy less that of another, with a 95 % interval.

    Attributes:
        verdict: "better" or "worse" where the interval lies on one side of 0, "same" where the difference is
            0 on every workload, else "not sure".
    """

    metric: str
    difference: float
    low: float
    high: float
    verdict: str

    def to_dict(self) -> dict[str, str | float]:
        """Return the fields by name."""
        return asdict(self)


def differences(
    figures: tuple[Figures, Figures], resampled: Sequence[tuple[Figures, Figures]], blocks: int
) -> list[PolicyDifference]:
    """Compare a policy with another in all metrics that both have.

    Args:
        figures: metrics of (policy, the other) on the workload itself.
        resampled: the same on each resampled workload, at least 2.
        blocks: weeks (or other blocks) that were drawn from, at least 2.
    """
    rows = []
    for metric, less in COMPARED.items():
        difference = _less(figures, metric)
        others = [_less(pair, metric) for pair in resampled]
        spread = [value for value in others if value is not None]
        if difference is not None and len(spread) == len(others):
            rows.append(_difference(metric, difference, half_width(spread, blocks), less_is_better=less))
    return rows


def half_width(spread: Sequence[float], blocks: int) -> float:
    """Return half the 95 % interval of a mean-like figure from its bootstrap values; inf of too few."""
    from scipy.stats import t

    if min(len(spread), blocks) < 2:
        return math.inf
    freedom = 1 / (1 / (blocks - 1) + 1 / (len(spread) - 1))
    middle = math.fsum(spread) / len(spread)
    variance = math.fsum((value - middle) ** 2 for value in spread) / (len(spread) - 1)
    quantile = float(t.ppf(0.5 + CONFIDENCE / 2, freedom))
    return quantile * math.sqrt(variance * blocks / (blocks - 1))


def _less(pair: tuple[Figures, Figures], metric: str) -> float | None:
    mine, other = (figures[metric] for figures in pair)
    return None if mine is None or other is None else mine - other


def _difference(metric: str, difference: float, half: float, *, less_is_better: bool) -> PolicyDifference:
    low, high = difference - half, difference + half
    verdict = "not sure"
    if difference == half == 0:
        verdict = "same"
    elif low > 0 or high < 0:
        verdict = "better" if (high < 0) == less_is_better else "worse"
    return PolicyDifference(metric, difference, low, high, verdict)


# -- waiting time under A and B ----------------------------------------------------------------------------
#
# A waiting job of n units waits under A while at least n units of some class on which it can run are free,
# reserved or not. The division is made on the finished schedule.


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
