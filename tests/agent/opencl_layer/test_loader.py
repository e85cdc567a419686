"""The OpenCL loader that programs get, and what is said of one that knows no layers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

from agent.opencl_layer import loader, requests
from tests.support.labs.components import require
from tests.support.moving import (
    PROGRAMS,
    command,
    compiled_layer,
    driver,
    layer,
    old_loader,
    output,
    variables,
)

LOADS = "import ctypes, sys; [ctypes.CDLL(one) for one in sys.argv[1:]]; print(flush=True); input()"


def test_trouble_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = old_loader(tmp_path)
    own = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    assert f" {old}, knows no layers" in loader.trouble(own)
    folder = loader.remedy(own).split()[1]
    assert not loader.trouble({**own, "LD_LIBRARY_PATH": f"{folder}:{tmp_path}"})
    assert not loader.trouble({**own, "LD_PRELOAD": f"{folder}/{loader.NAME}"})
    monkeypatch.setattr(loader, "_folders", lambda: [str(tmp_path), "/no/folder"])
    assert loader.remedy(own).startswith("apt-get install ocl-icd-libopencl1 (2.3 or newer), and put")


def test_other_loaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader of Khronos' has the variable's name as ocl-icd has it; no loader at all is other trouble."""
    old = old_loader(tmp_path)
    own = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    old.write_bytes(old.read_bytes() + b"\0OPENCL_LAYERS\0")
    assert loader.trouble(own) == ""
    monkeypatch.setattr(loader, "NAME", "libNoOpenCL.so.1")
    assert loader.trouble(own) == ""


def test_a_running_program_with_it_is_told_of(tmp_path: Path) -> None:
    old = old_loader(tmp_path)

    assert told(tmp_path, loader.NAME) == requests.UNUSED
    said = told(tmp_path, loader.NAME, LD_LIBRARY_PATH=str(tmp_path))
    assert said == f"cannot be moved: it has loaded {old}, which knows no layers"
    assert requests.moves(tmp_path, []) == requests.UNUSED


def told(folder: Path, library: str, **own: str) -> str:
    """Return what is said of a program that has loaded this library."""
    with subprocess.Popen(
        [sys.executable, "-c", LOADS, library],
        env={**os.environ, **own},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        found = requests.moves(folder, [program.pid])
        program.communicate(b"\n")
    return found


def test_a_running_program_with_a_loader_of_its_own_is_told_of(tmp_path: Path) -> None:
    """A driver is loaded, but not the layer."""
    said = told(tmp_path, driver(), OPENCL_LAYERS="/no/layer.so")
    assert said.startswith("cannot be moved: it has loaded the driver /")
    assert said.endswith(
        " without the layer: by a loader that is linked into it, or with another OPENCL_LAYERS"
    )
    # One that is below the layer, but has made no context so far.
    with subprocess.Popen(
        [sys.executable, "-c", LOADS, driver(), str(layer())],
        env=variables(tmp_path, below=True),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        assert requests.moves(tmp_path, [program.pid]) == requests.UNUSED
        program.communicate(b"\n")


def test_programs_with_a_loader_linked_into_them(tmp_path: Path) -> None:
    program = tmp_path / "program"
    for text, has_old in (
        (b"", False),
        (b"clFinish", False),
        (b"\0/etc/OpenCL/vendors\0", True),
        (b"\0/etc/OpenCL/vendors\0OPENCL_LAYERS\0", False),
    ):
        program.write_bytes(text)
        assert loader.linked_into(str(program)) == has_old
    assert not loader.linked_into(str(tmp_path / "none"))


def test_the_later_entry(tmp_path: Path) -> None:
    """Khronos' loader asks layers for another entry since 2026, and tells them that it ends."""
    require(find_library("OpenCL"), "the loader of OpenCL (Debian: ocl-icd-libopencl1)")
    plain = output(command("queries"), variables(tmp_path, below=False))
    report = tmp_path / "report"
    below = {
        "OPENCL_LAYERS": str(compiled_layer("later_entry", tmp_path)),
        "LAYER_ABOVE": str(layer()),
        "TENBIN_OPENCL_MOVE_EVERY": "1",
        "TENBIN_OPENCL_REPORT": str(report),
    }
    assert output(command("queries"), variables(tmp_path, below=True, **below)) == plain
    assert json.loads(report.read_text())["moves"] > 0


def test_a_program_that_unloads_it(tmp_path: Path) -> None:
    """The layer goes on to answer, and the program ends in order."""
    require(find_library("OpenCL"), "the loader of OpenCL (Debian: ocl-icd-libopencl1)")
    program = subprocess.Popen(
        command("unloaded", loader.NAME),
        env={**variables(tmp_path, below=True), "PYTHONPATH": str(PROGRAMS.parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "unloaded\n"
    assert requests.move(tmp_path, program.pid, "pocl-1").device == "pocl-1"
    requests.park(tmp_path, program.pid)
    requests.resume(tmp_path, program.pid)
    program.communicate("\n", timeout=30)
    assert program.returncode == 0
