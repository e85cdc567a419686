"""Jobs that can be moved between two classes of nodes, under the mct family and under Slurm's own backfill.

The cluster is the lab of the tests; node1 is the better class, node2 and node3 are the other: a job sleeps
``SLOWER`` times as long there. (Their devices are PoCL's, which nothing is computed on: the nodes share this
machine's cores.) Slurm prefers node1 by its weight, and moves nothing. Beside each figure is the simulator's
forecast; a start by Slurm, measured before, is part of each run time and of each restart.
``TENBIN_BENCHMARK_POLICIES`` names policies to run in place of all, separated by spaces.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from profiles.files.store import Store
from scheduler.engines.protocol import Machine
from scheduler.engines.slurm.discovery import slurm_cluster
from scheduler.model.costs import LinearCosts
from scheduler.model.jobs import Cluster, EstimateKind, Job, Stop
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder, SimulationSettings
from tests.benchmarks import FULL, amount
from tests.benchmarks.checkpoint_costs import store_costs
from tests.benchmarks.slurm.test_slurm_list import by_sbatch, finished, minutes
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.labs.slurm_lab import SlurmLab
from tests.support.programs import opencl_devices

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
ALL = amount(("fcfs", "mct", "mctb", "mctm", "mctbm", "weigh"), ("weigh",), ("weigh",))
POLICIES = tuple(os.environ.get("TENBIN_BENCHMARK_POLICIES", " ".join(ALL)).split())
JOBS, SHORTEST_S, LONGEST_S, SLOWER, LOAD = amount(
    (24, 3.0, 20.0, 3.0, 1.1), (4, 1.0, 3.0, 3.0, 1.5), (2, 0.2, 0.5, 3.0, 1.5)
)
BETTER, OTHER = "pocl-0@node1", "pocl-0@node2"
PROGRAM = Path(__file__).with_name("class_sleeper.py")
NAME = "sleeper"


class Sleeper(NamedTuple):
    """A job of the list; how long it takes on node1."""

    at_s: float
    run_s: float

    def command(self, file: Path) -> list[str]:
        return [sys.executable, "-S", str(PROGRAM), str(file), f"{self.run_s}", f"{SLOWER * self.run_s}"]


class Course(NamedTuple):
    """The course of a list of jobs."""

    makespan_s: float
    turnaround_s: float
    moves: int

    def __str__(self) -> str:
        return f"makespan {self.makespan_s:.1f} s, turnaround {self.turnaround_s:.1f} s, {self.moves} moves"


@pytest.fixture
def two_classes(lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    require(len(opencl_devices()) == 1, "one OpenCL device (PoCL)")
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    for number, node in enumerate(lab.nodes):
        _told_apart(lab, node, "other" if number else "better", 1 + 99 * number)
    yield lab
    for node in lab.nodes:
        _told_apart(lab, node, "", 1)


def _told_apart(lab: SlurmLab, node: str, feature: str, weight: int) -> None:
    features = f"availablefeatures={feature}", f"activefeatures={feature}"
    lab.call("scontrol", "update", f"nodename={node}", *features, f"weight={weight}")


@pytest.fixture
def up(two_classes: SlurmLab, tmp_path: Path) -> Iterator[Up]:
    """With a profile of this machine: what a checkpoint and a restart cost."""
    one = Up(tmp_path / "home")
    store_costs(tmp_path)
    yield one
    one.sweep()


def test_a_list_on_two_classes(two_classes: SlurmLab, up: Up, tmp_path: Path) -> None:
    jobs = a_list()
    begins_s = measured_begin(up, tmp_path)
    print(f"\nBENCH {JOBS} jobs on two classes; a start takes {begins_s:.2f} s")
    print(f"BENCH Slurm's backfill: {by_slurm(two_classes, jobs, tmp_path)}")
    for policy in POLICIES:
        real = by_tenbin(up, policy, jobs, tmp_path / policy, begins_s=begins_s)
        machine = slurm_cluster(
            policy, tmp_path / "forecast", lease_s=30.0, devices=True, profile=Store().load("last")
        )
        print(f"BENCH {policy:7}: {real}; forecast: {simulated(policy, jobs, begins_s, machine)}")


def a_list() -> list[Sleeper]:
    """Together ``LOAD`` times what the nodes can do while they come."""
    chance, found, at = random.Random(3), [], 0.0
    for _ in range(JOBS):
        run_s = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** chance.random()
        found.append(Sleeper(at, round(run_s, 3)))
        at += chance.expovariate(LOAD * (1 + 2 / SLOWER) / run_s)
    return found


def start(up: Up, policy: str) -> None:
    up.start("--engine", "slurm", "--devices", "--policy", policy, "--profile", "last")


def submit(up: Up, job: Sleeper, file: Path, begins_s: float) -> Any:
    expected = {BETTER: job.run_s + begins_s, OTHER: SLOWER * job.run_s + begins_s}
    return up.client.submit(
        job.command(file), name=NAME, expect_s=expected, checkpoint_signal=int(signal.SIGURG)
    )


def measured_begin(up: Up, folder: Path) -> float:
    """Measure the median time that a job which is alone takes beyond its sleep."""
    start(up, "fcfs")
    found = []
    for number in range(5 if FULL else 1):
        info = submit(up, Sleeper(0.0, 0.5), folder / f"alone-{number}", 0.0).wait(120)
        found.append(info["end_s"] - info["start_s"] - (0.5 if info["placement"] == BETTER else 0.5 * SLOWER))
    up.kill(signal.SIGTERM)
    return statistics.median(found)


def by_tenbin(up: Up, policy: str, jobs: list[Sleeper], folder: Path, *, begins_s: float) -> Course:
    folder.mkdir()
    start(up, policy)
    begin, handles = time.time(), []
    for number, job in enumerate(jobs):
        time.sleep(max(begin + job.at_s - time.time(), 0.0))
        handles.append(submit(up, job, folder / str(number), begins_s))
    found = finished(up, handles)
    turnaround_s = statistics.mean(one["end_s"] - one["submit_s"] for one in found)
    last_s = max(one["end_s"] for one in found)
    return Course(last_s - begin, turnaround_s, sum(one["migrations"] for one in found))


def by_slurm(lab: SlurmLab, jobs: list[Sleeper], folder: Path) -> Course:
    alone = ["--nodes=1", "--exclusive"]
    done = by_sbatch(
        lab,
        [
            (
                job.at_s,
                [*alone, minutes(SLOWER * job.run_s)],
                " ".join(job.command(folder / f"slurm-{number}")),
            )
            for number, job in enumerate(jobs)
        ],
        folder,
    )
    return Course(done.makespan_s, statistics.mean(done.turnarounds_s), 0)


def simulated(policy: str, jobs: list[Sleeper], begins_s: float, machine: Machine) -> Course:
    assert isinstance(machine.costs, LinearCosts)
    costs = replace(machine.costs, compile_s={NAME: begins_s})
    record, arrivals = OutcomeRecorder(), []
    for number, job in enumerate(jobs):
        runs_s = {BETTER: job.run_s + begins_s, OTHER: SLOWER * job.run_s + begins_s}
        known = Job(
            number,
            job.at_s,
            estimate_kind=EstimateKind.PREDICTED,
            stop=Stop.CHECKPOINT,
            estimates_s=runs_s,
            program=NAME,
        )
        arrivals.append(Arrival(known, 0.0, runs_s))
    Simulator(
        Cluster(machine.cluster.pools), arrivals, create(policy), SimulationSettings(costs), sinks=[record]
    ).run()
    outcomes = record.outcomes
    return Course(
        max(outcome.end_s for outcome in outcomes),
        statistics.mean(outcome.end_s - outcome.job.submit_s for outcome in outcomes),
        sum(outcome.migrations for outcome in outcomes),
    )
