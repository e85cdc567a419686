"""The two job sets of paper C (Huang et al., 2014), the second with a stand-in for its log."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, instant
from scheduler.model.speeds import CappedSpeed
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload
from scheduler.workloads.generators.lublin import Lublin
from scheduler.workloads.logs.swf import Swf

BASE_W, CAPS_W = 10.0, tuple(float(cap) for cap in range(30, 95, 5))


# -- set 1 -------------------------------------------------------------------------------------------------


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
    """Job set 1: five programs of the NAS benchmarks, drawn at random.

    Table 3 gives each program's run time on one node under 30 W, Downey's A and sigma, and the slope m of its
    speed over the cap up to 50 W. Submissions are a Poisson process; jobs can take 1 to 2A - 1 nodes and
    change that while they run. ``small_machine`` is the cluster: 64 nodes of 10 W base power, caps of 30 to
    90 W, 3850 W.

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
        return Workload(_arrivals_of_set1(self, cluster.pools[0].units, seed), source)


def small_machine(nodes: int = 64, budget_w: float | None = 3850.0) -> Cluster:
    """Make the cluster of the paper."""
    pool = Pool("node", nodes, base_w=BASE_W, peak_w=CAPS_W[-1], caps_w=CAPS_W)
    return Cluster((pool,), budget_w)


def _arrivals_of_set1(parameters: PowerSet1, nodes: int, seed: int) -> Iterator[Arrival]:
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


# -- set 2 -------------------------------------------------------------------------------------------------


NODES, BUDGET_W = 40_960, 2.048e6
THETA, THETA_NODES, THETA_JOBS = "theta_2022.swf.gz", 4360, 23_000
LOGGED_CAP_W = 40.0
LOAD = 0.9


@dataclass(frozen=True)
class PowerSet2:
    """A stand-in for job set 2: a thousand jobs on Intrepid's 40,960 nodes.

    The paper takes 1000 jobs of Intrepid's log and gives each the traits of a program of table 3, "scaled" in
    a way that it does not state. Intrepid's log is not at hand, so:

    - Jobs come from the log of Theta (4,360 nodes) if the file ``theta_2022.swf.gz`` lies in the folder that
      the environment variable TENBIN_DATA names: 1000 jobs in a row, beginning at a place that the seed
      draws, with times as they are and nodes times 40,960 / 4,360. Otherwise from the Lublin-Feitelson model
      for 40,960 nodes at load 0.9.
    - A job of n nodes has mean parallelism A = n, sigma and m of a program drawn at random (EP: no limit up
      to 2n - 1), takes 1 to 2A - 1 nodes, and would take its logged time on n nodes under 40 W. (All nodes
      under 40 W are what the paper's budget of 2.048 MW carries.)

    Attributes:
        jobs: how many.
        spread: times between submissions are multiplied by this; 0: all jobs come at once.
        malleable: whether running jobs may change their nodes.
        source: "theta", "lublin", or "any": Theta's log where it is.
    """

    jobs: int = 1000
    spread: float = 1.0
    malleable: bool = True
    source: str = "any"

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError("jobs must be at least 1")
        if not 0 <= self.spread < math.inf:
            raise ValueError("spread must not be negative")
        if self.source not in ("any", "theta", "lublin"):
            raise ValueError("source must be any, theta or lublin")

    def generate(self, cluster: Cluster, seed: int = 0) -> Workload:
        """Generate the jobs, for the cluster's first class."""
        nodes = cluster.pools[0].units
        path = None if self.source == "lublin" else theta_log()
        if path is None:
            name = f"the Lublin-Feitelson model at load {LOAD:g}"
            jobs = Lublin(self.jobs, nodes, LOAD, "exact").generate(cluster, seed).arrivals
        else:
            name = f"the log of Theta, nodes times {nodes / THETA_NODES:.3g},"
            first = int(np.random.default_rng(seed).integers(THETA_JOBS - self.jobs))
            logged = Swf(estimate="exact").read(path).arrivals
            assert not hasattr(logged, "due")
            jobs = islice(logged, first, first + self.jobs)
        scale = nodes / THETA_NODES if path else 1.0
        return Workload(
            _arrivals_of_set2(jobs, self, scale=scale, nodes=nodes, seed=seed),  # type: ignore[arg-type]
            f"{self.jobs} jobs of {name} seed {seed}",
            note=f"{name} stands in for Intrepid's log",
        )


def large_machine(nodes: int = NODES, budget_w: float | None = BUDGET_W) -> Cluster:
    """Make the cluster of the paper."""
    return small_machine(nodes, budget_w)


def theta_log() -> Path | None:
    """Find Theta's log in TENBIN_DATA."""
    folder = os.environ.get("TENBIN_DATA")
    path = Path(folder, THETA) if folder else None
    return path if path is not None and path.exists() else None


def _arrivals_of_set2(
    jobs: Iterator[Arrival], parameters: PowerSet2, *, scale: float, nodes: int, seed: int
) -> Iterator[Arrival]:
    rng = np.random.default_rng((seed, 2))
    first_s = None
    for number, (logged, run_s, *_) in enumerate(jobs, 1):
        first_s = logged.submit_s if first_s is None else first_s
        program = PROGRAMS[int(rng.integers(len(PROGRAMS)))]
        size = min(max(1, round(logged.units * scale)), nodes)
        endless = math.isinf(program.parallelism)
        A = math.inf if endless else float(size)
        speed = CappedSpeed(A, program.variance, program.slope_per_w)
        least_s = run_s * speed(size, LOGGED_CAP_W)  # on one node at the lowest cap
        job = Job(
            number,
            instant((logged.submit_s - first_s) * parameters.spread),
            1,
            least_s,
            estimate_kind=EstimateKind.EXACT,
            max_units=min(max(1, 2 * size - 1), nodes),
            malleable=parameters.malleable,
            speed=speed,
            program=program.name,
        )
        yield Arrival(job, least_s)
