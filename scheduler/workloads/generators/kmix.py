"""Job mixes like those drawn from the K computer's statistics (Takayama et al. 2021), from printed figures.

The statistics themselves were never published. What was printed, and how it is used:

- Sizes of the regions (table 3) are in proportion to node-time: they say how much of it belongs to jobs of
  up to 3, 5, 9, 15, 30, 63, 99, 177, 251 and 1000 nodes. Inside such a class sizes are log-uniform.
- Number of jobs and mean nodes (table 5) with a density of 95 % on 9216 nodes make a mean run time of 3.46 h.
  With run times that do not depend on the size the classes would make a mean of 180 nodes; printed were 165
  to 173, 170 on average. So run times grow with nodes^0.03.
- The largest node-time product is a multiple of 24 h: that is the limit of a job's run time.

Not printed, and chosen: run times are log-normal (sigma 1.5) and cut at the limit; jobs are submitted evenly
at random over the period, or a share of them in bursts, as the paper found in its second mix. Jobs are drawn
until their node-time reaches the density; a ``mix`` has the printed number, mean and largest product exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, EstimateKind, Job, instant
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

HOUR_S = 3600.0
LARGEST = 1000
LIMIT_S = 24 * HOUR_S
# Up to so many nodes, this share of the node-time, from table 3: each row's sizes share what the smallest
# region leaves. Of the first three it is only known that they are below 7, 11 and 19 nodes of 9216.
CLASSES = (
    (3, 0.00075),
    (5, 0.0011),
    (10, 0.0019),
    (15, 0.0079),
    (30, 193 / 9216),
    (63, 0.0769),
    (99, 0.118),
    (177, 0.183),
    (251, 0.2128),
    (LARGEST, 1.0),
)
GROWTH = 0.03  # run times are in proportion to nodes^GROWTH: then the mean number of nodes is the printed one
SIGMA, MEDIAN_S = 1.5, 1.404 * HOUR_S  # of the largest jobs; with the limit, the printed mean run time
BLOCK = 512


class PrintedMix(NamedTuple):
    """A row of table 5."""

    jobs: int
    mean_nodes: float
    largest_node_h: int


MIXES = {
    1: PrintedMix(2515, 164.58, 23_040),
    2: PrintedMix(2521, 172.81, 19_008),
    3: PrintedMix(2461, 172.57, 21_888),
}


@dataclass(frozen=True)
class KMix:
    """The mixes to generate.

    Attributes:
        mix: 1, 2 or 3: a mix with the printed figures of that one, for 9216 nodes; None: any mix like them.
        periods: so many mixes, one after the other.
        days: length of a period.
        density: node-time of the jobs / (period x nodes).
        sizes: "k" (as above), or other distributions of the number of nodes: "log-uniform", "uniform".
        largest: nodes of the largest job; "k" is scaled to it.
        burst: share of the jobs that is submitted in bursts. bursts: how many in a period, at random times.
        burst_s: length of a burst; the paper's lasted two intervals of 20,000 s.
        estimate: "user" (an over-estimate, at most 24 h), "exact" or "none".
        over: mean of the users' over-estimate; 1 means twice the run time on average.
    """

    mix: int | None = None
    periods: int = 1
    days: float = 7.0
    density: float = 0.95
    sizes: Literal["k", "log-uniform", "uniform"] = "k"
    largest: int = LARGEST
    burst: float = 0.0
    bursts: int = 1
    burst_s: float = 40_000.0
    estimate: Literal["user", "exact", "none"] = "user"
    over: float = 1.0

    def __post_init__(self) -> None:
        if self.mix is not None and self.mix not in MIXES:
            raise ValueError("mix must be 1, 2 or 3")
        if self.mix is not None and (self.sizes, self.largest, self.days, self.density) != (
            "k",
            1000,
            7,
            0.95,
        ):
            raise ValueError("a mix has its own sizes, days and density; leave them away")
        if self.periods < 1 or self.largest < 1 or self.bursts < 1:
            raise ValueError("periods, largest and bursts must be at least 1")
        if not (0 < self.days < math.inf and 0 < self.density < math.inf and 0 <= self.over < math.inf):
            raise ValueError("days and density must be above 0, over not negative")
        if not 0 <= self.burst <= 1 or not 0 < self.burst_s <= self.days * 86_400:
            raise ValueError("burst is a share, 0 to 1, and a burst is no longer than the period")

    def generate(self, cluster: Cluster, seed: int = 0) -> Workload:
        """Generate mixes of jobs for the first class of the cluster."""
        nodes = cluster.pools[0].units
        if nodes < self.largest:
            raise BadInput(
                f"generator k-mix: a machine of {nodes} nodes, jobs of up to {self.largest}",
                "give a smaller largest",
            )
        if self.mix is not None and nodes != 9216:
            raise BadInput(
                f"generator k-mix: mix={self.mix} is for 9216 nodes, not {nodes}", "leave mix away"
            )
        kind = f"mix {self.mix}" if self.mix else "a mix"
        return Workload(
            _arrivals(self, nodes, seed),
            f"{kind} like those of K, {self.periods} x {self.days:g} days, seed {seed}",
            note="K's statistics are not public: job mixes are built from the figures that the paper printed",
        )


def _arrivals(parameters: KMix, nodes: int, seed: int) -> Iterator[Arrival]:
    rng = np.random.default_rng(seed)
    period_s = parameters.days * 86_400.0
    known = EstimateKind.EXACT if parameters.estimate == "exact" else EstimateKind.LIMIT
    number = 0
    for period in range(parameters.periods):
        if parameters.mix is not None:
            sizes, runs = _as_printed(MIXES[parameters.mix], nodes, period_s * parameters.density, rng)
        else:
            sizes, runs = _until_dense(parameters, nodes * period_s * parameters.density, rng)
        submits = period * period_s + _submissions(parameters, len(sizes), period_s, rng)
        over = 1.0 + parameters.over * rng.exponential(1.0, len(sizes))
        limits = np.maximum(runs, np.minimum(np.ceil(runs * over), LIMIT_S))
        columns = (submits, sizes, runs, limits)
        for submit, size, run, limit in zip(*(column.tolist() for column in columns), strict=True):
            number += 1
            estimate = {"user": limit, "exact": run, "none": None}[parameters.estimate]
            yield Arrival(Job(number, instant(submit), size, estimate, estimate_kind=known), run)


def _until_dense(parameters: KMix, node_s: float, rng: np.random.Generator) -> tuple[Integers, Floats]:
    """Draw jobs until their node-time has reached ``node_s``."""
    sizes, runs = np.zeros(0, dtype=np.int64), np.zeros(0)
    while float((sizes * runs).sum()) < node_s:
        more = _sizes(parameters, BLOCK, rng)
        sizes = np.concatenate((sizes, more))
        runs = np.concatenate((runs, np.minimum(_run_times(more, parameters.largest, rng), LIMIT_S)))
    count = int(np.searchsorted(np.cumsum(sizes * runs), node_s)) + 1
    return sizes[:count], runs[:count]


def _sizes(parameters: KMix, count: int, rng: np.random.Generator) -> Integers:
    """Draw the number of nodes of so many jobs."""
    largest = parameters.largest
    if parameters.sizes == "uniform":
        return rng.integers(1, largest + 1, count)
    if parameters.sizes == "log-uniform":
        drawn = np.exp(rng.uniform(math.log(0.5), math.log(largest + 0.5), count))
    else:
        bounds, shares = np.array(CLASSES).T
        edges = np.concatenate(([0.5], bounds + 0.5))
        power = 1.0 + GROWTH  # node-time of a job is in proportion to nodes^power: its mean in each class
        mean = np.diff(edges**power) / power / np.diff(np.log(edges))
        chances = np.diff(shares, prepend=0.0) / mean
        which = rng.choice(len(bounds), count, p=chances / chances.sum())
        drawn = edges[which] * (edges[which + 1] / edges[which]) ** rng.random(count)
        drawn *= largest / LARGEST
    return np.clip(np.rint(drawn), 1, largest).astype(np.int64)


def _run_times(sizes: Integers, largest: int, rng: np.random.Generator) -> Floats:
    """Draw run times in seconds, not yet cut at the limit."""
    medians: Floats = MEDIAN_S * (sizes / largest) ** GROWTH
    return medians * rng.lognormal(0.0, SIGMA, len(sizes))


def _as_printed(
    mix: PrintedMix, nodes: int, dense_s: float, rng: np.random.Generator
) -> tuple[Integers, Floats]:
    """Draw sizes and run times with exactly the mix's number, mean nodes, largest product and density."""
    sizes = _sizes(KMix(), mix.jobs, rng)
    miss = round(mix.jobs * mix.mean_nodes) - int(sizes.sum())
    while miss:  # draw single jobs again where that brings the mean closer
        job = rng.integers(mix.jobs)
        change = int(_sizes(KMix(), 1, rng)[0]) - int(sizes[job])
        if abs(miss - change) < abs(miss):
            sizes[job] += change
            miss -= change
    product_s = mix.largest_node_h * HOUR_S
    most_s = np.minimum(LIMIT_S, product_s / sizes)
    runs = _run_times(sizes, LARGEST, rng)
    runs[np.argmax(sizes)] = math.inf  # one job has the largest product
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        too_dense = float((sizes * np.minimum(runs * middle, most_s)).sum()) > nodes * dense_s
        low, high = (low, middle) if too_dense else (middle, high)
    return sizes, np.minimum(runs * high, most_s)


def _submissions(parameters: KMix, count: int, period_s: float, rng: np.random.Generator) -> Floats:
    """Draw ascending times within the period."""
    times = rng.uniform(0.0, period_s, count)
    if parameters.burst:
        begins = rng.uniform(0.0, period_s - parameters.burst_s, parameters.bursts)
        inside = rng.choice(begins, count) + rng.uniform(0.0, parameters.burst_s, count)
        times = np.where(rng.random(count) < parameters.burst, inside, times)
    return np.sort(times)
