"""False alarms and the power of the tests behind a check, against simulated machines whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from profiles.checks.check import LEAST_LOSS
from profiles.checks.figures import (
    FALSE_ALARM_RATIO,
    HEAVY,
    PRIOR,
    WINDOW,
    Judged,
    Observed,
    Series,
    judge,
    relative,
    significant,
)
from tests.support.amounts import examples, slow, sweep

FIGURES = 14
RUNS = examples(1000)


def observed(logs: np.ndarray) -> list[Observed]:
    return [Observed(float(np.exp(x)), (float(np.exp(x)),)) for x in logs]


def alarm(old: np.ndarray, new: np.ndarray) -> bool:
    """Judge one check: a row a figure, logarithms of speeds."""
    judged = [judge(Series(observed(a), observed(b), 1), len(old)) for a, b in zip(old, new, strict=True)]
    known = {i: one for i, one in enumerate(judged) if one is not None}
    found = significant({i: one.p_worse for i, one in known.items()})
    return any(known[i].loss > LEAST_LOSS for i in found)


@pytest.mark.parametrize("references", sweep([8, 20, 50], (8, 50)))
@pytest.mark.parametrize("noise", [0.01, 0.10])
def test_an_unchanged_machine_is_called_changed_in_one_of_a_hundred_checks_at_most(
    references: int, noise: float
) -> None:
    rng = np.random.default_rng(references)
    alarms = 0
    for _ in range(RUNS):
        old, new = (rng.normal(0, noise, (FIGURES, n)) for n in (references, WINDOW))
        alarms += alarm(old, new)
    assert alarms <= stats.binom.ppf(0.999, RUNS, FALSE_ALARM_RATIO)


def test_the_rate_holds_where_figures_and_checks_depend_on_one_another() -> None:
    """All figures share half of their noise, and a check resembles the one before (correlation 0.5)."""
    rng, alarms = np.random.default_rng(7), 0
    for _ in range(RUNS):
        noise = rng.normal(0, 0.03, (FIGURES, 50 + WINDOW)) + rng.normal(0, 0.03, 50 + WINDOW)
        for i in range(1, noise.shape[1]):
            noise[:, i] = 0.5 * noise[:, i - 1] + math.sqrt(0.75) * noise[:, i]
        alarms += alarm(noise[:, :50], noise[:, 50:])
    assert alarms <= stats.binom.ppf(0.999, RUNS, FALSE_ALARM_RATIO)


@pytest.mark.parametrize(
    ("loss", "checks", "noise"),
    [(0.05, 1, 0.005), (0.10, 1, 0.010), slow(0.03, 5, 0.005), (0.05, 5, 0.010)],
)
def test_a_loss_is_found(loss: float, checks: int, noise: float) -> None:
    """One figure of many loses; others stay: found within so many checks in 95 of 100 cases."""
    rng, found = np.random.default_rng(3), 0
    for _ in range(RUNS):
        old, new = (rng.normal(0, noise, (FIGURES, n)) for n in (30, 4 + checks))
        new[0, 4:] += math.log(1 - loss)
        found += any(alarm(old, new[:, : 4 + i + 1]) for i in range(checks))
    assert found >= 0.95 * RUNS


def test_the_least_loss_that_is_told_is_told_as_often_as_it_says() -> None:
    """One check on its own, so that the mean of five does not help."""
    rng, noise, told, tells = np.random.default_rng(5), 0.02, 0, []
    for _ in range(RUNS):
        old = rng.normal(0, noise, 50)
        one = judge(Series(observed(old), observed(np.zeros(1)), 1), FIGURES)
        assert one is not None
        new = rng.normal(0, noise, 1) - one.tells
        after = judge(Series(observed(old), observed(new), 1), FIGURES)
        assert after is not None
        told += after.p_worse <= FALSE_ALARM_RATIO / FIGURES
        tells.append(one.tells)
    assert told >= 0.95 * RUNS - 3 * math.sqrt(0.05 * 0.95 * RUNS)
    assert noise * 5 < np.median(tells) < noise * 10


def test_p_is_that_of_student_t_with_heavy_tails() -> None:
    old = np.random.default_rng(1).normal(0, 0.1, 8)
    found = judge(Series(observed(old), observed(np.array([-1.0])), 1), 1)
    spread = math.sqrt(((old - old.mean()) ** 2).sum() / (PRIOR + 7))  # the slices do not differ at all
    t = (old.mean() + 1) / (spread * math.sqrt(1 + 1 / 8))
    assert found is not None
    assert found.p_worse == pytest.approx(stats.t.sf(t, HEAVY))


def test_few_references_that_are_alike_by_chance_do_not_make_it_sure() -> None:
    """The slices within the checks differ by 5 %."""
    old = [Observed(1.0 + 1e-4 * i, (1.0,), spread=0.05) for i in range(8)]
    found = judge(Series(old, [Observed(0.95, (0.95,))], 1), FIGURES)
    assert found is not None
    assert found.p_worse > 0.05


def test_references_with_outliers_have_heavy_tails() -> None:
    """The same distance in standard deviations is less sure beside a reference with an outlier."""
    even, odd = np.array([0.01, -0.01] * 25), np.array([0.001, -0.001] * 24 + [0.05, -0.05])
    p = []
    for old in (even, odd):
        found = judge(Series(observed(old), observed(np.array([-6 * old.std()])), 1), FIGURES)
        assert found is not None
        p.append(found.p_worse)
    assert p[1] > 30 * p[0]


def test_of_the_rounds_of_the_last_check_the_best_counts() -> None:
    old = np.array([0.01, -0.01] * 10)
    found = judge(Series(observed(old), [Observed(0.8, (0.6, 1.0))], 1), 1)
    assert found is not None
    assert found.p_worse == 1.0


def test_a_window_tells_what_a_single_check_does_not_and_since_when() -> None:
    old = np.array([0.01, -0.01] * 10)
    found = judge(Series(observed(old), observed(np.full(5, -0.03)), 1), FIGURES)
    assert found is not None
    assert found.window == 5
    assert relative(found.loss, 1) == pytest.approx(0.03, abs=0.002)


def test_a_mended_machine_passes_at_once() -> None:
    old = np.array([0.01, -0.01] * 10)
    found = judge(Series(observed(old), observed(np.array([-0.3, -0.3, -0.3, 0.0])), 1), FIGURES)
    assert found is not None
    assert found.p_worse == 1.0


def test_a_quick_check_is_noisier_than_its_references_of_four_rounds() -> None:
    rng = np.random.default_rng(2)
    rounds = rng.normal(0, 0.04, (30, 4))
    old = [Observed(float(np.exp(r.mean())), tuple(np.exp(r))) for r in rounds]
    quick, full = (judge(Series(old, [Observed(1.0, (1.0,) * n)], 1), FIGURES) for n in (1, 4))
    assert isinstance(quick, Judged) and isinstance(full, Judged)
    assert quick.tells == pytest.approx(2 * full.tells, rel=0.25)  # four rounds halve the noise


def test_latencies_rise_where_they_become_worse() -> None:
    old = np.array([0.01, -0.01] * 10)
    found = judge(Series(observed(old), observed(np.array([math.log(1.3)])), -1), 1)
    assert found is not None
    assert relative(found.loss, -1) == pytest.approx(0.3, abs=0.01)
    assert (found.was, found.now) == (pytest.approx(1, abs=0.01), pytest.approx(1.3))


def test_too_few_references_tell_nothing() -> None:
    assert judge(Series(observed(np.zeros(7)), observed(np.zeros(1)), 1), 1) is None


def test_holm_stops_at_the_first_that_is_not_significant() -> None:
    assert significant({"a": 0.001, "b": 0.004, "c": 0.02}, alpha=0.01) == {"a", "b"}
    assert significant({"a": 0.004, "b": 0.001, "c": 0.002}, alpha=0.01) == {"b", "c", "a"}
    assert significant({"a": 0.02}, alpha=0.01) == set()
