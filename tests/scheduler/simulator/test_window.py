"""Warm-up and cool-down, on a schedule worked by hand.

First come, first served on two units: A holds both from 0 to 10 s, B one from 10 to 20, C both from 20 to 30,
D one from 30 to 34 s. B has waited 5 s, C 14 s.
"""

from __future__ import annotations

import math
from array import array

import pytest

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.policies.registry import create
from scheduler.simulator.metrics import NO_CUT, Accumulator, Cut, Metrics, Window, counted_window, submissions
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival

JOBS = ((0, 2, 10), (5, 1, 10), (6, 2, 10), (30, 1, 4))  # submission, units, run time
ARRIVALS = [Arrival(Job(i, s, units, 20.0), run) for i, (s, units, run) in enumerate(JOBS, 1)]
CLUSTER = Cluster((Pool("node", 2, base_w=10.0, idle_w=1.0),))


def metrics(window: Window | None) -> Metrics:
    counted = Accumulator(CLUSTER, window)
    Simulator(CLUSTER, ARRIVALS, create("fcfs"), sinks=[counted]).run()
    return counted.metrics()


def window(warm_up: Cut, cool_down: Cut) -> Window:
    return counted_window(submissions(ARRIVALS), warm_up, cool_down)


@pytest.mark.parametrize(
    ("warm_up", "cool_down", "jobs", "wait_s", "makespan_s", "held", "span_s"),
    [
        (Cut(jobs=1), NO_CUT, 3, 19 / 3, 29, 44, 29),
        (NO_CUT, Cut(jobs=1), 3, 19 / 3, 30, 50, 30),
        (Cut(share=0.25), Cut(share=0.25), 2, 9.5, 25, 40, 25),
        (Cut(seconds=3), Cut(seconds=2), 2, 9.5, 25, 40, 25),  # from 3 to 28 s, where C still runs
    ],
)
def test_figures_are_those_of_the_window(
    warm_up: Cut, cool_down: Cut, jobs: int, *, wait_s: float, makespan_s: float, held: float, span_s: float
) -> None:
    found = metrics(window(warm_up, cool_down))
    assert (found.jobs, found.not_counted) == (jobs, 4 - jobs)
    assert found.mean_wait_s == pytest.approx(wait_s)
    assert found.makespan_s == pytest.approx(makespan_s)
    assert found.utilisation_ratio == pytest.approx(held / (2 * span_s))
    assert found.machine_energy_j == pytest.approx(10 * held + 2 * span_s - held)


def test_a_window_of_everything_changes_nothing() -> None:
    everything, plain = metrics(Window(0.0)), metrics(None)
    assert everything == plain and plain.jobs == 4


def test_jobs_submitted_together_count_or_not_together() -> None:
    times = array("d", [0, 1, 1, 1, 2, 2, 3])
    assert counted_window(times, Cut(jobs=2), NO_CUT) == Window(1, math.inf)
    assert counted_window(times, NO_CUT, Cut(jobs=2)) == Window(0, 2)


@pytest.mark.parametrize(
    "cuts", [(Cut(jobs=4), NO_CUT), (Cut(jobs=3), Cut(jobs=3)), (Cut(seconds=31), NO_CUT)]
)
def test_nothing_left_is_an_error(cuts: tuple[Cut, Cut]) -> None:
    with pytest.raises(BadInput, match="none of 4 jobs"):
        window(*cuts)
