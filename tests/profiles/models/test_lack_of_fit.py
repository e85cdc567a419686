"""Samples of the right form stay good or noisy; of a wrong form they are poor, however narrow an interval."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from profiles.fits import _widened
from profiles.models import downey, knee, linear
from profiles.models.constant import largest_gap
from profiles.records import Model, Quality

SIZES = (8, 16, 32, 64, 128, 256)
CORES = (1, 2, 4, 8, 16)
CAPS = tuple(range(30, 95, 5))
SEEDS = 10


def lined(x: np.ndarray, y: np.ndarray) -> Model:
    return linear.fit(list(x), list(y), probe="checkpoint", quantity="checkpoint_s", x_name="memory_mb")


def bent(x: np.ndarray, y: np.ndarray) -> Model:
    return knee.fit(list(x), list(y), probe="power", quantity="power_speed_ratio")


def scaled(x: np.ndarray, y: np.ndarray) -> Model:
    return downey.fit(list(x), list(y), probe="job", quantity="run_s")


def line(x: np.ndarray) -> np.ndarray:
    return np.asarray(1.2e-3 * x + 0.03)


def one_size_off(x: np.ndarray) -> np.ndarray:
    return np.where(x == 256, 2.27, 1.0) * line(x)


Fit = Callable[[np.ndarray, np.ndarray], Model]
Form = Callable[[np.ndarray], np.ndarray]
RIGHT: dict[str, tuple[Fit, tuple[int, ...], Form]] = {
    "line": (lined, SIZES, line),
    "flat line": (lined, SIZES, lambda x: 0.2 + 0 * x),
    "knee": (bent, CAPS, lambda x: 1 - 0.02 * np.maximum(60.0 - x, 0)),
    "Downey, A = 7": (scaled, CORES, lambda x: 10 / downey.speedup(x, 7, 0.02)),
    "Downey, A = 40": (scaled, CORES, lambda x: 10 / downey.speedup(x, 40, 0.5)),
    "Downey, no gain": (scaled, CORES, lambda x: 10 / downey.speedup(x, 1, 0)),
}
WRONG: dict[str, tuple[Fit, tuple[int, ...], Form]] = {
    "one size": (lined, SIZES, one_size_off),
    "step": (lined, SIZES, lambda x: np.where(x >= 128, 2.3, 1.0) * line(x)),
    "square": (lined, SIZES, lambda x: 1e-5 * x**2),
    "speed up and down": (bent, CAPS, lambda x: np.where(abs(x - 60) < 8, 0.45, 1.0)),
    "contention": (scaled, CORES, lambda x: 10 / x + 0.35 * (x - 1)),
    "gain from 8 cores on": (scaled, CORES, lambda x: np.where(x < 8, 10.0, 3.0)),
    "more than linear": (scaled, CORES, lambda x: 10 / x**1.4),
}


def fitted(
    fit: Fit, places: tuple[int, ...], form: Form, *, noise: float, seed: int, outliers: float = 0
) -> Model:
    rng = np.random.default_rng(seed)
    x = np.repeat(places, 5).astype(float)
    y = form(x) * np.exp(rng.normal(0, noise, len(x)))
    hit = rng.random(len(x)) < outliers
    return fit(x, np.where(hit, y * rng.uniform(1.5, 10, len(x)), y))


def misfit(model: Model) -> bool:
    return "off it" in model.note or "off the curve" in model.note


CASES = [(form, noise, 0.0) for form in RIGHT for noise in (0.01, 0.2)]
DISTURBED = [(form, 0.05, 0.15) for form in RIGHT if form != "knee"]  # the power probe leaves such runs out


@pytest.mark.slow
@pytest.mark.parametrize(("form", "noise", "outliers"), CASES + DISTURBED)
def test_the_right_form_is_not_called_another(form: str, noise: float, outliers: float) -> None:
    models = [fitted(*RIGHT[form], noise=noise, seed=seed, outliers=outliers) for seed in range(SEEDS)]
    assert sum(misfit(model) for model in models) <= 1  # chance
    if noise == 0.01 and form in ("line", "knee"):
        assert all(model.coefficients[0].quality in (Quality.GOOD, Quality.NOISY) for model in models)


@pytest.mark.parametrize("form", WRONG)
def test_a_wrong_form_is_poor(form: str) -> None:
    for seed in range(SEEDS):
        model = fitted(*WRONG[form], noise=0.05, seed=seed)
        assert {c.quality for c in model.coefficients} == {Quality.POOR}, model.note


def test_a_narrow_interval_does_not_make_it_good() -> None:
    """The median at 256 is 127 % off a line that all other sizes fix."""
    model = fitted(lined, SIZES, one_size_off, noise=0.01, seed=1)
    alpha = model["alpha"]
    assert alpha.low is not None and alpha.high is not None
    assert alpha.high - alpha.low < 0.2 * alpha.value
    assert alpha.quality is Quality.POOR
    assert "not a line: the median at 256 is 12" in model.note


def test_a_small_gap_is_noisy() -> None:
    model = fitted(lined, SIZES, lambda x: np.where(x == 64, 1.2, 1.0) * line(x), noise=0.005, seed=3)
    assert {c.quality for c in model.coefficients} == {Quality.NOISY}
    assert "not quite a line: the median at 64 is" in model.note


def test_time_that_depends_on_more_is_not_good() -> None:
    """Two kinds of files, one three times as slow: no size is off the line, and the line explains little."""
    rng = np.random.default_rng(0)
    x = np.repeat(SIZES, 400).astype(float)
    y = line(x) * np.where(rng.random(len(x)) < 0.3, 3.0, 1.0) * np.exp(rng.normal(0, 0.3, len(x)))
    model = lined(x, y)
    assert "R2" in model.note and model["alpha"].quality is not Quality.GOOD
    assert "R2" not in fitted(*RIGHT["flat line"], noise=0.01, seed=1).note  # nothing to explain


def test_rounds_that_differ_do_not_make_it_better() -> None:
    rounds = [
        fitted(lined, SIZES, lambda x, f=factor: f * one_size_off(x), noise=0.01, seed=1)
        for factor in (0.99, 1.01)
    ]
    widened = _widened(fitted(lined, SIZES, one_size_off, noise=0.01, seed=1), rounds)
    assert {c.quality for c in widened.coefficients} == {Quality.POOR}


def test_sizes_that_were_seen_once_are_taken_with_their_neighbours() -> None:
    """As from the checkpoints of real jobs."""
    x = np.arange(5.0, 65.0)
    noise = np.random.default_rng(4).normal(0, 0.01, len(x))
    assert largest_gap(x, noise) is None
    gap = largest_gap(x, np.where(x > 50, 0.5, 0.0) + noise)
    assert gap is not None and gap.at > 50 and gap.size == pytest.approx(0.5, rel=0.1)


def test_one_observation_of_each_says_nothing() -> None:
    assert largest_gap(np.array([1.0, 2.0, 4.0]), np.array([0.0, 5.0, 0.0])) is None
