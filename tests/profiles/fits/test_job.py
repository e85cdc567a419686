"""Pressure and sensitivity against programs whose behaviour is known in closed form.

On the made-up machine memprobe slows down by ``1 + traffic / 20`` beside so many GB/s, and writes 10 GB/s.
"""

from __future__ import annotations

import json
import math

import jsonschema
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.export import json_schema
from profiles.fits.job import fit, fit_phases
from profiles.jobs import Curve, JobProfile, Level
from profiles.models.contention import equivalent, predict_slowdown, slowdown_beside
from tests.support.job_profiles import INTENSITIES, bursty, make_job, over_hosts, samples
from tests.support.paths import ROOT
from tests.support.records import make_coefficient

LEVELS = st.lists(st.floats(1.0, 3.0), min_size=2, max_size=6)


def curve(values: list[float], spread: float = 0.0) -> Curve:
    """Levels at 0, 10, 20, ... GB/s."""
    levels = [
        Level(
            intensity_percent=float(i),
            offered_gbs=10.0 * i,
            slowdown=make_coefficient(value, value - spread, value + spread),
        )
        for i, value in enumerate(values)
    ]
    return Curve(clock="wall", levels=tuple(levels))


@settings(max_examples=15)
@given(st.floats(0.0, 1.0), st.sampled_from(["wall", "cpu"]))
def test_a_job_that_is_memprobe_at_some_intensity_presses_with_that_traffic(share: float, clock: str) -> None:
    runs, windows = samples(pressure_gbs=10.0 * share)
    fitted = fit(runs, windows)
    pressure = next(p for p in fitted.pressure if p.clock == clock)
    assert pressure.slowdown.value == pytest.approx(1 + share / 2)
    assert pressure.equivalent_gbs is not None
    assert pressure.equivalent_gbs.value == pytest.approx(10.0 * share, abs=1e-6)


@settings(max_examples=15)
@given(st.floats(0.0, 0.2), st.floats(0.0, 25.0))
def test_the_sensitivity_is_the_law_by_which_it_was_slowed_down(law: float, gbs: float) -> None:
    fitted = fit(*samples(suffers=law))
    found = next(c for c in fitted.sensitivity if c.clock == "wall")
    assert [level.intensity_percent for level in found.levels] == list(INTENSITIES)
    assert [level.offered_gbs for level in found.levels] == pytest.approx([0, 2.5, 5, 7.5, 10])
    # No further than twice what was measured.
    assert predict_slowdown(found, gbs).value == pytest.approx(1 + law * min(gbs, 20.0), abs=1e-6)


def test_the_interval_covers_the_truth_nineteen_times_in_twenty() -> None:
    """Runs and windows with 5 % of noise."""
    covered, widths = [], []
    for seed in range(20):
        job = make_job("a", *samples(suffers=0.05, pressure_gbs=5.0, noise=0.05, repetitions=8, seed=seed))
        prediction = slowdown_beside(job, [job])
        assert prediction is not None
        covered.append(prediction.low <= 1 + 0.05 * 5.0 <= prediction.high)
        widths.append(prediction.high - prediction.low)
    assert np.mean(covered) >= 0.95 and np.median(widths) < 0.9


def test_neighbours_add_up_their_pressures() -> None:
    a = make_job("a", *samples(suffers=0.1, pressure_gbs=3.0))
    b = make_job("b", *samples(suffers=0.0, pressure_gbs=4.0))
    for job, others, truth in ((a, [b], 1.4), (a, [b, a], 1.7), (b, [a], 1.0), (a, [], 1.0)):
        found = slowdown_beside(job, others)
        assert found is not None and found.value == pytest.approx(truth)


def test_a_machine_on_which_memprobe_does_not_suffer_has_no_measure_of_pressure() -> None:
    runs, windows = samples(law=0.0)
    fitted = fit(runs, windows)
    assert all(p.equivalent_gbs is None and "hardly suffers" in p.note for p in fitted.pressure)


def test_a_reference_that_rises_by_chance_is_no_measure_of_pressure() -> None:
    """The rise is 8 % +- 10 %, or too small to derive a pressure."""
    assert equivalent(curve([1.0, 1.08], spread=0.1), make_coefficient(1.03, 1.0, 1.06)) is None
    assert equivalent(curve([1.0, 1.08], spread=0.04), make_coefficient(1.03, 1.0, 1.06)) is not None
    assert equivalent(curve([1.0, 1.04], spread=0.01), make_coefficient(1.03, 1.0, 1.06)) is None


def test_the_reference_compares_within_its_rounds() -> None:
    """Memory is slower by half in the second of three rounds; in the third one window took five times."""
    runs, windows = samples(law=0.02)
    reference = windows[windows["phase"] == "reference"]
    rounds = [reference.assign(round=number) for number in range(3)]
    for column in ("wall_s", "thread_cpu_s"):
        rounds[1][column] *= 1.5
        rounds[2].loc[rounds[2]["intensity_percent"] == 100, column] *= 5
    rounds[1] = rounds[1][rounds[1]["intensity_percent"] != 50]  # cut short
    found = next(c for c in fit(runs, pd.concat([windows[windows["phase"] == "run"], *rounds])).reference)
    truth = [1 + 0.02 * gbs for gbs in (0, 2.5, 5, 7.5, 10)]
    assert [level.slowdown.value for level in found.levels] == pytest.approx(truth)


def test_a_job_without_cpu_time_has_no_sensitivity_by_that_clock() -> None:
    runs, windows = samples()
    fitted = fit(runs.assign(cpu_s=0.001), windows)
    assert [c.clock for c in fitted.sensitivity] == ["wall"]


def test_writers_that_disturb_count_as_many_as_the_job_has_cores() -> None:
    """A job on two cores, one probe beside it: the reference reaches the traffic of two writers."""
    fitted = fit(*samples(job_cores=2))
    reference = next(c for c in fitted.reference if c.clock == "wall")
    assert [level.offered_gbs for level in reference.levels] == pytest.approx([0, 5, 10, 15, 20])
    assert [level.offered_gbs for level in fitted.sensitivity[0].levels] == pytest.approx(
        [0, 2.5, 5, 7.5, 10]
    )


@given(LEVELS, st.floats(0, 200), st.floats(0, 200))
def test_more_traffic_never_predicts_less_slow_down(values: list[float], a: float, b: float) -> None:
    found = curve(values, spread=0.1)
    low, high = sorted((a, b))
    assert predict_slowdown(found, low).value <= predict_slowdown(found, high).value + 1e-9
    assert (
        predict_slowdown(found, a).low <= predict_slowdown(found, a).value <= predict_slowdown(found, a).high
    )


@given(LEVELS, st.floats(0.9, 4.0))
def test_the_equivalent_traffic_is_where_the_reference_suffers_as_much(values: list[float], y: float) -> None:
    found = curve(sorted(values))
    traffic = equivalent(found, make_coefficient(y, y, y))
    if sorted(values)[-1] - sorted(values)[0] < 0.05:
        assert traffic is None
        return
    assert traffic is not None
    reached = predict_slowdown(found, traffic.value).value
    bounds = predict_slowdown(found, 0.0).value, predict_slowdown(found, 1e9).value
    assert reached == pytest.approx(min(max(y, bounds[0]), bounds[1]), abs=1e-6)


def test_one_repetition_gives_values_without_intervals() -> None:
    job = make_job("a", *samples(suffers=0.1, pressure_gbs=5.0, repetitions=1))
    pressure, found = job.pressure_by(), slowdown_beside(job, [job])
    assert pressure is not None and pressure.equivalent_gbs is not None and found is not None
    assert (pressure.equivalent_gbs.low, pressure.equivalent_gbs.quality) == (None, "poor")
    assert found.value == pytest.approx(1.5) and (found.low, found.high) == (0.0, math.inf)


def test_incomplete_samples_give_what_they_hold() -> None:
    runs, windows = samples(repetitions=1)
    alone = runs[runs["intensity_percent"] == 0]
    fitted = fit(alone, windows[windows["phase"] == "reference"])
    assert {c.name for c in fitted.alone} >= {"run_s", "cpu_s", "peak_memory_mb"}
    assert not fitted.sensitivity and not fitted.pressure and fitted.reference
    assert fit(alone, pd.DataFrame()).reference == ()


@settings(max_examples=10)
@given(st.floats(0.0, 0.2), st.floats(0.0, 10.0))
def test_the_network_half_has_a_law_and_a_pressure_of_its_own(suffers: float, presses: float) -> None:
    """Beside comprobe it suffers and presses so; beside memprobe otherwise.

    comprobe loses a third of its speed beside itself. Alone the job has the network for as many times the
    share that it has beside comprobe as that slows it down.
    """
    tables = over_hosts(samples(suffers=0.05, pressure_gbs=5.0), samples(suffers, presses))
    fitted, memory = fit(*tables), fit(*samples(suffers=0.05, pressure_gbs=5.0))
    assert fitted[:4] == memory[:4]
    half = fitted.network
    assert half is not None and half.sensitivity and half.pressure and half.pressure.equivalent_gbs
    assert half.sensitivity.levels[-1].slowdown.value == pytest.approx(1 + suffers * 10)
    assert half.pressure.slowdown.value == pytest.approx(1 + 0.05 * presses)
    share = min(3 * (1 - 1 / (1 + 0.05 * presses)) * (1 + suffers * 10), 1.0)
    assert half.pressure.equivalent_gbs.value == pytest.approx(10 * share, abs=1e-6)
    assert memory.network is None


@pytest.mark.parametrize("seed", range(5))
def test_a_peak_three_times_the_mean_is_found_where_it_is(seed: int) -> None:
    """Paper D, figure 2: memprobe 1.6 times slower for an eighth of the run, 1.086 in the rest; 5 % noise."""

    def pressure(at: float) -> float:
        return 1.6 if 0.5 <= at < 0.625 else 1.086

    runs, windows = bursty(pressure, noise=0.05, seed=seed)
    found = fit_phases(runs, windows, "wall", "wall_s")
    assert found is not None and found.bursts
    assert found.peak.value == pytest.approx(1.6, rel=0.06)
    assert 50 <= found.peak_at_percent < 62.5
    assert len(found.slowdown) == 40 and found.bin_s == pytest.approx(0.25)


def test_the_worst_of_parts_that_differ_by_chance_is_no_peak() -> None:
    """No false burst, and a peak that is the mean, in spite of 20 % noise (lognormal: mean exp(0.02))."""
    found = [
        fit_phases(*bursty(lambda at: 1.2, noise=0.2, seed=seed), "wall", "wall_s") for seed in range(100)
    ]
    peaks = [one.peak.value for one in found if one is not None]
    assert len(peaks) == 100 and np.mean(peaks) == pytest.approx(1.2 * np.exp(0.02), rel=0.03)
    assert sum(one.bursts for one in found if one is not None) == 0


def test_three_wild_repetitions_make_bursts_no_more_often_than_the_interval_says() -> None:
    found = [
        fit_phases(*bursty(lambda at: 1.2, 0.5, repetitions=3, seed=seed), "wall", "wall_s")
        for seed in range(100)
    ]
    assert sum(one.bursts for one in found if one is not None) <= 5  # one-sided 2.5 % expected
    steady = fit_phases(*bursty(lambda at: 1.6 if at > 0.8 else 1.1, 0.05, 3), "wall", "wall_s")
    assert steady is not None and steady.bursts


def test_phases_need_two_repetitions_and_some_windows() -> None:
    runs, windows = bursty(lambda at: 1.0, repetitions=1)
    assert fit_phases(runs, windows, "wall", "wall_s") is None
    runs, windows = bursty(lambda at: 1.0, repetitions=3)
    assert fit_phases(runs, windows[:0], "wall", "wall_s") is None
    assert fit_phases(runs, windows.drop(columns="at_s"), "wall", "wall_s") is None


def test_a_profile_of_before_hosts_and_phases_is_read() -> None:
    old = make_job("a").model_dump(mode="json")
    for name in ("phases", "mpi", "ranks", "hosts", "network"):
        del old[name]
    read = JobProfile.model_validate_json(json.dumps(old))
    assert (read.mpi, read.hosts, read.network, read.phases) == (False, (), None, ())


def test_the_published_schema_is_the_one_in_use() -> None:
    published = (ROOT / "docs" / "job-profile.schema.json").read_text()
    assert published == json_schema(JobProfile), "run: tenbin program schema > docs/job-profile.schema.json"
    jsonschema.validate(make_job("a").model_dump(mode="json"), json.loads(published))
