"""Run times by trials of the program itself: from a trial to plans, before the figures of the devices."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.jobs.entry import Entry
from scheduler.jobs.policy_view import as_job
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, EstimateKind, Placement
from scheduler.model.speeds import SpeedBounds
from scheduler.prediction.run_times import (
    Estimate,
    RunTimePredictor,
    TriedRatio,
    better,
    by_trial,
    pair,
    ratio_of,
)
from tenbin.commands.jobs.account import prediction_words
from tests.scheduler.prediction.test_earlier_runs import DEVICES, ended
from tests.support.trials import trial_of

RATIOS = {("gpu-0", "pocl-0"): SpeedBounds(4.0, 9.0), ("pocl-0", "gpu-0"): SpeedBounds(1 / 9, 1 / 4)}
KNOWN = Cluster(DEVICES.pools, ratios=RATIOS)
SPEC = JobSpec(command=("sim", "5"), folder="/", checkpoint_signal=23)
OTHER = JobSpec(command=("other", "5"), folder="/", checkpoint_signal=23)
TRIED = TriedRatio("gpu-0", "pocl-0", 18.0, 20.0, 25.0, at_s=100.0)
BELIEVED = Estimate(12.0, 12.0, 12.0, 1, "arguments", "")
ON_CPU = ended(1, SPEC, 60.0, placement=Placement("pocl-0", 1), devices=(1,))


@given(st.floats(0.01, 100), st.floats(1, 3), st.floats(1, 3))
def test_seen_from_the_other_class(value: float, below: float, above: float) -> None:
    tried = {pair("b", "a"): TriedRatio("a", "b", value / below, value, value * above, 1.0)}
    there = by_trial("a", {"b": BELIEVED}, tried)
    back = by_trial("b", {"a": replace(BELIEVED, middle=there.middle)}, tried) if there else None
    assert there and back
    assert there.low <= there.middle <= there.high
    assert back.middle == pytest.approx(12.0)
    assert back.low <= 12.0 * (1 + 1e-9) and back.high >= 12.0 * (1 - 1e-9)
    assert by_trial("c", {"b": BELIEVED}, tried) is by_trial("a", {}, tried) is None


def test_the_latest_trial_counts() -> None:
    later = TriedRatio("pocl-0", "gpu-0", 0.1, 0.125, 0.2, at_s=200.0)
    for order in ((TRIED, later), (later, TRIED)):  # a new coordinator recalls them in the order of the jobs
        predictor = RunTimePredictor([ON_CPU], "ann", KNOWN)
        for one in order:
            predictor.tried(SPEC, one)
        (told,) = predictor.expect([SPEC])
        assert told is not None and told["run_s"]["gpu-0"]["middle"] == pytest.approx(60 / 8)


def test_a_trial_comes_before_the_figures_of_the_devices() -> None:
    predictor = RunTimePredictor([ON_CPU], "ann", KNOWN)
    (before,) = predictor.expect([SPEC])
    waiting = Entry(7, SPEC, "", 0.0, predicted=before)
    predictor.watch(waiting)
    predictor.watch(Entry(8, OTHER, "", 0.0))
    assert predictor.tried(SPEC, TRIED) == [7]
    (told,) = predictor.expect([SPEC], [before])
    assert told is not None
    there = told["run_s"]["gpu-0"]
    assert (there["low"], there["middle"], there["high"]) == pytest.approx((2.4, 3.0, 60 / 18))
    assert "gpu-0 is 20 times (18 .. 25) as fast as pocl-0 by a trial of this program at" in there["rule"]
    assert prediction_words(there) == "3 s (2.4 .. 3.33 s by a trial of the program)"
    job = as_job(2, 0.0, SPEC, KNOWN, user="ann", predicted=told)
    assert job.estimates_s == pytest.approx({"gpu-0": 3.0, "pocl-0": 60.0})
    assert job.estimate_kind is EstimateKind.PREDICTED
    assert predictor.expect([SPEC], [told]) == [None]  # nothing better is known
    predictor.ended(ended(3, SPEC, 6.0, placement=Placement("gpu-0", 1), devices=(0,)))
    (history,) = predictor.expect([SPEC], [told])
    assert history is not None and history["run_s"]["gpu-0"]["basis"] == "arguments"


def test_without_figures_of_devices_a_trial_is_enough() -> None:
    spec = SPEC.model_copy(update={"expect_s": {"cpu": 36.0}})
    predictor = RunTimePredictor([], "ann", DEVICES)
    assert predictor.expect([spec]) == [None]
    predictor.tried(spec, TRIED)
    (told,) = predictor.expect([spec])
    assert told is not None and told["run_s"].keys() == {"gpu-0"}
    assert as_job(2, 0.0, spec, DEVICES, user="ann", predicted=told).estimates_s == pytest.approx(
        {"gpu-0": 1.8, "pocl-0": 36.0}
    )
    stated = spec.model_copy(update={"expect_s": {"cpu": 36.0, "gpu": 3.0}})
    (told,) = predictor.expect([stated])
    assert told is not None and not told["run_s"] and told["tried"]  # what the user says counts
    assert predictor.expect([OTHER.model_copy(update={"expect_s": {"cpu": 36.0}})]) == [None]


def test_a_new_coordinator_knows_the_trials() -> None:
    predictor = RunTimePredictor([ON_CPU], "ann", DEVICES)
    predictor.tried(SPEC, TRIED)
    (told,) = predictor.expect([SPEC])
    assert told is not None and told["run_s"]["gpu-0"]["basis"] == "tried"
    again = RunTimePredictor(
        [ended(1, SPEC, 60.0, predicted=told, placement=Placement("pocl-0", 1), devices=(1,))], "ann", DEVICES
    )
    assert again.expect([SPEC]) == [told]
    later = RunTimePredictor([ON_CPU], "ann", DEVICES)
    later.watch(Entry(9, SPEC, "", 0.0, predicted=told))
    assert later.expect([SPEC]) == [told]
    assert better(told, {"run_s": told["run_s"]}) and not better(told, told)


def test_the_ratio_of_the_whole_program_is_taken() -> None:
    """Kernels run half of the time, and three times as fast there."""
    trial = replace(trial_of((10, 0.5, 0.5 / 3), busy_s=5.0), device="pocl-0", on="gpu-0", at_s=100.0)
    found = ratio_of(trial)
    assert found is not None
    assert (found.pool, found.over, found.at_s, found.agrees) == ("gpu-0", "pocl-0", 100.0, True)
    assert math.isclose(found.value, 1 / (0.5 + 0.5 / 3))
    assert ratio_of(replace(trial, kernels=())) is None
    assert ratio_of(replace(trial, not_kept=1)) is not None
    assert ratio_of(replace(trial, not_kept=2)) is None  # 10 of 12 launches
