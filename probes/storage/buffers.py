"""Memory for direct I/O: in huge pages, where the machine gives them, and full of random bytes.

A block in small pages lies scattered in memory, and a transfer is cut where the scatter is too wide for the
device. So the speed would depend on the scatter of the moment more than on the storage.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

import numpy as np

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
