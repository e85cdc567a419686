"""Single tasks of unknown run time that demand CPU and memory, as in two traces.

Yabuuchi and Shinagawa (2019) tell of each trace the coefficients of variation of the demands of CPU and
memory, their correlation, and the coefficient of variation of the run times. Here all three are lognormal
with just these; the demands are joined by a Gaussian copula, run times do not depend on demands. What the
paper does not tell:

- the median of the run times is that of shorter samples of the same machines' traces: 370 s (Google 2011, the
  38,354 tasks that begin and end in the first 93 min) and 20 s (Alibaba 2017, 12 h);
- the mean demand is the same share of a node in each resource. It stands for the capacity of the nodes, which
  the paper set so that ``kairos`` uses about 90 % of each resource; so was the default here
  (docs/evaluation.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Job, Stop, instant
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload
from scheduler.workloads.generators.closed import Closed

BLOCK = 4096
SHORTEST_S = 1.0
LEAST_SHARE = 1e-4

Floats = NDArray[np.float64]


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
    """The tasks to generate.

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
