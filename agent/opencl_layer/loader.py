"""The OpenCL loader that a program gets; not all of them know layers, as that in NVIDIA's CUDA toolkit."""

from __future__ import annotations

import mmap
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

NAME = "libOpenCL.so.1"


def trouble(environment: Mapping[str, str] = os.environ) -> str:
    """Say why programs with this environment get no loader that knows layers; "" if they do, or get none."""
    file = _given(environment)
    if not file or knows_layers(file):
        return ""
    return (
        f"the OpenCL loader that the dynamic linker finds, {file}, knows no layers; "
        "Python programs with pyopencl's wheel bring their own and can be moved"
    )


def remedy(environment: Mapping[str, str] = os.environ) -> str:
    """Name the folder of a loader that knows layers, or what to install."""
    for folder in _folders():
        first = ":".join(filter(None, (folder, environment.get("LD_LIBRARY_PATH"))))
        if not trouble({**environment, "LD_LIBRARY_PATH": first}):
            return f"put {folder} first in LD_LIBRARY_PATH: the loader there knows layers"
    return "apt-get install ocl-icd-libopencl1 (2.3 or newer), and put its folder first in LD_LIBRARY_PATH"


def knows_layers(file: str) -> bool:
    """Tell if a loader reads the variable that names layers; one that cannot be read is taken to."""
    try:
        return b"OPENCL_LAYERS" in Path(file).read_bytes()
    except OSError:
        return True


def linked_into(program: str) -> bool:
    """Tell if a program has a loader linked into it, one that knows no layers."""
    try:
        with Path(program).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(b"/etc/OpenCL/vendors") >= 0 and data.find(b"OPENCL_LAYERS") < 0
    except (OSError, ValueError):  # it cannot be read, or is empty
        return False


def outside(among: Iterable[int]) -> str:
    """Say why these processes use OpenCL without the layer; "" if they do not, or one is below the layer."""
    files: set[str] = set()
    for pid in among:
        with suppress(OSError):  # it has just ended
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            mapped = set(re.findall(r"/[^\n]+$", maps, re.MULTILINE))
            if os.path.realpath(variables(pid).get("OPENCL_LAYERS", "").rpartition(":")[2]) in mapped:
                return ""
            files |= mapped
    loaders = {file for file in files if Path(file).name.startswith(("libOpenCL.", "libOpenCL-"))}
    if loaders and not any(map(knows_layers, loaders)):
        return f"it has loaded {min(loaders)}, which knows no layers"
    named = _drivers()
    if drivers := {file for file in files if named and Path(file).name.startswith(named)}:
        return (
            f"it has loaded the driver {min(drivers)} without the layer: by a loader that is linked into it, "
            "or with another OPENCL_LAYERS"
        )
    return ""


def variables(pid: int) -> dict[str, str]:
    """Read the environment with which a process has begun; empty if it has ended, or is somebody else's."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _drivers() -> tuple[str, ...]:
    """List the names of the libraries of the system's OpenCL drivers."""
    folder = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    named = []
    with suppress(OSError):
        named = [Path(file.read_text(errors="replace").strip()).name for file in folder.glob("*.icd")]
    return tuple(filter(None, named))


def _given(environment: Mapping[str, str]) -> str:
    """Return the file that the dynamic linker gives to programs; "" if there is none."""
    # The linker lists what it would load, and ends: neither the program nor a library runs.
    preloaded = f"{environment.get('LD_PRELOAD', '')}:{NAME}"
    listing = {**environment, "LD_PRELOAD": preloaded, "LD_TRACE_LOADED_OBJECTS": "1"}
    match = re.search(
        rf"^\t(?:{NAME} => )?(.*libOpenCL\.so.*) \(0x", _output("true", env=listing), re.MULTILINE
    )
    return match[1] if match else ""


def _folders() -> list[str]:
    """List the folders with a loader that the dynamic linker knows by itself."""
    return re.findall(rf"^\t{NAME} .*=> (.*)/{NAME}$", _output("ldconfig", "-p"), re.MULTILINE)


def _output(program: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Return what a program of the system prints; "" if it is not there."""
    import subprocess  # late: each supervisor imports this module

    path = shutil.which(program, path=f"{os.defpath}:/sbin:/usr/sbin")
    if path is None:
        return ""
    done = subprocess.run(
        [path, *arguments], env=env, capture_output=True, text=True, errors="replace", check=False
    )
    return done.stdout
