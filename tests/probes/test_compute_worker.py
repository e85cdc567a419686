"""Arithmetic of the probe compute: loops, counts of operations, the kernel's clock, fits, pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.c_library import find_compiler
from probes.compute import overlap, plan, read_clock
from probes.compute_worker import TYPES, Computed, Kernels, build, products, vector_loop
from probes.loads import work
from profiles.errors import Unavailable
from profiles.fits import fit_samples
from profiles.fits.compute import windows
from profiles.models import constant
from profiles.records import Model
from tenbin.report.probes.compute import figures, figures_across
from tests.support.labs.components import require
from tests.support.labs.machines import Tree

# --- the loops


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    require(find_compiler(), "a C compiler")
    return Kernels(build(tmp_path_factory.mktemp("kernels")))


@pytest.mark.parametrize("precision", TYPES)
def test_each_lane_is_multiplied_and_added_to_once_a_round(kernels: Kernels, precision: str) -> None:
    """With factor and term 1 each lane counts its own multiply-adds, so their sum counts all of them."""
    lanes = np.zeros(kernels.lanes(precision), TYPES[precision])
    flops = kernels.multiply_add(lanes, 1000, factor=1, term=1)
    assert (lanes == 1000).all()
    assert flops == 2 * lanes.sum()


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize(("factor", "rounds"), [(0.5, 1), (0.5, 20), (-0.99999, 5000), (-1.0, 7), (0.9, 300)])
def test_the_vector_loop_is_the_geometric_series(
    kernels: Kernels, precision: str, factor: float, rounds: int
) -> None:
    start = np.random.default_rng(2).random(kernels.lanes(precision)).astype(TYPES[precision])
    lanes = start.copy()
    kernels.multiply_add(lanes, rounds, factor=factor, term=0.75)
    factor = float(TYPES[precision](factor))
    power = factor**rounds
    expected = power * start.astype(float) + 0.75 * (1 - power) / (1 - factor)
    error = np.finfo(TYPES[precision]).eps * rounds
    assert np.allclose(lanes, expected, rtol=error, atol=error)


@settings(max_examples=20)
@given(least=st.integers(1, 5000), start=st.integers(0, 2**64 - 1), step=st.integers(0, 2**64 - 1))
def test_the_chain_makes_every_addition_that_it_counts(
    kernels: Kernels, least: int, start: int, step: int
) -> None:
    total, adds, seconds = kernels.add_chain(least, start, step)
    assert total == (start + adds * step) % 2**64
    assert least <= adds < least + 128 and seconds < 60


def test_a_block_starts_again_so_its_numbers_stay_apart(kernels: Kernels) -> None:
    block = vector_loop(kernels, "double")
    assert block() == block() > 0


class Counted:
    """A number that counts the operations on numbers of its kind."""

    operations = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def __mul__(self, other: Counted) -> Counted:
        Counted.operations += 1
        return Counted(self.value * other.value)

    def __add__(self, other: Counted) -> Counted:
        Counted.operations += 1
        return Counted(self.value + other.value)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_operations_of_a_product_are_those_that_numpy_makes(n: int) -> None:
    """Numpy makes one addition less for each number of the product: the first goes into an empty place."""
    numbers = np.array([[Counted(i + j) for j in range(n)] for i in range(n)], dtype=object)
    Counted.operations = 0
    np.matmul(numbers, numbers)
    assert products("double", n)() == Counted.operations + n * n


def test_without_a_compiler_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no C compiler") as caught:
        build(tmp_path)
    assert "gcc" in caught.value.remedy


def test_a_compiler_that_does_not_know_the_processor_compiles_for_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(find_compiler(), "a C compiler")
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *=native*) exit 1;; esac\nexec {find_compiler()} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    lanes = np.zeros((plain := Kernels(build(tmp_path))).lanes("single"), np.float32)
    assert plain.multiply_add(lanes, 3, factor=2, term=1) == 6 * lanes.size and (lanes == 7).all()


# --- what the kernel says


def test_the_clock_of_the_kernel_is_read_in_its_units(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    folder = "sys/devices/system/cpu/cpu{}/{}"
    tree.put(folder.format(0, "cpufreq/scaling_cur_freq"), 3100000)
    tree.put(folder.format(0, "cpufreq/base_frequency"), 2300000)
    tree.put(folder.format(0, "cpufreq/cpuinfo_max_freq"), 3800000)
    tree.put(folder.format(1, "cpufreq/scaling_cur_freq"), "<unknown>")
    tree.put(folder.format(1, "cpufreq/cpuinfo_max_freq"), 0)
    tree.put(folder.format(1, "acpi_cppc/nominal_freq"), 2450)
    assert read_clock(tree.sysfs, 0) == (3.1, 2.3, 3.8)
    assert read_clock(tree.sysfs, 1) == (None, 2.45, None)
    assert read_clock(tree.sysfs, 2) == (None, None, None)


# --- plan and windows


def test_one_core_and_all_cores_are_needed_and_counts_between_are_not() -> None:
    points = plan(list(range(12)), compiled=True)
    assert {len(p.key.cores): p.least for p in points} == {1: 1, 2: 0, 4: 0, 8: 0, 12: 1}
    assert len(points) == 5 * 5
    assert {p.key.kind for p in plan([3], compiled=False)} == {"blas"}


def row(begin: float, end: float, *, early: float = 0.0, late: float = 0.0) -> Computed:
    return Computed(begin, end - begin, 0.0, begin - early, end + late, None, None, None, None)


def test_overlap_counts_the_blocks_before_and_after_a_window() -> None:
    assert overlap([row(0, 2)]) == 1
    assert overlap([row(0, 2), row(0, 4)]) == 0.5
    assert overlap([row(0, 3.5, late=1), row(0, 4)]) == 1
    assert overlap([row(0, 4), row(2, 4, early=1)]) == 0.75
    assert overlap([row(0, 1), row(5, 6)]) == 0


# --- fits and pictures

GFLOPS = {
    ("blas", "double"): 60.0,
    ("blas", "single"): 120.0,
    ("vector", "double"): 90.0,
    ("vector", "single"): 180.0,
}


def made_up(
    counts: tuple[int, ...] = (1, 2, 4), *, compiled: bool = True, kernel_clock: bool = True, n: int = 12
) -> pd.DataFrame:
    """Make samples of cores that have 3 GHz alone, and lose 10 % of clock and speed where all are busy."""
    rng = np.random.default_rng(5)
    rows: list[dict[str, Any]] = []
    kinds = [*GFLOPS, ("chain", "integer")] if compiled else [key for key in GFLOPS if key[0] == "blas"]
    for repetition in range(1, n + 1):
        for kind, precision in kinds:
            for count in counts:
                slow = 0.9 if count == max(counts) > 1 else 1.0
                for core in range(count):
                    noise = slow * (1 + 0.001 * rng.standard_normal())
                    gflops = GFLOPS.get((kind, precision))
                    rows.append(
                        {"round": 0, "emulated": False, "time_s": 0.0, "kind": kind, "precision": precision}
                        | {"repetition": repetition, "cores": count, "cpus": ",".join(map(str, range(count)))}
                        | {"core": core, "overlap": 1.0, "wall_s": 0.05, "thread_cpu_s": 0.05}
                        | {"flops": gflops and 2 * 10**9, "busy_s": gflops and 2 / (gflops * noise)}
                        | {"adds": 10**5 if compiled else None, "blas": "openblas" * (kind == "blas") or None}
                        | {"adds_s": 1e5 / (3e9 * noise) if compiled else None}
                        | {"vector_bits": 512.0 if kind == "vector" else None, "fused": True}
                        | {
                            "cpufreq_ghz": 2.9 if kernel_clock and core == 0 else None,
                            "base_ghz": None,
                            "max_ghz": None,
                        }
                    )
    return pd.DataFrame(rows)


def model_of(models: list[Model], quantity: str, **labels: str) -> Model:
    (model,) = [m for m in models if m.quantity == quantity and labels.items() <= m.labels.items()]
    return model


def test_the_fit_finds_speeds_clocks_and_what_is_left_of_them() -> None:
    models = fit_samples("compute", made_up())
    for (kind, precision), gflops in GFLOPS.items():
        labels = {"kind": kind, "precision": precision}
        alone, every = (model_of(models, "compute_gflops", cores=n, **labels).coefficients[0] for n in "14")
        assert alone.value == pytest.approx(gflops, rel=0.01) and alone.unit == "GFLOP/s"
        assert every.value == pytest.approx(0.9 * 4 * gflops, rel=0.01)
        share = model_of(models, "compute_share_ratio", **labels).coefficients[0]
        assert share.value == pytest.approx(0.9, rel=0.02) and share.low and share.high
    for load in ("add", "vector", "blas"):
        clocks = [model_of(models, "compute_clock_ghz", cores=n, load=load) for n in "14"]
        assert [m.coefficients[0].value for m in clocks] == pytest.approx([3.0, 2.7], rel=0.01)
        assert "the kernel says: 2.90 GHz" in clocks[0].note
        assert model_of(models, "compute_clock_ratio", load=load).coefficients[0].value == pytest.approx(
            0.9, rel=0.02
        )
    assert not [m for m in models if m.labels.get("cores") == "2"]
    assert (
        "512 bits, fused"
        in model_of(models, "compute_gflops", kind="vector", precision="single", cores="1").note
    )


def test_without_a_compiler_speeds_of_products_only() -> None:
    models = fit_samples("compute", made_up(compiled=False, kernel_clock=False))
    assert {m.quantity for m in models} == {"compute_gflops", "compute_share_ratio"}
    assert {m.labels["kind"] for m in models} == {"blas"}


def test_one_core_has_no_ratios_and_the_kernel_may_tell_nothing() -> None:
    models = fit_samples("compute", made_up((1,), kernel_clock=False))
    assert {m.quantity for m in models} == {"compute_gflops", "compute_clock_ghz"}
    assert model_of(models, "compute_clock_ghz", load="add").note == "the kernel tells no clock"


def test_windows_in_which_the_cores_did_not_meet_do_not_count() -> None:
    samples = made_up((1, 2), n=2)
    apart = (samples["cores"] == 2) & (samples["repetition"] == 1)
    samples.loc[apart, "overlap"] = 0.5
    lost = (samples["cores"] == 2) & (samples["repetition"] == 2) & (samples["core"] == 1)
    assert set(windows(samples[~lost])["cores"]) == {1}


def test_pictures_have_a_line_for_each_precision_and_kind() -> None:
    samples = made_up()
    speed, clock = figures(samples, fit_samples("compute", samples))
    names = {trace.name for trace in speed.data if trace.showlegend is None}
    assert names == {f"{a}, {b}" for a in ("matrix products", "vector loop") for b in ("double", "single")}
    assert any("the kernel says" in (trace.name or "") for trace in clock.data)
    assert len(figures(made_up(compiled=False), [])) == 1


def test_the_roof_is_bandwidth_up_to_the_corner_and_then_the_peak() -> None:
    models = fit_samples("compute", made_up())
    assert figures_across(models) == []
    for cores, gbs in ((1, 10.0), (4, 20.0)):
        labels = {"cores": str(cores), "numa": "local"}
        quantity = {
            "probe": "memory",
            "quantity": "memory_bandwidth_gbs",
            "name": "bandwidth",
            "unit": "GB/s",
        }
        models.append(constant.fit([gbs, gbs], labels=labels, **quantity))
    (fig,) = figures_across(models)
    (roof,) = [trace for trace in fig.data if (trace.name or "").startswith("4 cores, double")]
    assert roof.y[0] == pytest.approx(20 * roof.x[0])
    assert roof.y[-1] == pytest.approx(0.9 * 4 * 90, rel=0.01)  # the vector loop, which is above the products
    assert "corner at 16.2" in roof.name


def test_the_triad_is_the_slope_and_loads_stand_on_the_roof() -> None:
    """An LU of a quarter of an operation a byte, whose run takes what its bytes take, is on the slope."""
    models = fit_samples("compute", made_up())
    labels = {"kernel": "triad", "cores": "1", "numa": "local"}
    quantity = {"probe": "streams", "quantity": "stream_bandwidth_gbs", "name": "bandwidth", "unit": "GB/s"}
    models.append(constant.fit([8.0, 8.0], labels=labels, **quantity))
    one_s = work("lu", "A").traffic_bytes / 8e9
    runs = [
        {"load": "lu", "size": "A", "cores": n, "run_s": one_s / n, "emulated": False, "round": 0}
        for n in (1, 1, 1, 2, 2, 2)
    ]
    models += fit_samples("scaling", pd.DataFrame(runs))
    (fig,) = figures_across(models)
    (lu,) = [trace for trace in fig.data if trace.name == "LU A, 1 core"]
    assert lu.x[0] == 0.25 and lu.y[0] == pytest.approx(0.25 * 8.0, rel=1e-3)
