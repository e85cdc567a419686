"""Weigh on shared nodes: its pairs, its bound on waits, and its schedules beside the best of all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings

from scheduler.engines.common.projection import terms_of
from scheduler.model.events import Start, Timer
from scheduler.model.interference import NEAR, PACKED, SPREAD, PairTable, Pressure, SharedNodeInterference
from scheduler.model.jobs import EstimateKind, Job
from scheduler.model.state import ClusterState
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival, SimulationSettings
from tests.scheduler.policies.sharing.test_sharing import FOUR, TABLE, where, world
from tests.support.amounts import examples
from tests.support.brute.shared import least_sum_of_ends
from tests.support.scheduling.worlds import World, run, sharing


def table(**rows: Sequence[float]) -> PairTable:
    """Programs of 100 s; each row has what it takes beside each of them, however they lie."""
    times = {a: dict(zip(rows, row, strict=True)) for a, row in rows.items()}
    return PairTable(
        dict.fromkeys(rows, 100.0), {SPREAD: times}, {name: Pressure(1.0) for name in rows}, next(iter(rows))
    )


def test_all_at_once_pairs_are_those_of_the_paper() -> None:
    """Of two jobs of each program, all as long: EP with MG, CG with LU, and FT with FT."""
    times = {
        b: {p: {q: t / TABLE.base_s[p] for q, t in row.items()} for p, row in rows.items()}
        for b, rows in TABLE.times_s.items()
    }
    equal = PairTable(dict.fromkeys(TABLE.base_s, 1.0), times, TABLE.pressures, "EP")
    outcomes, _ = run(create("weigh"), world(20, *(2 * TABLE.programs), table=equal))
    together: dict[tuple[int, ...], list[str]] = {}
    for outcome in outcomes:
        assert outcome.start_s == 0.0
        together.setdefault(where(outcomes)[outcome.job.id][2], []).append(outcome.job.program)
    pairs = Counter(tuple(sorted(programs)) for programs in together.values())
    assert pairs == {("EP", "MG"): 2, ("CG", "LU"): 2, ("FT", "FT"): 1}


def test_the_shorter_job_comes_first_and_joins_the_one_that_runs() -> None:
    """LU runs on half of all nodes; of EP and MG, which both wait, MG ends sooner."""
    outcomes, _ = run(create("weigh"), world(4, "LU", "EP", "MG", gap_s=1.0))
    placed = where(outcomes)
    assert placed[1] == (0.0, SPREAD, FOUR)
    assert placed[2][0] == 1.0  # nobody else was there
    outcomes, _ = run(create("weigh"), world(4, "LU", "LU", "EP", "MG"))
    starts = {outcome.job.id: outcome.start_s for outcome in outcomes}
    assert starts[4] <= starts[3] <= max(starts[1], starts[2])


def test_who_would_lose_more_than_a_wait_costs_does_not_join() -> None:
    for beside_s, begins in (110.0, 1.0), (250.0, 100.0):
        pairs = table(a=(beside_s, 100.0), b=(100.0, 100.0))
        jobs = world(1, "a", "a", table=pairs, gap_s=1.0)
        small = tuple(replace(arrival, job=replace(arrival.job, units=2)) for arrival in ())
        assert not small
        jobs = replace(jobs, arrivals=tuple(a._replace(job=replace(a.job, units=2)) for a in jobs.arrivals))
        outcomes, _ = run(create("weigh"), jobs)
        assert where(outcomes)[2][0] == begins
