"""The evaluation of the power-capped paper, cut down: every number is there, and what it means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from scheduler.evaluations import Progress, power
from scheduler.evaluations.power import PowerCase, PowerResult, PowerSize
from scheduler.model.jobs import Job
from scheduler.policies.power.parm import every
from scheduler.workloads.generators import power_sets


def in_turn(
    work: Callable[[PowerCase], PowerResult],
    cases: Sequence[PowerCase],
    progress: Progress,
    say: Callable[[PowerCase], str],
) -> list[PowerResult]:
    return [work(case) for case in cases]


def test_all_of_it_on_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = PowerSize((0,), (0.0, 1.0), (0,), (0.0, 1.0), (10.0,), (3850.0,), (0,), 20)
    monkeypatch.setitem(power.SIZES, "small", tiny)
    monkeypatch.setattr(power, "run_all", in_turn)
    quick = "parm-ga,population=10,parents=3,generations=2,least_beta=0,beta={:g}"
    monkeypatch.setattr(power, "GENETIC", quick)
    found = power.evaluate("small", lambda *_: None)
    by_name = {finding.name: finding for finding in found.findings}
    assert len(by_name) == len(found.findings) == 36
    assert by_name["mean wait, fifo-min"].tenbin.mean == 0.0
    assert by_name["makespan, beta = 1 against FIFO_mid"].agrees
    # eq. 4.3: 7 nodes, 40 W: BT gains 7 / (1 + 0.01 * 6 / 7) by 4.4a at n = A, here 4.4b, times 1.55
    bt = 7 * 7 / (0.02 * 6.5 + 7 * 0.99) * 1.55
    program = power_sets.PROGRAMS[0]
    assert program.name == "BT" and program.speed(7, 40.0) == pytest.approx(bt)
    # eq. 4.2: 40 W a node under 30 W; beta = 0 weighs energy alone.
    job = Job(1, 0.0, 1, program.run_s, max_units=13, speed=program.speed)
    ways = every(job, power_sets.small_machine().pools[0], beta=0.0, counts=64)
    (of_seven,) = np.flatnonzero((ways.units == 7) & (np.array(ways.caps_w) == 40.0))
    assert ways.merit[of_seven] == pytest.approx(bt * 40 / (7 * 50))


def test_energy_is_that_of_the_nodes_in_use_until_the_end() -> None:
    # One node for each of 50 jobs under 30 W: 40 W times the sum of their times.
    result = power.simulate(PowerCase("fifo-min"))
    assert result.energy_j == pytest.approx(40.0 * result.run_s * 50)
    whole = result.energy_j + 10.0 * (64 * result.time_s - result.run_s * 50)
    assert result.machine_energy_j == pytest.approx(whole)
