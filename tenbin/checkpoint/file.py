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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiles.files import direct_io, own_files
else:  # by a name that no module of a user's program has
    from tenbin._profiles.files import direct_io, own_files

MAGIC, VERSION = b"TENBINCP", 1
CHUNK = direct_io.CHUNK
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
    *,
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
    end = max([first, *(part.offset + direct_io.padded(part.bytes) for part in parts)])
    try:
        # Readable: where the file system cannot preallocate, the C library reads and writes in each block.
        aside.unlink(missing_ok=True)
        plain = own_files.new_file(aside)
        try:
            os.posix_fallocate(plain, 0, end)
            for part in parts:
                part.crc = [0] * -(-part.bytes // CHUNK)
            with direct_io.opened(aside, os.O_WRONLY | os.O_NOFOLLOW) as file:
                steps = (
                    _write_step(file, part, place, move)
                    for part, move in zip(parts, fill, strict=True)
                    for place in direct_io.chunks(part.bytes, CHUNK)
                )
                direct_io.write_steps(steps, _slots())
            os.pwrite(plain, _header(program, state, parts), 0)
            os.fsync(plain)
        finally:
            os.close(plain)
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
    with direct_io.opened(path, os.O_RDONLY) as file:
        steps = (
            _read_step(file, path, part, place, take=move)
            for part, move in zip(parts, take, strict=True)
            for place in direct_io.chunks(part.bytes, CHUNK)
        )
        direct_io.read_steps(steps, _slots())


def _slots() -> list[memoryview]:
    return [memoryview(mmap.mmap(-1, CHUNK)) for _ in range(direct_io.THREADS + 2)]


def _write_step(
    file: direct_io.DirectFile, part: Part, place: tuple[int, int], fill: Transfer
) -> direct_io.Step[memoryview]:
    at, size = place

    def put(slot: memoryview) -> None:
        part.crc[at // CHUNK] = zlib.crc32(slot[:size])
        file.put(slot[: direct_io.padded(size)], part.offset + at)

    return direct_io.Step(lambda slot: fill(slot[:size], at), put)


def _read_step(
    file: direct_io.DirectFile, path: Path, part: Part, place: tuple[int, int], *, take: Transfer
) -> direct_io.Step[memoryview]:
    at, size = place

    def get(slot: memoryview) -> None:
        if file.get(slot[: direct_io.padded(size)], part.offset + at, size) < size:
            raise CheckpointError(f"{path} is cut short in {part.name}; remove it to begin anew")
        if zlib.crc32(slot[:size]) != part.crc[at // CHUNK]:
            raise CheckpointError(f"{path} is damaged in {part.name}; remove it to begin anew")

    return direct_io.Step(lambda slot: take(slot[:size], at), get)


def _lay_out(parts: Sequence[Part], header: int) -> int:
    """Give each part its offset; where the first begins."""
    first = offset = direct_io.padded(header)
    for part in parts:
        part.offset = offset
        offset += direct_io.padded(part.bytes)
    return first


def _header(program: str, state: dict[str, Any], parts: Sequence[Part], *, whole: bool = True) -> bytes:
    """Write the header; before the data are written, its longest form."""
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
    """Convert a number of numpy to a number of Python."""
    if getattr(value, "shape", None) == ():
        return value.item()
    raise CheckpointError(
        f"state holds a {type(value).__name__}; keep numbers, texts and lists there, and arrays by array()"
    )
