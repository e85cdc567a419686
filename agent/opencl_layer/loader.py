"""The OpenCL loader that a program gets; not all of them know layers, as that in NVIDIA's CUDA toolkit."""

from __future__ import annotations

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


def loaded(among: Iterable[int]) -> str:
    """Return the loader of these processes if it knows no layers; "" if one does, or there is none."""
    found: set[str] = set()
    for pid in among:
        with suppress(OSError):  # it has just ended
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            found.update(re.findall(r"/.*/libOpenCL[-.][^/\n]+", maps))
    return "" if any(map(knows_layers, found)) else min(found, default="")


def _given(environment: Mapping[str, str]) -> str:
    """Return the file that the dynamic linker gives to programs; "" if there is none."""
    # The linker lists what it would load, and ends: neither the program nor a library runs.
    preloaded = f"{environment.get('LD_PRELOAD', '')}:{NAME}"
    listing = {**environment, "LD_PRELOAD": preloaded, "LD_TRACE_LOADED_OBJECTS": "1"}
    found = re.search(
        rf"^\t(?:{NAME} => )?(.*libOpenCL\.so.*) \(0x", _output("true", env=listing), re.MULTILINE
    )
    return found[1] if found else ""


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
