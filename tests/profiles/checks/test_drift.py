"""Change points against series whose truth is known, and a node's history."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from profiles.checks.check import CheckStore, Verdict
from profiles.checks.drift import drift, medians
from profiles.stats import LEAST_PART, PRICE, _noise, change_points
from tests.support.amounts import examples
from tests.support.checks import figures_of, make_check
from tests.support.programs import tenbin
from tests.support.records import make_coefficient, make_model, make_profile

SERIES = examples(600)


def levels(noise: float, *parts: tuple[int, float], seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(level + rng.normal(0, noise)) for count, level in parts for _ in range(count)]


def test_a_division_is_the_cheapest_of_all() -> None:
    """Against every division of a short series."""
    x = np.array(levels(0.02, (4, 0.0), (4, -0.1), seed=3))
    noise = _noise(x)
    price = PRICE * noise**2 * math.log(len(x))

    def cost(points: tuple[int, ...]) -> float:
        parts = np.split(x, points)
        if min(map(len, parts)) < LEAST_PART:
            return math.inf
        return sum(float(((part - part.mean()) ** 2).sum()) for part in parts) + price * len(points)

    every = [p for k in range(3) for p in itertools.combinations(range(1, len(x)), k)]
    assert change_points(x.tolist()) == list(min(every, key=cost))


@pytest.mark.parametrize("tails", ["normal", "heavy"])
def test_series_without_a_change_have_none(tails: str) -> None:
    rng, found = np.random.default_rng(1), 0
    for _ in range(SERIES):
        x = rng.normal(0, 0.02, 100) if tails == "normal" else rng.standard_t(3, 100) * 0.02
        found += bool(change_points(x.tolist()))
    assert found <= stats.binom.ppf(0.999, SERIES, 0.05)


@pytest.mark.parametrize(("loss", "noise"), [(0.05, 0.015), (0.10, 0.03), (0.03, 0.008)])
def test_a_change_is_found_where_it_is(loss: float, noise: float) -> None:
    right = 0
    for seed in range(SERIES):
        x = levels(noise, (30, 0.0), (20, -loss), seed=seed)
        points = change_points(x)
        right += len(points) == 1 and abs(points[0] - 30) <= 2
    assert right >= 0.85 * SERIES


def test_one_odd_value_is_no_change() -> None:
    x = levels(0.01, (40, 0.0))
    x[20] = -1.0
    assert change_points(x) == []


def test_short_and_constant_series() -> None:
    assert change_points([1.0, 2.0, 3.0]) == []
    assert change_points([1.0] * 20) == []
    assert change_points([1.0] * 10 + [2.0] * 10) == [10]


def test_a_node_over_time() -> None:
    speeds = [50.0 * math.exp(x) for x in levels(0.005, (20, 0.0), (10, math.log(0.9)))]
    checks = [make_check(n, figures_of({"stream_bandwidth_gbs": x})) for n, x in enumerate(speeds)]
    odd = make_check(99, figures_of({"stream_bandwidth_gbs": 1.0}), verdict=Verdict.DISTURBED)
    profile = make_profile(models=(make_model(make_coefficient(7.0)),))
    of_checks, of_profile = drift([profile], [*checks, odd])
    before, after = of_checks.levels
    assert (before.n, after.n) == (20, 10)
    assert after.since == checks[20].created
    assert after.change_ratio == pytest.approx(-0.1, abs=0.01)
    assert of_checks.finding and of_checks.change_ratio == pytest.approx(-0.1, abs=0.01)
    assert (of_profile.source, of_profile.coefficient, of_profile.values) == ("profiles", "bandwidth", (7.0,))
    assert medians([[of_checks], [of_checks]]) == {"stream_bandwidth_gbs": after.value}


def test_a_latency_that_falls_is_not_worse() -> None:
    times = [make_check(n, figures_of({"access_latency_ns": 100.0 - 20 * (n > 9)})) for n in range(20)]
    (one,) = drift([], times)
    assert len(one.levels) == 2 and not one.finding


def test_changes_too_small_to_matter_are_one_level() -> None:
    steady = [make_check(n, figures_of({"compute_gflops": 60.0 - 0.5 * (n > 9)})) for n in range(20)]
    (one,) = drift([], steady)
    assert [level.n for level in one.levels] == [20]


def test_less_power_is_no_loss() -> None:
    power = [make_check(n, figures_of({"power_w": 50.0 - 10 * (n > 9)})) for n in range(20)]
    (one,) = drift([], power)
    assert len(one.levels) == 2 and not one.finding


def test_the_command(tmp_path: Path) -> None:
    store = CheckStore(tmp_path)
    for node in ("node", "other"):
        for n in range(20):
            value = 50.0 - 10 * (n > 9) * (node == "node") + 0.1 * (n % 2)
            figures = figures_of({"stream_bandwidth_gbs": value})
            store.append(make_check(n, figures, node=node, kind="k"))
    for n in (20, 21):
        for node in ("node", "busy"):
            store.append(make_check(n, figures, node=node, kind="k", verdict=Verdict.DISTURBED))
    page = tmp_path / "page.html"
    done = tenbin("profile", "drift", "node", "--report", str(page), store=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "node: 22 checks, 2 disturbed and left out; 1 quantities of checks" in done.stdout
    busy = tenbin("profile", "drift", "busy", store=tmp_path)
    assert (
        busy.returncode == 2 and "busy has no profile, and all of its 2 checks were disturbed" in busy.stderr
    )
    assert "-20.0 %" in done.stdout and "50" in done.stdout
    assert "node over time" in page.read_text()
    wrong = tenbin("profile", "drift", "nowhere", store=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "neither checks nor profiles" in wrong.stderr
