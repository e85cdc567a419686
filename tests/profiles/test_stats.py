"""Intervals and quantiles against their definitions, scipy, and what stands in every table."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import stdtrit

from profiles.models import t_quantile
from profiles.stats import binomial_ranks, half_width, median_interval


@pytest.mark.parametrize("n", [6, 7, 10, 25, 100, 401])
def test_ranks_are_the_tightest_that_cover(n: int) -> None:
    ranks = binomial_ranks(n)
    assert ranks is not None
    low, high = ranks
    assert low + high == n - 1
    assert stats.binom.cdf(low, n, 0.5) <= 0.025 < stats.binom.cdf(low + 1, n, 0.5)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_too_few_values_have_no_interval(n: int) -> None:
    assert binomial_ranks(n) is None
    assert median_interval(np.arange(n))[1:] == (None, None)
    assert math.isinf(half_width(np.ones(n)))


def test_coverage_on_a_skewed_distribution() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(2000):
        _, low, high = median_interval(rng.lognormal(size=15))
        assert low is not None and high is not None
        hits += low <= 1.0 <= high
    assert 0.94 <= hits / 2000 <= 0.99


# Quantiles of Student's t against scipy, and against what stands in every table.


@pytest.mark.parametrize("p", [0.9, 0.975, 0.99, 0.999])
def test_quantiles_are_scipys(p: float) -> None:
    freedom = [*range(1, 301), 1000, 4321]
    found = [t_quantile(p, number) for number in freedom]
    assert found == pytest.approx(stdtrit(np.array(freedom), p), rel=1e-11)


def test_quantiles_are_those_of_tables() -> None:
    assert [t_quantile(0.9, 1), t_quantile(0.9, 2)] == pytest.approx([3.078, 1.886], abs=5e-4)
    assert t_quantile(0.975, 10) == pytest.approx(2.228, abs=5e-4)
