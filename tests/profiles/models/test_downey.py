"""Downey's model: its curves against the paper's formula, and the fit against known truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.models import downey, predict
from profiles.records import Model, Quality

# Huang et al. (2014), table 3: A, sigma.
TABLE_3 = {"BT": (7, 0.02), "MG": (18, 0.04), "SP": (20, 0.05), "LU": (18, 0.01)}
COUNTS = (1, 2, 3, 4, 8, 16, 32, 64)
PARALLELISM = st.floats(1, 1000)
VARIANCE = st.floats(0, 50)


def simulated(
    A: float,
    sigma: float,
    counts: tuple[int, ...] = COUNTS,
    runs: int = 6,
    *,
    noise: float = 0.0,
    seed: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    n = np.repeat(counts, runs)
    factor = np.exp(np.random.default_rng(seed).normal(0, noise, len(n)))
    return n, downey.run_s(n, 10.0, A, sigma) * factor


def fitted(n: np.ndarray, seconds: np.ndarray) -> Model:
    return downey.fit(n.tolist(), seconds.tolist(), probe="scaling", quantity="run_s", labels={"load": "x"})


def equation_4_4(n: float, T1: float, A: float, sigma: float) -> float:
    """As printed in the paper (sigma up to 1)."""
    if n < A:
        return (T1 - T1 * sigma / (2 * A)) / n + T1 * sigma / (2 * A)
    if n <= 2 * A - 1:
        return sigma * (T1 - T1 / (2 * A)) / n + T1 / A - T1 * sigma / (2 * A)
    return T1 / A


@given(st.floats(1, 300), PARALLELISM, st.floats(0, 1))
def test_time_is_equation_4_4(n: float, A: float, sigma: float) -> None:
    assert downey.run_s(n, 10, A, sigma) == pytest.approx(equation_4_4(n, 10, A, sigma), rel=1e-9)


@given(PARALLELISM, VARIANCE)
def test_one_core_and_no_end_of_cores(A: float, sigma: float) -> None:
    assert downey.speedup(1, A, sigma) == pytest.approx(1, rel=1e-9)
    assert downey.speedup(1e9, A, sigma) == pytest.approx(A)


@given(PARALLELISM, VARIANCE, st.floats(1, 500), st.floats(0, 100))
def test_more_cores_never_take_longer(A: float, sigma: float, n: float, more: float) -> None:
    few, many = downey.speedup([n, n + more], A, sigma)
    assert 1 - 1e-9 <= few <= many * (1 + 1e-9)
    assert many <= min(A, n + more) * (1 + 1e-9)


@given(PARALLELISM, VARIANCE)
def test_continuous_at_the_break_points(A: float, sigma: float) -> None:
    for n in (A, 2 * A - 1, A + A * sigma - sigma):
        if n > 1:
            below, above = downey.speedup([n * (1 - 1e-10), n * (1 + 1e-10)], A, sigma)
            assert below == pytest.approx(above, rel=1e-6)


@given(PARALLELISM, st.floats(1, 300))
def test_both_forms_meet_at_sigma_1(A: float, n: float) -> None:
    below, above = downey.speedup(n, A, np.array([1 - 1e-12, 1 + 1e-12]))
    assert below == pytest.approx(above, rel=1e-6)


@pytest.mark.parametrize(("A", "sigma"), [*TABLE_3.values(), (5, 1.0), (5, 1.5), (12, 3.0), (3.3, 0.5)])
def test_exact_curves_are_recovered(A: float, sigma: float) -> None:
    model = fitted(*simulated(A, sigma))
    assert model["T1"].value == pytest.approx(10, rel=1e-3)
    assert model["A"].value == pytest.approx(A, rel=1e-3)
    assert model["sigma"].value == pytest.approx(sigma, rel=1e-2, abs=1e-3)
    assert {c.quality for c in model.coefficients} == {Quality.GOOD}


@pytest.mark.slow
@pytest.mark.parametrize(("A", "sigma"), [(6, 0.3), (4, 1.5)])
def test_intervals_cover(A: float, sigma: float) -> None:
    tries, covered = 30, np.zeros(3)
    for seed in range(tries):
        model = fitted(*simulated(A, sigma, noise=0.03, seed=seed))
        for i, (name, truth) in enumerate((("T1", 10), ("A", A), ("sigma", sigma))):
            c = model[name]
            assert c.low is not None and c.high is not None
            assert c.low <= c.value <= c.high
            covered[i] += c.low <= truth <= c.high
    assert (covered >= 0.9 * tries).all(), covered


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_ep_has_only_a_lower_bound(noise: float) -> None:
    model = fitted(*simulated(1e9, 0, noise=noise))
    A, sigma = model["A"], model["sigma"]
    assert A.high is None
    assert A.low is not None and 55 <= A.low <= A.value <= 65
    assert A.quality is Quality.NOISY
    assert "A >= " in A.note
    assert (sigma.low, sigma.high, sigma.quality) == (0, None, Quality.POOR)
    assert downey.verdict(model) == f"A ≥ {A.low:.2f}"


@pytest.mark.parametrize(("A", "sigma"), [(18, 0.04), (5, 1.5), (1.5, 0.2)])
def test_two_cores_say_little_and_nothing_absurd(A: float, sigma: float) -> None:
    model = fitted(*simulated(A, sigma, counts=(1, 2), runs=12, noise=0.02))
    gain = float(downey.speedup(2, A, sigma))
    a = model["A"]
    assert a.high is None
    assert a.low is not None and 0.9 * gain <= a.low <= gain * 1.03
    assert a.low <= a.value <= 2.01
    assert model["sigma"].low == 0 and model["sigma"].high is None
    assert 0 <= model["sigma"].value <= 2
    assert model["T1"].value == pytest.approx(10, rel=0.03)


def test_a_load_that_does_not_scale_is_bounded_even_by_two_cores() -> None:
    model = fitted(*simulated(1, 0, counts=(1, 2), runs=12, noise=0.02))
    a = model["A"]
    assert a.low is not None and a.high is not None
    assert 1 <= a.low < 1.02 and a.high < 1.15
    assert model["sigma"].high is None


def test_counts_below_saturation_are_not_enough() -> None:
    model = fitted(*simulated(40, 0.5, counts=(1, 2, 3, 4, 8, 16), noise=0.01))
    a = model["A"]
    assert a.high is None
    assert a.low is not None and 8 <= a.low <= 40


def test_outliers_do_not_move_the_fit() -> None:
    n, seconds = simulated(7, 0.02, runs=9, noise=0.02)
    seconds[::9] *= 5  # one run in nine, at every count, met by somebody else's work
    assert fitted(n, seconds)["A"].value == pytest.approx(7, rel=0.05)


@pytest.mark.parametrize(
    ("factor", "words"), [(1.5, "slower on 2 cores"), (0.4, "more than 2 times as fast")]
)
def test_what_the_model_cannot_follow_is_said(factor: float, words: str) -> None:
    n, seconds = simulated(1, 0, counts=(1, 2), runs=8, noise=0.01)
    seconds[n == 2] *= factor
    model = fitted(n, seconds)
    assert words in model.note
    t1 = model["T1"]
    assert t1.low is not None and t1.high is not None
    assert t1.low <= np.median(seconds[n == 1]) <= t1.high
    assert 1 <= model["A"].value <= 2.01


def test_one_run_for_each_count_has_no_interval() -> None:
    model = fitted(*simulated(7, 0.02, runs=1, noise=0.05))
    assert all(c.low is None and c.high is None and c.quality is Quality.POOR for c in model.coefficients)
    assert downey.verdict(model) == "A unknown"
    assert predict(model, 1).value == pytest.approx(10, rel=0.2)


@pytest.mark.parametrize("counts", [(1,), (2, 4), ()])
def test_one_core_and_another_count_are_needed(counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="on one core and on another count"):
        fitted(*simulated(7, 0.02, counts=counts))


def test_prediction_contains_new_runs() -> None:
    model = fitted(*simulated(7, 0.3, runs=12, noise=0.03))
    n, seconds = simulated(7, 0.3, runs=50, noise=0.03, seed=2)
    inside = [
        predict(model, float(k)).low <= t <= predict(model, float(k)).high
        for k, t in zip(n, seconds, strict=True)
    ]
    assert 0.85 <= np.mean(inside) <= 0.999


def test_prediction_beyond_the_counts_spans_all_that_is_possible() -> None:
    n, seconds = simulated(1e9, 0, counts=(1, 2), runs=12, noise=0.02)
    far = predict(fitted(n, seconds), 64)
    assert far.low <= 10 / 64 and far.high >= 5
    with pytest.raises(ValueError, match="at least 1"):
        predict(fitted(n, seconds), 0)


def test_a_model_survives_json() -> None:
    model = fitted(*simulated(18, 0.04, counts=(1, 2), noise=0.02))
    again = Model.model_validate_json(model.model_dump_json())
    assert again == model
    assert predict(again, 2) == predict(model, 2)
