"""The OpenCL loader that programs get, and what is said of one that knows no layers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.opencl_layer import loader, requests
from tests.support.moving import old_loader

LOADS = "import ctypes; ctypes.CDLL('libOpenCL.so.1'); print(flush=True); input()"


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

    def told(**variables: str) -> str:
        with subprocess.Popen(
            [sys.executable, "-c", LOADS],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as program:
            assert program.stdout is not None
            program.stdout.readline()
            found = requests.moves(tmp_path, [program.pid])
            program.communicate(b"\n")
        return found

    assert told() == requests.UNUSED
    said = told(LD_LIBRARY_PATH=str(tmp_path))
    assert said == f"cannot be moved: it has loaded {old}, which knows no layers"
    assert requests.moves(tmp_path, []) == requests.UNUSED
