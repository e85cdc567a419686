"""The evaluation of execution regions on one week: its figures against straight-line ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.evaluations import Evaluation
from scheduler.evaluations import regions as evaluation
from scheduler.evaluations.regions import (
    INTERVAL_S,
    MACHINE,
    NodeRow,
    Stretch,
    Week,
    WeekResult,
    densest,
    drawn,
    run_stretch,
    run_week,
    starts_in_a_row,
)
from scheduler.model.jobs import Job
from scheduler.simulator.trace import Arrival
from scheduler.workloads.generators.kmix import MIXES
from tenbin.report.evaluation import markdown, page
from tests.scheduler.policies.regions.test_regions import machines
from tests.support.amounts import examples
from tests.support.brute import classic as brute
from tests.support.scheduling.worlds import World


@pytest.fixture(scope="module")
def week() -> WeekResult:
    return run_week(Week(1, 0))


@pytest.mark.slow
def test_a_week_is_cut_in_every_way(week: WeekResult) -> None:
    assert len(week.splits) == 5 * (1 + 4 * 2)
    for (_, count, _), split in week.splits.items():
        assert len(split.spreads_h) == count and 60 < split.filling_percent < 95
        assert split.longest_h >= max(split.spreads_h)
    whole = week.splits["fcfs", 1, True]
    assert max(whole.apart_h[2]) <= whole.spreads_h[0]  # a part is no wider than the whole
    assert len(week.waits[0]) == len(week.waits[1]) == MIXES[1].jobs
    assert max(week.waits[1]) == week.splits["fcfs", 2, True].longest_h


def test_densities_are_submitted_node_time_over_the_regions(week: WeekResult) -> None:
    size = week.layouts[2].sizes[1]
    third = sum(
        a.job.units * a.run_s
        for a in drawn(1, 0)
        if a.job.units > 31 and 2 * INTERVAL_S <= a.job.submit_s < 3 * INTERVAL_S
    )
    assert week.densities[2] == pytest.approx(third / (size * INTERVAL_S))
    # The last interval reaches beyond the week; all in all 95 % of the machine is submitted.
    assert np.sum(week.densities) * INTERVAL_S / (7 * 86_400) == pytest.approx(0.95, abs=0.01)
    assert densest((1.0, 3.0, 2.0, 0.0), 2) == 2.5 and densest((1.0, 3.0, 2.0, 0.0), 1) == 3.0


def test_later_starts_are_counted_against_fcfs() -> None:
    text = "generator:k-mix,days=1,estimate=exact"
    plain, soft, first = (
        run_stretch(Stretch("", text, policy, 0))
        for policy in ("fcfs", "soft-regions", "regions,fixed=1,inside=first-fit")
    )
    assert (plain.later_percent, plain.most_later_h) == (0.0, 0.0)
    assert (soft.later_percent, soft.most_later_h) == (0.0, 0.0)
    assert first.most_later_h > 0.0 and first.longest_h >= plain.longest_h
    assert soft.small_h is not None and plain.small_h is not None and soft.small_h <= plain.small_h


def widened(week: WeekResult, factor: float) -> WeekResult:
    """As if another week had been denser by that factor, and waits as much more apart."""
    splits = {
        key: split._replace(spreads_h=tuple(factor * h for h in split.spreads_h))
        for key, split in week.splits.items()
    }
    return week._replace(splits=splits, densities=tuple(factor * d for d in week.densities))


@pytest.fixture(scope="module")
def report(week: WeekResult) -> Evaluation:
    weeks = [Week(mix, seed) for seed in range(2) for mix in MIXES]
    results = [widened(week, 1.0 + 0.1 * i)._replace(week=case) for i, case in enumerate(weeks)]
    stretches = [
        Stretch("a day", "generator:k-mix,days=1", policy, 0) for policy in evaluation.POLICIES.values()
    ]
    ran = [run_stretch(stretch) for stretch in stretches[:2]]
    return evaluation.assemble("small", results, stretches, [ran[i % 2] for i in range(len(stretches))])


def test_every_number_of_tables_3_and_4_stands_beside_tenbins(report: Evaluation) -> None:
    rows = report.tables[0].rows
    assert [len(row[1]) for row in rows] == [0, 1, 2, 3, 4]  # type: ignore[arg-type]
    assert [len(row[3]) for row in rows] == [0, 2, 3, 4, 5]  # type: ignore[arg-type]
    for _, bounds, own, sizes, means, granularity, ratios in rows:
        assert own == pytest.approx(bounds, abs=1) and ratios == pytest.approx(granularity, rel=0.1)
        assert means == pytest.approx(sizes, rel=0.5)


def test_it_can_be_printed_and_drawn(report: Evaluation) -> None:
    text = markdown(report, "tenbin reproduce regions", "today")
    assert "Figure 8" in text and "nan" not in text
    assert len(report.pictures) == 5 and "Figure 16" in page(report)
    assert MACHINE.units == 9216


def test_holes_by_hand() -> None:
    row = NodeRow(10)
    assert [row.take(3), row.take(3), row.take(2)] == [0, 3, 6]
    row.give(0, 3)
    assert row.holes == [(0, 3), (8, 2)] and row.widest() == 3
    row.give(6, 2)
    assert row.holes == [(0, 3), (6, 4)]
    row.give(3, 3)
    assert row.holes == [(0, 10)]


@given(machines(exact=True), st.booleans())
@settings(max_examples=examples(60))
def test_jobs_of_one_node_need_no_row(world: World, may_pass: bool) -> None:
    singles = tuple(a._replace(job=replace(a.job, units=1)) for a in world.arrivals)
    units = min(3, world.cluster.units)
    assert starts_in_a_row(singles, units, may_pass) == brute.fcfs(units, singles)


def test_a_hole_that_is_too_narrow_holds_up_a_job() -> None:
    # 10 nodes: 4, 2 and 4 in a row. At 5 the first and the third end; 8 nodes are free, but in two holes.
    jobs = ((0.0, 4, 5.0), (0.0, 2, 9.0), (0.0, 4, 5.0), (1.0, 6, 5.0), (2.0, 1, 1.0))
    arrivals = [Arrival(Job(i, at, n, run_s), run_s) for i, (at, n, run_s) in enumerate(jobs, 1)]
    assert starts_in_a_row(arrivals, 10, False) == {1: 0, 2: 0, 3: 0, 4: 9, 5: 9}
    assert starts_in_a_row(arrivals, 10, True) == {1: 0, 2: 0, 3: 0, 5: 5, 4: 9}
