"""The scaling probe on this machine, its fit and its picture."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from probes import compute
from probes.loads import LOADS, most_ranks
from probes.mpi.runner import MpiInstall
from probes.run import Event, Run, collect, samples_of
from profiles.errors import Unavailable
from profiles.fits import fit_samples
from profiles.models import downey
from profiles.records import Settings
from tenbin.report.probes.compute import scaling_figures
from tests.support.labs.components import processes_below, require

COLUMNS = {"load", "size", "cores", "start", "repetition", "run_s", "verified", "verification", "mops"}
SMALL = {"ep": "20", "cg": "700", "ft": "32", "mg": "16", "lu": "32"}


@pytest.fixture
def two_cores(mpi: MpiInstall, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI, two cores, and sizes that take some hundredths of a second."""
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    monkeypatch.setattr(compute, "SMALL", SMALL)


def settings(**more: object) -> Settings:
    return Settings.model_validate({"quick": True, "budget_s": 1.0} | more)


def table(
    truths: dict[str, tuple[float, float]], counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32), rounds: int = 1
) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = [
        {"load": load, "size": "S", "cores": n, "round": r, "emulated": False, "verified": True}
        | {"run_s": float(downey.run_s(n, 0.5, A, sigma) * np.exp(rng.normal(0, 0.02)))}
        for load, (A, sigma) in truths.items()
        for n in counts
        for r in range(rounds)
        for _ in range(6)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("cores", "quick", "counts"),
    [
        (1, False, [1]),
        (1, True, [1]),
        (2, True, [1, 2]),
        (3, False, [1, 2, 3]),
        (6, False, [1, 2, 3, 4, 6]),
        (16, False, [1, 2, 3, 4, 8, 16]),
        (16, True, [1, 2, 4, 16]),
        (96, False, [1, 2, 3, 4, 8, 16, 32, 64, 96]),
    ],
)
def test_chosen_counts(cores: int, quick: bool, counts: list[int]) -> None:
    assert compute.chosen_counts(cores, quick) == counts


@pytest.mark.parametrize("cores", [1, 2, 16, 17, 48, 64, 96, 128, 256])
def test_sizes_can_be_split(cores: int) -> None:
    sizes = compute.chosen_sizes(cores)
    assert list(sizes) == list(LOADS)
    assert all(most_ranks(load, size) >= min(cores, 128) for load, size in sizes.items())


@pytest.mark.usefixtures("two_cores")
def test_every_load_on_one_and_more_cores() -> None:
    samples, absent = collect("scaling", settings(), compute.measure_scaling)
    assert absent == []
    assert set(samples.columns) >= COLUMNS
    assert samples["verified"].all()
    assert (samples["run_s"] > 0).all()
    counts = compute.chosen_counts(psutil.cpu_count(logical=False) or 1, quick=True)
    assert set(zip(samples["load"], samples["cores"], strict=True)) >= {(x, n) for x in LOADS for n in (1, 2)}
    assert samples["cores"].max() <= max(*counts, len(os.sched_getaffinity(0)))
    assert not samples.duplicated(["load", "cores", "repetition"]).any()
    models = fit_samples("scaling", samples)
    assert sorted(model.labels["load"] for model in models) == sorted(LOADS)
    assert all(np.isfinite(c.value) for model in models for c in model.coefficients)
    assert len(scaling_figures(samples, models)) == 1
    assert processes_below() == []


def test_inside_an_mpi_job_but_without_mpi_one_core_is_still_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "two cores")

    def none() -> None:
        raise Unavailable("no mpiexec", "install one")

    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("raise ImportError('no MPI library')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setattr(compute, "find_mpi", none)
    monkeypatch.setattr(compute, "SMALL", SMALL)
    samples, absent = collect("scaling", settings(), compute.measure_scaling)
    assert set(samples["load"]) == set(LOADS)
    assert set(samples["cores"]) == {1}
    assert [(a.what, a.reason, a.remedy) for a in absent] == [
        ("speed-up over cores", "no mpiexec", "install one")
    ]
    assert fit_samples("scaling", samples) == []
    assert scaling_figures(samples, []) == []


@pytest.mark.usefixtures("two_cores")
def test_a_rank_that_dies_loses_only_its_start() -> None:
    events: list[Event] = []
    killed = []

    def emit(event: Event) -> None:
        events.append(event)
        if event["event"] == "sample" and event["row"]["cores"] == 2 and not killed:
            ranks = [p for p in processes_below() if p.name().startswith("python")]
            ranks[-1].kill()
            killed.append(ranks[-1])

    compute.measure_scaling(Run("scaling", settings(), emit))
    absent = [event["absent"] for event in events if event["event"] == "absent"]
    assert killed
    assert [a["what"] for a in absent] == ["loads on 2 cores"]
    assert "signal 9" in absent[0]["reason"]
    samples = samples_of(events)
    assert set(samples.loc[samples["cores"] == 1, "load"]) == set(LOADS)
    assert processes_below() == []


def test_a_wrong_answer_is_told() -> None:
    events: list[Event] = []
    starts = compute.LoadStarts(Run("scaling", settings(), events.append), None, [0, 1], {}, 1.0)
    row = {"load": "cg", "class": "S", "ranks": 2, "time_s": 1.0, "verification": "npb", "mops": 1.0}
    starts._sample(row | {"verified": False}, 2)
    starts._sample(row | {"verified": True}, 4)  # an mpiexec that started fewer than asked for
    absent = [event["absent"]["what"] for event in events if event["event"] == "absent"]
    assert absent == ["cg S on 2 cores", "loads on 4 cores"]
    assert samples_of(events)["verified"].tolist() == [False]


def test_wrong_answers_are_not_fitted() -> None:
    samples = table({"ep": (7, 0.02)})
    wrong = samples.assign(run_s=1e-9, verified=False)
    both = pd.concat([samples, wrong])
    assert fit_samples("scaling", both) == fit_samples("scaling", samples)


def test_fit_finds_the_truth_over_rounds() -> None:
    truths = {"bt": (7.0, 0.02), "cg": (9.0, 2.0)}
    models = fit_samples("scaling", table(truths, rounds=3))
    assert [m.labels for m in models] == [{"load": x, "size": "S"} for x in truths]
    for model, (A, _) in zip(models, truths.values(), strict=True):
        assert model["A"].low is not None and model["A"].high is not None
        assert model["A"].low <= A <= model["A"].high
        assert model["A"].value == pytest.approx(A, rel=0.05)


def test_fit_of_parts() -> None:
    samples = table({"ep": (7, 0.02), "mg": (3, 0.1)})
    assert fit_samples("scaling", samples[samples["cores"] > 1]) == []
    assert fit_samples("scaling", samples[samples["cores"] == 1]) == []
    assert fit_samples("scaling", samples.drop(columns="run_s")) == []
    part = samples[(samples["load"] == "ep") | (samples["cores"] == 2)]
    assert [m.labels["load"] for m in fit_samples("scaling", part)] == ["ep"]


def test_the_size_with_more_runs_is_kept() -> None:
    samples = table({"ep": (7, 0.02)})
    other = samples[samples["cores"] <= 2].assign(size="W")
    (model,) = fit_samples("scaling", pd.concat([other, samples]))
    assert model.labels["size"] == "S"


def test_a_curve_that_the_runs_do_not_support_is_dashed() -> None:
    samples = table({"bt": (7.0, 0.02)})
    samples["run_s"] = np.where(samples["cores"] < 8, 10.0, 3.0) * (1 + samples.index.to_numpy() % 3 / 100)
    models = fit_samples("scaling", samples)
    curve = next(
        trace
        for trace in scaling_figures(samples, models)[0].data
        if trace.mode == "lines" and trace.legendgroup
    )
    assert curve.line.dash == "dash" and "poor" in curve.name and curve.name.endswith("dashed")


def test_figure() -> None:
    truths = {"bt": (7.0, 0.02), "ep": (1e9, 0.0)}
    samples = table(truths)
    models = fit_samples("scaling", samples)
    (fig,) = scaling_figures(samples, models)
    names = [trace.name for trace in fig.data if trace.showlegend is not False]
    assert names[0] == "ideal"
    assert names[1].startswith("BT S: A = ")
    assert names[2].startswith("EP S: A ≥ ")
    curves = [trace for trace in fig.data if trace.name and " S: " in trace.name]
    assert all(max(trace.x) <= samples["cores"].max() and trace.line.dash == "solid" for trace in curves)
    assert "emulated" not in fig.layout.title.text
    (marked,) = scaling_figures(samples.assign(emulated=True), models)
    assert "(emulated)" in marked.layout.title.text
    assert scaling_figures(samples, []) == []
