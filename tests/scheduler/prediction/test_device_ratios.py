"""Run times on devices where a program has never run: from profiles to plans, and beside their outcomes."""

from __future__ import annotations

import json
import math
import signal
from itertools import islice
from pathlib import Path

import pytest

from profiles.errors import BadInput
from profiles.files.store import Store
from profiles.records import Model, Profile
from scheduler.coordinator.journal.journal import predictions_of
from scheduler.jobs.policy_view import as_job
from scheduler.jobs.specs import JobSpec
from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import Cluster, EstimateKind, Placement, Pool
from scheduler.model.speeds import SpeedBounds
from scheduler.prediction.predictions import TrackedPrediction, within_bounds
from scheduler.prediction.profiles import figures_of, measured_cluster
from scheduler.prediction.run_times import RunTimePredictor
from scheduler.workloads import load
from scheduler.workloads.arrivals import estimated_on_all
from tests.scheduler.prediction.test_earlier_runs import DEVICES, ended
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.programs import opencl_devices
from tests.support.records import make_coefficient, make_device, make_inventory, make_model, make_profile

RATIOS = {("gpu-0", "pocl-0"): SpeedBounds(4.0, 9.0), ("pocl-0", "gpu-0"): SpeedBounds(1 / 9, 1 / 4)}
KNOWN = Cluster(DEVICES.pools, ratios=RATIOS)
SPEC = JobSpec(command=("sim", "5"), folder="/", checkpoint_signal=23)


def figure(device: str, resource: str, value: float) -> Model:
    quantity, label = (
        ("device_gflops", "precision") if resource == "single" else ("device_bandwidth_gbs", "kernel")
    )
    coefficient = make_coefficient(value, 0.9 * value, 1.1 * value)
    return make_model(
        coefficient, probe="device", quantity=quantity, labels={"device": device, label: resource}
    )


def profile_of(speeds: dict[str, tuple[float, float]], **changes: object) -> Profile:
    """Make a profile of devices with (bandwidth, arithmetic)."""
    models = [
        figure(device, resource, value)
        for device, pair in speeds.items()
        for resource, value in zip(("read", "single"), pair, strict=True)
    ]
    return make_profile(models=tuple(models), **changes)


def test_a_profile_tells_the_ratios_of_its_devices() -> None:
    devices = (make_device(), make_device(key="gpu-0", kind="gpu", name="fast"), make_device(key="pocl-1"))
    profile = profile_of(
        {"pocl-0": (40.0, 400.0), "gpu-0": (2000.0, 40_000.0)}, inventory=make_inventory(opencl=devices)
    )
    cluster = Cluster((*DEVICES.pools, Pool("pocl-1", 1, 2, kind="cpu")))
    found = measured_cluster(cluster, {pool.name: profile for pool in cluster.pools})
    ratios = found.cluster.ratios
    assert ratios["gpu-0", "pocl-0"] == pytest.approx((50 * 0.9 / 1.1, 100 * 1.1 / 0.9))
    assert ratios["gpu-0", "pocl-1"] == ratios["gpu-0", "pocl-0"]  # its twin
    assert ratios["pocl-1", "pocl-0"] == pytest.approx((0.9 / 1.1, 1.1 / 0.9))
    assert any("gpu-0: 40.9 to 122 times as fast as pocl-0" in note for note in found.notes)


def test_a_profile_without_such_figures_or_their_intervals_tells_none() -> None:
    once = make_coefficient(50.0, None, None)
    labels = {"device": "pocl-0", "precision": "single"}
    without = make_profile(models=(make_model(once, quantity="device_gflops", labels=labels),))
    assert figures_of(without, "pocl-0", False) == {}
    with pytest.raises(BadInput, match="nothing to use"):
        measured_cluster(DEVICES, {"gpu-0": profile_of({"gpu-0": (2000.0, 40_000.0)})})


def test_where_it_never_ran_the_figures_tell_with_their_bounds() -> None:
    on_cpu = ended(1, SPEC, 60.0, placement=Placement("pocl-0", 1), devices=(1,))
    predictor = RunTimePredictor([on_cpu], "ann", KNOWN)
    (told,) = predictor.expect([SPEC])
    assert told is not None
    there = told["run_s"]["gpu-0"]
    assert (there["low"], there["middle"], there["high"]) == pytest.approx((60 / 9, 10.0, 15.0))
    assert there["basis"] == "devices" and "4 to 9 times as fast" in there["rule"]
    job = as_job(2, 0.0, SPEC, KNOWN, user="ann", predicted=told)
    assert job.estimates_s == pytest.approx({"gpu-0": 10.0, "pocl-0": 60.0})
    assert job.estimate_kind is EstimateKind.PREDICTED
    predictor.ended(ended(3, SPEC, 6.0, placement=Placement("gpu-0", 1), devices=(0,)))
    (better,) = predictor.expect([SPEC], [told])
    assert better is not None and better["run_s"]["gpu-0"]["basis"] == "arguments"


def test_what_the_owner_states_of_one_device_tells_the_other() -> None:
    spec = SPEC.model_copy(update={"expect_s": {"cpu": 36.0}, "time_s": 3600.0})
    (told,) = RunTimePredictor([], "ann", KNOWN).expect([spec])
    assert told is not None and told["run_s"].keys() == {"gpu-0"}
    assert "36 s on pocl-0, stated by the user" in told["run_s"]["gpu-0"]["rule"]
    job = as_job(2, 0.0, spec, KNOWN, user="ann", predicted=told)
    assert job.estimates_s == pytest.approx({"gpu-0": 6.0, "pocl-0": 36.0})
    for other in ({"": 36.0}, {"cpu": 36.0, "gpu": 3.0}, {}):
        same = spec.model_copy(update={"expect_s": other})
        assert RunTimePredictor([], "ann", KNOWN).expect([same]) == [None]
    bound = spec.model_copy(update={"device": "cpu"})
    assert RunTimePredictor([], "ann", KNOWN).expect([bound]) == [None]
    assert RunTimePredictor([], "ann", DEVICES).expect([spec]) == [None]


def test_a_job_is_predicted_and_measured_where_it_never_ran(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a profile whose second device is four times as fast, by memory and by arithmetic."""
    monkeypatch.setenv("POCL_DEVICES", "pthread basic")
    found = opencl_devices()
    require(len(found) == 2, "two OpenCL devices (PoCL)")
    devices = tuple(make_device(key=key, name=key) for key in ("pocl-0", "pocl-1"))
    profile = profile_of(
        {"pocl-0": (10.0, 100.0), "pocl-1": (40.0, 400.0)}, inventory=make_inventory(opencl=devices)
    )
    path = Store(tmp_path / "profiles").save(profile, {})
    up.start("--devices", "--policy", "mct", "--profile", str(path))
    first = up.client.submit(["sleep", "0.4"], name="nap", device="pocl-0")
    assert first.wait(60)["predicted"] is None
    second = up.client.submit(["sleep", "0.4"], name="nap", device="pocl-1")
    told = second.wait(60)["predicted"]["run_s"]
    assert told["pocl-1"]["middle"] == pytest.approx(told["pocl-0"]["middle"] / 4)
    assert "by the figures of the devices) on pocl-1" in up.run("info", str(second.id)).stdout
    up.kill(signal.SIGTERM)
    (one,) = predictions_of(up.home, kind="device-ratio")
    assert one.job == second.id and one.measured is not None and one.measured >= 0.4
    assert one.predicted == pytest.approx(told["pocl-1"]["middle"])
    assert one.detail["low_s"] == pytest.approx(told["pocl-1"]["low"])
    assert not [f for f in predictions_of(up.home, kind="run-time") if f.job == second.id]
    shown = json.loads(up.run("program", "calibration", "--json").stdout)
    assert {row["kind"] for row in shown["summary"]} == {"device-ratio"} and shown["bounded"]["n"] == 1
    assert "0 of 1 outcomes lie within the bounds" in up.run("program", "calibration").stdout


def test_outcomes_within_their_bounds_are_counted() -> None:
    bounds = {"low_s": 2.0, "high_s": 8.0}
    found = [
        TrackedPrediction(n, n, 1, "device-ratio", 0.0, 4.0, measured, detail=dict(bounds))
        for n, measured in enumerate((2.0, 5.0, 8.1, None))
    ]
    assert within_bounds([*found, TrackedPrediction(9, 9, 1, "run-time", 0.0, 4.0, 4.0)]) == (3, 2)


def test_the_simulator_takes_the_same_ratios() -> None:
    """Jobs of paper A whose run time is known on the low class only."""
    cluster = parse_cluster("16xhigh+16xlow")
    text = "generator:migration,jobs=50,known=low"
    ratios = {("high", "low"): SpeedBounds(2.0, 8.0)}
    jobs = [list(islice(load(text, cluster, seed=1).arrivals, 50)) for _ in range(3)]  # type: ignore[arg-type]
    for plain, told, untold in zip(
        jobs[0], estimated_on_all(jobs[1], ratios), estimated_on_all(jobs[2], {}), strict=True
    ):
        low_s = plain.job.estimates_s["low"]
        assert plain.job.estimates_s["high"] == math.inf
        assert told.job.estimates_s == pytest.approx({"high": low_s / 4, "low": low_s})
        assert untold.job.estimates_s == {"high": low_s, "low": low_s}
        assert told.runs_s == plain.runs_s
