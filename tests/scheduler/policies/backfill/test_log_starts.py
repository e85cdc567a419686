"""The start of each single job of real logs, against the same rules written straight down.

The programs here share nothing with tenbin: they read the log themselves and walk through time with lists.
"""

from __future__ import annotations

import gzip
import heapq
import math
from typing import NamedTuple

import pytest

from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import OutcomeRecorder, SimulationSettings
from scheduler.workloads.logs import swf
from tests.scheduler.policies.backfill.test_logs import CQSIM, HPC2N, KTH, THETA, cqsim, log
from tests.support.amounts import slow


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
    if name == CQSIM:
        arrivals = [arrival for arrival, _ in cqsim()[:most]]
    else:
        arrivals = list(swf.Swf(limit=most).read(log(name)).arrivals)  # type: ignore[arg-type]
    record = OutcomeRecorder()
    Simulator(
        Cluster((Pool("node", nodes),)),
        arrivals,
        create(policy),
        SimulationSettings(kill_at_limit=kill),
        sinks=[record],
    ).run()
    return {outcome.job.id: outcome.start_s for outcome in record.outcomes}


LOGS = [(KTH, 100), slow(CQSIM, 128), slow(HPC2N, 240), slow(THETA, 4360)]


@pytest.mark.parametrize(("name", "nodes"), LOGS)
def test_every_start_under_fcfs(name: str, nodes: int) -> None:
    assert tenbin(name, nodes, "fcfs") == fcfs(nodes, rows_of(name))


@pytest.mark.parametrize(("name", "nodes"), LOGS)
def test_every_start_under_easy(name: str, nodes: int) -> None:
    """On the first jobs of each log: the straight program's time grows with the square of the queue."""
    assert tenbin(name, nodes, "easy", 3000) == easy(nodes, rows_of(name, 3000))
