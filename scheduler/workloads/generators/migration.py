"""Jobs for two classes of resource, between which they can migrate: the job list of paper A (its table 4).

Sizes are powers of two, by one of the mixes below (the paper says only "mostly jobs that need few units" and
"mostly jobs that need many"). Run times on the low class are even in (0, 24 h]; those on the high class are
shorter by an acceleration that is even in [1, 10]. Memory per unit is even in (0, 4 GB], and a job has that
much on each of its units. Arrivals are Poisson.

Mean time between arrivals: W / (P * load), where W is the mean work of a job (units x seconds on the low
class) and P what the machine does of that in a second. The paper's equation 7 has the load upside down. A
second on a unit of the high class is worth 1 / E[1 / acceleration] on the low one (``per=harmonic``), or
counts as one (``per=units``).

Seconds of a migration are in proportion to the job's memory: ``cost_s_per_gb`` in all, of which 60 % are the
checkpoint and 40 % the restart (table 3 has 61:39). What the policy believes is ``factor`` times that. The
true costs of each job and class scatter about these by ``cost_sigma``, and the run times on each class about
those that the policy believes, by ``run_sigma``; the policy knows the quantiles of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from scheduler.model.costs import Costs, LinearCost, LinearCosts, ScatteredCosts
from scheduler.model.jobs import CHECKPOINT, NO_QUANTILES, Cluster, EstimateKind, Job, instant
from scheduler.model.quantiles import TO_HIGH, Quantiles
from scheduler.simulator.trace import Arrival, SimulationSettings
from scheduler.workloads import Workload

SizeMixName = Literal["small", "steep", "even", "large"]
MB_PER_GB = 1024.0
CHECKPOINT_SHARE = 0.6
SMALL_MOST = 16
BLOCK = 4096


@dataclass(frozen=True)
class Migration:
    """The jobs to generate; the defaults are the paper's, where it has them.

    Attributes:
        jobs: how many.
        mix: of the sizes 1, 2, 4, ...: "small": 1 to 16, each as likely; "steep": each size a quarter as
            likely as the one before; "even": each as likely; "large": each twice as likely as the one before.
        load: offered load.
        per: what a unit of the high class counts for in the load, "harmonic" or "units".
        most_units: the largest size (a power of two; at most the units of the smaller class).
        longest_s: longest run time on the low class.
        least_acceleration, most_acceleration: of the high class.
        most_memory_gb: per unit.
        cost_s_per_gb: of a checkpoint and a restart together.
        factor: the policy believes that they cost this many times as much.
        cost_sigma, run_sigma: standard deviations of the logarithms of true over believed times.
        known: the classes on which the policy knows the run times. On the other class it takes what the
            figures of the devices tell (``--profile``), else the same time.
    """

    jobs: int = 100_000
    mix: SizeMixName = "small"
    load: float = 0.9
    per: Literal["harmonic", "units"] = "harmonic"
    most_units: int = 512
    longest_s: float = 86_400.0
    least_acceleration: float = 1.0
    most_acceleration: float = 10.0
    most_memory_gb: float = 4.0
    cost_s_per_gb: float = 25.0
    factor: float = 1.0
    cost_sigma: float = 0.0
    run_sigma: float = 0.0
    known: Literal["both", "high", "low"] = "both"

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError("jobs must be at least 1")
        if self.most_units < 1 or self.most_units & (self.most_units - 1):
            raise ValueError("most_units must be a power of two")
        for name in ("load", "longest_s", "least_acceleration"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0")
        for name in ("most_memory_gb", "cost_s_per_gb", "factor", "cost_sigma", "run_sigma"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative")
        if not self.least_acceleration <= self.most_acceleration < math.inf:
            raise ValueError("most_acceleration must be at least least_acceleration")

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the sizes that occur."""
        most = min(self.most_units, SMALL_MOST) if self.mix == "small" else self.most_units
        return 2 ** np.arange(most.bit_length(), dtype=np.int64)

    @property
    def chances(self) -> NDArray[np.float64]:
        """Return the chance of each of the ``sizes``."""
        base = {"small": 1.0, "steep": 0.25, "even": 1.0, "large": 2.0}[self.mix]
        weights = base ** np.arange(len(self.sizes), dtype=np.float64)
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares

    def generate(self, cluster: Cluster, seed: int = 0) -> Workload:
        """Generate a stream of jobs for the first two classes of the cluster, the high and the low one."""
        if len(cluster.pools) < 2 or not all(pool.counted for pool in cluster.pools[:2]):
            raise BadInput(
                "generator migration needs a cluster of two counted classes",
                "give for instance 512xhigh+512xlow",
            )
        high, low = cluster.pools[:2]
        largest = int(self.sizes[-1])
        if largest > min(high.units, low.units):
            raise BadInput(
                f"generator migration: jobs need up to {largest} units, "
                f"the classes have {high.units} and {low.units}",
                "give most_units, or a larger cluster",
            )
        costs: Costs = costs_of(self, cluster)
        planned = costs_of(self, cluster, self.factor) if self.factor != 1.0 or self.cost_sigma else None
        if self.cost_sigma:
            costs = ScatteredCosts(costs, self.cost_sigma, seed)
        return Workload(
            chain.from_iterable(_blocks(self, cluster, seed)),
            f"jobs of paper A, mix {self.mix}, load {self.load:g} ({self.per}), seed {seed}",
            settings=SimulationSettings(costs, planned),
        )


def costs_of(parameters: Migration, cluster: Cluster, factor: float = 1.0) -> LinearCosts:
    """Make checkpoint and restart cost in proportion to the memory, alike on both classes."""
    s_per_mb = parameters.cost_s_per_gb / MB_PER_GB
    half = math.exp(TO_HIGH * parameters.cost_sigma) - 1.0
    stop, restart = (
        LinearCost(share * s_per_mb, 0.0, half * share * s_per_mb)
        for share in (CHECKPOINT_SHARE, 1.0 - CHECKPOINT_SHARE)
    )
    names = [pool.name for pool in cluster.pools[:2]]
    return LinearCosts(
        dict.fromkeys(names, stop),
        dict.fromkeys(names, restart),
        factor=factor,
    )


def mean_gap_s(parameters: Migration, cluster: Cluster) -> float:
    """Compute the mean time between arrivals: equation 7, with the load where it has to be."""
    high, low = cluster.pools[:2]
    work = float(parameters.sizes @ parameters.chances) * parameters.longest_s / 2.0
    speed = 1.0 if parameters.per == "units" else 1.0 / mean_slowness(parameters)
    return work / ((speed * high.units + low.units) * parameters.load)


def mean_slowness(parameters: Migration) -> float:
    """Compute E[1 / acceleration]: mean run time on the high class, over that on the low one."""
    least, most = parameters.least_acceleration, parameters.most_acceleration
    return 1.0 / least if least == most else math.log(most / least) / (most - least)


def _blocks(parameters: Migration, cluster: Cluster, seed: int) -> Iterator[list[Arrival]]:
    """Generate the jobs, many at a time."""
    rng, errors = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    high, low = (pool.name for pool in cluster.pools[:2])
    gap, now, number = mean_gap_s(parameters, cluster), 0.0, 0
    known = {"both": (high, low), "high": (high,), "low": (low,)}[parameters.known]
    sigma = parameters.run_sigma
    kind = EstimateKind.EXACT if len(known) == 2 and not sigma else EstimateKind.PREDICTED
    spread = [math.exp(off * sigma) for off in (-TO_HIGH, 0.0, TO_HIGH)]
    for begin in range(0, parameters.jobs, BLOCK):
        count = min(BLOCK, parameters.jobs - begin)
        submits = now + np.cumsum(rng.exponential(gap, BLOCK))
        now = float(submits[-1])
        sizes = rng.choice(parameters.sizes, BLOCK, p=parameters.chances)
        slow = parameters.longest_s * (1.0 - rng.random(BLOCK))
        speeds = rng.uniform(parameters.least_acceleration, parameters.most_acceleration, BLOCK)
        memory = sizes * parameters.most_memory_gb * MB_PER_GB * (1.0 - rng.random(BLOCK))
        wrong = np.exp(-sigma * errors.standard_normal((2, BLOCK)))
        columns = (
            column[:count].tolist() for column in (submits, sizes, slow, slow / speeds, memory, *wrong)
        )
        arrivals = []
        for submit, size, slow_s, fast_s, memory_mb, fast_off, slow_off in zip(*columns, strict=True):
            number += 1
            times = {high: fast_s, low: slow_s}
            said = {high: fast_s * fast_off, low: slow_s * slow_off}
            believed = {name: said[name] if name in known else math.inf for name in times}
            quantiles = {name: Quantiles(*(said[name] * off for off in spread)) for name in known if sigma}
            job = Job(
                number,
                instant(submit),
                size,
                memory_mb=memory_mb,
                estimate_kind=kind,
                stop=CHECKPOINT,
                estimates_s=believed,
                quantiles_s=quantiles or NO_QUANTILES,
            )
            arrivals.append(Arrival(job, slow_s, times))
        yield arrivals
