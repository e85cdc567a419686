"""Programs that many tests start: ``tenbin``, OpenCL in a process of its own, a layer that loses a device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

from tests.support import forked
from tests.support.forked import Forked
from tests.support.labs.components import require

TENBIN = (sys.executable, "-P", "-c", "from tenbin.cli import main; main()")
LAYERS = Path(__file__).parent / "opencl_layers"


def start(*arguments: str, out: IO[str], **variables: str) -> Forked | subprocess.Popen[str]:
    """Start the command line, with all its output into one file."""
    environment = {**os.environ, **variables}
    if forked.suits(environment):
        return Forked(arguments, environment, out, out)
    return subprocess.Popen([*TENBIN, *arguments], env=environment, stdout=out, stderr=out, text=True)


def tenbin(*arguments: str, store: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line, with a store of its own where ``store`` is given."""
    where = {} if store is None else {"TENBIN_STORE": str(store)}
    environment = {**os.environ, **where, **variables}
    if forked.suits(environment):
        return forked.run(*arguments, environment=environment)
    command = [*TENBIN, *arguments]
    nothing = subprocess.DEVNULL
    return subprocess.run(
        command, env=environment, stdin=nothing, capture_output=True, text=True, check=False
    )


def opencl_devices(**variables: str) -> list[dict[str, object]]:
    """List the OpenCL devices, in a process of its own; empty without a platform."""
    command = [sys.executable, "-P", "-m", "probes.opencl"]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    return list(json.loads(done.stdout)) if done.returncode == 0 else []


def lost_device(folder: Path) -> str:
    """Build the layer that fails reads from a device, in ``folder``."""
    return opencl_layer("lost_device", folder)


def opencl_layer(name: str, folder: Path) -> str:
    """One of the layers of the tests, built in ``folder``: the path for ``OPENCL_LAYERS``."""
    library = folder / f"{name}.so"
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(LAYERS / f"{name}.c")]
    built = subprocess.run(command, check=False, capture_output=True)
    require(built.returncode == 0, "OpenCL headers (Debian: opencl-c-headers)")
    return str(library)
