"""Times of single I/O operations, one after the other, with little of Python between them.

The clock is read right before and right after each system call. So the time of an operation contains one
call from Python (below a microsecond), and the time of a batch also what the loop does between two calls.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from probes.storage.buffers import Buffers

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
