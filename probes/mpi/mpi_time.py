"""The share of time that an unmodified MPI program spends inside MPI, by a preloaded library.

``mpi_time.c`` is compiled when needed, and stands between the program and its MPI. The program must be linked
to MPI dynamically and call it from C (as mpi4py does), because an MPI's Fortran library calls past the
preloaded one. Other hosts must have the same folder.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from probes import c_library
from profiles.errors import Unavailable

SOURCE = Path(__file__).with_name("mpi_time.c")
WHAT = "the library that counts the time inside MPI"
COUNTS = struct.Struct("=QQ")  # struct counts in the source


class MpiShare(NamedTuple):
    """Time and calls of a rank inside MPI, all its threads together."""

    seconds: float
    calls: int


def build(folder: Path) -> Path:
    """Compile the library into ``folder``.

    Raises:
        Unavailable: there is no C compiler, or none for this machine.
    """
    if sys.maxsize < 2**63 - 1 or sys.platform != "linux":
        raise Unavailable(f"{WHAT} is for 64-bit Linux")
    return c_library.build(SOURCE, folder, ["-std=c11", "-ldl"], what=WHAT, remedy=c_library.REMEDY)


def variables(library: Path, folder: Path) -> dict[str, str]:
    """Give the variables by which a program's ranks leave their counts in ``folder``."""
    others = os.environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library} {others}".strip(), "TENBIN_MPI_TIME": str(folder)}


def read(folder: Path) -> list[MpiShare]:
    """Read the counts of each rank that called MPI."""
    shares = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        if len(content) == COUNTS.size and (counts := COUNTS.unpack(content))[1]:
            shares.append(MpiShare(counts[0] / 1e9, counts[1]))
    return shares


def share(ranks: Sequence[MpiShare], wall_s: float) -> float:
    """Average time inside MPI / run time over the ranks, at most 1 (several threads may be inside)."""
    return min(sum(rank.seconds for rank in ranks) / (len(ranks) * wall_s), 1.0)
