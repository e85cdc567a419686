"""Checkpoints of OpenCL programs, so that tenbin can stop and move them: ``tenbin.Checkpoint``, its files."""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import pyopencl as cl

    from profiles.files import direct_io, safe_files
else:  # by a name that no module of a user's program has
    from tenbin._profiles.files import direct_io, safe_files


# -- the file ----------------------------------------------------------------------------------------------
#
# Layout: 16 bytes (magic, length and CRC-32 of the header), the header as JSON, then the data of each part
# from an offset that direct I/O takes. The header is written last: a file without a whole one is no
# checkpoint. Each chunk of a part has a CRC-32 of its own, computed and checked by the threads that write
# and read.


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
        plain = safe_files.new_file(aside)
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


# -- generations -------------------------------------------------------------------------------------------
#
# A node may be cut off while a job writes a checkpoint, and the job starts again on another node. The old
# copy may finish its write later. Therefore each attempt to run a job has its own file name, which ends in
# the number of the attempt (its generation):
#
#     checkpoint.tenbin.g3      in the job's own folder
#     data.7-1795329565.g3      elsewhere; the job is named too, because other jobs may find the file later
#     data                      of a program outside tenbin
#
# An attempt takes up the checkpoint of the highest generation up to its own. It removes the others when its
# own checkpoint is on the disk. Before that, it reads the file ``generation`` in the job's folder: the
# number of the attempt that counts, written before each attempt from the second one on. A copy that was
# stopped after this check, or whose rename arrives late, still changes only its own file.
#
# Files of different jobs, or of no job, have no order but their times. The newest of them is taken up if
# the job has no checkpoint of its own, so that a program can go on where another job ended.


FILE = "generation"
Content = TypeVar("Content")


class Superseded(CheckpointError):
    """A later attempt to run this job has begun, so that this attempt must not write any more."""


class _CheckpointFile(NamedTuple):
    """A file of this checkpoint: key of its job (None: of no job), and if the file is still being written."""

    path: Path
    key: str | None
    generation: int
    aside: bool


@dataclass(frozen=True)
class Generations:
    """The files of one checkpoint.

    Attributes:
        path: name of the files, without the generation.
        generation: attempt of this process; None: the process belongs to no job.
        folder: folder of the job; None: the process belongs to no job.
        key: name of the job in its files; empty in the job's own folder.
    """

    path: Path
    generation: int | None = None
    folder: Path | None = None
    key: str = ""

    @classmethod
    def here(cls, path: Path, variables: Mapping[str, str] = os.environ) -> Generations:
        """Take generation, folder and key from the environment, where tenbin has set them."""
        generation = variables.get("TENBIN_GENERATION")
        if generation is None:
            return cls(path)
        if not generation.isdecimal():
            raise CheckpointError(
                f"TENBIN_GENERATION={generation!r} is no number; leave it as tenbin sets it"
            )
        home = variables.get("TENBIN_JOB_FOLDER")
        folder = None if home is None else Path(home)
        own = folder is not None and path.parent.resolve() == folder.resolve()
        return cls(path, int(generation), folder, "" if own else variables.get("TENBIN_JOB_KEY", ""))

    @property
    def file(self) -> Path:
        """Return the path to which this process writes."""
        return self.path if self.generation is None else self._of(self.generation)

    def save(
        self, program: str, state: dict[str, Any], parts: Sequence[Part], fill: Sequence[Transfer]
    ) -> None:
        """Write this process's checkpoint, then remove those of lower generations."""
        self.check()
        try:
            write(self.file, program, state, parts, fill=fill, last_look=self.check)
        except FileNotFoundError:
            self.check()  # a later attempt has removed the file
            raise
        self._remove(lambda file: self._is_own(file) and file.generation < (self.generation or 0))

    def take_up(self, look: Callable[[Path], Content]) -> tuple[Path, Content] | None:
        """Find the checkpoint to go on from, and apply ``look`` to it; None: there is no checkpoint.

        The checkpoint gets this process's name too, so that no old copy can replace or remove it. A
        checkpoint of another job, or of no job, is renamed.
        """
        self.check()
        # Unfinished files of killed attempts take room.
        self._remove(lambda file: file.aside and not self._later(file))
        while (source := self.newest()) is not None:
            with suppress(FileNotFoundError):  # an old copy has just replaced it by a later one
                look(source)  # an error message names the file as found
                path = self._adopt(source)
                return path, look(path)
        return None

    def read(self, path: Path, parts: Sequence[Part], take: Sequence[Transfer]) -> None:
        """Read the data of the checkpoint that was taken up."""
        try:
            read(path, parts, take)
        except FileNotFoundError:
            self.check()  # who runs the job now has a newer one already
            raise

    def clear(self) -> None:
        """Remove all checkpoints of this job, because its program has ended."""
        self.check()
        self.file.with_name(aside_name(self.file)).unlink(missing_ok=True)
        self._remove(lambda file: not self._later(file))
        self.file.unlink(missing_ok=True)

    def check(self) -> None:
        """See that this process may still write.

        Raises:
            CheckpointError: a later attempt has begun (``Superseded``), or the file does not say.
            OSError: it cannot be seen now.
        """
        if self.generation is None or self.folder is None:
            return
        try:
            newest = int((self.folder / FILE).read_text())
        except FileNotFoundError:
            return
        except ValueError:
            raise CheckpointError(f"{self.folder / FILE} is no number; remove it") from None
        if newest > self.generation:
            raise Superseded(
                f"attempt {newest} of this job has begun; this is attempt {self.generation}, "
                "of which nothing counts any more: nothing was written"
            )

    def newest(self) -> Path | None:
        """Find the checkpoint to take up; None: there is none. If it is gone when it is opened, ask again.

        Generations are tried upwards: an old copy that writes just now removes the lower one when the higher
        is there, and one of the two is seen.
        """
        if self.generation is None and self.path.exists():
            return self.path
        own = [self._of(g) for g in range(1, (self.generation or 0) + 1) if self._of(g).exists()]
        if own:
            return own[-1]
        times = []
        for other in self._files():
            with suppress(FileNotFoundError):
                if not other.aside and not self._is_own(other):
                    times.append((other.path.stat().st_mtime_ns, other.path))
        return max(times, default=(0, None))[1]

    def _of(self, generation: int) -> Path:
        key = f".{self.key}" if self.key else ""
        return self.path.with_name(f"{self.path.name}{key}.g{generation}")

    def _adopt(self, source: Path) -> Path:
        """Give the checkpoint this process's name, if the file system has hard links; return its path."""
        if source == self.file:
            return source
        try:
            os.link(source, self.file)
        except FileNotFoundError:
            raise
        except OSError:
            return source
        self._remove(lambda file: file.path == source and not self._is_own(file))
        return self.file

    def _is_own(self, file: _CheckpointFile) -> bool:
        return file.key == (None if self.generation is None else self.key)

    def _later(self, file: _CheckpointFile) -> bool:
        """Return True for files of this attempt, or of later attempts."""
        return self._is_own(file) and file.generation >= (self.generation or 0)

    def _remove(self, condition: Callable[[_CheckpointFile], bool]) -> None:
        """Remove files; those that cannot be removed stay."""
        for file in self._files():
            if condition(file):
                with suppress(OSError):
                    file.path.unlink()

    def _files(self) -> Iterator[_CheckpointFile]:
        """List the files under this name, of all jobs and generations."""
        name = re.compile(re.escape(self.path.name) + r"(?:(?:\.([\w-]+))?\.g(\d+))?")
        with suppress(FileNotFoundError):
            for entry in os.listdir(self.path.parent):  # noqa: PTH208
                aside = entry.startswith(".") and entry.endswith(".part")
                match = name.fullmatch(entry[1 : -len(".part")] if aside else entry)
                if match:
                    key = None if match[2] is None else match[1] or ""
                    yield _CheckpointFile(self.path.with_name(entry), key, int(match[2] or 0), aside)


# -- the checkpoint of a program ---------------------------------------------------------------------------
#
#     import tenbin
#
#     check = tenbin.Checkpoint("stencil")
#     program = check.build(SOURCE)
#     grid = check.buffer("grid", 8 * n * n)
#     check.state["step"] = 0
#     if not check.restore():
#         ...                                  # fill the buffers for the first time
#     while check.state["step"] < steps:
#         program.step(check.queue, (n, n), None, grid)
#         check.state["step"] += 1
#         check.safe_point()                   # asked to leave: saves everything, and leaves
#     check.finish()
#
# Asked by a signal, or by a file ``checkpoint.request`` beside the checkpoint, the program drains its queue
# at the next safe point, saves, and leaves with exit code 85. Started again it goes on, on whatever device
# it is given. A request before ``restore`` makes it leave as well, with nothing to save.


LEFT = 85  # exit code: "checkpointed"
AGAIN_S = 10.0  # after a checkpoint for which there was no room
PACE_S = 1.0  # after so long it is known how often the program comes to a safe point


class Checkpoint:
    """Everything of a program that must survive: buffers on the device, arrays, and the state of its loop.

    Args:
        program: name and version of the program; checkpoints of other programs are refused.
        path: of the checkpoint; under tenbin the number of the attempt is added. Default:
            ``checkpoint.tenbin`` in the folder that tenbin gives the job, else in the current folder.
        device: number of the OpenCL device, counted over all platforms. Default: the device that tenbin chose
            (``TENBIN_DEVICE``), else the first.

    Attributes:
        state: further values for the loop, of JSON's types (numbers, texts, lists; keys are texts).
        context, queue: on the chosen device.

    Raises:
        CheckpointError: there is no such device, or a variable set by tenbin cannot be read.
    """

    def __init__(self, program: str, path: str | Path | None = None, device: int | None = None) -> None:
        home = Path(os.environ.get("TENBIN_JOB_FOLDER", "."))
        self.program = program
        self.path = Path(path) if path is not None else home / "checkpoint.tenbin"
        self.log = Path(os.environ.get("TENBIN_JOB_FOLDER", self.path.parent)) / "checkpoint.phases.jsonl"
        self._files = Generations.here(self.path)
        self.state: dict[str, Any] = {}
        self.phases: list[dict[str, Any]] = []
        self._buffers: dict[str, cl.Buffer] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._asked = self._restored = False
        self._not_before = 0.0
        self._ready_s: float | None = None  # since when it computes; None: its pace is known
        self._safe_points = 0
        # Not SIGUSR1 or SIGUSR2: LLVM, inside OpenCL drivers, takes these as a sign to remove what it is
        # compiling. Nobody minds a SIGURG that comes too early.
        number = int(os.environ.get("TENBIN_CHECKPOINT_SIGNAL", signal.SIGURG))
        signal.signal(number, self._on_signal)
        with self._phase("context"):
            self.device = _find_device(device if device is not None else os.environ.get("TENBIN_DEVICE", "0"))
            self.context, self.queue = _open_device(self.device)
        self._queues: list[cl.CommandQueue] = [self.queue]

    # -- what is to survive ---------------------------------------------------------------------------

    def buffer(self, name: str, size: int) -> cl.Buffer:
        """Make a buffer of ``size`` bytes on the device; every checkpoint has its content."""
        import pyopencl as cl

        self._new(name)
        with self._device(f"making buffer {name} of {size} bytes"):
            self._buffers[name] = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size)
        return self._buffers[name]

    def array(self, name: str, array: np.ndarray) -> np.ndarray:
        """Keep an array of the host (contiguous, writeable; restored in place); returns it."""
        self._new(name)
        flags = array.flags
        if not (flags.c_contiguous and flags.writeable) or array.dtype.hasobject:
            raise CheckpointError(
                f"array {name} is not contiguous, writeable numbers; give numpy.array(it, order='C')"
            )
        self._arrays[name] = array
        return array

    def _new(self, name: str) -> None:
        if name in self._buffers or name in self._arrays:
            raise CheckpointError(f"{name} is registered already; give it another name")
        if self._restored:
            raise CheckpointError(f"{name} comes after restore(); register everything before it")

    def new_queue(self, properties: Any = 0) -> cl.CommandQueue:
        """Make one more queue on the device; a checkpoint waits for its commands too."""
        import pyopencl as cl

        queue = cl.CommandQueue(self.context, properties=properties)
        self._queues.append(queue)
        return queue

    def build(self, source: str, options: Sequence[str] = ()) -> cl.Program:
        """Compile kernels for this device; the time K of paper A.

        A program that was asked to leave before ``restore`` leaves here: there is nothing new to save.
        """
        import pyopencl as cl

        if self.asked and not self._restored:
            self._leave()
        with self._phase("compile"):
            program: cl.Program = cl.Program(self.context, source).build(options=list(options))
        return program

    # -- checkpoint and restart -----------------------------------------------------------------------

    @property
    def asked(self) -> bool:
        """True if the program should leave at its next safe point."""
        return self._asked or self._request.exists()

    def safe_point(self) -> None:
        """Save and leave, if the program was asked to; call this where only registered data matter.

        Without room for the checkpoint the program says so and goes on; it tries again ten seconds later.

        Raises:
            CheckpointError: as ``save``.
        """
        self._check_restored()
        self._keep_pace()
        if not self.asked or time.monotonic() < self._not_before:
            return
        try:
            self.save()
        except OSError as error:
            self._not_before = time.monotonic() + AGAIN_S
            again = f"the program goes on, and tries again in {AGAIN_S:g} s"
            trouble = f"{self._files.file}: {error.strerror}; {again}"
            with suppress(OSError):  # stderr may be on the same full disk
                print(f"tenbin: the checkpoint could not be written: {trouble}", file=sys.stderr, flush=True)
        else:
            self._leave()

    def save(self) -> None:
        """Write a checkpoint; the old one stays if that fails.

        Raises:
            OSError: no room, or no right.
            CheckpointError: the device fails, ``state`` holds what JSON does not know, ``restore`` has not
                been called, or a later attempt to run the job has begun.
        """
        self._check_restored()
        with self._device("saving"):
            with self._phase("drain"):
                self._drain()
            fill = [self._from_device(buffer) for buffer in self._buffers.values()]
            fill += [_from_array(array) for array in self._arrays.values()]
            parts = self._parts()
            with self._phase("save", sum(part.bytes for part in parts)):
                self._files.save(self.program, self.state, parts, fill)
        self._record()

    def restore(self) -> bool:
        """Take up the checkpoint, if there is one; return True if there was one.

        Raises:
            CheckpointError: it is damaged, of another program or version, or has not what is registered; or a
                later attempt to run the job has begun.
        """
        taken = self._files.take_up(self._header)
        if taken is None:
            self._ready(sum(part.bytes for part in self._parts()))
            return False
        path, (state, parts) = taken
        take = {name: self._to_device(buffer) for name, buffer in self._buffers.items()}
        take |= {name: _to_array(array) for name, array in self._arrays.items()}
        with self._device("restoring"), self._phase("restore", sum(part.bytes for part in parts.values())):
            self._files.read(path, list(parts.values()), [take[name] for name in parts])
            self.queue.finish()
        self.state.update(state)
        self._ready(sum(part.bytes for part in parts.values()))
        return True

    def finish(self) -> None:
        """Remove the checkpoint, because the program has come to its end.

        Raises:
            CheckpointError: a later attempt to run the job has begun; the checkpoint is that one's.
        """
        self._drain()
        self._files.clear()
        self._request.unlink(missing_ok=True)
        self._record()

    def _drain(self) -> None:
        """Wait for all commands, by events: ``finish`` of rusticl (Mesa 22.3) comes too early."""
        import pyopencl as cl

        markers = [cl.enqueue_marker(queue) for queue in self._queues]
        for queue in self._queues:
            queue.flush()
        for marker in markers:
            marker.wait()

    def _header(self, path: Path) -> tuple[dict[str, Any], dict[str, Part]]:
        """State and parts of a checkpoint, which are those of this program; CheckpointError if not."""
        state, stored = read_header(path, self.program)
        registered, written = (
            {(p.name, p.kind, p.bytes) for p in parts} for parts in (self._parts(), stored.values())
        )
        if registered != written:
            there, here = (
                ", ".join(" ".join(map(str, part)) for part in parts) for parts in (written, registered)
            )
            raise CheckpointError(
                f"{path} has other parts ({there} bytes) than this program ({here} bytes); "
                "remove it to begin anew"
            )
        return state, stored

    # -- inside ---------------------------------------------------------------------------------------

    @property
    def _request(self) -> Path:
        return self.path.with_name("checkpoint.request")

    def _on_signal(self, *_: object) -> None:
        self._asked = True

    def _check_restored(self) -> None:
        if not self._restored:
            raise CheckpointError("call restore() before the first safe_point() or save()")

    def _parts(self) -> list[Part]:
        """List what is registered."""
        parts = [Part(name, buffer.size) for name, buffer in self._buffers.items()]
        for name, array in self._arrays.items():
            parts.append(Part(name, array.nbytes, f"array {array.dtype.str} {array.shape}"))
        return parts

    def _leave(self) -> NoReturn:
        self._request.unlink(missing_ok=True)
        self._record()
        sys.exit(LEFT)

    @contextmanager
    def _device(self, doing: str) -> Iterator[None]:
        """Turn errors of the driver into a CheckpointError."""
        import pyopencl as cl

        try:
            yield
        except cl.Error as error:
            path = self._files.newest()
            kept = f"{path} is as it was before" if path else "there is no checkpoint"
            raise CheckpointError(
                f"device {self.device.name} failed while {doing}: {error}; {kept}"
            ) from error

    def _from_device(self, buffer: cl.Buffer) -> Transfer:
        import pyopencl as cl

        def move(memory: memoryview, at: int) -> None:
            cl.enqueue_copy(self.queue, memory, buffer, src_offset=at, is_blocking=True)

        return move

    def _to_device(self, buffer: cl.Buffer) -> Transfer:
        import pyopencl as cl

        def move(memory: memoryview, at: int) -> None:
            cl.enqueue_copy(self.queue, buffer, memory, dst_offset=at, is_blocking=True)

        return move

    @contextmanager
    def _phase(self, name: str, size: int = 0) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._note(name, time.perf_counter() - began, size)

    def _note(self, name: str, seconds: float, size: int = 0) -> None:
        """Record a phase that has just ended."""
        about = {"program": self.program, "device": self.device.name, "at_s": time.time()}
        self.phases.append({"phase": name, "time_s": seconds, "bytes": size, **about})

    def _ready(self, size: int) -> None:
        """Record that the program computes from now on, with so many bytes in a checkpoint."""
        self._restored = True
        self._note("ready", 0.0, size)
        self._record()
        self._ready_s = time.perf_counter()

    def _keep_pace(self) -> None:
        """Note, once, how far apart safe points are."""
        self._safe_points += 1
        if self._ready_s is not None and (passed := time.perf_counter() - self._ready_s) >= PACE_S:
            self._ready_s = None
            self._note("pace", passed / self._safe_points)
            self._record()

    def _record(self) -> None:
        """Append the phases so far to the log, a line each; where there is room."""
        lines = "".join(f"{json.dumps(phase)}\n" for phase in self.phases)
        self.phases.clear()
        with suppress(OSError):
            appends = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            with os.fdopen(safe_files.open_plain(self.log, appends, 0o644), "a") as file:
                file.write(lines)


def _find_device(number: int | str) -> Any:
    """Find the device of that number, counted over all platforms."""
    import pyopencl as cl

    devices = []
    try:
        for platform in cl.get_platforms():
            with suppress(cl.Error):  # a driver without its hardware
                devices += platform.get_devices()
        return devices[int(str(number).partition(",")[0])]
    except (cl.Error, IndexError, ValueError) as error:
        raise CheckpointError(f"there is no OpenCL device {number}; see: tenbin doctor") from error


def _open_device(device: Any) -> tuple[Any, Any]:
    import pyopencl as cl

    context = cl.Context([device])
    return context, cl.CommandQueue(context)


def _from_array(array: np.ndarray) -> Transfer:
    def move(memory: memoryview, at: int) -> None:
        memory[:] = array.reshape(-1).view("u1").data[at : at + len(memory)]

    return move


def _to_array(array: np.ndarray) -> Transfer:
    def move(memory: memoryview, at: int) -> None:
        array.reshape(-1).view("u1").data[at : at + len(memory)] = memory

    return move
