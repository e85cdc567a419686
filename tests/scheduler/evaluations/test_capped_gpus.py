"""GPUs under caps: rivals at fixed settings, finish-time fairness, the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.evaluations import capped_gpus
from scheduler.evaluations.capped_gpus import (
    BOTH,
    GROUNDS,
    OWN,
    V100,
    CappedCase,
    CappedFigures,
    above_budget,
    charged,
    energy_j,
    finish_time_fairness,
    fixed,
    least_j,
    simulate,
    under,
)
from scheduler.model.jobs import Job, Placement
from scheduler.model.speeds import CapTable, TabulatedPower, TabulatedSpeed
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, OutcomeRecorder, Segment
from scheduler.workloads import load

FIXED = "V100, fixed sizes"
SPEED = TabulatedSpeed(2, (1.0, 1.25, 1.5), CapTable((100.0, 250.0), (1.0, 2.0)))  # on 2 to 4 GPUs
POWER = TabulatedPower(CapTable((100.0, 250.0), (90.0, 210.0)))
JOB = Job(1, 0.0, 2, 120.0, max_units=4, speed=SPEED, power=POWER)


def outcome(job: Job, end_s: float, units: int = 2, cap_w: float | None = 100.0) -> Outcome:
    segment = Segment("run", Placement("v100", units, cap_w=cap_w), job.submit_s, end_s)
    return Outcome(
        *(job, job.submit_s, end_s, "done", end_s - job.submit_s, 0.0, 0.0, 0, 0, 0, 0.0),
        segments=(segment,),
    )


def test_rivals_have_a_size_and_a_cap() -> None:
    """120 s of work: on two GPUs at 175 W 1.5 times as fast, on three 1.25 times of that."""
    for times, most, units, run_s in ((1, 8, 2, 80.0), (2, 3, 3, 64.0), (4, 8, 4, 120 / 2.25)):
        arrival = fixed(Arrival(JOB, 120.0), {"v100": 175.0}, times, most)
        assert (arrival.job.units, arrival.job.max_units, arrival.job.speed) == (units, None, None)
        assert (arrival.job.estimate_s, arrival.run_s) == pytest.approx((run_s, run_s))
    times_s = {"v100": 120.0, "p100": 240.0}
    several = Arrival(replace(JOB, estimate_s=None, estimates_s=times_s), 120.0, times_s)
    arrival = fixed(several, {"v100": 250.0, "p100": 175.0}, 1, 8)
    assert arrival.runs_s == arrival.job.estimates_s == {"v100": 60.0, "p100": 160.0}


def test_the_budget_carries_so_many_units() -> None:
    """Of 2400 W eight V100 take 1600 at 200 W, and five P100 750 at 150 W."""
    assert [pool.units for pool in under(BOTH, (150.0, 150.0)).pools] == [8, 8]
    assert [pool.units for pool in under(BOTH, (200.0, 150.0)).pools] == [8, 5]
    assert [pool.units for pool in under(V100, (175.0,)).pools] == [6]


def test_energy_is_of_the_job_itself_under_the_cap() -> None:
    """Two V100 for 10 s: at 100 W, as its rival has them, 2 x (60 + 90) W."""
    rigid = fixed(Arrival(JOB, 120.0), {"v100": 100.0}, 1, 8).job
    of_rival = outcome(rigid, 10.0, cap_w=None)
    assert energy_j(charged(of_rival, JOB, {"v100": 100.0}), V100) == pytest.approx(3000.0)


def test_energy_is_the_simulators() -> None:
    for cluster, sizes, _ in GROUNDS.values():
        workload = load(f"generator:labbench,jobs=40,load=0.7,sizes={sizes}", cluster, 7)
        record = OutcomeRecorder()
        Simulator(cluster, workload.arrivals, create(OWN), workload.settings, sinks=[record]).run()
        for done in record.outcomes:
            assert energy_j(done, cluster) == pytest.approx(done.energy_j)


def test_fairness_is_against_the_part_of_each_job() -> None:
    """Two jobs, both there from 0 to 100 s: each has four of the eight GPUs, and would take 40 s there."""
    both = [outcome(JOB, 100.0), outcome(JOB, 100.0)]
    assert finish_time_fairness(both) == pytest.approx([2.5, 2.5])
    # With eight jobs the part is one GPU, and the fewest that the job can take are two: 60 s x 2.
    assert finish_time_fairness([outcome(JOB, 60.0)] * 8) == pytest.approx([0.5] * 8)


def test_no_schedule_takes_less_energy_than_each_job_at_its_best() -> None:
    """Two GPUs at 250 W: 540 W for 60 s; at 100 W 300 W for 120 s; four at 250 W 1080 W for 40 s."""
    assert least_j(JOB, V100) == pytest.approx(540 * 60)
    figures = simulate(CappedCase(FIXED, "mctbm-priced", 40, 1, (125.0,)))
    assert figures is not None and 0 < figures.least_j < figures.energy_j


def test_what_is_drawn_above_the_budget_is_counted() -> None:
    """Of 1600 W a job that states no watts takes 5 x 310 = 1550, and one that does 5 x 270 = 1350."""
    plain = replace(JOB, power=None)
    assert above_budget([outcome(plain, 10.0, 5, 250.0)], V100) == 0
    for job, above in ((plain, 1), (JOB, 0)):
        assert above_budget([outcome(job, 10.0, 5, 250.0), outcome(JOB, 5.0, 1, 100.0)], V100) == above


def test_a_cap_at_which_a_job_does_not_fit_is_left_out() -> None:
    """Eight GPUs at 250 W take 2480 W; at 100 W 1280."""
    assert simulate(CappedCase(FIXED, "mctbm-priced", 40, 1, (250.0,))) is None
    figures = simulate(CappedCase(FIXED, "mctbm-priced", 40, 1, (100.0,)))
    assert figures is not None and figures.energy_j > 0 and figures.violations == 0


def test_the_best_of_each_rival_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    turnarounds = {OWN: 50.0, "parm,alpha=0": 100.0, "parm,alpha=0.5": 80.0}

    def made(case: CappedCase) -> CappedFigures | None:
        if case.caps_w == (125,):
            return None  # does not fit
        turnaround_s = turnarounds.get(case.policy, max(case.caps_w, default=200.0))
        return CappedFigures(turnaround_s, 7.0, 10.0, 9.0, 2.0, 0)

    monkeypatch.setattr(capped_gpus, "run_all", lambda work, cases, progress: [made(case) for case in cases])
    findings, table = capped_gpus.evaluate("small", (1, 2), lambda *_: None)
    fixed_sizes = {finding.what: finding for finding in findings if finding.of == FIXED}
    assert fixed_sizes["mean turnaround against parm,alpha=0.5"].tenbin.mean == pytest.approx(-37.5)
    assert fixed_sizes["mean turnaround against mctbm-priced at 100 W"].tenbin.mean == pytest.approx(-50)
    assert fixed_sizes["bound of energy against parm,alpha=0.5"].tenbin.mean == pytest.approx(-10)
    assert fixed_sizes["worst finish-time fairness"].agrees is False
    both = {finding.what: finding for finding in findings if finding.of == "V100, P100, sizes, a budget"}
    best = both["mean turnaround against mctbm-priced at 150 and 150 W"]
    assert best.tenbin.mean == pytest.approx(100 * (50 / 150 - 1)) and best.agrees is None
    assert len(table.rows) == 10
