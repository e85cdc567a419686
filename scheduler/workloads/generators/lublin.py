"""The workload model of Lublin and Feitelson (J. Parallel Distrib. Comput. 63, 2003), all job types together.

Size: serial with probability 0.244, else 2^u with u two-stage uniform, rounded to a power of two with
probability 0.576 in all. Run time: exp of a hyper-gamma variable whose mix depends on the size. Arrivals: exp
of a gamma variable are the points that pass by in a day whose half hours weigh as a gamma distribution does.
The model has no estimates of run times: users' are the run time times 1 + an exponential factor, or exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from profiles.quantities import counted
from scheduler.model.jobs import Cluster, EstimateKind, Job, instant
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload
from scheduler.workloads.arrivals import processors

# Table of the paper, as in the authors' program lublin99.c.
SERIAL, POWER_OF_TWO = 0.244, 0.576
SIZE_LOW, SIZE_MIDDLE_BELOW_TOP, SIZE_FIRST_STAGE = 0.8, 2.5, 0.86
GAMMA_1, GAMMA_2 = (4.2, 0.94), (312.0, 0.03)
MIX_SLOPE, MIX_OFFSET = -0.0054, 0.78
ARRIVAL_SHAPE, ARRIVAL_SCALE, ARRIVAL_RUSH_TO_ALL = 10.2303, 0.4871, 1.0225
DAY_SHAPE, DAY_SCALE = 8.1737, 3.9631
LONGEST_LOG, LONGEST_GAP_LOG = 12.0, 13.0
HALF_HOURS, HALF_HOUR_S, DAY_BEGINS = 48, 1800.0, 11
BLOCK = 4096

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Lublin:
    """The jobs to generate.

    Attributes:
        jobs: how many.
        nodes: size of the machine the model is made for; None: the processors of the cluster's first class.
        load: offered load (unit-seconds / units / time span); None: as the model has it. Reached by
            stretching the time between arrivals.
        estimate: "user" (an over-estimate), "exact" or "none".
        over: mean of the users' over-estimate; 1 means twice the run time on average.
    """

    jobs: int = 10_000
    nodes: int | None = None
    load: float | None = None
    estimate: Literal["user", "exact", "none"] = "user"
    over: float = 1.0

    def __post_init__(self) -> None:
        if self.jobs < 1 or (self.nodes is not None and self.nodes < 1):
            raise ValueError("jobs and nodes must be at least 1")
        if self.load is not None and not 0 < self.load < math.inf:
            raise ValueError("load must be above 0")
        if not 0 <= self.over < math.inf:
            raise ValueError("over must not be negative")

    def generate(self, cluster: Cluster, seed: int = 0) -> Workload:
        """Generate a stream of jobs by the model."""
        nodes = self.nodes or processors(cluster.pools[0])
        if nodes < 2:
            what = f"generator lublin: a machine of {counted(nodes, 'processor')}, the model needs at least 2"
            raise BadInput(what, "give it nodes=2 or more, or a larger cluster")
        stretch = 1.0
        if self.load is not None:
            stretch = _natural_load(self, nodes, seed) / self.load
        arrivals = _arrivals(self, nodes, stretch, seed)
        return Workload(arrivals, f"Lublin-Feitelson model, {self.jobs} jobs for {nodes} nodes, seed {seed}")


class JobBlock(NamedTuple):
    """Some jobs: time since the job before, nodes, run time, limit."""

    gaps: Floats
    sizes: Integers
    runs: Floats
    limits: Floats


def _natural_load(parameters: Lublin, nodes: int, seed: int) -> float:
    """Compute the load of the very jobs that will be generated, before they are stretched."""
    work = span = 0.0
    for block in _blocks(parameters, nodes, seed):
        work += float((block.sizes * block.runs).sum())
        span += float(block.gaps.sum())
    return work / span / nodes


def _arrivals(parameters: Lublin, nodes: int, stretch: float, seed: int) -> Iterator[Arrival]:
    known = EstimateKind.EXACT if parameters.estimate == "exact" else EstimateKind.LIMIT
    number, now = 0, 0.0
    for block in _blocks(parameters, nodes, seed):
        submits = now + np.cumsum(block.gaps) * stretch
        now = float(submits[-1])
        columns = (submits, block.sizes, block.runs, block.limits)
        for submit, size, run, limit in zip(*(column.tolist() for column in columns), strict=True):
            number += 1
            estimate = {"user": limit, "exact": run, "none": None}[parameters.estimate]
            yield Arrival(Job(number, instant(submit), size, estimate, estimate_kind=known), run)


def _blocks(parameters: Lublin, nodes: int, seed: int) -> Iterator[JobBlock]:
    rng = np.random.default_rng(seed)
    gaps = _gaps(rng, BLOCK)
    for begin in range(0, parameters.jobs, BLOCK):
        count = min(BLOCK, parameters.jobs - begin)
        sizes = _sizes(rng, nodes, BLOCK)
        runs = np.maximum(1.0, np.floor(_run_times(rng, sizes)))
        limits = np.ceil(runs * (1.0 + parameters.over * rng.exponential(1.0, BLOCK)))
        yield JobBlock(next(gaps)[:count], sizes[:count], runs[:count], limits[:count])


def _sizes(rng: np.random.Generator, nodes: int, count: int) -> Integers:
    """Draw the number of nodes of ``count`` jobs."""
    top = math.log2(nodes)
    middle = max(top - SIZE_MIDDLE_BELOW_TOP, SIZE_LOW)
    kind = rng.random(count)
    first = rng.random(count) <= SIZE_FIRST_STAGE
    place = rng.random(count)
    log_size = np.where(first, SIZE_LOW + place * (middle - SIZE_LOW), middle + place * (top - middle))
    log_size = np.where(kind <= SERIAL + POWER_OF_TWO, np.floor(log_size + 0.5), log_size)
    sizes = np.where(kind <= SERIAL, 1, np.floor(np.exp2(log_size) + 0.5)).astype(np.int64)
    return np.clip(sizes, 1, nodes)


def _run_times(rng: np.random.Generator, sizes: Integers) -> Floats:
    """Draw run times in seconds; logarithms above the model's limit are drawn again."""
    chance = np.clip(MIX_SLOPE * sizes + MIX_OFFSET, 0.0, 1.0)
    logs = np.full(len(sizes), np.inf)
    while True:
        again = np.flatnonzero(logs > LONGEST_LOG)
        if not len(again):
            times: Floats = np.exp(logs)
            return times
        first = rng.random(len(again)) <= chance[again]
        logs[again] = np.where(first, rng.gamma(*GAMMA_1, len(again)), rng.gamma(*GAMMA_2, len(again)))


def _gaps(rng: np.random.Generator, count: int) -> Iterator[Floats]:
    """Draw blocks of ``count`` times between arrivals, over the cycle of the day, from midnight on."""
    from scipy.stats import gamma

    edges = gamma.cdf(np.arange(HALF_HOURS + 1) + DAY_BEGINS - 0.5, DAY_SHAPE, scale=DAY_SCALE)
    weights = np.roll(np.diff(edges), DAY_BEGINS - 1)
    # Points that have passed by at the end of each half hour: arrivals are even in points, not in time.
    passed = np.concatenate(([0.0], np.cumsum(weights / weights.mean())))
    clock = np.arange(HALF_HOURS + 1) * HALF_HOUR_S
    points, last = 0.0, 0.0
    while True:
        logs = rng.gamma(ARRIVAL_SHAPE * ARRIVAL_RUSH_TO_ALL, ARRIVAL_SCALE, count)
        logs = np.minimum(logs, LONGEST_GAP_LOG)
        totals = points + np.cumsum(np.exp(logs) / HALF_HOUR_S)
        points = float(totals[-1])
        days, rest = np.divmod(totals, passed[-1])
        times = days * clock[-1] + np.interp(rest, passed, clock)
        yield np.diff(times, prepend=last)
        last = float(times[-1])
