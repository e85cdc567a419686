"""Small C libraries between a program and the libraries that it calls, compiled when they are needed.

Two of them count how an unchanged program uses MPI and OpenCL.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from profiles.errors import Unavailable

COMPILERS = ("cc", "gcc", "clang")
REMEDY = "apt-get install gcc"
HEADERS_REMEDY = "apt-get install gcc libc6-dev"


def find_compiler() -> str | None:
    """Find a C compiler; None where there is none."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def build(source: Path, folder: Path, options: Sequence[str], *, what: str, remedy: str) -> Path:
    """Compile ``source`` into ``folder`` and return the library.

    Args:
        options: of the compiler. what: name of the library, in words. remedy: packages to install.

    Raises:
        Unavailable: there is no C compiler, or the compiler fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise Unavailable(f"no C compiler for {what}", remedy)
    library = folder / f"{source.stem}.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), "it failed")
        raise Unavailable(f"{what} cannot be compiled: {said.strip()}", remedy)
    return library


# -- the share of time inside MPI, by a preloaded library --------------------------------------------------
#
# The program must be linked to MPI dynamically and call it from C (as mpi4py does), because an MPI's Fortran
# library calls past the preloaded one. Other hosts must have the same folder.


MPI_SOURCE = Path(__file__).with_name("mpi_time.c")
MPI_LIBRARY = "the library that counts the time inside MPI"
MPI_COUNTS = struct.Struct("=QQ")  # struct counts in the source


class MpiShare(NamedTuple):
    """Time and calls of a rank inside MPI, all its threads together."""

    seconds: float
    calls: int


def build_mpi_library(folder: Path) -> Path:
    """Compile the library into ``folder``.

    Raises:
        Unavailable: there is no C compiler, or none for this machine.
    """
    if sys.maxsize < 2**63 - 1 or sys.platform != "linux":
        raise Unavailable(f"{MPI_LIBRARY} is for 64-bit Linux")
    return build(MPI_SOURCE, folder, ["-std=c11", "-ldl"], what=MPI_LIBRARY, remedy=REMEDY)


def mpi_variables(library: Path, folder: Path) -> dict[str, str]:
    """Give the variables by which a program's ranks leave their counts in ``folder``."""
    others = os.environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library} {others}".strip(), "TENBIN_MPI_TIME": str(folder)}


def read_mpi_shares(folder: Path) -> list[MpiShare]:
    """Read the counts of each rank that called MPI."""
    shares = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        if len(content) == MPI_COUNTS.size and (counts := MPI_COUNTS.unpack(content))[1]:
            shares.append(MpiShare(counts[0] / 1e9, counts[1]))
    return shares


def mpi_share(ranks: Sequence[MpiShare], wall_s: float) -> float:
    """Average time inside MPI / run time over the ranks, at most 1 (several threads may be inside)."""
    return min(sum(rank.seconds for rank in ranks) / (len(ranks) * wall_s), 1.0)


# -- device memory, kernels, building and waiting of an OpenCL program, by a layer below it ----------------
#
# The layer is named in ``OPENCL_LAYERS``; the loader puts it between the program and the driver. Shared
# virtual memory is not counted, nor a build whose end the program does not wait for.


OPENCL_SOURCE = Path(__file__).with_name("opencl_layer.c")
OPENCL_COUNTS = struct.Struct("=6Q3d")  # as ``counts`` in the source
OPENCL_REMEDY = "apt-get install gcc opencl-c-headers"


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


def build_opencl_layer(folder: Path) -> Path:
    """Compile the layer into ``folder`` and return the library.

    Raises:
        Unavailable: no C compiler, no headers, or the compiler fails.
    """
    return build(OPENCL_SOURCE, folder, ["-pthread"], what="the OpenCL layer", remedy=OPENCL_REMEDY)


def opencl_variables(library: Path, folder: Path) -> dict[str, str]:
    """Give the variables of a program whose counts are to lie in ``folder``; its own layers stay on top."""
    layers: Sequence[str] = (os.environ.get("OPENCL_LAYERS", ""), str(library))
    return {"OPENCL_LAYERS": ":".join(filter(None, layers)), "TENBIN_LAYER_FOLDER": str(folder)}


def read_opencl_usage(folder: Path) -> OpenCLUsage | None:
    """Read the counts of a run's processes; None if they used no OpenCL."""
    counts = []
    for path in folder.iterdir():
        content = path.read_bytes() if path.name.isdecimal() else b""
        if len(content) == OPENCL_COUNTS.size:
            _, peak, objects, kernels, builds, finishes, build_s, _, longest_s = OPENCL_COUNTS.unpack(content)
            if objects or kernels or builds:
                counts.append((peak, kernels, build_s if builds else None, longest_s if finishes else None))
    if not counts:
        return None
    peaks, kernels_, builds_, waits = zip(*counts, strict=True)
    return OpenCLUsage(sum(peaks) / 1e6, sum(kernels_), _longest(builds_), _longest(waits))


def _longest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
