"""Records for tests, whole and valid; give what the test is about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from profiles.records import (
    Coefficient,
    Cpu,
    Gpu,
    Inventory,
    Model,
    NumaNode,
    OpenCLDevice,
    Profile,
    Quality,
    Settings,
)


def make_inventory(**changes: Any) -> Inventory:
    cpu = Cpu(
        model="Example 9000",
        architecture="x86_64",
        sockets=1,
        cores=2,
        threads=2,
        smt=False,
        core_kinds={"core": 2},
        caches=(),
        governor=None,
        max_mhz=None,
    )
    whole = {
        "hostname": "node",
        "kernel": "6.1.0",
        "distribution": "Debian 12",
        "virtualisation": "none",
        "cpu": cpu,
        "numa": (NumaNode(index=0, cpus=(0, 1), memory_mb=8000.0),),
        "memory_mb": 8000.0,
    }
    return Inventory(**{**whole, **changes})


def make_device(**changes: Any) -> OpenCLDevice:
    whole = {
        "key": "pocl-0",
        "platform": "Portable Computing Language",
        "name": "pthread",
        "kind": "cpu",
        "driver": "3.1",
        "version": "OpenCL 3.0",
        "compute_units": 2,
        "global_memory_mb": 4000.0,
        "max_allocation_mb": 1000.0,
    }
    return OpenCLDevice(**{**whole, **changes})


def make_gpu(**changes: Any) -> Gpu:
    limits = {"power_limit_w": 700.0, "power_limit_min_w": 200.0, "power_limit_max_w": 700.0}
    whole = {"index": 0, "name": "Example GPU", "memory_mb": 80_000.0, "driver": "550", **limits}
    return Gpu(**{**whole, **changes})


def make_coefficient(
    value: float = 10.0, low: float | None = 9.0, high: float | None = 11.0, **changes: Any
) -> Coefficient:
    whole = {"name": "bandwidth", "unit": "GB/s", "n": 10, "quality": Quality.GOOD}
    return Coefficient(value=value, low=low, high=high, **{**whole, **changes})


def make_model(*coefficients: Coefficient, **changes: Any) -> Model:
    whole: dict[str, Any] = {
        "probe": "memory",
        "quantity": "memory_bandwidth_gbs",
        "form": "constant",
        "labels": {"cores": "1", "numa": "local"},
        "method": "median",
        "coefficients": coefficients or (make_coefficient(),),
    }
    return Model(**{**whole, **changes})


def make_profile(**changes: Any) -> Profile:
    whole: dict[str, Any] = {
        "id": "20260101T000000Z",
        "node": "node",
        "created": datetime(2026, 1, 1, tzinfo=UTC),
        "duration_s": 1.0,
        "tenbin_version": "0.1.0",
        "settings": Settings(),
        "fingerprint": "f00d",
        "inventory": make_inventory(),
        "models": (make_model(),),
    }
    return Profile(**{**whole, **changes})
