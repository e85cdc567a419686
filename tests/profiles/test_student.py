"""Quantiles of Student's t against scipy, and against what stands in every table."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import stdtrit

from profiles.models import t_quantile


@pytest.mark.parametrize("p", [0.9, 0.975, 0.99, 0.999])
def test_quantiles_are_scipys(p: float) -> None:
    freedom = [*range(1, 301), 1000, 4321]
    found = [t_quantile(p, number) for number in freedom]
    assert found == pytest.approx(stdtrit(np.array(freedom), p), rel=1e-11)


def test_quantiles_are_those_of_tables() -> None:
    assert [t_quantile(0.9, 1), t_quantile(0.9, 2)] == pytest.approx([3.078, 1.886], abs=5e-4)
    assert t_quantile(0.975, 10) == pytest.approx(2.228, abs=5e-4)
