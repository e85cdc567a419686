"""The file of a checkpoint: written aside, direct, while copies go on; checked on the way back.

Layout: 16 bytes (magic, length and CRC-32 of the header), the header as JSON, then the data of each part from
an offset that direct I/O takes. The header is written last: a file without a whole one is no checkpoint. Each
chunk of a part has a CRC-32 of its own, computed and checked by the threads that write and read.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MAGIC, VERSION = b"TENBINCP", 1
ALIGNMENT = 4096
CHUNK = 32 << 20
THREADS = 4
Transfer = Callable[[memoryview, int], None]  # fill, or take, the bytes of a part from an offset on


class CheckpointError(Exception):
    """A file that is no checkpoint of this program, or is damaged; what to do is said."""


@dataclass
class Part:
    """One buffer or array: its name, size, CRC-32 of each chunk; ``kind`` has type and shape of an array."""

    name: str
    bytes: int
    kind: str = "buffer"
    offset: int = 0
    crc: list[int] = field(default_factory=list)


def write(
    path: Path,
    program: str,
    state: dict[str, Any],
    parts: Sequence[Part],
    fill: Sequence[Transfer],
    last_look: Callable[[], None] = lambda: None,
) -> None:
    """Replace ``path`` by a checkpoint; if anything goes wrong the old one stays.

    ``fill[i]`` copies bytes of ``parts[i]`` into memory while earlier ones are being written.

    Args:
        last_look: called when all is on the disk, before it becomes ``path``; what it raises prevents that.

    Raises:
        OSError: no room, or no right.
        CheckpointError: JSON does not know something in the state.
    """
    first = _lay_out(parts, len(_header(program, state, parts, whole=False)))
    aside = path.with_name(aside_name(path))
    end = max([first, *(part.offset + _padded(part.bytes) for part in parts)])
    try:
        # Readable: where the file system cannot preallocate, the C library reads and writes in each block.
        plain = os.open(aside, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
        descriptor = -1
        try:
            os.posix_fallocate(plain, 0, end)
            descriptor = _open(aside, os.O_WRONLY)
            with _pipeline() as pipe:
                for part, move in zip(parts, fill, strict=True):
                    part.crc = [0] * -(-part.bytes // CHUNK)
                    for number, (at, size) in enumerate(_chunks(part)):
                        slot = pipe.free()
                        move(slot[:size], at)
                        pipe.submit(slot, _write_chunk, descriptor, part, number, slot, at, size)
            os.pwrite(plain, _header(program, state, parts), 0)
            os.fsync(plain)
        finally:
            os.close(plain)
            if descriptor >= 0:
                os.close(descriptor)
        last_look()
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def aside_name(path: Path) -> str:
    """Name of the file that becomes ``path`` when it is whole; what is left of one is written over."""
    return f".{path.name}.part"


def read_header(path: Path, program: str) -> tuple[dict[str, Any], dict[str, Part]]:
    """State and parts of a checkpoint.

    Raises:
        CheckpointError: it is none, of another program or version, or cut short.
        FileNotFoundError: there is none.
    """
    remedy = f"remove {path} to begin anew"
    with path.open("rb") as file:
        start = file.read(16)
        if len(start) < 16 or start[:8] != MAGIC:
            raise CheckpointError(f"{path} is no checkpoint; {remedy}")
        length, crc = struct.unpack("<II", start[8:])
        text = file.read(length)
    if len(text) < length or zlib.crc32(text) != crc:
        raise CheckpointError(f"{path} is damaged: its header; {remedy}")
    header = json.loads(text)
    if header["version"] != VERSION:
        raise CheckpointError(f"{path} is of version {header['version']}, this is {VERSION}; {remedy}")
    if header["program"] != program:
        raise CheckpointError(f"{path} is of program {header['program']!r}, this is {program!r}; {remedy}")
    parts = {part["name"]: Part(**part) for part in header["parts"]}
    size = path.stat().st_size
    if any(part.offset + part.bytes > size for part in parts.values()):
        raise CheckpointError(f"{path} is cut short at {size} bytes; {remedy}")
    return header["state"], parts


def read(path: Path, parts: Sequence[Part], take: Sequence[Transfer]) -> None:
    """Hand the data of the parts on, chunk by chunk, while later ones are being read.

    Raises:
        CheckpointError: a chunk is damaged.
    """
    descriptor = _open(path, os.O_RDONLY)
    try:
        with _pipeline() as pipe:
            under_way: deque[tuple[memoryview, Transfer, int, int, Future[None]]] = deque()
            for part, move in zip(parts, take, strict=True):
                for number, (at, size) in enumerate(_chunks(part)):
                    if not pipe.slots:
                        _take_next(pipe, under_way)
                    slot = pipe.slots.pop()
                    job = pipe.pool.submit(_read_chunk, descriptor, path, part, number, slot, at, size)
                    under_way.append((slot, move, at, size, job))
            while under_way:
                _take_next(pipe, under_way)
    finally:
        os.close(descriptor)


class _Pipe:
    """Threads, and aligned memory for the chunks under way."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.slots = [memoryview(mmap.mmap(-1, CHUNK)) for _ in range(THREADS + 2)]
        self._busy: deque[tuple[memoryview, Future[None]]] = deque()

    def free(self) -> memoryview:
        """Memory for one more chunk; waits for one that is under way."""
        if not self.slots:
            slot, job = self._busy.popleft()
            job.result()
            self.slots.append(slot)
        return self.slots.pop()

    def submit(self, slot: memoryview, work: Callable[..., None], *arguments: Any) -> None:
        self._busy.append((slot, self.pool.submit(work, *arguments)))

    def finish(self) -> None:
        while self._busy:
            self._busy.popleft()[1].result()


@contextmanager
def _pipeline() -> Iterator[_Pipe]:
    with ThreadPoolExecutor(THREADS) as pool:
        pipe = _Pipe(pool)
        yield pipe
        pipe.finish()


def _take_next(pipe: _Pipe, under_way: deque[tuple[memoryview, Transfer, int, int, Future[None]]]) -> None:
    slot, move, at, size, job = under_way.popleft()
    job.result()
    move(slot[:size], at)
    pipe.slots.append(slot)


def _write_chunk(descriptor: int, part: Part, number: int, slot: memoryview, at: int, size: int) -> None:
    part.crc[number] = zlib.crc32(slot[:size])
    whole = slot[: _padded(size)]
    done = 0
    while done < len(whole):
        done += os.pwrite(descriptor, whole[done:], part.offset + at + done)


def _read_chunk(
    descriptor: int, path: Path, part: Part, number: int, slot: memoryview, at: int, size: int
) -> None:
    done = 0
    while done < size:
        got = os.preadv(descriptor, [slot[done : _padded(size)]], part.offset + at + done)
        if not got:
            raise CheckpointError(f"{path} is cut short in {part.name}; remove it to begin anew")
        done += got
    if zlib.crc32(slot[:size]) != part.crc[number]:
        raise CheckpointError(f"{path} is damaged in {part.name}; remove it to begin anew")


def _chunks(part: Part) -> Iterator[tuple[int, int]]:
    """(offset, size) of each chunk of a part."""
    for at in range(0, part.bytes, CHUNK):
        yield at, min(CHUNK, part.bytes - at)


def _lay_out(parts: Sequence[Part], header: int) -> int:
    """Give each part its offset; where the first begins."""
    first = offset = _padded(header)
    for part in parts:
        part.offset = offset
        offset += _padded(part.bytes)
    return first


def _header(program: str, state: dict[str, Any], parts: Sequence[Part], whole: bool = True) -> bytes:
    """The header; before the data are written an upper bound of it, with the longest numbers there can be."""
    listed = [asdict(part) for part in parts]
    if not whole:
        longest = 0xFFFFFFFF
        listed = [
            {**part, "offset": 1 << 62, "crc": [longest] * -(-part["bytes"] // CHUNK)} for part in listed
        ]
    header = {"version": VERSION, "program": program, "state": state, "parts": listed}
    text = json.dumps(header, default=_plain).encode()
    return MAGIC + struct.pack("<II", len(text), zlib.crc32(text)) + text


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's."""
    if getattr(value, "shape", None) == ():
        return value.item()
    raise CheckpointError(
        f"state holds a {type(value).__name__}; keep numbers, texts and lists there, and arrays by array()"
    )


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _open(path: Path, flags: int) -> int:
    """Open for direct I/O, where the file system has it."""
    with suppress(OSError):
        return os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
