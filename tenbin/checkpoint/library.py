"""Checkpoints for OpenCL programs: ``tenbin.Checkpoint``.

    import tenbin

    check = tenbin.Checkpoint("stencil")
    program = check.build(SOURCE)
    grid = check.buffer("grid", 8 * n * n)
    check.state["step"] = 0
    if not check.restore():
        ...                                  # fill the buffers for the first time
    while check.state["step"] < steps:
        program.step(check.queue, (n, n), None, grid)
        check.state["step"] += 1
        check.safe_point()                   # asked to leave: saves everything, and leaves
    check.finish()

Asked by a signal, or by a file ``checkpoint.request`` beside the checkpoint, the program drains its queue at
the next safe point, saves, and leaves with exit code 85. Started again it goes on, on whatever device it is
given. A request before ``restore`` makes it leave as well, with nothing to save.

Under tenbin each attempt to run a job writes under a name of its own (``tenbin.checkpoint.generations``): a
copy of it that nobody could reach, and that comes back when the job runs elsewhere, cannot spoil anything.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tenbin.checkpoint.file import CheckpointError, Part, Transfer, read_header
from tenbin.checkpoint.generations import Generations

if TYPE_CHECKING:
    import numpy as np
    import pyopencl as cl

    from profiles.files import own_files
else:  # by a name that no module of a user's program has
    from tenbin._profiles.files import own_files

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
            self.device = _find(device if device is not None else os.environ.get("TENBIN_DEVICE", "0"))
            self.context, self.queue = _open(self.device)
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
        path, (state, found) = taken
        take = {name: self._to_device(buffer) for name, buffer in self._buffers.items()}
        take |= {name: _to_array(array) for name, array in self._arrays.items()}
        with self._device("restoring"), self._phase("restore", sum(part.bytes for part in found.values())):
            self._files.read(path, list(found.values()), [take[name] for name in found])
            self.queue.finish()
        self.state.update(state)
        self._ready(sum(part.bytes for part in found.values()))
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
        state, found = read_header(path, self.program)
        wanted, has = (
            {(p.name, p.kind, p.bytes) for p in parts} for parts in (self._parts(), found.values())
        )
        if wanted != has:
            there, here = (", ".join(" ".join(map(str, part)) for part in parts) for parts in (has, wanted))
            raise CheckpointError(
                f"{path} has other parts ({there} bytes) than this program ({here} bytes); "
                "remove it to begin anew"
            )
        return state, found

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
            with os.fdopen(own_files.open_plain(self.log, appends, 0o644), "a") as file:
                file.write(lines)


def _find(number: int | str) -> Any:
    """Find the device of that number, counted over all platforms."""
    import pyopencl as cl

    found = []
    try:
        for platform in cl.get_platforms():
            with suppress(cl.Error):  # a driver without its hardware
                found += platform.get_devices()
        return found[int(str(number).partition(",")[0])]
    except (cl.Error, IndexError, ValueError) as error:
        raise CheckpointError(f"there is no OpenCL device {number}; see: tenbin doctor") from error


def _open(device: Any) -> tuple[Any, Any]:
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
