"""Fits and pictures of checkpoint costs, from samples whose truth is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.fits import fit_samples
from profiles.fits.checkpoint import fit, predictions
from profiles.models import predict
from profiles.records import Model
from tenbin.report.probes.checkpoint import EXPLANATION, figures
from tests.support.amounts import examples

# Paper A, table 3: (alpha_C, beta_C, alpha_R, beta_R) of CPU and GPU.
TABLE_3 = {"cpu-0": (1.5e-2, 0.92, 9.7e-3, 0.18), "gpu-0": (1.4e-2, 0.85, 9.6e-3, 0.89)}
K = {"cpu-0": 0.4, "gpu-0": 0.1}
SIZES = (16, 32, 64, 128, 256, 512)
FOLDER = "/nfs"


def rows(seed: int = 1, noise: float = 0.03, rounds: int = 3, repetitions: int = 3) -> pd.DataFrame:
    """Make the rows that the probe would record on the paper's machine."""
    rng = np.random.default_rng(seed)
    table = []

    def add(*parts: float, **row: object) -> None:
        base = {"round": number, "emulated": False, "repetition": repetition}
        seconds = sum(part * (1 + rng.normal(0, noise)) for part in parts)
        table.append(base | row | {"seconds": seconds})

    for number in range(rounds):  # noqa: B007  (add uses them)
        for repetition in range(repetitions):  # noqa: B007
            for device, (alpha_c, beta_c, alpha_r, beta_r) in TABLE_3.items():
                add(1.7, kind="compile", cache="cold", device=device)
                add(0.05, kind="phase", phase="context", device=device)
                for length in (0, 1000, 4000):
                    add(1e-6 + 5e-6 * length, kind="drain", device=device, queued_kernels=length)
                for size in SIZES:
                    where = {"device": device, "memory_mb": size}
                    add(alpha_c * size + beta_c, kind="checkpoint", storage=FOLDER, io="direct", **where)
                    add(alpha_r * size + beta_r, kind="restart", storage=FOLDER, io="direct", **where)
                    add(K[device], kind="compile", cache="warm", device=device)
                    for phase in ("copy_out", "copy_in", "copy_new"):
                        add(1e-3 + 2e-4 * size, kind="phase", phase=phase, **where)
                    other = next(key for key in TABLE_3 if key != device)
                    whole = (alpha_c * size + beta_c, TABLE_3[other][2] * size + TABLE_3[other][3], K[other])
                    costs = {"costs_of": device, "to_device": other, "to_costs_of": other}
                    add(*whole, kind="migration", storage=FOLDER, **where, **costs)
            for size in SIZES:
                where = {"storage": FOLDER, "memory_mb": size, "io": "direct"}
                add(0.1 + 1.38e-2 * size, kind="phase", phase="write", **where)
                add(0.1 + 4.7e-3 * size, kind="phase", phase="read", **where)
    return pd.DataFrame(table)


@pytest.fixture(scope="module")
def samples() -> pd.DataFrame:
    return rows()


@pytest.fixture(scope="module")
def models(samples: pd.DataFrame) -> list[Model]:
    return fit_samples("checkpoint", samples)


def find(models: list[Model], quantity: str, **labels: str) -> Model:
    found = [m for m in models if m.quantity == quantity and labels.items() <= m.labels.items()]
    assert len(found) == 1
    return found[0]


def test_the_papers_coefficients_are_found_again(models: list[Model]) -> None:
    for device, truth in TABLE_3.items():
        checkpoint = find(models, "checkpoint_s", device=device, storage=FOLDER)
        restart = find(models, "restart_s", device=device, storage=FOLDER)
        fitted = [checkpoint["alpha_C"], checkpoint["beta_C"], restart["alpha_R"], restart["beta_R"]]
        for coefficient, value in zip(fitted, truth, strict=True):
            assert coefficient.value == pytest.approx(value, rel=0.1)
            assert coefficient.low is not None
            assert coefficient.high is not None
            # A 95 % interval may miss; twice as wide a one may not.
            assert abs(coefficient.value - value) < coefficient.high - coefficient.low
            assert coefficient.n == 3 * 3 * len(SIZES)
        assert find(models, "compile_s", device=device, cache="warm")["K"].value == pytest.approx(
            K[device], rel=0.05
        )


def test_every_quantity_has_its_labels(models: list[Model]) -> None:
    labels = {(model.quantity, *sorted(model.labels)) for model in models}
    assert labels == {
        ("checkpoint_s", "device", "storage"),
        ("restart_s", "device", "storage"),
        ("compile_s", "cache", "device"),
        ("drain_s", "device"),
        ("copy_out_s", "device"),
        ("copy_in_s", "device"),
        ("copy_new_s", "device"),
        ("write_s", "storage"),
        ("read_s", "storage"),
        ("context_s", "device"),
        ("migration_s", "device", "storage", "to_device"),
        ("migration_error_ratio", "device", "storage", "to_device"),
    }
    assert len({model.key for model in models}) == len(models)
    assert find(models, "drain_s", device="cpu-0")["alpha_D"].value == pytest.approx(5e-6, rel=0.05)


def test_predicted_migrations_meet_the_measured_ones(samples: pd.DataFrame, models: list[Model]) -> None:
    table = predictions(samples, models)
    assert len(table) == (samples["kind"] == "migration").sum()
    assert table["error_ratio"].abs().median() < 0.05
    inside = (table["low_s"] <= table["seconds"]) & (table["seconds"] <= table["high_s"])
    assert inside.mean() > 0.85
    error = find(models, "migration_error_ratio", device="cpu-0", to_device="gpu-0")
    assert abs(error["error"].value) < 0.05
    assert "100% within 0.33" in error.note


def test_a_job_larger_than_anything_measured_is_predicted_with_an_interval(models: list[Model]) -> None:
    expected = predict(find(models, "checkpoint_s", device="gpu-0"), 4096)
    assert expected.low < 1.4e-2 * 4096 + 0.85 < expected.high


def test_costs_of_a_twin_are_those_of_its_twin(samples: pd.DataFrame) -> None:
    twin = samples[(samples["device"] != "gpu-0") | samples["device"].isna()].copy()
    twin["to_device"] = twin["to_device"].where(twin["to_device"].isna(), "cpu-1")
    twin["to_costs_of"] = twin["to_costs_of"].where(twin["to_costs_of"].isna(), "cpu-0")
    error = find(fit(twin), "migration_error_ratio", device="cpu-0", to_device="cpu-1")
    assert "cpu-1 is a twin of cpu-0" in error.note


def test_buffered_files_and_emulation_are_marked(samples: pd.DataFrame) -> None:
    table = samples.assign(emulated=True, io=samples["io"].replace("direct", "buffered"))
    models = fit_samples("checkpoint", table)
    assert all(model.emulated for model in models)
    assert "direct I/O refused" in find(models, "write_s").note
    assert all("(emulated)" in figure.layout.title.text for figure in figures(table, models))


@settings(max_examples=examples(25))
@given(
    keep=st.integers(0, 120),
    seed=st.integers(0, 1000),
    dropped=st.sets(
        st.sampled_from(
            ["phase", "cache", "storage", "to_device", "queued_kernels", "io", "costs_of", "memory_mb"]
        )
    ),
)
def test_an_interrupted_run_gives_what_it_can(
    samples: pd.DataFrame, keep: int, seed: int, dropped: set[str]
) -> None:
    table = samples.sample(n=keep, random_state=seed).drop(columns=sorted(dropped))
    models = fit_samples("checkpoint", table)
    for model in models:
        assert all(np.isfinite(coefficient.value) for coefficient in model.coefficients)
    figures(table, models)


def test_pictures(samples: pd.DataFrame, models: list[Model]) -> None:
    drawn = figures(samples, models)
    titles = [figure.layout.title.text for figure in drawn]
    assert titles == [
        "Checkpoint",
        "Restart, without compiling",
        "What it consists of, 512 MB",
        "Migrations: predicted and measured",
        "Draining a queue of short kernels",
    ]
    dots = [trace for trace in drawn[0].data if trace.mode == "markers"]
    assert sorted(trace.name for trace in dots) == [f"cpu-0, {FOLDER}", f"gpu-0, {FOLDER}"]
    assert sum(len(trace.x) for trace in dots) == (samples["kind"] == "checkpoint").sum()
    bars = {trace.name: trace for trace in drawn[2].data}
    assert bars["write and sync"].x[0] == pytest.approx(0.1 + 1.38e-2 * 512, rel=0.1)
    assert figures(samples.iloc[:0], []) == []
    assert len(EXPLANATION) > 200
