"""Rules of all fits: rounds that disagree widen an interval, emulated never mixes with measured."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from probes.registry import PROBES
from profiles.fits import fit_samples
from profiles.records import Model
from tests.support.amounts import sweep

TRUTH = 10.0


def _samples(rng: np.random.Generator, drift: float, rounds: int = 3, each: int = 12) -> pd.DataFrame:
    """One core's memory bandwidth in GB/s around 10, with 2 % noise and ``drift`` between rounds."""
    rows = []
    for number in range(rounds):
        level = TRUTH * np.exp(rng.normal(0, drift))
        for repetition in range(each):
            gbs = level * np.exp(rng.normal(0, 0.02))
            rows.append(
                {
                    "round": number,
                    "emulated": False,
                    "kind": "bandwidth",
                    "cores": 1,
                    "cpus": "0",
                    "core": 0,
                    "numa": "local",
                    "placed": None,
                    "overlap": 1.0,
                    "repetition": repetition,
                    "wall_s": 1 / gbs,
                    "bytes": 10**9,
                }
            )
    return pd.DataFrame(rows)


def _bandwidth(samples: pd.DataFrame) -> Model:
    (model,) = fit_samples("memory", samples)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("drift", sweep((0.05, 0.2), {0.05}))
def test_the_interval_covers_the_truth_although_minutes_differ(drift: float) -> None:
    rng = np.random.default_rng(3)
    hits, fits = 0, 40
    for _ in range(fits):
        c = _bandwidth(_samples(rng, drift))["bandwidth"]
        assert c.low is not None and c.high is not None and c.low > 0
        hits += c.low <= TRUTH <= c.high
    assert hits >= 0.88 * fits


def test_rounds_that_agree_leave_the_interval_alone() -> None:
    samples = _samples(np.random.default_rng(3), drift=0.0, rounds=1, each=36)
    alone = _bandwidth(samples)["bandwidth"]
    samples["round"] = np.arange(36) % 3
    samples["repetition"] = np.arange(36) // 3
    together = _bandwidth(samples)["bandwidth"]
    assert together.value == alone.value
    assert (alone.high - alone.low) <= (together.high - together.low) < 3 * (alone.high - alone.low)


def test_few_samples_have_students_interval_and_one_has_none() -> None:
    few = _bandwidth(_samples(np.random.default_rng(3), drift=0.05, rounds=3, each=1))
    assert few["bandwidth"].low is not None and "Student" in few.method
    one = _bandwidth(_samples(np.random.default_rng(3), drift=0.05, rounds=1, each=1))["bandwidth"]
    assert (one.low, one.high, one.quality) == (None, None, "poor")


def test_emulated_and_measured_rows_never_mix() -> None:
    samples = _samples(np.random.default_rng(3), drift=0.0)
    samples.loc[5, "emulated"] = True
    with pytest.raises(ValueError, match="mix emulated and measured"):
        fit_samples("memory", samples)


@pytest.mark.parametrize("probe", PROBES)
def test_the_smallest_interrupted_run_is_fitted_or_left_out(probe: str) -> None:
    only_base = pd.DataFrame({"round": [0], "emulated": [False], "time_s": [0.0], "kind": ["none yet"]})
    assert fit_samples(probe, only_base) == []
    assert fit_samples(probe, only_base.iloc[:0]) == []
