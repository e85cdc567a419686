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
given.
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
from typing import TYPE_CHECKING, Any

from tenbin.checkpoint_file import CheckpointError, Move, Part, read, read_header, write

if TYPE_CHECKING:
    import numpy as np
    import pyopencl as cl

LEFT = 85  # exit code: "checkpointed"


class Checkpoint:
    """Everything of a program that must survive: buffers on the device, arrays, and the state of its loop.

    Args:
        program: its name and version; a checkpoint of another one is refused.
        path: of the checkpoint; default: in the folder that tenbin gives the job, else the current one.
        device: number of the OpenCL device, counted over all platforms; default: the one tenbin chose
            (``TENBIN_DEVICE``), else the first there is.

    Attributes:
        state: what else the loop needs, as JSON knows it (numbers, texts, lists).
        context, queue: on the device that was chosen.

    Raises:
        CheckpointError: there is no such device.
    """

    def __init__(self, program: str, path: str | Path | None = None, device: int | None = None) -> None:
        home = Path(os.environ.get("TENBIN_JOB_FOLDER", "."))
        self.program = program
        self.path = Path(path) if path is not None else home / "checkpoint.tenbin"
        self.state: dict[str, Any] = {}
        self.phases: list[dict[str, Any]] = []
        self._buffers: dict[str, cl.Buffer] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._asked = False
        # Not SIGUSR1 or SIGUSR2: LLVM, inside OpenCL drivers, takes these as a sign to remove what it is
        # compiling. Nobody minds a SIGURG that comes too early.
        number = int(os.environ.get("TENBIN_CHECKPOINT_SIGNAL", signal.SIGURG))
        signal.signal(number, self._on_signal)
        with self._phase("context"):
            self.device = _find(device if device is not None else os.environ.get("TENBIN_DEVICE", "0"))
            self.context, self.queue = _open(self.device)

    # -- what is to survive ---------------------------------------------------------------------------

    def buffer(self, name: str, size: int) -> cl.Buffer:
        """A buffer of so many bytes on the device, kept in every checkpoint."""
        import pyopencl as cl

        self._new(name)
        self._buffers[name] = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size)
        return self._buffers[name]

    def array(self, name: str, array: np.ndarray) -> np.ndarray:
        """Keep an array of the host (contiguous; restored in place); returns it."""
        self._new(name)
        if not array.flags.c_contiguous or array.dtype.hasobject:
            raise CheckpointError(
                f"array {name} is not contiguous numbers; give numpy.ascontiguousarray of it"
            )
        self._arrays[name] = array
        return array

    def _new(self, name: str) -> None:
        if name in self._buffers or name in self._arrays:
            raise CheckpointError(f"{name} is registered already; give it another name")

    def build(self, source: str, options: Sequence[str] = ()) -> cl.Program:
        """Compile kernels for this device; the time K of paper A."""
        import pyopencl as cl

        with self._phase("compile"):
            program: cl.Program = cl.Program(self.context, source).build(options=list(options))
        return program

    # -- checkpoint and restart -----------------------------------------------------------------------

    @property
    def asked(self) -> bool:
        """Whether the program should leave at its next safe point."""
        return self._asked or self._request.exists()

    def safe_point(self) -> None:
        """Nothing but what is registered matters here: if asked, save and leave."""
        if self.asked:
            self.save()
            self._request.unlink(missing_ok=True)
            self._record()
            sys.exit(LEFT)

    def save(self) -> None:
        """Write a checkpoint; the old one stays if that fails.

        Raises:
            OSError: no room, or no right.
        """
        with self._phase("drain"):
            self.queue.finish()
        parts = [Part(name, buffer.size) for name, buffer in self._buffers.items()]
        parts += [Part(name, array.nbytes, "array") for name, array in self._arrays.items()]
        fill = [self._from_device(buffer) for buffer in self._buffers.values()]
        fill += [_from_array(array) for array in self._arrays.values()]
        with self._phase("save", sum(part.bytes for part in parts)):
            write(self.path, self.program, self.state, parts, fill)

    def restore(self) -> bool:
        """Take up the checkpoint, if there is one; whether there was.

        Raises:
            CheckpointError: it is damaged, of another program or version, or has not what is registered.
        """
        try:
            state, found = read_header(self.path, self.program)
        except FileNotFoundError:
            return False
        sizes = {name: buffer.size for name, buffer in self._buffers.items()}
        sizes |= {name: array.nbytes for name, array in self._arrays.items()}
        if sizes != {name: part.bytes for name, part in found.items()}:
            has = ", ".join(f"{part.name} {part.bytes}" for part in found.values())
            raise CheckpointError(
                f"{self.path} has other parts than this program ({has} bytes); remove it to begin anew"
            )
        take = {name: self._to_device(buffer) for name, buffer in self._buffers.items()}
        take |= {name: _to_array(array) for name, array in self._arrays.items()}
        with self._phase("restore", sum(sizes.values())):
            read(self.path, list(found.values()), [take[name] for name in found])
            self.queue.finish()
        self.state.update(state)
        self._record()
        return True

    def finish(self) -> None:
        """The program has come to its end: its checkpoint is removed."""
        self.queue.finish()
        self.path.unlink(missing_ok=True)
        self._request.unlink(missing_ok=True)
        self._record()

    # -- inside ---------------------------------------------------------------------------------------

    @property
    def _request(self) -> Path:
        return self.path.with_name("checkpoint.request")

    def _on_signal(self, *_: object) -> None:
        self._asked = True

    def _from_device(self, buffer: cl.Buffer) -> Move:
        import pyopencl as cl

        def move(memory: memoryview, at: int) -> None:
            cl.enqueue_copy(self.queue, memory, buffer, src_offset=at, is_blocking=True)

        return move

    def _to_device(self, buffer: cl.Buffer) -> Move:
        import pyopencl as cl

        def move(memory: memoryview, at: int) -> None:
            cl.enqueue_copy(self.queue, buffer, memory, dst_offset=at, is_blocking=True)

        return move

    @contextmanager
    def _phase(self, name: str, size: int = 0) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.phases.append({"phase": name, "time_s": time.perf_counter() - began, "bytes": size})

    def _record(self) -> None:
        """Append the phases so far to ``checkpoint.phases.jsonl``, a line each."""
        lines = [
            json.dumps({**phase, "device": self.device.name, "at_s": time.time()}) for phase in self.phases
        ]
        self.phases.clear()
        with self.path.with_name("checkpoint.phases.jsonl").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)


def _find(number: int | str) -> Any:
    """The device of that number, over all platforms."""
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


def _from_array(array: np.ndarray) -> Move:
    def move(memory: memoryview, at: int) -> None:
        memory[:] = array.reshape(-1).view("u1").data[at : at + len(memory)]

    return move


def _to_array(array: np.ndarray) -> Move:
    def move(memory: memoryview, at: int) -> None:
        array.reshape(-1).view("u1").data[at : at + len(memory)] = memory

    return move
