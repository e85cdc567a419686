"""The card of a profile: the figures it chooses, what it calls unusual, and the next steps."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.card import MOST_FIGURES, card
from profiles.records import Absent, Model
from tests.support.records import make_coefficient, make_device, make_model, make_profile


def model(quantity: str, value: float, unit: str = "1", quality: str = "good", **labels: str) -> Model:
    coefficient = make_coefficient(value, 0.98 * value, 1.02 * value, unit=unit, quality=quality)
    return make_model(coefficient, quantity=quantity, labels=labels)


KINDS = {"pocl-0": "cpu", "nvidia-0": "gpu"}
TRIAD = {"kernel": "triad", "numa": "local"}
MODELS = (
    model("stream_bandwidth_gbs", 12.0, "GB/s", cores="1", **TRIAD),
    model("stream_bandwidth_gbs", 80.0, "GB/s", cores="16", **TRIAD),
    model("stream_bandwidth_gbs", 40.0, "GB/s", cores="8", **TRIAD),
    model("stream_bandwidth_gbs", 99.0, "GB/s", cores="16", kernel="read", numa="local"),
    model("message_latency_s", 1.5e-6, "s", scope="node"),
    model("message_latency_s", 30e-6, "s", scope="hosts"),
    model("storage_random_read_p99_s", 0.002, "s", "poor", storage="/scratch"),
)


def test_figures_are_of_most_cores_in_units_that_people_read() -> None:
    found = {figure.name: figure for figure in card(make_profile(models=MODELS)).figures}
    assert list(found) == ["memory bandwidth", "message latency"]  # what is poor is no figure
    bandwidth, message = found["memory bandwidth"], found["message latency"]
    assert (bandwidth.value, bandwidth.unit) == (80.0, "GB/s")
    assert (message.value, message.unit) == (pytest.approx(1.5), "us")
    assert message.low == pytest.approx(1.47) and message.high == pytest.approx(1.53)
    assert not bandwidth.emulated and bandwidth.meaning


def test_a_device_is_on_the_card_where_it_is_not_the_processor() -> None:
    fast = [
        model("device_gflops", speed, "GFLOP/s", device=key, precision="single")
        for key, speed in (("pocl-0", 100.0), ("nvidia-0", 50_000.0))
    ]
    profile = make_profile(models=tuple(fast))
    both = [make_device(key=key, kind=kind) for key, kind in KINDS.items()]
    for devices, shown in ((both[:1], []), (both, [50_000.0])):
        inventory = profile.inventory.model_copy(update={"opencl": tuple(devices)})
        found = card(profile.model_copy(update={"inventory": inventory}))
        assert [figure.value for figure in found.figures] == shown


def line_of_checkpoints(alpha: float, beta: float, quality: str = "good", **changes: Any) -> Model:
    whole: dict[str, Any] = {"covariance": ((1e-12, 0.0), (0.0, 1e-6)), "residual_sd": 0.01}
    return make_model(
        make_coefficient(alpha, None, None, name="alpha_C", unit="s/MB", quality=quality),
        make_coefficient(beta, None, None, name="beta_C", unit="s", quality=quality),
        quantity="checkpoint_s",
        form="linear",
        labels={"device": "gpu", "storage": "/scratch"},
        **{**whole, **changes},
    )


def test_a_checkpoint_of_1_gb_is_predicted() -> None:
    (figure,) = card(make_profile(models=(line_of_checkpoints(0.0005, 0.02),))).figures
    assert figure.name == "checkpoint of 1 GB" and figure.value == pytest.approx(0.52)
    assert figure.low is not None and 0.45 < figure.low < 0.52 < (figure.high or 0.0) < 0.6
    assert figure.meaning == "predicted, gpu to /scratch"


@pytest.mark.parametrize(
    ("alpha", "quality", "residual_sd"),
    [(-0.0005, "poor", 0.01), (-0.0005, "good", 0.01), (0.0005, "poor", 1.0)],
)
def test_a_checkpoint_whose_line_does_not_exclude_0_s_is_not_known(
    alpha: float, quality: str, residual_sd: float
) -> None:
    line = line_of_checkpoints(alpha, 0.02, quality, residual_sd=residual_sd, note="R2 0.04")
    summary = card(make_profile(models=(line,)))
    assert not summary.figures
    assert summary.unusual == (
        "The time of a checkpoint of 1 GB is not known: the fitted line does not exclude 0 s (R2 0.04).",
    )


def test_the_interval_of_a_checkpoint_begins_at_0_at_least() -> None:
    summary = card(make_profile(models=(line_of_checkpoints(0.0005, 0.02, residual_sd=1.0),)))
    (figure,) = summary.figures
    assert (figure.value, figure.low) == (pytest.approx(0.52), 0.0) and not summary.unusual


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ((model("compute_clock_ratio", 0.7, load="vector"),), "The clock falls to 70 %"),
        ((model("memory_slowdown_ratio", 1.6, clock="wall"),), "1.60 times as long"),
        ((model("storage_fsync_p50_s", 0.025),), "25 ms"),
        (
            (model("storage_random_read_p50_s", 0.0001), model("storage_random_read_p99_s", 0.004)),
            "takes 40 times as long as half of them",
        ),
        (MODELS, ""),
    ],
)
def test_what_is_unusual(models: tuple[Model, ...], said: str) -> None:
    unusual = " ".join(card(make_profile(models=models)).unusual)
    assert said in unusual if said else "memory bandwidth" not in unusual


def test_next_steps() -> None:
    missing = tuple(Absent(probe="power", what=f"x{n}", reason="no", remedy="do it") for n in range(9))
    steps = card(make_profile(absent=missing)).next_steps
    assert len(steps) == 4 and "x0: do it" in steps
    assert card(make_profile(models=())).figures == ()
    assert len(card(make_profile(models=MODELS * 9)).figures) <= MOST_FIGURES
