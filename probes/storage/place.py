"""The files of one storage folder, and the operations on them that the probe times.

``data`` was written whole before anything is measured, and holds random bytes. So reads meet no holes, and no
storage can compress or share blocks. ``log`` is a small file for writes that end with fsync. Files are
overwritten in place: the times are the storage's, without the allocation of new blocks.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from probes.folders import LEAST_FREE
from probes.scratch import scratch
from probes.storage.timing import Batch, Buffers, Limits, Operation, RandomData, huge_buffer, run_batch
from profiles.errors import Unavailable
from profiles.files import direct_io
from profiles.records import MB

BLOCK = 4 << 20  # of sequential reads and writes
RUN_BLOCKS = 2  # in a sequential batch
PAGE = 4096
LOG = 1 << 20
MOST_RANDOM_WRITES, MOST_SYNCED_WRITES = 1024, 512  # in a batch
MOST_RANDOM_READS = 8192

KINDS = ("write", "read", "random_read", "random_write", "fsync")
_BYTES = {  # that a batch may write
    "write": RUN_BLOCKS * BLOCK,
    "random_write": MOST_RANDOM_WRITES * PAGE,
    "fsync": MOST_SYNCED_WRITES * PAGE,
}
_TRIALS = 2 * direct_io.ALIGNMENT  # what scratch() writes
_CACHED = 0.5  # share of the file in the page cache, from which on nothing was direct

_REMEDY_DIRECT = "name a folder on a disk or on another file system: --storage DIR"


@dataclass
class Place:
    """A folder under measurement.

    Attributes:
        folder: as the user named it. inside: the folder of the files.
        data, log: descriptors; ``data`` is open for direct I/O.
        size: bytes of the data file. room: bytes that may still be written. written: bytes written so far.
        kinds: the operations that still work here.
    """

    folder: str
    inside: Path
    random: RandomData
    rng: np.random.Generator
    room: int
    data: int = -1
    log: int = -1
    size: int = 0
    written: int = 0
    kinds: list[str] = field(default_factory=lambda: list(KINDS))

    def __post_init__(self) -> None:
        self._read_view = huge_buffer(BLOCK)
        self._cursors = {"write": 0, "read": 0, "fsync": 0}
        self._note_written(_TRIALS)

    def fill(self, file: direct_io.DirectFile, size: int, limit_s: float) -> None:
        """Write the data file block by block, up to ``size`` bytes or ``limit_s``, and the log.

        Raises:
            OSError: the storage is full, or broken.
            Unavailable: the file system has no direct I/O.
        """
        began = time.monotonic()
        while self.size < size:
            if self.size >= RUN_BLOCKS * BLOCK and time.monotonic() - began > limit_s:
                break
            [block] = self.random.blocks()[self.size // BLOCK % RUN_BLOCKS]
            self._note_written(BLOCK)
            file.put(block, self.size)
            self.size += BLOCK
        os.fsync(file.descriptor)
        self._note_written(LOG)
        os.pwritev(self.log, [self.random.view[:LOG]], 0)
        os.fsync(self.log)
        # Out of the page cache, where it lies in large pieces that slow each small write down.
        os.posix_fadvise(self.log, 0, 0, os.POSIX_FADV_DONTNEED)
        self.data = file.descriptor
        _refuse_cached(self.folder, file, self.size)

    def can(self, kind: str) -> bool:
        """Tell whether a batch of ``kind`` may still be written."""
        return kind in self.kinds and _BYTES.get(kind, 0) <= self.room

    @property
    def used_up(self) -> bool:
        """True when nothing works any more, or nothing may be written any more."""
        writes = [kind for kind in self.kinds if kind in _BYTES]
        return not self.kinds or (bool(writes) and not any(map(self.can, writes)))

    def batch(self, kind: str, limits: Limits) -> Batch:
        """Time one batch of ``kind``; ``limits`` are of random and synced operations only.

        Raises:
            OSError: an operation failed.
        """
        operation, places, size = self._steps(kind)
        if size == BLOCK:
            limits = Limits(0.0, RUN_BLOCKS, limits.most_s)
        most = _BYTES.get(kind, 0)
        self._note_written(most)  # first, because a batch that fails has written an unknown part
        batch = run_batch(operation, places, size, limits)
        if most:
            self._note_written(len(batch.each_s) * size - most)
        self._advance(kind, len(batch.each_s))
        return batch

    def _steps(self, kind: str) -> tuple[Operation, list[tuple[Buffers, int]], int]:
        """Prepare a batch: the operation, its buffers and offsets, and its bytes."""
        match kind:
            case "write":
                blocks = self.random.blocks()
                return (
                    partial(os.pwritev, self.data),
                    list(zip(blocks, self._offsets(kind), strict=True)),
                    BLOCK,
                )
            case "read":
                into = [self._read_view]
                return partial(os.preadv, self.data), [(into, at) for at in self._offsets(kind)], BLOCK
            case "random_read":
                into = [self._read_view[:PAGE]]
                offsets = self._random_offsets(MOST_RANDOM_READS)
                return partial(os.preadv, self.data), [(into, at) for at in offsets], PAGE
            case "random_write":
                offsets = self._random_offsets(MOST_RANDOM_WRITES)
                pages = self.random.pages()
                return partial(os.pwritev, self.data), list(zip(pages, offsets, strict=False)), PAGE
        pages = self.random.pages()[:MOST_SYNCED_WRITES]
        start = self._cursors[kind]
        places = [(page, (start + i) * PAGE % LOG) for i, page in enumerate(pages)]
        return partial(_write_and_sync, self.log), places, PAGE

    def _offsets(self, kind: str) -> list[int]:
        """List where the next blocks are, after those of the last batch."""
        start = self._cursors[kind]
        return [(start + i) * BLOCK % self.size for i in range(RUN_BLOCKS)]

    def _random_offsets(self, count: int) -> list[int]:
        offsets: list[int] = (self.rng.integers(0, self.size // PAGE, count) * PAGE).tolist()
        return offsets

    def _advance(self, kind: str, count: int) -> None:
        if kind in self._cursors:
            self._cursors[kind] += count

    def _note_written(self, size: int) -> None:
        self.room -= size
        self.written += size


def _write_and_sync(descriptor: int, buffers: Buffers, offset: int) -> int:
    moved = os.pwritev(descriptor, buffers, offset)
    os.fsync(descriptor)
    return moved


@contextmanager
def prepared(folder: Path, most: int, limit_s: float, rng: np.random.Generator) -> Iterator[Place]:
    """Make the files in a new folder inside ``folder``, which is removed at the end.

    Args:
        most: bytes to write in all; half of the free room at most is taken. limit_s: time to fill the file.

    Raises:
        Unavailable: the folder cannot be used, has too little room, or no direct I/O; with the remedy.
        OSError: the storage is full, or broken.
    """
    with scratch(folder) as inside:
        free = direct_io.free_bytes(inside)
        room = int(min(most, free / 2))
        if 2 * room < LEAST_FREE:
            needed = f"free {LEAST_FREE / MB:.0f} MB in {folder}, or name another folder: --storage DIR"
            raise Unavailable(f"{folder} has {free / MB:.0f} MB free, which is too little", needed)
        place = Place(
            str(folder), inside, RandomData(rng, block=BLOCK, count=RUN_BLOCKS, page=PAGE), rng, room
        )
        new = os.O_RDWR | os.O_CREAT | os.O_EXCL
        with direct_io.opened(inside / "data", new) as file:
            place.log = os.open(inside / "log", new | os.O_CLOEXEC, 0o600)
            try:
                place.fill(file, room // 2 // BLOCK * BLOCK, limit_s)
                yield place
            finally:
                os.close(place.log)


def _refuse_cached(folder: str, file: direct_io.DirectFile, size: int) -> None:
    """Raise Unavailable where the file went through the page cache, or is in memory (tmpfs)."""
    if file.io == "buffered":
        raise Unavailable(f"the file system of {folder} refuses direct I/O", _REMEDY_DIRECT)
    if cached_ratio(file.descriptor, size) > _CACHED:
        what = f"the file system of {folder} accepts direct I/O and keeps the file in memory all the same"
        raise Unavailable(what, _REMEDY_DIRECT)


def cached_ratio(descriptor: int, size: int) -> float:
    """Compute the share of a file's first ``size`` bytes in the page cache; 0 where nobody can tell."""
    try:
        mapping = mmap.mmap(descriptor, size)
    except (OSError, ValueError):
        return 0.0
    with mapping:
        first = ctypes.c_char.from_buffer(mapping)
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        libc = ctypes.CDLL(None, use_errno=True)
        known = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), pages) == 0
        del first  # a mapping in use cannot be closed
    return sum(page & 1 for page in pages) / len(pages) if known else 0.0
