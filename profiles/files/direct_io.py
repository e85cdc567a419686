"""Files that bypass the page cache: aligned chunks under way in threads while the caller copies the next.

Buffered writing ends in page faults and in write-back whenever the kernel chooses, so its time is not a
function of the size. The time of direct I/O (``O_DIRECT``) from memory that was touched before is. Checkpoint
and restart then cost what the slower of copy and storage costs, and not the sum.

Users' programs load this module too (``tenbin.checkpoint``), so it imports the standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Bytes = TypeVar("Bytes", memoryview, "NDArray[np.uint8]")
Io = Literal["direct", "buffered"]

ALIGNMENT = 4096  # of addresses, offsets and lengths; enough for every Linux file system we know of
CHUNK = 32 << 20
THREADS = 4

_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)  # the answers of a file system without direct I/O


class ChunkLayout(NamedTuple):
    """Division of a file: bytes of a chunk, and the number of chunks under way."""

    chunk: int
    slots: int


def layout(size: int) -> ChunkLayout:
    """Choose chunks of ``CHUNK`` bytes, smaller for a small file so that its copy and I/O overlap too."""
    chunk = min(CHUNK, max(1 << 20, padded(-(-size // 8))))
    return ChunkLayout(chunk, min(THREADS + 2, -(-size // chunk)))


def free_bytes(folder: Path) -> float:
    """Get the space left for this user in ``folder``; infinite where the file system does not count."""
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else math.inf


def padded(size: int) -> int:
    """Round ``size`` up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def staging(slots: int, size: int) -> list[memoryview]:
    """Allocate ``slots`` aligned buffers of ``size`` bytes, their pages touched."""
    touched = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return [memoryview(mmap.mmap(-1, padded(size), flags=touched)) for _ in range(slots)]


def write(
    path: Path,
    size: int,
    slots: Sequence[Bytes],
    fill: Callable[[Bytes, int], None],
    *,
    threads: int = THREADS,
) -> Io:
    """Create ``path`` with ``size`` bytes and bring them to the storage (fsync included).

    Args:
        path: a file that does not exist yet; the caller removes it, also after an error.
        size: bytes.
        slots: staging buffers of one length, a multiple of the alignment; a chunk is as long as a slot.
        fill: ``fill(view, offset)`` puts the bytes from ``offset`` on into ``view``; called in order, by the
            calling thread alone.
        threads: number of chunks written at once.

    Returns:
        ``buffered`` where the file system refuses direct I/O.

    Raises:
        OSError: ENOSPC already up front where the free space is too small.
    """
    if free_bytes(path.parent) < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
        file.preallocate(padded(size))

        def step(offset: int, count: int) -> Step[Bytes]:
            return Step(
                lambda slot: fill(slot[:count], offset),
                lambda slot: file.put(slot[: padded(count)], offset),
            )

        write_steps((step(*place) for place in chunks(size, len(slots[0]))), slots, threads)
        os.ftruncate(file.descriptor, size)
        os.fsync(file.descriptor)
    return file.io


def read(
    path: Path,
    size: int,
    slots: Sequence[Bytes],
    take: Callable[[Bytes, int], None],
    *,
    threads: int = THREADS,
) -> Io:
    """Read the ``size`` bytes of ``path`` from the storage; ``take(view, offset)`` gets them in order.

    Arguments, return value and errors as for ``write``; a file that is too short raises OSError (EIO).
    """
    with opened(path, os.O_RDONLY) as file:
        file.forget()

        def step(offset: int, count: int) -> Step[Bytes]:
            def get(slot: Bytes) -> None:
                if (done := file.get(slot, offset, count)) < count:
                    raise OSError(errno.EIO, f"the file ends at byte {offset + done}")

            return Step(lambda slot: take(slot[:count], offset), get)

        read_steps((step(*place) for place in chunks(size, len(slots[0]))), slots, threads)
    return file.io


def try_write(folder: Path) -> Io:
    """Write one block into a file in ``folder``, which is removed again.

    Raises:
        OSError: nothing can be written there at all.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tenbin-direct-") as inside:
        return write(Path(inside) / "block", ALIGNMENT, staging(1, ALIGNMENT), lambda view, offset: None)


def chunks(size: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Give offset and size of each chunk of ``size`` bytes."""
    for offset in range(0, size, chunk):
        yield offset, min(chunk, size - offset)


class Step(NamedTuple, Generic[Bytes]):
    """Two halves of moving one chunk: ``copy`` by the caller's thread, ``transfer`` by another thread."""

    copy: Callable[[Bytes], None]
    transfer: Callable[[Bytes], None]


def write_steps(steps: Iterable[Step[Bytes]], slots: Iterable[Bytes], threads: int = THREADS) -> None:
    """Copy chunk after chunk into free slots while threads transfer the earlier chunks."""
    free, writing = deque(slots), deque[tuple[Bytes, Future[None]]]()

    def finish_oldest() -> Bytes:
        slot, transfer = writing.popleft()
        transfer.result()
        return slot

    with ThreadPoolExecutor(threads) as pool:
        for step in steps:
            slot = free.popleft() if free else finish_oldest()
            step.copy(slot)
            writing.append((slot, pool.submit(step.transfer, slot)))
        while writing:
            finish_oldest()


def read_steps(steps: Iterable[Step[Bytes]], slots: Iterable[Bytes], threads: int = THREADS) -> None:
    """Copy chunk after chunk out of the slots while threads transfer the next chunks into the others."""
    free, reading = deque(slots), deque[tuple[Step[Bytes], Bytes, Future[None]]]()

    def copy_oldest() -> Bytes:
        step, slot, transfer = reading.popleft()
        transfer.result()
        step.copy(slot)
        return slot

    with ThreadPoolExecutor(threads) as pool:
        for step in steps:
            slot = free.popleft() if free else copy_oldest()
            reading.append((step, slot, pool.submit(step.transfer, slot)))
        while reading:
            copy_oldest()


class DirectFile:
    """An open file that is direct until the file system refuses direct I/O."""

    def __init__(self, descriptor: int, io: Io) -> None:
        self.descriptor = descriptor
        self.io = io

    def preallocate(self, size: int) -> None:
        """Reserve the blocks where the file system can.

        Not by ``os.posix_fallocate``, because that writes to every block where nothing can be reserved.
        """
        import ctypes  # late: users' programs, which load this module, do not preallocate by it

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate64(self.descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
            return
        code = ctypes.get_errno()
        if code not in (*_REFUSED, errno.ENOSYS):
            raise OSError(code, os.strerror(code))

    def put(self, view: Bytes, offset: int) -> None:
        """Write all of ``view`` at ``offset``."""
        done = 0
        while done < len(view):
            done += self._moved(os.pwritev, view[done:], offset + done)

    def get(self, view: Bytes, offset: int, count: int) -> int:
        """Read ``count`` bytes or more at ``offset`` (direct I/O reads whole blocks); fewer at the end."""
        done = 0
        while done < count:
            part = self._moved(os.preadv, view[done:], offset + done)
            if not part:
                break
            done += part
        return done

    def forget(self) -> None:
        """Drop the file from the page cache, because a file just written would be read from memory."""
        if self.io == "buffered":
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def _moved(self, call: Callable[[int, list[Any], int], int], view: Bytes, offset: int) -> int:
        try:
            return call(self.descriptor, [view], offset)
        except OSError as error:
            if error.errno not in _REFUSED or self.io == "buffered":
                raise
        # Some file systems take the flag at open and refuse the transfer.
        flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.io = "buffered"
        return call(self.descriptor, [view], offset)


@contextmanager
def opened(path: Path, flags: int) -> Iterator[DirectFile]:
    """Open ``path``, direct where the file system takes it."""
    io: Io = "direct"
    try:
        descriptor = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        io = "buffered"
        # The file may have been created before the flag was refused, so without O_EXCL now.
        descriptor = os.open(path, (flags & ~os.O_EXCL) | os.O_CLOEXEC, 0o600)
    try:
        yield DirectFile(descriptor, io)
    finally:
        os.close(descriptor)
