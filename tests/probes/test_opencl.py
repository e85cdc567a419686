"""Finding OpenCL devices: stable keys, and a clear line where there is none."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from probes import opencl
from profiles.errors import BadInput, Unavailable
from tests.support.labs.components import require


def listed(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "probes.opencl"],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


@pytest.fixture(scope="module")
def devices() -> list[opencl.Device]:
    try:
        return opencl.devices()
    except Unavailable as error:
        require(False, str(error))
        raise


def test_devices_have_distinct_keys_that_find_them_again(devices: list[opencl.Device]) -> None:
    keys = [device.key for device in devices]
    assert len(set(keys)) == len(keys)
    assert opencl.find(keys[::-1]) == devices[::-1]
    with pytest.raises(BadInput, match=keys[0]):
        opencl.find(["none-7"])


def test_records_hold_what_the_driver_says(devices: list[opencl.Device]) -> None:
    for device in devices:
        record = device.record()
        assert record.kind in ("cpu", "gpu", "accelerator")
        assert 0 < record.max_allocation_mb <= record.global_memory_mb
        assert record.compute_units == device.handle.max_compute_units
        assert record.global_memory_mb == pytest.approx(device.handle.global_mem_size / 1e6)


def test_listed_by_a_process_of_its_own(devices: list[opencl.Device]) -> None:
    answer = json.loads(listed().stdout)
    assert [device["key"] for device in answer] == [device.key for device in devices]


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"POCL_CACHE_DIR": "{}/a/b"}, "{}/a/b"),
        ({"XDG_CACHE_HOME": "{}"}, "{}/pocl"),
        ({"HOME": "{}"}, "{}/.cache/pocl"),
        ({}, None),
    ],
)
def test_pocl_without_a_cache_is_told(
    variables: dict[str, str], folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a missing driver. Root may write everywhere, so whether it may is made up."""
    pocl = SimpleNamespace(name="Portable Computing Language")
    monkeypatch.setattr(opencl, "platforms", lambda: [pocl])
    monkeypatch.setattr(opencl, "_device_ids", lambda platform: [])
    for name in ("POCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: tmp_path not in (path, *Path(path).parents))
    said = "no OpenCL platform has a device; "
    said += f"PoCL cannot write its cache {folder.format(tmp_path)}: set POCL" if folder else "install"
    with pytest.raises(Unavailable, match=re.escape(said)):
        opencl.devices()
    pocl.name = "NVIDIA CUDA"
    assert opencl.lacks_cache() is None


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Portable Computing Language", "pocl"),
        ("NVIDIA CUDA", "nvidia"),
        ("AMD Accelerated Parallel Processing", "amd"),
        ("Intel(R) OpenCL", "intel"),
        ("Some Vendor's CL", "some"),
        ("", "opencl"),
    ],
)
def test_words_for_platforms(name: str, word: str) -> None:
    assert opencl.platform_word(name) == word


def test_no_platform_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    done = listed(OCL_ICD_VENDORS=str(tmp_path))
    assert done.returncode == opencl.NoDevices.exit_code
    assert "no OpenCL platform" in done.stderr
    assert "pocl-opencl-icd" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_vendors_library_that_nobody_registered_is_pointed_out(tmp_path: Path) -> None:
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    source = tmp_path / "empty.c"
    source.touch()
    library = tmp_path / "libnvidia-opencl.so.1"
    subprocess.run(["cc", "-shared", "-o", str(library), str(source)], check=True, capture_output=True)
    vendors = tmp_path / "vendors"
    vendors.mkdir()
    environment = {"OCL_ICD_VENDORS": str(vendors), "LD_LIBRARY_PATH": str(tmp_path)}
    assert "echo libnvidia-opencl.so.1 > /etc/OpenCL/vendors/nvidia.icd" in listed(**environment).stderr
    (vendors / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    assert "echo" not in listed(**environment).stderr


def test_a_driver_installed_twice_is_noticed(
    devices: list[opencl.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opencl.duplicate_platforms(devices) == {}
    once = opencl.platforms()
    monkeypatch.setattr(opencl, "platforms", lambda: [*once, *once])
    doubled = opencl.devices()
    assert len({device.key for device in doubled}) == 2 * len(devices)
    assert set(opencl.duplicate_platforms(doubled)) == {platform.name for platform in once}
