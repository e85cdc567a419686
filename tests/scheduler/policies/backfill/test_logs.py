"""Schedules of real logs against those of independent programs, and golden schedules of our own.

The logs are not part of the project; the tests are skipped where they are neither in the folder TENBIN_DATA
nor beside the project, in ../shared/data.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator, Metrics
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome
from scheduler.workloads.logs import swf
from tests.support.amounts import slow
from tests.support.paths import SHARED_DATA

KTH, HPC2N, THETA = "KTH-SP2-1996-2.swf.gz", "HPC2N-2002-2.1-cln.swf.gz", "theta_2022.swf.gz"
CQSIM = "cqsim-SDSC-SP2-1998-4.rst.gz"


class Starts:
    """A hash over all start times, in the order of the ends."""

    def __init__(self) -> None:
        self.of: dict[int, float] = {}

    def add(self, outcome: Outcome) -> None:
        self.of[outcome.job.id] = outcome.start_s

    def digest(self) -> str:
        text = "\n".join(f"{job} {start:.0f}" for job, start in sorted(self.of.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def log(name: str) -> Path:
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not in {SHARED_DATA}")
    return path


def schedule(arrivals: Iterable[Arrival], nodes: int, policy: str) -> tuple[Metrics, Starts]:
    cluster = Cluster((Pool("node", nodes),))
    metrics, starts = Accumulator(cluster), Starts()
    Simulator(cluster, arrivals, create(policy), sinks=[metrics, starts]).run()
    return metrics.metrics(), starts


@pytest.mark.parametrize(
    ("name", "nodes", "wait_s", "bsld"),
    [(KTH, 100, 353_770, 6_822), slow(HPC2N, 240, 15_843, 207), slow(THETA, 4360, 159_516, 385)],
)
def test_fcfs_equals_an_independent_program(name: str, nodes: int, wait_s: float, bsld: float) -> None:
    workload = swf.Swf().read(log(name))
    metrics, _ = schedule(workload.arrivals, nodes, "fcfs")  # type: ignore[arg-type]
    assert not workload.skipped
    assert metrics.mean_wait_s == pytest.approx(wait_s, abs=1)
    assert metrics.bsld_mean == pytest.approx(bsld, abs=0.5)


# EASY is not unique: the makespans are those of independent programs, the hashes are ours (docs/policies.md).
@pytest.mark.parametrize(
    ("name", "nodes", "makespan_s", "wait_s", "near", "digest"),
    [
        (KTH, 100, 29_363_626, 6_884, 0.02, "d4993a8e71d8be90"),
        slow(HPC2N, 240, 109_598_927, 10_836, 0.02, "804cf7b283241e1a"),
        slow(THETA, 4360, 31_425_852, 44_224, 0.03, "9a4f85b5afd5b9f4"),
    ],
)
def test_easy_has_the_makespan_of_independent_programs_and_its_golden_schedule(
    name: str, nodes: int, makespan_s: float, wait_s: float, *, near: float, digest: str
) -> None:
    metrics, starts = schedule(swf.Swf().read(log(name)).arrivals, nodes, "easy")  # type: ignore[arg-type]
    assert metrics.makespan_s == makespan_s
    assert metrics.mean_wait_s == pytest.approx(wait_s, rel=near)
    assert starts.digest() == digest


def cqsim() -> list[tuple[Arrival, float]]:
    """Jobs of SDSC-SP2 and the start that CQSim gave each."""
    with gzip.open(log(CQSIM), "rt") as lines:
        rows = [
            (int(r[0]), int(r[1]), float(r[3]), float(r[4]), float(r[6]), float(r[7]))
            for r in csv.reader(lines, delimiter=";")
        ]
    rows.sort(key=lambda row: (row[4], row[0]))
    return [(Arrival(Job(i, submit, n, limit), run_s), start) for i, n, limit, run_s, submit, start in rows]


@pytest.mark.slow
def test_sdsc_against_the_schedule_of_cqsim() -> None:
    rows = cqsim()
    arrivals = [arrival for arrival, _ in rows]
    theirs = sum(start - a.job.submit_s for a, start in rows) / len(rows)
    their_end = max(start + min(a.run_s, a.job.estimate_s or a.run_s) for a, start in rows)
    easy, starts = schedule(arrivals, 128, "easy")
    first = min(a.job.submit_s for a in arrivals)
    assert easy.makespan_s == 63_189_634 == their_end - first
    assert theirs == pytest.approx(16_842, abs=1)
    assert starts.digest() == "b9ee9d0f27b15f93"
    fcfs, _ = schedule(arrivals, 128, "fcfs")
    assert fcfs.mean_wait_s == pytest.approx(1_535_569, abs=0.5)
    assert fcfs.bsld_mean == pytest.approx(13_824, abs=0.5)


@pytest.mark.slow
def test_conservative_on_kth() -> None:
    metrics, starts = schedule(swf.Swf().read(log(KTH)).arrivals, 100, "conservative")  # type: ignore[arg-type]
    assert metrics.makespan_s == 29_363_626
    assert starts.digest() == "07efd5a7b6567b15"
