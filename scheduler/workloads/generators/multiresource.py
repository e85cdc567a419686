"""Tasks that demand CPU and memory: like those of two traces, or those of a trace with another spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Job, Stop, instant
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload, as_stated
from scheduler.workloads.arrivals import Closed, stretched

BLOCK = 4096
SHORTEST_S = 1.0
LEAST_SHARE = 1e-4

Floats = NDArray[np.float64]


# -- tasks like those of two traces ------------------------------------------------------------------------


class TraceShape(NamedTuple):
    """Coefficients of variation of the demands, their correlation, and the run times."""

    demand_cvs: tuple[float, float]
    correlation: float
    run_cv: float
    run_median_s: float
    mean_share: float


SHAPES = {
    "google": TraceShape((0.81, 0.91), 0.33, 2.97, 370.0, 0.03),
    "alibaba": TraceShape((0.38, 0.34), 0.28, 6.60, 20.0, 0.1),
}


@dataclass(frozen=True)
class Multiresource:
    """Single tasks of unknown run time that demand CPU and memory, as in two traces.

    Yabuuchi and Shinagawa (2019) tell of each trace the coefficients of variation of the demands of CPU and
    memory, their correlation, and the coefficient of variation of the run times. Here all three are lognormal
    with just these; the demands are joined by a Gaussian copula, run times do not depend on demands. What the
    paper does not tell:

    - the median of the run times is that of shorter samples of the same machines' traces: 370 s (Google 2011,
      the 38,354 tasks that begin and end in the first 93 min) and 20 s (Alibaba 2017, 12 h);
    - the mean demand is the same share of a node in each resource. It stands for the capacity of the nodes,
      which the paper set so that ``kairos`` uses about 90 % of each resource; so was the default here
      (docs/evaluation/multiresource.md).

    Attributes:
        like: the trace whose figures the tasks have.
        jobs: how many tasks.
        closed_load: tasks are submitted while the norm of the unfinished demand over the capacity is below
            this (sqrt 2: about all of both resources).
        load: or else an open stream of random arrivals: demand * run time / capacity / time, of the resource
            that is demanded most.
        demand: mean demand of each resource as a share of a node; None: as the capacity was set.
        run_median_s: median run time; None: that of the sample named above.
        users: tasks belong to so many users, the k-th of whom submits in proportion to 1/k.
    """

    like: Literal["google", "alibaba"] = "google"
    jobs: int = 10_000
    closed_load: float = math.sqrt(2)
    load: float | None = None
    demand: float | None = None
    run_median_s: float | None = None
    users: int = 1

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.users < 1:
            raise ValueError("jobs and users must be at least 1")
        if not 0 < self.closed_load < math.inf:
            raise ValueError("closed_load must be above 0")
        if self.load is not None and not 0 < self.load < math.inf:
            raise ValueError("load must be above 0")
        if self.demand is not None and not 0 < self.demand <= 1:
            raise ValueError("demand must be above 0 and at most 1, a whole node")
        if self.run_median_s is not None and not 0 < self.run_median_s < math.inf:
            raise ValueError("run_median_s must be above 0")

    def generate(self, cluster: Cluster, seed: int = 0) -> Workload:
        """Generate a stream of tasks, or a closed loop."""
        if {len(pool.resources) for pool in cluster.pools} != {2}:
            raise BadInput(
                "generator multiresource makes tasks that demand CPU and memory",
                "give the nodes two resources: 256xnode[cpu=1,memory=1]",
            )
        capacity = np.max([pool.capacity_of(i) for pool in cluster.pools for i in range(pool.units)], axis=0)
        shape = SHAPES[self.like]
        source = f"{self.jobs} tasks like {self.like.title()}'s, seed {seed}"
        note = (
            f"lognormal demands (cv {shape.demand_cvs[0]} and {shape.demand_cvs[1]}, correlation "
            f"{shape.correlation}) with a mean of {_share(self):.3g} of a node, and run times (cv "
            f"{shape.run_cv}, median {_median_s(self):g} s) instead of the trace"
        )
        if self.load is None:
            workload = Workload((), f"{source}, closed loop at load {self.closed_load:.3g}", note=note)
            tasks = _tasks(self, capacity, None, seed)
            workload.arrivals = Closed(tasks, cluster, self.closed_load, workload.skipped)
            return workload
        whole = np.sum([pool.capacity_of(i) for pool in cluster.pools for i in range(pool.units)], axis=0)
        gap_s = _gap_s(self, capacity, whole, seed)
        tasks = _tasks(self, capacity, gap_s, seed)
        return Workload(tasks, f"{source}, open at load {self.load:g}", note=note)


class TaskBlock(NamedTuple):
    """Some tasks: time since the one before (mean 1), demands (tasks x resources), run times, users."""

    gaps: Floats
    demands: Floats
    runs: Floats
    users: NDArray[np.int64]


def _share(parameters: Multiresource) -> float:
    return SHAPES[parameters.like].mean_share if parameters.demand is None else parameters.demand


def _median_s(parameters: Multiresource) -> float:
    given = parameters.run_median_s
    return SHAPES[parameters.like].run_median_s if given is None else given


def _gap_s(parameters: Multiresource, capacity: Floats, whole: Floats, seed: int) -> float:
    """Compute the mean time between arrivals with which the very tasks to be generated offer the load."""
    work, span = np.zeros(2), 0.0
    for block in _blocks(parameters, capacity, seed):
        work += block.runs @ block.demands
        span += float(block.gaps.sum())
    assert parameters.load is not None
    return float((work / whole).max()) / span / parameters.load


def _tasks(parameters: Multiresource, capacity: Floats, gap_s: float | None, seed: int) -> Iterator[Arrival]:
    """Generate all tasks; without times of arrival in a closed loop, which gives them their own."""
    number, now = 0, 0.0
    for block in _blocks(parameters, capacity, seed):
        submits = np.zeros(len(block.runs)) if gap_s is None else now + np.cumsum(block.gaps) * gap_s
        now = float(submits[-1])
        columns = (submits.tolist(), block.demands.tolist(), block.runs.tolist(), block.users.tolist())
        for submit, demand, run, user in zip(*columns, strict=True):
            number += 1
            job = Job(number, instant(submit), user=f"u{user}", stop=Stop.PAUSE, demand=tuple(demand))
            yield Arrival(job, run)


def _blocks(parameters: Multiresource, capacity: Floats, seed: int) -> Iterator[TaskBlock]:
    shape, rng = SHAPES[parameters.like], np.random.default_rng(seed)
    sigmas = [_sigma(cv) for cv in shape.demand_cvs]
    # correlation of the logarithms that gives the demands the wanted one
    inner = math.log1p(shape.correlation * math.prod(shape.demand_cvs)) / math.prod(sigmas)
    mean, median_s, run_sigma = _share(parameters), _median_s(parameters), _sigma(shape.run_cv)
    weights = 1.0 / np.arange(1, parameters.users + 1)
    for begin in range(0, parameters.jobs, BLOCK):
        count = min(BLOCK, parameters.jobs - begin)
        normal = rng.standard_normal((BLOCK, 3))
        normal[:, 1] = inner * normal[:, 0] + math.sqrt(1.0 - inner**2) * normal[:, 1]
        shares = np.stack([mean * np.exp(s * normal[:, r] - s * s / 2) for r, s in enumerate(sigmas)], axis=1)
        demands = np.round(np.clip(shares, LEAST_SHARE, 1.0), 6) * capacity
        runs = np.maximum(SHORTEST_S, median_s * np.exp(run_sigma * normal[:, 2]))
        gaps: Floats = rng.exponential(1.0, BLOCK)
        users = 1 + rng.choice(parameters.users, BLOCK, p=weights / weights.sum())
        yield TaskBlock(gaps[:count], demands[:count], runs.round(6)[:count], users[:count])


def _sigma(cv: float) -> float:
    """Convert a coefficient of variation of a lognormal variable to the deviation of its logarithm."""
    return math.sqrt(math.log1p(cv * cv))


# -- a trace with another spread ---------------------------------------------------------------------------


SMALLEST, LARGEST_POWER = 1e-9, 1e12
HALVINGS = 50
SWAPS, CLOSE_ENOUGH = 10_000, 1e-4


class DemandSpread(NamedTuple):
    """Coefficients of variation, and the correlation between the first two demands; None: as it is."""

    cpu_cv: float | None = None
    memory_cv: float | None = None
    correlation: float | None = None
    run_cv: float | None = None


LIKE = {
    "itself": DemandSpread(),
    **{
        name: DemandSpread(*shape.demand_cvs, shape.correlation, shape.run_cv)
        for name, shape in SHAPES.items()
    },
}


@dataclass(frozen=True)
class Resample:
    """A trace's jobs with demands and run times spread as wished: coefficients of variation and correlation.

    1. Each margin (the first demand, the second, the run time) is raised to a power and scaled back to its
       mean: ``y = x^p * mean(x) / mean(x^p)``. The coefficient of variation (standard deviation of all over
       mean) grows with p, so one p meets it exactly; the order of the jobs in each margin stays.
    2. The second demand is dealt out anew among the jobs, in the order of normal scores that are correlated
       with the scores of the first (after Iman and Conover, Commun. Stat. Simul. Comput. 11, 1982; ties are
       broken by chance). The correlation of the scores is searched for with which the demands themselves have
       the wished (Pearson) correlation. Few jobs make that a jump: then demands of pairs drawn at random are
       swapped, where that brings it closer. (400 lognormal demands of a cv up to 1 meet it to 0.001; with one
       far out they may not.)

    Run times stay with the first demand, further demands with their jobs. What was reached is in the note.

    Attributes:
        trace: a log or trace, with its own parameters after semicolons: ``trace=FILE;every=16``.
        like: a spread by name: "google" or "alibaba" as in the paper on scheduling without run times (2019).
        cpu_cv, memory_cv, correlation, run_cv: a spread, or changes to the named one; cpu and memory are the
            first and the second demand.
        jobs: draw so many jobs, with replacement, that come at random (Poisson); None: the trace's jobs, each
            once, as they came.
        load: stretch the time between arrivals until so much is offered (see ``arrivals.offered_load``).
        closed_load: submit jobs as others end instead, up to this norm (see ``arrivals.Closed``).
    """

    trace: str = ""
    like: Literal["itself", "google", "alibaba"] = "itself"
    cpu_cv: float | None = None
    memory_cv: float | None = None
    correlation: float | None = None
    run_cv: float | None = None
    jobs: int | None = None
    load: float | None = None
    closed_load: float | None = None

    def __post_init__(self) -> None:
        if not self.trace:
            raise ValueError("it needs a trace: trace=FILE")
        if any(cv is not None and not 0 < cv < math.inf for cv in (self.cpu_cv, self.memory_cv, self.run_cv)):
            raise ValueError("a coefficient of variation must be above 0")
        if self.correlation is not None and not -1 <= self.correlation <= 1:
            raise ValueError("correlation must be from -1 to 1")
        if self.jobs is not None and self.jobs < 2:
            raise ValueError("jobs must be at least 2")
        if self.jobs is not None and self.load is None and self.closed_load is None:
            raise ValueError("jobs needs load or closed_load, which say how fast they come")
        if self.load is not None and self.closed_load is not None:
            raise ValueError("give either load or closed_load")

    @property
    def aim(self) -> DemandSpread:
        """Return the spread to be reached."""
        named = LIKE[self.like]
        given = {
            name: getattr(self, name) for name in DemandSpread._fields if getattr(self, name) is not None
        }
        return named._replace(**given)

    def generate(self, cluster: Cluster, seed: int = 0) -> Workload:
        """Resample the trace."""
        source = as_stated(self.trace.replace(";", ","), cluster, seed)
        if source.taken is not None:
            raise BadInput(
                f"generator resample: {source.taken.source} cannot be resampled", "leave takes out"
            )
        if not isinstance(source.arrivals, Iterable):
            raise BadInput(
                f"generator resample: {self.trace} reacts to the schedule", "give a log or a trace"
            )
        rng = np.random.default_rng(seed)
        jobs = list(source.arrivals)
        if len(jobs) < 2:
            raise BadInput(f"generator resample: {self.trace} holds {len(jobs)} jobs", "give at least 2")
        if self.jobs is not None:
            jobs = _drawn(jobs, self.jobs, rng)
        before = _columns(jobs)
        after = _spread(before, self.aim, rng)
        changed = list(_changed(jobs, before, after))
        reached = f"cv and correlation: {_spread_words(after)} (in the trace {_spread_words(before)})"
        arrivals: Iterable[Arrival] | Closed = changed
        if self.closed_load is not None:
            arrivals = Closed(changed, cluster, self.closed_load, source.skipped)
            reached += f"; closed loop at {self.closed_load:g}"
        elif self.load is not None:
            arrivals = stretched(changed, cluster, self.load)
            reached += f"; load {self.load:g}"
        note = f"{source.note}; {reached}" if source.note else reached
        named = f"{source.source}, resampled"
        return Workload(arrivals, named, source.skipped, source.settings, note, source.remarks)


@dataclass
class JobColumns:
    """The columns that change; the demands are None where the jobs state fewer."""

    run_s: Floats
    cpu: Floats | None = None
    memory: Floats | None = None


def _columns(jobs: list[Arrival]) -> JobColumns:
    run = np.array([arrival.run_s for arrival in jobs])
    stated = min(len(arrival.job.demand) for arrival in jobs)
    demands = [np.array([arrival.job.demand[r] for arrival in jobs]) for r in range(min(stated, 2))]
    return JobColumns(run, *demands)


def _spread(columns: JobColumns, aim: DemandSpread, rng: np.random.Generator) -> JobColumns:
    cpu, memory = columns.cpu, columns.memory
    if (cpu is None and aim.cpu_cv is not None) or (
        memory is None and not aim.memory_cv is aim.correlation is None
    ):
        raise BadInput(
            "generator resample: the jobs state no demand of CPU and memory", "change run_cv alone"
        )
    run = with_cv(columns.run_s, aim.run_cv, "run_cv")
    if cpu is not None:
        cpu = with_cv(cpu, aim.cpu_cv, "cpu_cv")
    if memory is not None:
        memory = with_cv(memory, aim.memory_cv, "memory_cv")
    if aim.correlation is not None and cpu is not None and memory is not None:
        memory = correlated(cpu, memory, aim.correlation, rng)
    return JobColumns(run, cpu, memory)


def with_cv(values: Floats, aim: float | None, name: str) -> Floats:
    """Raise the values to the power that gives them a coefficient of variation, at the same mean."""
    from scipy.optimize import brentq

    if aim is None:
        return values
    with np.errstate(divide="ignore"):
        logs = np.log(values / values.max()) if values.max() > 0 else np.zeros(len(values))

    def excess(power: float) -> float:
        return cv(np.exp(power * logs)) - aim

    low, high = SMALLEST, 1.0
    while excess(high) < 0 and high < LARGEST_POWER:
        high *= 2.0
    if excess(low) > 0 or excess(high) < 0:
        least, most = (excess(power) + aim for power in (low, high))
        raise BadInput(
            f"generator resample: {name} {aim:g} cannot be reached, only {least:.3g} to {most:.3g}",
            "take more jobs of the trace",
        )
    powers = np.exp(brentq(excess, low, high, xtol=1e-12, rtol=1e-12) * logs)
    scaled: Floats = powers * (values.mean() / powers.mean())
    return np.where(values > 0, np.maximum(scaled, np.finfo(np.float64).tiny), 0.0)


def correlated(first: Floats, second: Floats, aim: float, rng: np.random.Generator) -> Floats:
    """Put the second values in an order in which they have a (Pearson) correlation with the first."""
    from scipy.special import ndtri

    n = len(first)
    scores = ndtri((np.arange(n) + 0.5) / n)
    mine = np.empty(n)
    mine[np.lexsort((rng.random(n), first))] = scores
    noise = rng.permutation(scores)
    ascending = np.sort(second)

    def dealt(of_scores: float) -> Floats:
        order = np.argsort(of_scores * mine + math.sqrt(1.0 - of_scores**2) * noise, kind="stable")
        out = np.empty(n)
        out[order] = ascending
        return out

    least, most = (correlation(first, dealt(end)) for end in (-1.0, 1.0))
    if not least <= aim <= most:
        raise BadInput(
            f"generator resample: correlation {aim:g} cannot be reached, only {least:.3g} to {most:.3g}",
            "choose one between, or other coefficients of variation",
        )
    low, high = -1.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if correlation(first, dealt(middle)) < aim:
            low = middle
        else:
            high = middle
    closest = min(dealt(low), dealt(high), key=lambda values: abs(correlation(first, values) - aim))
    return _swapped(first, closest, aim, rng)


def _swapped(first: Floats, second: Floats, aim: float, rng: np.random.Generator) -> Floats:
    """Swap pairs of the second values that bring the correlation closer, until it is close enough."""
    x, y = first.tolist(), second.tolist()
    scale = len(x) * float(first.std() * second.std()) or 1.0
    off = correlation(first, second) - aim
    for i, j in rng.integers(len(x), size=(SWAPS, 2)).tolist():
        if abs(off) < CLOSE_ENOUGH:
            break
        after = off - (x[i] - x[j]) * (y[i] - y[j]) / scale
        if abs(after) < abs(off):
            off = after
            y[i], y[j] = y[j], y[i]
    return np.array(y)


def cv(values: Floats) -> float:
    """Divide the standard deviation (of all, not estimated from a sample) by the mean; 0 where all are 0."""
    mean = float(values.mean())
    return float(values.std()) / mean if mean > 0 else 0.0


def correlation(first: Floats, second: Floats) -> float:
    """Compute Pearson's correlation; 0 where one does not vary."""
    both = float(first.std() * second.std())
    return float(((first - first.mean()) * (second - second.mean())).mean()) / both if both > 0 else 0.0


def _drawn(jobs: list[Arrival], count: int, rng: np.random.Generator) -> list[Arrival]:
    """Draw jobs with replacement; they arrive one in a second on average."""
    picked = rng.integers(len(jobs), size=count).tolist()
    times = np.cumsum(rng.exponential(1.0, count)).tolist()
    return [
        jobs[i]._replace(job=replace(jobs[i].job, id=number, submit_s=instant(time)))
        for number, (i, time) in enumerate(zip(picked, times, strict=True), 1)
    ]


def _changed(jobs: list[Arrival], before: JobColumns, after: JobColumns) -> Iterator[Arrival]:
    """Give the jobs their new columns; estimates and memory change in proportion."""
    runs = _factors(before.run_s, after.run_s)
    memories = [1.0] * len(jobs)
    if before.memory is not None and after.memory is not None:
        memories = _factors(before.memory, after.memory)
    new = [column.tolist() for column in (after.cpu, after.memory) if column is not None]
    demands = zip(*new, strict=True) if new else iter([()] * len(jobs))
    columns = (runs, memories, after.run_s.tolist(), demands)
    for arrival, run, memory, run_s, demand in zip(jobs, *columns, strict=True):
        job = arrival.job
        changed = replace(
            job,
            demand=(*demand, *job.demand[len(demand) :]),
            estimate_s=None if job.estimate_s is None else job.estimate_s * run,
            memory_mb=None if job.memory_mb is None else job.memory_mb * memory,
        )
        yield arrival._replace(job=changed, run_s=run_s)


def _factors(before: Floats, after: Floats) -> list[float]:
    factors: list[float] = np.divide(after, before, out=np.ones(len(before)), where=before > 0).tolist()
    return factors


def _spread_words(columns: JobColumns) -> str:
    parts = []
    if columns.cpu is not None:
        parts.append(f"CPU {cv(columns.cpu):.3f}")
    if columns.cpu is not None and columns.memory is not None:
        parts.append(
            f"memory {cv(columns.memory):.3f} (correlation {correlation(columns.cpu, columns.memory):.3f})"
        )
    return ", ".join([*parts, f"run time {cv(columns.run_s):.3f}"])
