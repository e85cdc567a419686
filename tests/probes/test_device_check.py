"""The slices of a check on devices, here on PoCL: figures, wrong results, identities, and a loss."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyopencl as cl
import pytest

from agent.emulation.emulated_gpus import emulated_gpus, uuid
from probes import device_check, nvml
from probes.device_check import DeviceSlices, identify, measure, pci_address
from probes.run import collect
from profiles.checks.check import Check, CheckedDevice
from profiles.checks.figures import LEAST_REFERENCES, figures
from profiles.checks.verdict import Reference, give_verdict
from profiles.records import Absent, Settings
from tests.support.checks import make_check
from tests.support.labs.components import require

FIGURES = {
    ("device_product_gflops", "device={key}"),
    ("device_bandwidth_gbs", "device={key}", "kernel=copy"),
    ("device_copy_gbs", "device={key}", "direction=to_device"),
    ("device_copy_gbs", "device={key}", "direction=from_device"),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make matrices and arrays small and batches short, so that a test takes a moment."""
    monkeypatch.setattr(device_check, "COLUMNS", {"cpu": 256})
    monkeypatch.setattr(device_check, "ARRAY", {"cpu": 8 << 20})
    monkeypatch.setattr(device_check, "BATCH_S", 0.001)


def check_of(number: int, budget_s: float) -> Check:
    """Make a check of devices alone."""
    rows, _ = collect("devices", Settings(quick=True, budget_s=budget_s), measure)
    of_devices = rows[rows["quantity"] == "device"]
    devices = [CheckedDevice(device=row.device, name=row["name"]) for _, row in of_devices.iterrows()]
    taken = rows.drop(of_devices.index).to_dict("records")
    return make_check(number, figures([{**row, "cpu_ratio": None} for row in taken]), devices=tuple(devices))


def test_every_device_has_every_figure(key: str) -> None:
    check = check_of(0, 0.1)
    keys = {device.device for device in check.devices}
    assert key in keys
    assert collect("devices", Settings(quick=True, only=("devices", "another")), measure)[0].empty
    expected = {tuple(part.format(key=k) for part in figure) for k in keys for figure in FIGURES}
    assert {figure.key for figure in check.figures} == expected


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "change",
    [
        ("k < n; k += DEPTH", "k < n - DEPTH; k += DEPTH"),
        ("sums[i][j] +=", "sums[i][j] += (item == 77) +"),
        ("c[(top + y", "if (left != 64 || x != 3) c[(top + y"),
    ],
)
def test_a_wrong_product_is_found(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: tuple[str, str]
) -> None:
    source = device_check.PRODUCT.read_text()
    assert change[0] in source
    DeviceSlices(key).product()
    (tmp_path / "wrong.cl").write_text(source.replace(*change))
    monkeypatch.setattr(device_check, "PRODUCT", tmp_path / "wrong.cl")
    with pytest.raises(device_check.WrongResult, match="numbers of a matrix product are wrong"):
        DeviceSlices(key).product()


@pytest.mark.usefixtures("small")
def test_a_copy_that_is_not_made_is_found(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = DeviceSlices(key)
    assert device.within() > 0
    monkeypatch.setattr(device, "source", device.target)
    with pytest.raises((device_check.WrongResult, cl.Error)):  # some drivers refuse to copy onto itself
        device.within()


def test_a_wrong_result_is_of_its_device_and_gives_no_verdict_on_its_speed(key: str) -> None:
    rows: list[dict[str, Any]] = []
    absent: list[Absent] = []

    class Wrong:
        def call(self, method: str, *_: Any, timeout_s: float = 0.0) -> Any:
            if method == "open":
                return {"device": key, "name": "GPU 3", "hindrance": ""}
            if method == "product":
                raise device_check.Failure("data", "7 of 9 numbers are wrong", key)
            return None

    run = SimpleNamespace(
        settings=Settings(quick=True),
        rng=None,
        progress=lambda doing: None,
        sample=lambda **row: rows.append(row),
        absent=lambda what, reason, remedy="", failed=False: absent.append(
            Absent(probe="devices", what=what, reason=reason, remedy=remedy, failed=failed)
        ),
    )
    record: Any = SimpleNamespace(key=key, name="A100")
    device_check._measure(run, Wrong(), record, set())  # type: ignore[arg-type]
    assert [(row["device"], row["name"], row["failure"]) for row in rows] == [
        (key, "GPU 3", "7 of 9 numbers are wrong")
    ]
    assert [(record.what, record.failed) for record in absent] == [("speed of GPU 3", True)]


def test_the_pci_address_is_that_of_sysfs() -> None:
    nvidia = SimpleNamespace(pci_domain_id_nv=0, pci_bus_id_nv=0x3B, pci_slot_id_nv=4 << 3)
    assert pci_address(nvidia) == "0000:3b:04.0"
    amd = SimpleNamespace(topology_amd=SimpleNamespace(bus=0xC1, device=0, function=1))
    assert pci_address(amd) == "0000:c1:00.1"
    assert pci_address(SimpleNamespace()) == ""


def test_a_gpu_is_known_by_its_uuid_and_left_alone_while_it_is_divided_or_in_use(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The OpenCL device stands for an emulated GPU at its address."""
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    assert identify(key) == {"device": key, "name": key, "hindrance": ""}
    with emulated_gpus("gpus-2+mig") as folder:
        monkeypatch.setenv(nvml.FOLDER, str(folder))
        monkeypatch.setattr(device_check, "pci_address", lambda handle: "0000:01:00.0")
        assert identify(key) == {"device": uuid(0), "name": "GPU 0", "hindrance": ""}
        monkeypatch.setattr(device_check, "IN_USE", -1)
        assert identify(key)["hindrance"] == "somebody uses it (0 %)"
        assert DeviceSlices(key).opened()["hindrance"]
        monkeypatch.setattr(device_check, "pci_address", lambda handle: "0000:02:00.0")
        assert identify(key)["hindrance"] == "it is divided (MIG)"


@pytest.mark.measures
@pytest.mark.slow
def test_a_device_with_half_of_its_threads_is_called_slower(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a load beside it, because a check with others on the processors is disturbed."""
    if not key.startswith("pocl") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("PoCL and two cores are needed")
    learnt: list[Check] = []
    for number in range(LEAST_REFERENCES + 1):
        learnt.append(give_verdict(check_of(number, 1.0), Reference("", checks=learnt)))
    (before,) = [c for c in learnt[-1].changes if c.quantity == "device_product_gflops"][:1]
    monkeypatch.setenv("POCL_MAX_PTHREAD_COUNT", "1")
    check = give_verdict(check_of(LEAST_REFERENCES + 1, 1.0), Reference("", checks=learnt))
    (product,) = [c for c in check.changes if c.quantity == "device_product_gflops"][:1]
    print(f"before: {before.change_ratio:+.1%}, tells {before.tells_ratio:.1%}; with one thread of two:")
    print(f"{product.change_ratio:+.1%}, {product.state}")
    if product.state != "worse" and (product.tells_ratio or 1.0) > 0.4:
        pytest.skip(f"this device differs too much: {product.tells_ratio:.0%}")
    assert product.state == "worse" and 0.3 < product.loss_ratio < 0.7
