"""One list of real jobs on two cores of this machine under several policies, beside the simulator's forecast.

The jobs sleep, so that other work hardly slows them down. A start, measured before, is part of each run time.
"""

from __future__ import annotations

import statistics

import pytest

from scheduler.engines.local.discovery import divide
from tests.benchmarks import amount
from tests.benchmarks.slurm.test_slurm_list import Overheads, Sleeper, a_list, by_tenbin, forecast, told
from tests.support.coordinator import Up

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
POLICIES = amount(("fcfs", "easy", "weigh"), ("easy", "weigh"), ("weigh",))
CORES, SIZES = 2, (1, 1, 1, 2)
JOBS, ALONE = amount((30, 5), (5, 1), (2, 1))


def test_a_list_on_cores(up: Up) -> None:
    jobs, machine = a_list(CORES, SIZES, JOBS), divide("easy", CORES, None)
    begin_s = measured_begin(up)
    print(f"\nBENCH {JOBS} sleepers on {CORES} cores; a start takes {begin_s:.3f} s")
    print("BENCH policy, (forecast): makespan, mean turnaround, mean wait, mean slow-down")
    for policy in POLICIES:
        real = by_tenbin(up, policy, jobs, "--policy", policy, "--cores", str(CORES))
        told(policy, real.figures(jobs), forecast(policy, jobs, Overheads([begin_s], 0.0, 0.0), machine))


def measured_begin(up: Up) -> float:
    """Measure the median time that a job which is alone takes beyond its sleep."""
    rows = [Sleeper(float(2 * number), 1, 0.5, 60.0) for number in range(ALONE)]
    course = by_tenbin(up, "fcfs", rows, "--policy", "fcfs", "--cores", str(CORES))
    return statistics.median(took - 0.5 for took in course.turnarounds_s)
