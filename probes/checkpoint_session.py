"""Session of a process with an OpenCL device: holds data, carries out each part of checkpoint and restart.

Each session has a process of its own (see ``probes.device_process``), so that context and driver
start as in a job that was started just now, and so that a driver that dies takes nothing else along. All
times are in seconds by the monotonic clock, which all processes of a node share.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl

from probes import opencl
from probes.opencl import Bytes, DeviceMemoryTooSmall, SessionFailure, pinned, touched
from profiles.files import direct_io
from profiles.records import MB

# ``pattern`` writes data that no storage can compress; ``digest`` sums a hash of every word and its place, so
# that a single changed, lost or misplaced byte shows. ``tick`` is a kernel with next to no work, ``spin`` a
# kernel of chosen length.
SOURCE = """
ulong mix(ulong x) {
    x += 0x9E3779B97F4A7C15UL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9UL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBUL;
    return x ^ (x >> 31);
}
__kernel void pattern(__global ulong *words, ulong first, ulong seed) {
    size_t i = get_global_id(0);
    words[i] = mix(mix(first + i) ^ seed);
}
__kernel void digest(__global const ulong *words, ulong count, ulong first, ulong step,
                     __global ulong *sums) {
    ulong g = get_global_id(0), n = get_global_size(0), sum = 0;
    ulong run = step == 1 ? (count + n - 1) / n : count;
    ulong begin = step == 1 ? g * run : g;
    ulong end = min(count, step == 1 ? begin + run : count);
    for (ulong i = begin; i < end; i += step) sum += mix(words[i] ^ mix(first + i));
    sums[g] = sum;
}
__kernel void tick(__global ulong *cell) { cell[0] += 1; }
__kernel void spin(__global ulong *cell, ulong rounds) {
    ulong x = cell[0];
    for (ulong i = 0; i < rounds; ++i) x = mix(x);
    cell[0] = x;
}
"""

WORD = 8  # bytes; sizes are whole words
MAX_PIECE = 1 << 30  # bytes of one buffer; drivers seldom give more than a quarter of the memory at once
_SPIN_S = 0.02  # shortest time for which a queue is held back while it is being filled


class QueueNotFilled(SessionFailure):
    """The driver runs commands before it has taken all of them, so nothing is queued and nothing drains."""

    kind = "queue"


class DeviceSession:
    """A device with its context, queue, program and data."""

    def __init__(self, key: str) -> None:
        start = time.monotonic()
        self.device = opencl.find([key])[0]
        self.context = cl.Context([self.device.handle])
        self.queue = cl.CommandQueue(self.context)
        self.queue.finish()
        self.context_s = time.monotonic() - start
        self.compile_s = self._compile()
        self.pieces: list[cl.Buffer] = []
        self.piece = 0
        self.slots: list[Bytes] = []
        self._spin_rate = 0.0
        self._pinned: list[cl.Buffer] = []

    def _compile(self) -> float:
        """Build the program and launch every kernel once: some drivers compile at the first launch."""
        start = time.monotonic()
        program = cl.Program(self.context, SOURCE).build()
        self.kernels = {kernel.function_name: kernel for kernel in program.all_kernels()}
        self._cell = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, WORD)
        unit = np.uint64(1)
        self._launch("pattern", 1, self._cell, unit, unit)
        self._launch("digest", 1, self._cell, unit, unit, unit, self._cell)
        self._launch("tick", 1, self._cell)
        self._launch("spin", 1, self._cell, unit)
        self.queue.finish()
        return time.monotonic() - start

    def _launch(
        self, kernel: str, items: int, *arguments: Any, queue: cl.CommandQueue | None = None
    ) -> cl.Event:
        chosen = self.kernels[kernel]
        chosen.set_args(*arguments)
        return cl.enqueue_nd_range_kernel(queue or self.queue, chosen, (items,), None)

    def opened(self) -> dict[str, float]:
        """Report the times to start driver, context and queue, and to build the program (K)."""
        return {"context_s": self.context_s, "compile_s": self.compile_s}

    def allocate(self, size: int) -> None:
        """Allocate ``size`` bytes, in several buffers where one would be larger than the driver allows.

        Raises:
            DeviceMemoryTooSmall: the driver refuses, or reports less memory.
        """
        handle = self.device.handle  # both sizes drift, so they are asked now
        if size > handle.global_mem_size:
            raise DeviceMemoryTooSmall(f"the device has {handle.global_mem_size / MB:.0f} MB")
        largest = min(handle.max_mem_alloc_size, MAX_PIECE)
        self.piece = largest // direct_io.ALIGNMENT * direct_io.ALIGNMENT
        self.pieces = []  # gives the earlier ones back before new ones are asked for
        self.pieces = self._buffers(size)

    def _buffers(self, size: int) -> list[cl.Buffer]:
        flags = cl.mem_flags.READ_WRITE
        starts = range(0, size, self.piece)
        try:
            return [cl.Buffer(self.context, flags, min(self.piece, size - start)) for start in starts]
        except cl.MemoryError as error:
            raise DeviceMemoryTooSmall(str(error)) from error

    def fill_device(self, size: int, seed: int) -> None:
        """Fill the device with ``size`` bytes of pattern, and touch staging for the largest layout."""
        self.allocate(size)
        try:
            for index, buffer in enumerate(self.pieces):
                first = np.uint64(index * self.piece // WORD)
                self._launch("pattern", buffer.size // WORD, buffer, first, np.uint64(seed))
            self.queue.finish()
        except cl.MemoryError as error:  # drivers may allocate at the first use only
            raise DeviceMemoryTooSmall(str(error)) from error
        self.slots = [touched(slot) for slot in self._stage(direct_io.layout(size))]

    def digest(self, size: int) -> int:
        """Compute a checksum of the first ``size`` bytes of the data, on the device."""
        on_cpu = self.device.kind == "cpu"  # a processor reads runs, a GPU reads neighbours together
        items = 16 * self.device.handle.max_compute_units if on_cpu else 1 << 16
        step = 1 if on_cpu else items
        sums = np.empty(items, dtype=np.uint64)
        partial = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, sums.nbytes)
        total = 0
        for index, buffer in enumerate(self.pieces):
            start = index * self.piece
            count = min(buffer.size, size - start) // WORD
            if count <= 0:
                break
            numbers = (np.uint64(count), np.uint64(start // WORD), np.uint64(step))
            self._launch("digest", items, buffer, *numbers, partial)
            cl.enqueue_copy(self.queue, sums, partial)
            total += int(sums.sum(dtype=np.uint64))
        return total % 2**64

    def copy(self, size: int) -> dict[str, float]:
        """Copy device to host and host to device, through the staging buffers, without any file.

        What was copied out goes back to its place, so that the data stay as they were. ``copy_new_s`` is
        host to device once more, into memory allocated just now, as in a restart.
        """
        slots = self._slots_for(size)
        chunk = len(slots[0])
        out_s = in_s = 0.0
        for group in range(0, size, chunk * len(slots)):
            parts = [
                (slot[: min(chunk, size - offset)], offset)
                for slot, offset in zip(slots, range(group, size, chunk), strict=False)
            ]
            start = time.monotonic()
            for view, offset in parts:
                self._copy_out(view, offset)
            middle = time.monotonic()
            for view, offset in parts:
                self._copy_in(view, offset)
            self.queue.finish()
            out_s, in_s = out_s + middle - start, in_s + time.monotonic() - middle
        return {"copy_out_s": out_s, "copy_in_s": in_s, "copy_new_s": self._copy_new(size)}

    def _copy_new(self, size: int) -> float:
        slots, kept = self._slots_for(size), self.pieces
        chunk = len(slots[0])
        start = time.monotonic()
        self.pieces = self._buffers(size)
        try:
            for index, offset in enumerate(range(0, size, chunk)):
                self._copy_in(slots[index % len(slots)][: min(chunk, size - offset)], offset)
            self.queue.finish()
            return time.monotonic() - start
        except cl.MemoryError as error:  # drivers may allocate at the first use only
            raise DeviceMemoryTooSmall(str(error)) from error
        finally:
            self.pieces = kept

    def write_and_read(self, path: str, size: int) -> dict[str, Any]:
        """Write a file from staging and read the file back, without any copy from or to the device."""
        slots = self._slots_for(size)
        for index, slot in enumerate(slots):  # a job's data, because zeros may be stored for nothing
            offset = index * len(slot)
            self._copy_out(slot[: min(len(slot), size - offset)], offset)
        start = time.monotonic()
        io = direct_io.write(Path(path), size, slots, _nothing)
        middle = time.monotonic()
        direct_io.read(Path(path), size, slots, _nothing)
        return {"write_s": middle - start, "read_s": time.monotonic() - middle, "io": io}

    def checkpoint(self, path: str, size: int) -> dict[str, Any]:
        """Drain the queue and bring ``size`` bytes to the storage, copies and writes overlapped."""
        start = time.monotonic()
        self.queue.finish()
        io = direct_io.write(Path(path), size, self._slots_for(size), self._copy_out)
        end = time.monotonic()
        return {"seconds": end - start, "started": start, "io": io}

    def restart(self, path: str, size: int) -> dict[str, Any]:
        """Bring the data of ``path`` into this device, in a process whose session was opened just now.

        ``seconds`` counts the opening of the session but not the compilation (K, kept apart).
        """
        start = time.monotonic()
        slots = self._stage(direct_io.layout(size))
        self.allocate(size)
        io = direct_io.read(Path(path), size, slots, self._copy_in)
        self.queue.finish()
        end = time.monotonic()
        return {"seconds": self.context_s + end - start, "ended": end, "io": io, **self.opened()}

    def restore(self, path: str, size: int) -> dict[str, Any]:
        """Read the data of ``path`` into the memory that is held already, through touched staging."""
        start = time.monotonic()
        io = direct_io.read(Path(path), size, self._slots_for(size), self._copy_in)
        self.queue.finish()
        return {"seconds": time.monotonic() - start, "io": io}

    def drain(self, kernels: int) -> float:
        """Time a queue of ``kernels`` short kernels until it is empty, in seconds (0: the cost of asking).

        A long kernel holds the queue back while the queue is filled, because a driver starts at once. Time
        runs from the end of that kernel to the end of the last, by the device's own clock.

        Raises:
            QueueNotFilled: the long kernel was over before the queue was full, however long it was.
        """
        self.queue.finish()
        if not kernels:
            start = time.monotonic()
            self.queue.finish()
            return time.monotonic() - start
        queue = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        held_s = max(_SPIN_S, 4e-5 * kernels)
        for _ in range(4):
            blocker = self._launch(
                "spin", 1, self._cell, np.uint64(held_s * self._rounds_per_s()), queue=queue
            )
            queue.flush()
            for _ in range(kernels):
                last = self._launch("tick", 1, self._cell, queue=queue)
            running = blocker.command_execution_status != cl.command_execution_status.COMPLETE
            last.wait()
            if running:
                return float(last.profile.end - blocker.profile.end) * 1e-9
            held_s *= 3
        raise QueueNotFilled(f"the driver does not queue {kernels} kernels")

    def _rounds_per_s(self) -> float:
        """Measure the speed of ``spin``, once."""
        if not self._spin_rate:
            rounds, seconds = 1000, 0.0
            while seconds < 0.01:
                rounds *= 4
                start = time.monotonic()
                self._launch("spin", 1, self._cell, np.uint64(rounds)).wait()
                seconds = time.monotonic() - start
            self._spin_rate = rounds / seconds
        return self._spin_rate

    def _stage(self, layout: direct_io.ChunkLayout) -> list[Bytes]:
        """Allocate staging, aligned for direct I/O and pinned, so that the device copies at full speed."""
        length = layout.chunk + direct_io.ALIGNMENT
        memory = [pinned(self.context, self.queue, length) for _ in range(layout.slots)]
        self._pinned = [buffer for buffer, _ in memory]
        return [_aligned(view)[: layout.chunk] for _, view in memory]

    def _slots_for(self, size: int) -> list[Bytes]:
        """Cut the touched staging for a file of ``size`` bytes."""
        chunk, slots = direct_io.layout(size)
        return [slot[:chunk] for slot in self.slots[:slots]]

    def _copy_out(self, view: Bytes, offset: int) -> None:
        for buffer, within, part in self._parts(view, offset):
            cl.enqueue_copy(self.queue, part, buffer, src_offset=within)

    def _copy_in(self, view: Bytes, offset: int) -> None:
        for buffer, within, part in self._parts(view, offset):
            cl.enqueue_copy(self.queue, buffer, part, dst_offset=within)

    def _parts(self, view: Bytes, offset: int) -> list[tuple[cl.Buffer, int, Bytes]]:
        """Cut ``view`` where one buffer of the device ends and the next begins."""
        parts = []
        done = 0
        while done < len(view):
            index, within = divmod(offset + done, self.piece)
            count = min(len(view) - done, self.piece - within)
            parts.append((self.pieces[index], within, view[done : done + count]))
            done += count
        return parts


def _aligned(memory: Bytes) -> Bytes:
    """Cut ``memory`` to begin at its first aligned address."""
    return memory[-memory.ctypes.data % direct_io.ALIGNMENT :]


def _nothing(view: Bytes, offset: int) -> None:
    """Leave the chunk as it is."""
