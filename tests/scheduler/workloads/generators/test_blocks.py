"""Workloads in blocks drawn with replacement."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from profiles.errors import BadInput
from scheduler.model.jobs import Job
from scheduler.simulator.trace import Arrival
from scheduler.workloads.arrivals import Blocks

DAY_S = 86400.0


def hourly(days: float, first_s: float = 500.0) -> list[Arrival]:
    """Make a job each hour, whose run time is its own number, so that it is known again."""
    return [
        Arrival(Job(i, first_s + 3600.0 * (i - 1), user="u"), float(i)) for i in range(1, int(24 * days) + 1)
    ]


def test_days_stay_whole_and_come_in_the_place_of_others() -> None:
    arrivals = hourly(6.5)
    blocks = Blocks(arrivals, DAY_S)
    assert (blocks.count, blocks.left_out) == (6, 12)
    drawn = blocks.drawn(np.random.default_rng(1))
    assert [arrival.job.id for arrival in drawn] == list(range(1, 145))
    for day in range(6):
        part = drawn[24 * day : 24 * day + 24]
        number = int(part[0].run_s - 1) // 24
        assert [arrival.run_s for arrival in part] == [24.0 * number + i for i in range(1, 25)]
        assert [arrival.job.submit_s for arrival in part] == [
            500 + day * DAY_S + 3600.0 * i for i in range(24)
        ]


def test_each_block_is_as_likely_as_any_other() -> None:
    blocks, drawn = Blocks(hourly(5), DAY_S), Counter[int]()
    for seed in range(400):
        drawn.update(int(a.run_s) // 24 for a in blocks.drawn(np.random.default_rng(seed))[::24])
    assert all(count == pytest.approx(400, abs=80) for count in drawn.values()) and len(drawn) == 5


@pytest.mark.parametrize("days", [0, 1, 3.9])
def test_too_few_blocks_are_refused(days: float) -> None:
    with pytest.raises(BadInput, match="--resamples: the workload spans"):
        Blocks(hourly(days), DAY_S)
