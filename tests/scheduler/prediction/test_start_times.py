"""Expected starts, and the interval that earlier ones give them."""

from __future__ import annotations

import random
from statistics import quantiles

import pytest

from scheduler.prediction.predictions import AWAITED, LEAST, StartTimes


def test_expected_starts_get_the_interval_of_the_last_ones() -> None:
    starts, chance, ratios = StartTimes(), random.Random(2), []
    for job in range(1, 41):
        said_s, real_s = chance.uniform(10, 100), chance.uniform(5, 200)
        interval = starts.expect(job, 1000.0, said_s)
        assert (interval is None) == (len(ratios) < LEAST)
        starts.expect(job, 1001.0, 8000.0)  # the first one counts
        starts.started(job, 1000.0 + real_s)
        starts.started(job, 9999.0)  # once
        ratios.append(real_s / said_s)
    low, *_, high = quantiles(ratios, n=10)
    assert starts.expect(99, 2000.0, 100.0) == pytest.approx((100 * low, 100 * high))
    account = starts.account()
    assert account["outcomes"] == 40 and account["middle"] == pytest.approx(sorted(ratios)[19], rel=0.2)


def test_of_jobs_that_never_start_the_oldest_are_forgotten() -> None:
    starts = StartTimes()
    for job in range(AWAITED + 1):
        starts.expect(job, 0.0, 10.0)
    starts.started(0, 10.0)
    assert starts.account()["outcomes"] == 0
    starts.started(AWAITED, 10.0)
    assert starts.account()["outcomes"] == 1
