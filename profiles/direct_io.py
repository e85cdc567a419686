"""Files that go round the page cache: many aligned chunks under way at once, while somebody else copies.

Buffered writing ends in page faults and write-back at a time of the kernel's choosing, so its time is not
a function of the size. Direct I/O (``O_DIRECT``) from memory that was touched before is one. The file is
preallocated, several threads write (or read) chunks of it, and the caller's ``fill`` (or ``take``) moves
the next chunk meanwhile: checkpoint and restart cost what the slower of copy and storage costs, not the sum.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Move = Callable[[Bytes, int], None]
Io = Literal["direct", "buffered"]

ALIGNMENT = 4096  # of addresses, offsets and lengths; enough for every Linux file system we know of
CHUNK = 32 << 20
THREADS = 4

_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)  # what a file system answers that has no direct I/O
_libc = ctypes.CDLL(None, use_errno=True)


class ChunkLayout(NamedTuple):
    """How a file of one size is cut: bytes of a chunk, and how many of them are under way."""

    chunk: int
    slots: int


def layout(size: int) -> ChunkLayout:
    """Chunks of ``CHUNK`` bytes, smaller for a small file so that its copy and I/O overlap too."""
    chunk = min(CHUNK, max(1 << 20, padded(-(-size // 8))))
    return ChunkLayout(chunk, min(THREADS + 2, -(-size // chunk)))


def free_bytes(folder: Path) -> float:
    """Space left for this user in ``folder``; infinite where the file system does not count."""
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else math.inf


def padded(size: int) -> int:
    """``size`` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def staging(slots: int, size: int) -> list[Bytes]:
    """``slots`` aligned buffers of ``size`` bytes, their pages touched."""
    return [touched(np.frombuffer(mmap.mmap(-1, padded(size)), dtype=np.uint8)) for _ in range(slots)]


def touched(memory: Bytes) -> Bytes:
    """``memory`` with every page written once: a first touch costs microseconds, later ones nothing."""
    memory[::ALIGNMENT] = 0
    return memory


def aligned(memory: Bytes) -> Bytes:
    """The part of ``memory`` that starts at the first aligned address."""
    return memory[-memory.ctypes.data % ALIGNMENT :]


def write(path: Path, size: int, slots: list[Bytes], fill: Move, *, threads: int = THREADS) -> Io:
    """Create ``path`` with ``size`` bytes and put them on the storage (fsync included).

    Args:
        path: a file that does not exist yet; the caller removes it, also after an error.
        size: bytes.
        slots: staging buffers of one length, a multiple of the alignment; a chunk is as long as a slot.
        fill: ``fill(view, offset)`` puts the bytes from ``offset`` on into ``view``; called in order, by the
            calling thread alone.
        threads: how many chunks are written at once.

    Returns:
        ``buffered`` where the file system refuses direct I/O.

    Raises:
        OSError: ENOSPC already up front where the free space is too small.
    """
    if free_bytes(path.parent) < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    chunk = len(slots[0])
    with _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file, ThreadPoolExecutor(threads) as pool:
        file.preallocate(padded(size))
        free, writing = deque(slots), deque[_Move]()
        for offset in range(0, size, chunk):
            slot = free.popleft() if free else writing.popleft().finished()
            count = min(chunk, size - offset)
            fill(slot[:count], offset)
            writing.append(_Move(pool.submit(file.put, slot[: padded(count)], offset), slot))
        for move in writing:
            move.finished()
        file.close_at(size)
    return file.io


def read(path: Path, size: int, slots: list[Bytes], take: Move, *, threads: int = THREADS) -> Io:
    """Read the ``size`` bytes of ``path`` from the storage; ``take(view, offset)`` gets them in order.

    Arguments, return value and errors as for ``write``; a file that is too short raises OSError (EIO).
    """
    chunk = len(slots[0])
    with _opened(path, os.O_RDONLY) as file, ThreadPoolExecutor(threads) as pool:
        file.forget()
        ahead = deque[_Move]()
        for offset in range(0, size, chunk):
            ahead_of = offset + chunk * len(ahead)
            for start in range(ahead_of, min(size, offset + chunk * len(slots)), chunk):
                slot = slots[start // chunk % len(slots)]
                ahead.append(_Move(pool.submit(file.get, slot, start, min(chunk, size - start)), slot))
            take(ahead.popleft().finished()[: min(chunk, size - offset)], offset)
    return file.io


def try_write(folder: Path) -> Io:
    """Whether files in ``folder`` can be written directly, try_write with one block.

    Raises:
        OSError: nothing can be written there at all.
    """
    path = folder / f".tenbin-direct-{os.getpid()}"
    try:
        return write(path, ALIGNMENT, staging(1, ALIGNMENT), lambda view, offset: None)
    finally:
        path.unlink(missing_ok=True)


class _Move(NamedTuple):
    """A chunk under way, and the staging buffer it occupies."""

    future: Future[None]
    slot: Bytes

    def finished(self) -> Bytes:
        """The buffer, free again; raises what the transfer raised."""
        self.future.result()
        return self.slot


class _File:
    """An open file that is direct until the file system refuses it."""

    def __init__(self, descriptor: int, io: Io) -> None:
        self.descriptor = descriptor
        self.io = io

    def preallocate(self, size: int) -> None:
        """Reserve the blocks; a file system that cannot is taken as it is.

        Not ``os.posix_fallocate``: that writes to every block where the file system cannot reserve.
        """
        if _libc.fallocate64(self.descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
            return
        code = ctypes.get_errno()
        if code not in (*_REFUSED, errno.ENOSYS):
            raise OSError(code, os.strerror(code))

    def put(self, view: Bytes, offset: int) -> None:
        """Write all of ``view`` at ``offset``."""
        done = 0
        while done < len(view):
            done += self._moved(os.pwritev, view[done:], offset + done)

    def get(self, view: Bytes, offset: int, count: int) -> None:
        """Read at least ``count`` bytes at ``offset`` into ``view`` (direct I/O reads whole blocks)."""
        done = 0
        while done < count:
            part = self._moved(os.preadv, view[done:], offset + done)
            if not part:
                raise OSError(errno.EIO, f"the file ends at byte {offset + done}")
            done += part

    def close_at(self, size: int) -> None:
        """Cut what was padded and bring everything to the storage."""
        os.ftruncate(self.descriptor, size)
        os.fsync(self.descriptor)

    def forget(self) -> None:
        """Drop the file from the page cache, for a file just written would be read from memory."""
        if self.io == "buffered":
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def _moved(self, call: Callable[[int, list[memoryview], int], int], view: Bytes, offset: int) -> int:
        try:
            return call(self.descriptor, [view.data], offset)
        except OSError as error:
            if error.errno not in _REFUSED or self.io == "buffered":
                raise
        # Some file systems take the flag at open and refuse the transfer.
        flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.io = "buffered"
        return call(self.descriptor, [view.data], offset)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[_File]:
    """``path`` opened, direct where the file system takes it."""
    io: Io = "direct"
    try:
        descriptor = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        io = "buffered"
        # The file may have been created before the flag was refused: no O_EXCL now.
        descriptor = os.open(path, (flags & ~os.O_EXCL) | os.O_CLOEXEC, 0o600)
    try:
        yield _File(descriptor, io)
    finally:
        os.close(descriptor)
