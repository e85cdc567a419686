"""Job set 1 of paper C (Huang et al., 2014): five programs of the NAS benchmarks, drawn at random.

Table 3 gives each program's run time on one node under 30 W, Downey's A and sigma, and the slope m of its
speed over the cap up to 50 W. Submissions are a Poisson process; jobs can take 1 to 2A - 1 nodes and change
that while they run. ``machine`` is the cluster: 64 nodes of 10 W base power, caps of 30 to 90 W, 3850 W.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, instant
from scheduler.model.speeds import CappedSpeed
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload

BASE_W, CAPS_W = 10.0, tuple(float(cap) for cap in range(30, 95, 5))


class NasProgram(NamedTuple):
    """A row of table 3."""

    name: str
    run_s: float  # on one node, under the lowest cap
    parallelism: float
    variance: float
    slope_per_w: float

    @property
    def speed(self) -> CappedSpeed:
        """Return equations 4.3 - 4.5."""
        return CappedSpeed(self.parallelism, self.variance, self.slope_per_w)


PROGRAMS = (
    NasProgram("BT", 291.747, 7, 0.02, 0.055),
    NasProgram("MG", 22.473, 18, 0.04, 0.070),
    NasProgram("SP", 297.194, 20, 0.05, 0.080),
    NasProgram("LU", 228.374, 18, 0.01, 0.075),
    NasProgram("EP", 43.867, math.inf, 0.0, 0.065),
)


@dataclass(frozen=True)
class PowerSet1:
    """The jobs to generate.

    Attributes:
        jobs: how many.
        rate_per_s: mean submissions a second (the paper's 10, 1 and 0.2; it gives no unit, and
            per minute no queue would form).
        malleable: whether running jobs may change their nodes.
    """

    jobs: int = 50
    rate_per_s: float = 10.0
    malleable: bool = True

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError("jobs must be at least 1")
        if not 0 < self.rate_per_s < math.inf:
            raise ValueError("rate_per_s must be above 0")

    def generate(self, cluster: Cluster, seed: int = 0) -> Workload:
        """Generate the jobs, for the cluster's first class."""
        source = f"job set 1 of Huang et al.: {self.jobs} jobs, {self.rate_per_s:g} a second, seed {seed}"
        return Workload(_arrivals(self, cluster.pools[0].units, seed), source)


def machine(nodes: int = 64, budget_w: float | None = 3850.0) -> Cluster:
    """Make the cluster of the paper."""
    pool = Pool("node", nodes, base_w=BASE_W, peak_w=CAPS_W[-1], caps_w=CAPS_W)
    return Cluster((pool,), budget_w)


def _arrivals(parameters: PowerSet1, nodes: int, seed: int) -> Iterator[Arrival]:
    rng = np.random.default_rng(seed)
    now = 0.0
    for number in range(1, parameters.jobs + 1):
        program = PROGRAMS[int(rng.integers(len(PROGRAMS)))]
        speed = program.speed
        job = Job(
            number,
            instant(now),
            1,
            program.run_s,
            estimate_kind=EstimateKind.EXACT,
            max_units=int(min(speed.useful_units, nodes)),
            malleable=parameters.malleable,
            speed=speed,
            program=program.name,
        )
        yield Arrival(job, program.run_s)
        now += float(rng.exponential(1.0 / parameters.rate_per_s))
