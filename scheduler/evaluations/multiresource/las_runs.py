"""One simulation of the evaluation ``multiresource``, and what is kept of it."""

from __future__ import annotations

import math
import os
from array import array
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Outcome
from scheduler.workloads import load

SPARE_S = {"google": 60, "alibaba": 30, "trace": 60}  # W in the paper
TRACE = "google2011-task_events-part-00000.csv.gz"  # in the folder TENBIN_DATA
TRACE_CAPACITY = (0.43, 0.5)  # of a node, of the largest machine in the trace: kairos uses about 90 %
WARM = 0.1  # share of the time with submissions that is left out of utilisation: the machine fills
QUANTILES = (0.5, 0.95, 0.99, 0.999)
FIGURE_3 = {
    "google": (0.85, 1.0),
    "alibaba": (0.98, 1.0),
    "trace": (0.85, 1.0),
}  # the part of the distribution that was printed
POINTS = 61

Floats = NDArray[np.float64]


class LasCase(NamedTuple):
    """One simulation: policy with its parameters, trace, machine, seed."""

    policy: str
    like: str  # "google", "alibaba"; "trace": Google's own tasks
    nodes: int
    tasks: int
    seed: int
    more: str = ""  # parameters of the workload


class LasFigures(NamedTuple):
    """The results of one simulation."""

    p50: float
    p95: float
    p99: float
    p999: float
    preemptions: float
    tasks: int
    cpu: float  # share of the capacity in use while tasks are submitted
    memory: float
    curve: tuple[float, ...]  # slowdown at the points of figure 3


class UsageSink:
    """A sink: what was in use of CPU and memory while tasks were submitted."""

    def __init__(self) -> None:
        self._held = array("d")
        self._last_s = 0.0

    def add(self, outcome: Outcome) -> None:
        job = outcome.job
        self._last_s = max(self._last_s, job.submit_s)
        for segment in outcome.segments:
            self._held.extend((segment.start_s, segment.end_s, job.demand[0], job.demand[1]))

    def shares(self, nodes: int, capacity: tuple[float, float] = (1.0, 1.0)) -> tuple[float, float]:
        """Compute the shares in use of what the nodes have, each ``capacity``."""
        starts, ends, cpu, memory = np.frombuffer(self._held).reshape(-1, 4).T
        begin_s = WARM * self._last_s
        inside = np.clip(np.minimum(ends, self._last_s) - np.maximum(starts, begin_s), 0.0, None)
        whole = nodes * (self._last_s - begin_s)
        return float(inside @ cpu / whole / capacity[0]), float(inside @ memory / whole / capacity[1])


class SlowdownSink:
    """A sink: the slowdown of each task."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, outcome: Outcome) -> None:
        self._values.append((outcome.end_s - outcome.job.submit_s) / outcome.run_s)

    def at(self, points: Floats) -> tuple[float, ...]:
        """Return quantiles."""
        return tuple(np.quantile(np.frombuffer(self._values), points, method="lower").tolist())


def simulate(case: LasCase) -> LasFigures:
    """Run one simulation."""
    capacity = TRACE_CAPACITY if case.like == "trace" else (1.0, 1.0)
    cluster = Cluster((Pool("node", case.nodes, resources=("cpu", "memory"), capacity=capacity),))
    workload = load(workload_of(case), cluster, case.seed)
    policy = create(_with_spare(case.policy, case.like))
    metrics, usage, slowdowns = Accumulator(cluster), UsageSink(), SlowdownSink()
    sinks = (metrics, usage, slowdowns)
    Simulator(cluster, workload.arrivals, policy, workload.settings, sinks=sinks).run()
    found = metrics.metrics()
    curve = slowdowns.at(np.linspace(*FIGURE_3[case.like], POINTS))
    p50, p95, p99, p999 = slowdowns.at(np.array(QUANTILES))
    cpu, memory = usage.shares(case.nodes, capacity)
    return LasFigures(
        p50=p50,
        p95=p95,
        p99=p99,
        p999=p999,
        preemptions=found.preemptions,
        tasks=found.jobs,
        cpu=cpu,
        memory=memory,
        curve=curve,
    )


def trace_file() -> Path | None:
    """Find Google's own tasks in TENBIN_DATA."""
    folder = os.environ.get("TENBIN_DATA")
    path = Path(folder, TRACE) if folder else None
    return path if path is not None and path.exists() else None


def workload_of(case: LasCase) -> str:
    """Describe the tasks as ``workloads.load`` takes them."""
    if case.like == "trace":
        spread = f"like=google,closed_load={math.sqrt(2)}"
        return f"generator:resample,trace={trace_file()},{spread},jobs={case.tasks}"
    text = f"generator:multiresource,like={case.like},jobs={case.tasks}"
    return f"{text},{case.more}" if case.more else text


def _with_spare(policy: str, like: str) -> str:
    return policy if "spare-s" in policy else f"{policy},spare-s={SPARE_S[like]}"
