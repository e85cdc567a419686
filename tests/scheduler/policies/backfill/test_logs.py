"""Schedules of real logs against those of independent programs, and golden schedules of our own.

Under fcfs, and for the first jobs of EASY, the start of each job is compared. The programs for that share
nothing with tenbin: they read the log themselves and walk through time with lists.

The logs are not part of the project; the tests are skipped where they are neither in the folder TENBIN_DATA
nor beside the project, in ../shared/data.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import heapq
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator, Metrics
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, SimulationSettings
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


def arrivals_of(name: str, most: int | None = None) -> list[Arrival]:
    """Read the jobs of a log."""
    if name == CQSIM:
        return [arrival for arrival, _ in cqsim()[:most]]
    workload = swf.Swf(limit=most).read(log(name))
    arrivals: list[Arrival] = list(workload.arrivals)  # type: ignore[arg-type]
    assert not workload.skipped
    return arrivals


def schedule(
    arrivals: Iterable[Arrival], nodes: int, policy: str, *, kill: bool = True
) -> tuple[Metrics, Starts]:
    cluster = Cluster((Pool("node", nodes),))
    metrics, starts = Accumulator(cluster), Starts()
    settings = SimulationSettings(kill_at_limit=kill)
    Simulator(cluster, arrivals, create(policy), settings, sinks=[metrics, starts]).run()
    return metrics.metrics(), starts


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
    metrics, starts = schedule(arrivals_of(name), nodes, "easy")
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


@pytest.mark.slow
def test_conservative_on_kth() -> None:
    metrics, starts = schedule(arrivals_of(KTH), 100, "conservative")
    assert metrics.makespan_s == 29_363_626
    assert starts.digest() == "07efd5a7b6567b15"


# -- every start ---------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A job of a log; an unknown limit is infinite."""

    submit: float
    number: int
    units: int
    run: float
    limit: float


def rows_of(name: str, most: int | None = None) -> list[Row]:
    """Read the jobs as they stand in the log."""
    with gzip.open(log(name), "rt") as lines:
        if name == CQSIM:
            cells = [[float(x) for x in line.split(";")] for line in lines]
            rows = sorted((r[6], int(r[0]), int(r[1]), r[4], r[3]) for r in cells)
        else:
            cells = [[float(x) for x in line.split()] for line in lines if line[0] != ";"]
            rows = [
                (r[1], int(r[0]), int(r[7] if r[7] > 0 else r[4]), r[3], r[8] if r[8] > 0 else math.inf)
                for r in cells
            ]
    return [Row(*row) for row in rows[:most]]


def fcfs(machine: int, rows: list[Row], kill: bool = True) -> dict[int, float]:
    """Each job as soon as its predecessors have started and its units are free."""
    starts: dict[int, float] = {}
    ends: list[tuple[float, int]] = []
    free, now = machine, 0.0
    for job in rows:
        now = max(now, job.submit)
        while ends and (ends[0][0] <= now or free < job.units):
            end, units = heapq.heappop(ends)
            now, free = max(now, end), free + units
        starts[job.number] = now
        free -= job.units
        heapq.heappush(ends, (now + (min(job.run, job.limit) if kill else job.run), job.units))
    return starts


def easy(machine: int, rows: list[Row]) -> dict[int, float]:
    """EASY as docs/policies.md says it, over the whole queue at every instant at which something changed."""
    starts: dict[int, float] = {}
    running: list[tuple[float, Row]] = []  # end, job
    queue: list[Row] = []
    coming = rows[::-1]
    reserved: tuple[float, int] | None = None  # time, spare units
    while coming or running:
        now = min([end for end, _ in running] + [job.submit for job in coming[-1:]])
        if any(end == now for end, _ in running):
            running = [(end, job) for end, job in running if end > now]
            reserved = None
        while coming and coming[-1].submit == now:
            queue.append(coming.pop())
        free = machine - sum(job.units for _, job in running)
        chosen: list[Row] = []
        while queue and queue[0].units <= free:
            chosen.append(queue.pop(0))
            free -= chosen[-1].units
        if queue:
            held = [(starts[job.number] + job.limit, job.number, job.units) for _, job in running]
            held += [(now + job.limit, job.number, job.units) for job in chosen]
            at, spare = reserved or reserve(queue[0].units, free, held)
            for job in queue[1:]:
                in_time = now + job.limit <= at
                if at < math.inf and job.units <= free and (in_time or job.units <= spare):
                    chosen.append(job)
                    free -= job.units
                    spare -= 0 if in_time else job.units
            queue = [job for job in queue if job not in chosen]
            reserved = at, spare
        for job in chosen:
            starts[job.number] = now
            running.append((now + min(job.run, job.limit), job))
    return starts


def reserve(needed: int, free: int, held: list[tuple[float, int, int]]) -> tuple[float, int]:
    """When the jobs (end by their limits, number, units) should have left enough units, and what is spare."""
    for end, _, units in sorted(held):
        free += units
        if free >= needed:
            return end, free - needed
    return math.inf, 0


def tenbin(
    name: str, nodes: int, policy: str, most: int | None = None, *, kill: bool = True
) -> dict[int, float]:
    """Return the starts that tenbin gives."""
    return schedule(arrivals_of(name, most), nodes, policy, kill=kill)[1].of


# The mean wait and the mean bounded slow-down are those of programs of others.
@pytest.mark.parametrize(
    ("name", "nodes", "wait_s", "bsld"),
    [
        (KTH, 100, 353_770, 6_822),
        slow(CQSIM, 128, 1_535_569, 13_824),
        slow(HPC2N, 240, 15_843, 207),
        slow(THETA, 4360, 159_516, 385),
    ],
)
def test_every_start_under_fcfs(name: str, nodes: int, wait_s: float, bsld: float) -> None:
    metrics, starts = schedule(arrivals_of(name), nodes, "fcfs")
    assert starts.of == fcfs(nodes, rows_of(name))
    assert metrics.mean_wait_s == pytest.approx(wait_s, abs=1)
    assert metrics.bsld_mean == pytest.approx(bsld, abs=0.5)


@pytest.mark.parametrize(
    ("name", "nodes"), [(KTH, 100), slow(CQSIM, 128), slow(HPC2N, 240), slow(THETA, 4360)]
)
def test_every_start_under_easy(name: str, nodes: int) -> None:
    """On the first jobs of each log: the straight program's time grows with the square of the queue."""
    assert tenbin(name, nodes, "easy", 3000) == easy(nodes, rows_of(name, 3000))
