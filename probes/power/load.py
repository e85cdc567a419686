"""Program that keeps a core busy and counts its work: ``python -m probes.power.load KIND FILE SLOT MB``.

``compute`` takes logarithms, roots and sines of an array in the first-level cache, as NAS EP does; ``memory``
copies through an area too large for any cache. After each quantum (well under 1 ms of running time) the
program publishes the time, the work done and the CPU time used. It runs until it is killed or orphaned.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SLOT = struct.Struct("ddd")  # time (s, monotonic), work done, CPU time used (s)
SLOT_BYTES = 64  # a cache line each, so that the loads do not slow each other down
CHUNK_MB = 0.25


def compute() -> Callable[[], float]:
    """Make a quantum: log, square root and sine of 2,000 numbers, four times; its work in numbers."""
    source = np.linspace(0.1, 0.9, 2000)
    target = np.empty_like(source)

    def quantum() -> float:
        for _ in range(4):
            np.log(source, out=target)
            np.multiply(target, -2.0, out=target)
            np.sqrt(target, out=target)
            np.sin(target, out=target)
        return 4.0 * len(source)

    return quantum


def memory(area_mb: float) -> Callable[[], float]:
    """Make a quantum: copy a chunk to the area's other half, round and round; its work in bytes moved."""
    chunk = int(CHUNK_MB * 2**20) // 8
    half = max(int(area_mb / 2 / CHUNK_MB), 1) * chunk
    source, target = np.ones(half), np.zeros(half)
    position = 0

    def quantum() -> float:
        nonlocal position
        np.copyto(target[position : position + chunk], source[position : position + chunk])
        position = (position + chunk) % half
        return 16.0 * chunk

    return quantum


def main(kind: str, file: Path, slot: int, area_mb: float) -> None:
    quantum = compute() if kind == "compute" else memory(area_mb)
    parent = os.getppid()
    with file.open("r+b") as handle, mmap.mmap(handle.fileno(), 0) as shared:
        work = 0.0
        quanta = 0
        while quanta % 256 or os.getppid() == parent:
            work += quantum()
            quanta += 1
            SLOT.pack_into(shared, slot * SLOT_BYTES, time.monotonic(), work, time.thread_time())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
