"""What a node can reach, against vendors' figures and hand-worked products, and its place in its kind."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.peaks import Peak, flop_a_cycle, judge, link_gbs, peaks
from profiles.records import Absent, Cpu, MemoryModules, Model, Profile
from tests.support.records import (
    make_coefficient,
    make_device,
    make_gpu,
    make_inventory,
    make_model,
    make_profile,
)

MILAN = {"vendor": "AuthenticAMD", "family": 0x19, "model_number": 1, "vectors": ("avx", "fma", "avx2")}
AVX512 = ("avx", "fma", "avx2", "avx512f")


def model(quantity: str, value: float, unit: str, **labels: str) -> Model:
    coefficient = make_coefficient(value, 0.99 * value, 1.01 * value, unit=unit)
    return make_model(coefficient, quantity=quantity, labels=labels)


def cpu(name: str = "AMD EPYC 7763 64-Core Processor", **changes: Any) -> Cpu:
    whole = {"model": name, "cores": 128, "threads": 128, "sockets": 2, "max_mhz": 3500.0, **MILAN}
    return make_inventory().cpu.model_copy(update={**whole, **changes})


def node(*, triad: float = 330.0, gflops: float = 4000.0, name: str = "n1", **inventory: Any) -> Profile:
    models = (
        model("stream_bandwidth_gbs", triad, "GB/s", kernel="triad", cores="128", numa="local"),
        model("compute_gflops", gflops, "GFLOP/s", kind="blas", precision="double", cores="128"),
        model("compute_clock_ghz", 2.45, "GHz", load="blas", cores="128"),
        model("compute_clock_ghz", 2.8, "GHz", load="vector", cores="128"),
    )
    return make_profile(models=models, node=name, inventory=make_inventory(**{"cpu": cpu(), **inventory}))


def modules(**changes: Any) -> MemoryModules:
    whole = {"count": 16, "kind": "DDR4", "mts": 3200.0, "channels": 16, "source": "the firmware's tables"}
    return MemoryModules(**{**whole, **changes})


def peak_of(profile: Profile, figure: str) -> Peak | Absent:
    (peak,) = (p for p in peaks(profile) if (p.figure if isinstance(p, Peak) else p.what) == figure)
    return peak


@pytest.mark.parametrize(
    ("known", "gbs", "words"),
    [
        (modules(), 409.6, "16 channels x 8 B x 3200 MT/s"),  # AMD: 204.8 GB/s a socket
        (modules(channels=None), 409.6, "16 channels"),
        (modules(count=8, channels=None), 204.8, "8 channels"),  # half of them empty
        (modules(count=32, channels=None), 409.6, "16 channels"),  # two modules to a channel
        (modules(mts=2933.0), 375.4, "2933 MT/s"),
        (None, 409.6, "at most: 16 channels"),
    ],
)
def test_memory(known: MemoryModules | None, gbs: float, words: str) -> None:
    peak = peak_of(node(memory_modules=known), "memory bandwidth")
    assert isinstance(peak, Peak)
    assert peak.value == pytest.approx(gbs, rel=1e-3) and words in peak.how
    assert f"{100 * 330 / gbs:.0f} % of" in peak.sentence
    assert ("more than can be" in peak.sentence) == (gbs < 330)


@pytest.mark.parametrize(
    ("inventory", "reason"),
    [
        ({"virtualisation": "kvm", "memory_modules": modules()}, "virtual machine"),
        ({"memory_modules": modules(mts=None)}, "16 modules of DDR4 at a rate that is not told"),
        ({"memory_modules": modules(kind="LPDDR5")}, "LPDDR5"),
        ({"cpu": cpu("AMD Ryzen 9"), "memory_modules": modules(channels=None)}, "channels that are not told"),
        ({"cpu": cpu("AMD Ryzen 9")}, "list of modules cannot be read"),
        ({"cpu": cpu(vectors=(), family=None)}, "profile is older"),
    ],
)
def test_an_unknown_peak_has_a_reason(inventory: dict[str, Any], reason: str) -> None:
    profile = node(**inventory)
    peak = peak_of(profile, "memory bandwidth")
    assert isinstance(peak, Absent) and reason in peak.reason
    assert any(name == "memory bandwidth" and reason in text for name, text in judge(profile))


@pytest.mark.parametrize(
    ("changes", "flop"),
    [
        ({}, 16),  # AMD: 5.0 TFLOP/s for 2 x 64 cores at 2.45 GHz
        ({"family": 0x17, "model_number": 1}, 8),
        ({"family": 0x1A, "model_number": 2, "vectors": AVX512}, 32),
        ({"family": 0x1A, "model_number": 2}, 16),  # AVX-512 hidden by a hypervisor
        ({"family": 0x1A, "model_number": 0x24}, None),  # narrower units in laptops
        ({"vendor": "GenuineIntel", "family": 6, "model_number": 0x8F, "vectors": AVX512}, 32),
        ({"vendor": "GenuineIntel", "family": 6, "model_number": 0x3F}, 16),
        ({"vendor": "GenuineIntel", "family": 6, "model_number": 0x3E, "vectors": ("avx",)}, 8),
        ({"core_kinds": {"performance": 8, "efficiency": 8}}, None),
        ({"architecture": "aarch64", "model": "ARM Neoverse-V2", "vectors": ("asimd", "sve")}, 16),
        ({"architecture": "aarch64", "model": "ARM part 0x1", "vectors": ("asimd",)}, None),
    ],
)
def test_flop_a_cycle(changes: dict[str, Any], flop: int | None) -> None:
    assert flop_a_cycle(cpu(**changes)) == flop


@pytest.mark.parametrize(
    ("name", "flop"),
    [
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", 32),
        ("Intel(R) Xeon(R) Silver 4110 CPU @ 2.10GHz", 16),
        ("Intel(R) Xeon(R) Gold 5122 CPU @ 3.60GHz", None),  # some have two units, most one
        ("Intel Xeon Processor (Skylake)", None),
    ],
)
def test_one_or_two_units_by_the_name(name: str, flop: int | None) -> None:
    xeon = {"vendor": "GenuineIntel", "family": 6, "model_number": 0x55, "vectors": AVX512}
    assert flop_a_cycle(cpu(name, **xeon)) == flop


def test_arithmetic_at_the_clock_that_was_measured() -> None:
    peak = peak_of(node(), "arithmetic")
    assert isinstance(peak, Peak) and peak.value == pytest.approx(5017.6)  # 128 x 16 x 2.45
    assert peak.sentence.startswith("80 % of 5018 GFLOP/s (128 cores x 16 FLOP a cycle x 2.45 GHz")


def test_a_share_above_all_is_said() -> None:
    peak = peak_of(node(gflops=6000.0), "arithmetic")
    assert isinstance(peak, Peak) and "120 % of" in peak.sentence and "more than can be" in peak.sentence


def test_published_figures() -> None:
    said = dict(judge(node(gflops=3935.0)))["arithmetic"]
    assert "100 % of the published 3935 GFLOP/s (github.com/carstenbauer/julia-dgemm-noctua" in said
    assert "published" not in dict(judge(node(cpu=cpu("Another 7763")))).get("arithmetic", "")


@pytest.mark.parametrize(
    ("lanes", "gts", "gbs"),
    [(16, 8.0, 15.75), (16, 16.0, 31.5), (16, 32.0, 63.0), (4, 5.0, 2.0), (16, 64.0, 118.0)],  # PCI-SIG
)
def test_links(lanes: int, gts: float, gbs: float) -> None:
    assert link_gbs(make_gpu(link_lanes=lanes, link_gts=gts)) == pytest.approx(gbs, rel=1e-3)


FIGURES = "device memory", "device arithmetic", "copies to the device"
H100 = ("90 % of 3350 GB/s", "75 % of 67000 GFLOP/s", "87 % of 63.02 GB/s")
V100 = ("335 % of 900 GB/s", "more than can be", "more than can be")
UNKNOWN = (
    "of Another GPU are not in the table",
    "not in the table",
    "the PCI link of the device is not shown",
)


@pytest.mark.parametrize(
    ("name", "link", "words"),
    [
        ("NVIDIA H100 80GB HBM3", {"link_lanes": 16, "link_gts": 32.0}, H100),
        ("Tesla V100-SXM2-16GB", {"link_lanes": 16, "link_gts": 8.0}, V100),
        ("Another GPU", {}, UNKNOWN),
    ],
)
def test_a_gpu(name: str, link: dict[str, Any], words: tuple[str, ...]) -> None:
    models = (
        model("device_bandwidth_gbs", 3015.0, "GB/s", device="gpu-0", kernel="copy"),
        model("device_gflops", 50_250.0, "GFLOP/s", device="gpu-0", precision="single"),
        model("device_copy_gbs", 55.0, "GB/s", device="gpu-0", direction="to_device", memory="pinned"),
    )
    devices = (make_device(), make_device(key="gpu-0", kind="gpu", name=name))
    inventory = make_inventory(opencl=devices, gpus=(make_gpu(name=name, **link),))
    said = dict(judge(make_profile(models=models, inventory=inventory)))
    for figure, text in zip(FIGURES, words, strict=True):
        assert text in said[figure], said[figure]


def test_the_place_among_nodes_of_its_kind() -> None:
    others = [node(name=f"n{n}", triad=triad) for n, triad in enumerate((300.0, 320.0, 340.0), start=2)]
    said = dict(judge(node(triad=330.0), others))["memory bandwidth"]
    assert "place 2 of 4 nodes of its kind, +3.1 % beside the others' median" in said
    assert "place" not in dict(judge(node(), others[:1]))["memory bandwidth"]


def test_emulated_figures_have_no_peak() -> None:
    profile = node()
    emulated = tuple(m.model_copy(update={"emulated": True}) for m in profile.models)
    assert peaks(profile.model_copy(update={"models": emulated})) == []
