"""Times of single I/O operations, one after the other, with little of Python between them.

The clock is read right before and right after each system call. So the time of an operation contains one
call from Python (below a microsecond), and the time of a batch also what the loop does between two calls.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_HUGE = 2 << 20
Buffers = list[memoryview]


def huge_buffer(size: int) -> memoryview:
    """Allocate ``size`` bytes at the start of a huge page, all of them touched."""
    mapping = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % _HUGE
    view = memoryview(mapping)[start : start + size]
    np.frombuffer(view, np.uint8)[:: mmap.PAGESIZE] = 1
    return view


class RandomData:
    """A buffer of random bytes, in which no two pages are alike.

    Args:
        block, count: bytes of a block, and number of blocks. page: bytes of a page.
    """

    def __init__(self, rng: np.random.Generator, *, block: int, count: int, page: int) -> None:
        self.view = huge_buffer(block * count)
        self._words = np.frombuffer(self.view, np.uint64)
        self._words[:] = rng.integers(0, 2**64, len(self._words), np.uint64)
        self._firsts = self._words[:: page // 8]
        self._blocks = [[self.view[at : at + block]] for at in range(0, len(self.view), block)]
        self._pages = [[self.view[at : at + page]] for at in range(0, len(self.view), page)]

    def blocks(self) -> list[Buffers]:
        """Give the blocks, changed in every page since the last time."""
        self._firsts += np.uint64(1)
        return self._blocks

    def pages(self) -> list[Buffers]:
        """Give the pages, each changed since the last time."""
        self._firsts += np.uint64(1)
        return self._pages


FEWEST_FOR_P99 = 100  # in fewer operations the 99th percentile is the slowest one

Operation = Callable[[Buffers, int], int]


class Limits(NamedTuple):
    """End of a batch: after ``seconds`` and ``operations``, but after ``most_s`` in any case."""

    seconds: float
    operations: int
    most_s: float


class Batch(NamedTuple):
    """Operations timed one after the other: the time of the whole batch, and of each operation."""

    seconds: float
    each_s: NDArray[np.float64]

    def percentile_s(self, percent: float) -> float:
        """Estimate a percentile of the times, without bias at the median (Hyndman and Fan 1996, type 8)."""
        return float(np.percentile(self.each_s, percent, method="median_unbiased"))

    @property
    def p99_s(self) -> float | None:
        """The 99th percentile; None where the operations are too few."""
        return self.percentile_s(99) if len(self.each_s) >= FEWEST_FOR_P99 else None


def run_batch(
    operation: Operation, places: Iterable[tuple[Buffers, int]], size: int, limits: Limits
) -> Batch:
    """Time ``operation(buffers, offset)`` at one of the ``places`` after the other.

    Args:
        operation: returns the bytes moved.
        places: buffers and offset of each operation; at least one. The batch ends with them.
        size: bytes that each operation must move.
        limits: end of the batch.

    Raises:
        OSError: from an operation; EIO where an operation moves other than ``size`` bytes.
    """
    clock = time.perf_counter_ns
    taken: list[int] = []
    note = taken.append
    fewest = limits.operations
    began = after = clock()
    soonest, latest = began + int(limits.seconds * 1e9), began + int(limits.most_s * 1e9)
    for buffers, offset in places:
        before = clock()
        moved = operation(buffers, offset)
        after = clock()
        note(after - before)
        if moved != size:
            raise OSError(errno.EIO, f"{moved} bytes of {size} moved")
        if after >= latest or (after >= soonest and len(taken) >= fewest):
            break
    return Batch((after - began) * 1e-9, np.array(taken) * 1e-9)
