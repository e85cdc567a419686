"""The knee model against known truth, and its intervals against their promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.models import predict
from profiles.models.knee import fit
from profiles.records import Model, Quality
from tests.support.amounts import examples

CAPS = np.linspace(30.0, 90.0, 9)


def speed(cap: np.ndarray, knee: float, slope: float, flat: float = 1.0) -> np.ndarray:
    return np.asarray(flat - slope * np.maximum(knee - cap, 0.0))


def fitted(x: np.ndarray, y: np.ndarray) -> Model:
    return fit(list(x), list(y), probe="power", quantity="power_speed_ratio")


@settings(max_examples=examples(60))
@given(
    knee=st.floats(46.0, 80.0),
    at_lowest=st.floats(0.1, 0.8),
    flat=st.floats(0.2, 5.0),
    seed=st.integers(0, 9),
)
def test_exact_data_give_the_truth(knee: float, at_lowest: float, flat: float, seed: int) -> None:
    slope = flat * (1 - at_lowest) / (knee - 30.0)
    x = np.random.default_rng(seed).permutation(np.repeat(CAPS, 2))
    model = fitted(x, speed(x, knee, slope, flat))
    assert model["knee_w"].value == pytest.approx(knee, abs=0.01)
    assert model["slope_per_w"].value == pytest.approx(slope, rel=1e-3)
    assert model["speed_flat"].value == pytest.approx(flat, rel=1e-3)
    assert model["m"].value == pytest.approx(slope / (flat * at_lowest), rel=1e-2)
    for cap in (30.0, 47.0, 90.0):
        assert predict(model, cap).value == pytest.approx(
            float(speed(np.array(cap), knee, slope, flat)), abs=1e-3
        )


def test_the_papers_own_curve() -> None:
    """Table 3, BT: m = 0.055, lowest cap 30 W, knee at 50 W (eq. 4.5)."""
    x = np.repeat(np.arange(30.0, 91.0, 5.0), 3)
    model = fitted(x, np.minimum(x - 30.0, 20.0) * 0.055 + 1.0)
    assert model["m"].value == pytest.approx(0.055, rel=1e-3)
    assert model["knee_w"].value == pytest.approx(50.0, abs=0.01)
    assert model["speed_flat"].value == pytest.approx(2.1, rel=1e-3)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Nominal 95 %; of 300 draws at least 90 % must hold it (4 standard deviations below)."""
    rng = np.random.default_rng(7)
    truth = {"knee_w": 52.0, "slope_per_w": 0.025, "speed_flat": 1.0, "m": 0.025 / 0.45}
    held = dict.fromkeys(truth, 0)
    for _ in range(300):
        x = np.repeat(CAPS, 3)
        model = fitted(x, speed(x, 52.0, 0.025) + rng.normal(0, 0.03, len(x)))
        for name, value in truth.items():
            c = model[name]
            held[name] += (c.low is None or c.low <= value) and (c.high is None or value <= c.high)
    assert {name: count for name, count in held.items() if count < 0.90 * 300} == {}


def test_predictions_hold_new_observations() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        x = np.repeat(CAPS, 3)
        model = fitted(x, speed(x, 52.0, 0.025) + rng.normal(0, 0.03, len(x)))
        cap = float(rng.uniform(30, 90))
        new = float(speed(np.array(cap), 52.0, 0.025)) + rng.normal(0, 0.03)
        p = predict(model, cap)
        inside += p.low <= new <= p.high
    assert inside >= 0.90 * 200


def test_outliers_do_not_move_it() -> None:
    rng = np.random.default_rng(1)
    x = np.repeat(CAPS, 4)
    y = speed(x, 52.0, 0.025) + rng.normal(0, 0.01, len(x))
    y[[2, 17, 30]] *= 0.3  # another process had the machine
    model = fitted(x, y)
    assert model["knee_w"].value == pytest.approx(52.0, abs=2.0)
    assert model["slope_per_w"].value == pytest.approx(0.025, rel=0.08)


def test_no_knee_within_the_range_is_said() -> None:
    rng = np.random.default_rng(2)
    x = np.repeat(CAPS, 3)
    model = fitted(x, speed(x, 120.0, 0.01) + rng.normal(0, 0.005, len(x)))
    knee = model["knee_w"]
    assert knee.high is None and knee.low is not None and knee.low > 80.0
    assert knee.note.startswith("no knee seen: knee >= ")
    assert knee.quality is Quality.POOR
    assert model["slope_per_w"].value == pytest.approx(0.01, rel=0.1)
    assert model["speed_flat"].high is None


def test_a_load_that_no_cap_slows() -> None:
    rng = np.random.default_rng(4)
    x = np.repeat(CAPS, 3)
    model = fitted(x, 1.0 + rng.normal(0, 0.01, len(x)))
    assert (model["knee_w"].low, model["knee_w"].high) == (None, None)
    assert model["slope_per_w"].low == 0.0
    assert model["speed_flat"].value == pytest.approx(1.0, abs=0.05)


def test_m_is_unbounded_where_the_lowest_cap_may_stop_the_load() -> None:
    rng = np.random.default_rng(6)
    x = np.repeat(CAPS, 2)
    model = fitted(x, speed(x, 60.0, 0.03) + rng.normal(0, 0.3, len(x)))
    assert model["m"].low is not None and model["m"].high is None


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        fitted(np.array([30.0, 40.0, 50.0]), np.array([0.5, 0.7, 1.0]))
    with pytest.raises(ValueError, match="too few"):
        fitted(np.repeat([30.0, 50.0], 9), np.repeat([0.5, 1.0], 9))


def test_a_model_survives_storage() -> None:
    x = np.repeat(CAPS, 3)
    model = fitted(x, speed(x, 120.0, 0.01))
    assert Model.model_validate_json(model.model_dump_json()) == model
