"""Needs of an OpenCL program, counted by a layer below it: device memory, kernels, building and waiting.

The layer (``opencl_layer.c``) is built on the spot, where there are a C compiler and the OpenCL headers, and
named in ``OPENCL_LAYERS``; the loader puts the layer between the program and the driver. Shared virtual
memory is not counted, nor a build whose end the program does not wait for.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from probes import c_library
from profiles.records import MB

SOURCE = Path(__file__).with_name("opencl_layer.c")
COUNTS = struct.Struct("=6Q3d")  # as ``counts`` in the source
REMEDY = "apt-get install gcc opencl-c-headers"


class OpenCLUsage(NamedTuple):
    """Use of OpenCL by all processes of a run.

    Attributes:
        device_memory_mb: peak of buffers and images; of several processes the sum of their peaks.
        kernels: number of enqueued kernels.
        compile_s: to build programs, of the process that took longest; None: no program was built.
        drain_s: the longest wait in a clFinish; None: never called.
    """

    device_memory_mb: float
    kernels: int
    compile_s: float | None
    drain_s: float | None


def build(folder: Path) -> Path:
    """Compile the layer into ``folder`` and return the library.

    Raises:
        Unavailable: no C compiler, no headers, or the compiler fails.
    """
    return c_library.build(SOURCE, folder, ["-pthread"], what="the OpenCL layer", remedy=REMEDY)


def environment(library: Path, folder: Path) -> dict[str, str]:
    """Give the variables of a program whose counts are to lie in ``folder``; its own layers stay on top."""
    layers: Sequence[str] = (os.environ.get("OPENCL_LAYERS", ""), str(library))
    return {"OPENCL_LAYERS": ":".join(filter(None, layers)), "TENBIN_LAYER_FOLDER": str(folder)}


def read(folder: Path) -> OpenCLUsage | None:
    """Read the counts of a run's processes; None if they used no OpenCL."""
    counts = []
    for path in folder.iterdir():
        content = path.read_bytes() if path.name.isdecimal() else b""
        if len(content) == COUNTS.size:
            _, peak, objects, kernels, builds, finishes, build_s, _, longest_s = COUNTS.unpack(content)
            if objects or kernels or builds:
                counts.append((peak, kernels, build_s if builds else None, longest_s if finishes else None))
    if not counts:
        return None
    peaks, kernels_, builds_, waits = zip(*counts, strict=True)
    return OpenCLUsage(sum(peaks) / MB, sum(kernels_), _longest(builds_), _longest(waits))


def _longest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
