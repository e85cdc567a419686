"""Programs below the layer that moves them, in processes of their own."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.opencl_layer import build, loader, requests
from profiles.errors import Unavailable
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.programs import opencl_devices

TWO = "pthread pthread"  # of PoCL; its device "basic" locks itself up when a user event is set
ONE = "pthread"
PROGRAMS = Path(__file__).parent / "opencl_programs"


@functools.cache
def layer() -> Path:
    """Build the layer for tests, which moves and fails by request; skip where it cannot be had."""
    try:
        library = build.build(options=["-DTENBIN_OPENCL_TESTS"])
    except Unavailable as error:
        require(False, str(error))
        raise
    require(len(opencl_devices(POCL_DEVICES=TWO)) >= 2, "two OpenCL devices (Debian: pocl-opencl-icd)")
    return library


@functools.cache
def two_devices(pocl: str = TWO) -> tuple[list[dict[str, Any]], str]:
    """Find devices of two drivers, a GPU's first, or else the first two.

    Args:
        pocl: ``POCL_DEVICES`` where there is one driver only.

    Returns: the devices, and the value of ``POCL_DEVICES`` that shows them.
    """
    found = opencl_devices(POCL_DEVICES=ONE)
    gpus, others = ([one for one in found if (one["kind"] == "gpu") == gpu] for gpu in (True, False))
    if (gpus and others) or len(others) > 1:
        return [*gpus[:1], *others][:2], ONE
    found = opencl_devices(POCL_DEVICES=pocl)[:2]
    require(len(found) == 2, "two OpenCL devices (Debian: pocl-opencl-icd)")
    return found, pocl


def start_devices(up: Up, patch: pytest.MonkeyPatch, folder: Path, policy: str) -> Up:
    """Start a coordinator of two devices, whose layer has been compiled before; ``folder``: of caches."""
    layer()  # skips where there is no OpenCL
    build.build()
    patch.setenv("POCL_DEVICES", TWO)
    patch.setenv("PYOPENCL_NO_CACHE", "1")
    patch.setenv("POCL_CACHE_DIR", str(folder / "cache"))
    up.start("--devices", "--policy", policy)
    up.until(lambda: not looks_for_layer(up))
    return up


def looks_for_layer(up: Up) -> bool:
    """Tell whether the coordinator still looks for the library: jobs that start now could not be moved."""
    assert up.process is not None
    for child in psutil.Process(up.process.pid).children():
        with suppress(psutil.NoSuchProcess):
            if "agent.opencl_layer.build" in child.cmdline():
                return True
    return False


def variables(folder: Path, *, below: bool, **more: str) -> dict[str, str]:
    """Give the environment of a program; ``below``: with the layer. ``folder``: of its caches and sockets."""
    own = {"POCL_DEVICES": TWO, "XDG_CACHE_HOME": str(folder / f"cache-{below}"), "PYOPENCL_NO_CACHE": "1"}
    layers = {"OPENCL_LAYERS": str(layer()), "TENBIN_OPENCL_FOLDER": str(folder)} if below else {}
    return {**os.environ, "PYTHONWARNINGS": "ignore", **own, **layers, **more}


def below_on(folder: Path, library: Path, keys: Sequence[str], **more: str) -> dict[str, str]:
    """Give the environment of a program below this layer that starts on the first of these two devices."""
    own = {"POCL_DEVICES": two_devices()[1], **requests.environment(library, folder, keys)}
    return variables(folder, below=True, **own, **more)


def command(program: str, *arguments: str) -> list[str]:
    """Give the command of a program in ``opencl_programs``."""
    return [sys.executable, "-P", "-m", f"tests.support.opencl_programs.{program}", *arguments]


def output(program: Sequence[str], environment: dict[str, str]) -> str:
    """Run a program to its end."""
    root = str(PROGRAMS.parents[2])
    done = subprocess.run(
        program,
        env={**environment, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def compiled_layer(name: str, folder: Path) -> Path:
    """Compile a layer of ``opencl_layers``; skip where there is no compiler."""
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    source, made = PROGRAMS.with_name("opencl_layers") / f"{name}.c", folder / f"{name}.so"
    done = subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(source)], check=False)
    require(done.returncode == 0, "OpenCL headers (Debian: opencl-c-headers)")
    return made


def driver() -> str:
    """Return the library of an OpenCL driver."""
    named = [file.read_text().strip() for file in Path("/etc/OpenCL/vendors").glob("pocl*.icd")]
    require(named, "an OpenCL driver (Debian: pocl-opencl-icd)")
    return named[0]


def old_loader(folder: Path) -> Path:
    """Compile an OpenCL loader that knows no layers; skip where that of the system knows none."""
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    require(
        find_library("OpenCL") and not loader.trouble(), "a loader with layers (Debian: ocl-icd-libopencl1)"
    )
    made = folder / loader.NAME
    source = "int clGetPlatformIDs(void) { return -1001; }"
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{loader.NAME}", "-o", str(made), "-x", "c", "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return made


class Stepper:
    """A ``stepper`` on two devices, the second slower: by ``slow``, the variables of ``slow_second.c``.

    Args:
        below_too: another layer in place of that one.

    Attributes:
        taken: steps so far. digest: of all results.
    """

    def __init__(
        self, folder: Path, *options: str, below: bool = True, below_too: str = "slow_second", **slow: str
    ) -> None:
        self.taken, self.digest = 0, ""
        environment = variables(folder, below=below, **slow, PYTHONPATH=str(PROGRAMS.parents[2]))
        layers = [str(compiled_layer(below_too, folder)), environment.get("OPENCL_LAYERS", "")]
        environment["OPENCL_LAYERS"] = ":".join(filter(None, layers))  # the last is called first
        self.process = subprocess.Popen(
            command("stepper", *options),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def steps(self, number: int) -> tuple[float, str]:
        """Take steps; return the time of one, and a digest of all results so far."""
        self._write(number)
        return self._read() / number, self.digest

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Take steps meanwhile."""
        self._write(0)
        yield
        self._write(1)
        self._read()
        self._read()

    def _write(self, number: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()

    def _read(self) -> float:
        assert self.process.stdout is not None
        took_s, taken, self.digest = self.process.stdout.readline().split()
        self.taken = int(taken)
        return float(took_s)

    def end(self) -> None:
        self.process.communicate(timeout=30)
        assert self.process.returncode == 0


class Worker:
    """A ``worker`` that runs one list of operations after the other."""

    def __init__(
        self, environment: dict[str, str], program: Sequence[str] = (), stderr: int | None = None
    ) -> None:
        root = str(PROGRAMS.parents[2])
        self.process = subprocess.Popen(
            program or command("worker"),
            env={**environment, "PYTHONPATH": root},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def digest(self, operations: Sequence[Sequence[object]]) -> str:
        """Run a program and return the digest of its results."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(operations) + "\n")
        self.process.stdin.flush()
        found = self.process.stdout.readline()
        assert found, f"the worker ended with {self.process.wait(10)}"
        return found.strip()

    def end(self) -> None:
        """End the process in order, so that it writes its report."""
        self.process.communicate(timeout=30)
        assert self.process.returncode == 0
