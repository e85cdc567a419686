"""The line against simulated truth: coverage of its intervals, outliers, exact data, honest notes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.fits import _widened
from profiles.models import linear, predict
from profiles.records import Model, Quality
from tests.support.amounts import examples

ALPHA, BETA = 1.2e-3, 0.03
SIZES = (8, 16, 32, 64, 128, 256)


def fitted(x: object, y: object) -> Model:
    return linear.fit(x, y, probe="checkpoint", quantity="checkpoint_s", x_name="memory_mb")  # type: ignore[arg-type]


def samples(rng: np.random.Generator, noise: str, repetitions: int = 5) -> tuple[np.ndarray, np.ndarray]:
    x = np.repeat(SIZES, repetitions).astype(float)
    y = ALPHA * x + BETA
    if noise == "equal":
        return x, y + rng.normal(0, 0.01, len(x))
    y = y * (1 + rng.normal(0, 0.08, len(x)))
    if noise == "outliers":
        hit = rng.random(len(x)) < 0.2
        y = np.where(hit, y * rng.uniform(1.5, 10, len(x)), y)
    return x, y


@settings(max_examples=examples(40))
@given(
    alpha=st.floats(1e-6, 10),
    beta=st.floats(-5, 5),
    sizes=st.lists(st.integers(1, 4096), min_size=5, max_size=12, unique=True),
)
def test_an_exact_line_is_recovered(alpha: float, beta: float, sizes: list[int]) -> None:
    model = fitted(sizes, [alpha * x + beta for x in sizes])
    scale = abs(beta) + alpha * max(sizes)
    assert model["alpha"].value == pytest.approx(alpha, rel=1e-6, abs=1e-9 * scale)
    assert model["beta"].value == pytest.approx(beta, abs=1e-9 * scale)
    assert predict(model, 10_000).value == pytest.approx(alpha * 10_000 + beta, rel=1e-6, abs=1e-6 * scale)
    assert model.r2 == pytest.approx(1, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["equal", "proportional", "outliers"])
def test_intervals_cover_the_truth_as_often_as_they_claim(noise: str) -> None:
    rng = np.random.default_rng(11)
    covered = np.zeros(3)
    trials = 150
    for _ in range(trials):
        model = fitted(*samples(rng, noise))
        for i, (name, truth) in enumerate((("alpha", ALPHA), ("beta", BETA))):
            coefficient = model[name]
            assert coefficient.low is not None
            assert coefficient.high is not None
            covered[i] += coefficient.low <= truth <= coefficient.high
        sd = 0.01 if noise == "equal" else 0.08 * (ALPHA * 200 + BETA)
        low, high = predict(model, 200)[1:]
        covered[2] += low <= ALPHA * 200 + BETA + rng.normal(0, sd) <= high
    assert (covered / trials >= 0.85).all(), covered / trials
    assert (covered[:2] / trials <= 0.99).all(), covered / trials


def test_a_fifth_of_outliers_moves_the_line_less_than_its_interval() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        x, y = samples(rng, "proportional")
        clean = fitted(x, y)
        hit = rng.permutation(len(y))[: len(y) // 5]
        y[hit] *= rng.uniform(3, 30, len(hit))
        dirty = fitted(x, y)
        for a, b in zip(clean.coefficients, dirty.coefficients, strict=True):
            assert a.low is not None
            assert a.high is not None
            assert abs(a.value - b.value) < a.high - a.low


def test_some_exact_points_and_some_outliers() -> None:
    x = np.repeat(SIZES, 5).astype(float)
    y = ALPHA * x + BETA
    y[::5] *= 3
    model = fitted(x, y)
    assert model["alpha"].value == pytest.approx(ALPHA)
    assert model["beta"].value == pytest.approx(BETA)


def test_scatter_that_grows_makes_predictions_wider_with_size() -> None:
    model = fitted(*samples(np.random.default_rng(2), "proportional", 30))
    small, large = predict(model, 16), predict(model, 1024)
    assert large.high - large.low > 5 * (small.high - small.low)
    assert model.residual_sd_line is not None
    assert model.residual_sd_line[1] == pytest.approx(0.08 * ALPHA, rel=0.4)


@pytest.mark.filterwarnings("error")
def test_most_points_at_zero() -> None:
    rng = np.random.default_rng(3)
    x = np.array([0.0] * 7 + [100.0, 200.0, 400.0, 800.0])
    model = fitted(x, 2e-4 * x + 0.01 + rng.normal(0, 1e-4, len(x)))
    assert model["alpha"].value == pytest.approx(2e-4, rel=0.05)
    assert model.residual_sd_line is not None and np.isfinite(model.residual_sd_line).all()


def test_a_curve_and_pure_noise_are_called_what_they_are() -> None:
    rng = np.random.default_rng(3)
    x = np.repeat(SIZES, 10).astype(float)
    curved = fitted(x, 0.5 * np.sqrt(x) * (1 + rng.normal(0, 0.01, len(x))))
    assert "not quite a line" in curved.note
    assert not fitted(*samples(rng, "proportional")).note
    noise = fitted(x, rng.uniform(1, 2, len(x)))
    assert "R2" in noise.note
    assert noise["alpha"].quality == Quality.POOR


def test_a_negative_intercept_is_reported_as_found() -> None:
    rng = np.random.default_rng(4)
    x = np.repeat(SIZES, 5).astype(float)
    beta = fitted(x, 1e-2 * x - 0.05 + rng.normal(0, 1e-4, len(x)))["beta"]
    assert beta.value == pytest.approx(-0.05, abs=1e-3)


def test_intervals_widened_by_rounds_widen_predictions() -> None:
    rng = np.random.default_rng(6)
    rounds = []
    for factor in (0.8, 1.0, 1.3):
        x, y = samples(rng, "proportional")
        rounds.append((x, y * factor))
    both = fitted(np.concatenate([x for x, _ in rounds]), np.concatenate([y for _, y in rounds]))
    widened = _widened(both, [fitted(x, y) for x, y in rounds])
    assert widened["alpha"].rounds_differ and not both["alpha"].rounds_differ
    before, after = predict(both, 4096), predict(widened, 4096)
    assert after.high - after.low > before.high - before.low


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([1, 2, 3, 4], [1, 2, 3, 4]),
        ([1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 2]),
        ([1, 2, 3, 4, 5], [np.nan] * 5),
    ],
)
def test_too_little_data_is_refused(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match="a line needs"):
        fitted(x, y)
