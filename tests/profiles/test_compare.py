"""A difference is real where its interval excludes 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.compare import compare, difference_interval, explain_drift, overlap
from profiles.records import Condition
from tests.support.records import make_coefficient, make_model, make_profile

VALUES = st.floats(-1e6, 1e6)
HALVES = st.floats(0, 1e6)


def _profile(value: float, low: float | None, high: float | None):  # type: ignore[no-untyped-def]
    return make_profile(models=(make_model(make_coefficient(value, low, high)),))


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ((10, 9, 11), (10.5, 9.5, 11.5), "same"),
        ((10, 9, 11), (11.3, 10.3, 12.3), "same"),
        ((10, 9, 11), (11.5, 10.5, 12.5), "higher"),  # intervals overlap, the difference is real all the same
        ((10, 9, 11), (5, 4, 6), "lower"),
        ((2, 2, None), (3, 3, None), "unknown"),  # ">= 2" and ">= 3" may be the same and may not
        ((2, 2, None), (1, 0.5, 1.5), "lower"),  # at least 2, then at most 1.5
        ((1, None, 1.5), (3, 2, 4), "higher"),
        ((2, None, None), (3, 2, 4), "unknown"),
    ],
)
def test_verdicts(a, b, verdict: str) -> None:  # type: ignore[no-untyped-def]
    (difference,) = compare(_profile(*a), _profile(*b))
    assert difference.verdict == verdict


def test_poor_values_are_never_said_to_be_the_same() -> None:
    vague = make_model(make_coefficient(1.6, 0.03, 76.0, quality="poor"))
    wide, far = make_profile(models=(vague,)), _profile(900, 890, 910)
    assert [d.verdict for d in compare(wide, make_profile())] == ["unknown"]
    assert [d.verdict for d in compare(make_profile(), wide)] == ["unknown"]
    assert [d.verdict for d in compare(wide, far)] == ["higher"]  # the intervals say so much


def test_a_coefficient_in_one_profile_only() -> None:
    other = make_model(labels={"cores": "2"})
    differences = compare(make_profile(), make_profile(models=(other,)))
    assert [d.verdict for d in differences] == ["only in B", "only in A"]


@given(VALUES, HALVES, VALUES, HALVES)
def test_symmetric_intervals_give_the_textbook_difference(a: float, da: float, b: float, db: float) -> None:
    limits = difference_interval(make_coefficient(a, a - da, a + da), make_coefficient(b, b - db, b + db))
    assert limits is not None
    assert limits == pytest.approx((b - a - np.hypot(da, db), b - a + np.hypot(da, db)), abs=1e-3)


@given(VALUES, HALVES, VALUES, HALVES)
def test_intervals_that_do_not_overlap_always_differ(a: float, da: float, b: float, db: float) -> None:
    first, second = make_coefficient(a, a - da, a + da), make_coefficient(b, b - db, b + db)
    limits = difference_interval(first, second)
    assert limits is not None
    apart = max(b - db - (a + da), a - da - (b + db))
    assert overlap(first, second) == (apart <= 0)
    if apart > 1e-9:  # more than what rounding can swallow
        assert limits[0] > 0 or limits[1] < 0


def test_drift_of_the_machine_is_said() -> None:
    def condition(reference_s: float, steal: float) -> Condition:
        return Condition(
            probe="memory", round=0, duration_s=10, reference_s=reference_s, steal_ratio=steal, others_ratio=0
        )

    calm = make_profile(conditions=(condition(0.010, 0.0),))
    busy = make_profile(conditions=(condition(0.012, 0.05),))
    sentences = explain_drift(calm, busy)
    assert "1.20 times as long" in sentences[0] and "5.0%" in sentences[1]
    assert explain_drift(calm, calm) == []
