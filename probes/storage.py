"""Speed of each storage folder as programs meet it: MB/s, latencies, operations per second.

Measured by direct I/O (``O_DIRECT``), one operation at a time, from one core: sequential writes and reads in
blocks of 4 MiB, random writes and reads of 4 KiB, and writes of 4 KiB that end with fsync. Every row is a
batch, with the median and the 99th percentile of its operations. The kinds take turns, until the time is
up or the bytes are written.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from probes.folders import LEAST_FREE, is_full, scratch, storage_remedy
from probes.run import Run
from probes.visits import Point, Visits
from profiles.errors import Unavailable
from profiles.files import direct_io
from profiles.records import MB

# -- times of single operations, with little of Python between them ----------------------------------------
#
# The clock is read right before and right after each system call. So the time of an operation contains one
# call from Python (below a microsecond), and the time of a batch also what the loop does between two calls.


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


# -- the files of a folder, and the operations on them -----------------------------------------------------
#
# ``data`` was written whole before anything is measured, and holds random bytes. So reads meet no holes,
# and no storage can compress or share blocks. ``log`` is a small file for writes that end with fsync. Files
# are overwritten in place: the times are the storage's, without the allocation of new blocks.


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


# -- the probe: kinds of operations take turns in all folders ----------------------------------------------


# Most bytes written to a folder in one visit. A full profile has four visits: 1 GiB; a quick one has one.
FULL_BYTES = 256 << 20
QUICK_BYTES = 192 << 20

WORDS = {
    "write": "sequential write",
    "read": "sequential read",
    "random_read": "random read",
    "random_write": "random write",
    "fsync": "write with fsync",
}
_SEQUENTIAL = ("write", "read")
_FILL = 0.25  # share of a folder's time in which its file is written
_ROUNDS = 5  # at which a batch's time aims
_LONGEST = 0.4  # of a folder's time: a batch of slow storage, which needs many operations for its p99
_WARM = Limits(0.0, 8, 0.1)


def measure(run: Run) -> None:
    """Measure every folder as long as ``run.settings.budget_s`` allows, every kind once before any again.

    Raises:
        Unavailable: no folder can be used.
    """
    with ExitStack() as stack:
        stack.enter_context(pinned())
        places = _places(run, stack)
        repeat(run, places)


@contextmanager
def pinned() -> Iterator[None]:
    """Keep to the last core, because the first one often serves the machine's interrupts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _places(run: Run, stack: ExitStack) -> list[Place]:
    """Prepare the folders that can be used; ``stack`` removes what is in them."""
    folders = run.settings.storage or (Path(tempfile.gettempdir()),)
    most = QUICK_BYTES if run.settings.quick else FULL_BYTES
    limit_s = _FILL * run.settings.budget_s / len(folders)
    places = []
    for folder in folders:
        run.progress(f"writing a file in {folder}")
        try:
            places.append(stack.enter_context(prepared(folder, most, limit_s, run.rng)))
        except Unavailable as error:
            run.absent(f"storage {folder}", error.what, error.remedy)
        except OSError as error:
            reason = f"{folder} cannot be written ({error.strerror})"
            run.absent(f"storage {folder}", reason, storage_remedy(error, folder), failed=not is_full(error))
    if not places:
        raise Unavailable(
            "no storage folder can be measured", "name one on a disk that can be written: --storage DIR"
        )
    return places


class Subject(NamedTuple):
    """A kind of operation in a folder."""

    place: Place
    kind: str

    @property
    def title(self) -> str:
        return f"{WORDS[self.kind]} in {self.place.folder}"

    @property
    def possible(self) -> bool:
        """True while it works, and bytes are left to write."""
        return not self.place.used_up and self.place.can(self.kind)


def repeat(run: Run, places: list[Place]) -> None:
    """Take batches in turns, until the time is up or the bytes are written.

    The first turn goes in the order of the kinds, so that slow ones leave time for quick ones.
    """
    share_s = max(run.left_s(), 0.1) / len(places)
    kinds = max(len(place.kinds) for place in places)
    limits = Limits(share_s / (_ROUNDS * kinds), FEWEST_FOR_P99, _LONGEST * share_s)
    points = [Point(Subject(place, kind), least=0) for place in places for kind in place.kinds]
    for visit in Visits(
        points, run.rng, run.left_s, first_in_order=True, possible=lambda subject: subject.possible
    ):
        observe(run, visit, limits)
    say_missing(run, points, several=len(places) > 1)


def observe(run: Run, visit: Point[Subject], limits: Limits) -> None:
    """Measure and record one batch; a kind that fails is left out from then on."""
    place, kind = subject = visit.key
    run.progress(subject.title)
    try:
        if visit.count == 1:
            place.batch(kind, _WARM)
        batch = place.batch(kind, limits)
    except OSError as error:
        place.kinds.remove(kind)
        reason, remedy = f"it failed ({error.strerror})", storage_remedy(error, Path(place.folder))
        run.absent(subject.title, reason, remedy, failed=not is_full(error))
        return
    if batch.p99_s is not None:
        visit.values.append(batch.p99_s)
    run.sample(
        kind=kind,
        storage=place.folder,
        repetition=visit.count - 1,
        block_bytes=BLOCK if kind in _SEQUENTIAL else PAGE,
        operations=len(batch.each_s),
        seconds=batch.seconds,
        p50_s=batch.percentile_s(50),
        p99_s=batch.p99_s,
        slowest_s=float(batch.each_s.max()),
        file_bytes=place.size,
        written_bytes=place.written,
    )


def say_missing(run: Run, points: list[Point[Subject]], *, several: bool) -> None:
    """Say which kinds had no batch, or none of enough operations."""
    remedy = "measure one folder at a time: --storage DIR" if several else ""
    for point in points:
        place, kind = point.key
        if kind not in place.kinds:  # it failed, and that was said
            continue
        if not point.count:
            run.absent(point.key.title, "the storage is so slow that no time was left", remedy)
        elif kind not in _SEQUENTIAL and not point.values:
            reason = f"fewer than {FEWEST_FOR_P99} operations fit into the time"
            run.absent(f"p99 of a {point.key.title}", reason, remedy)
