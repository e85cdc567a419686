"""Session of a process with one device: runs, checks and times the kernels of ``device_kernels.cl``.

Times of memory and arithmetic are the device's own where the driver tells them (profiling events), those of
launches and copies are of the host's clock. The first run of each kernel is not counted: it compiles, and it
finds the width of vectors that is fastest here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyopencl as cl
from numpy.typing import NDArray

from probes import opencl
from probes.opencl import PAGE, Bytes, DeviceMemoryTooSmall, WrongResult, pinned, touched

COPY_BYTES = 64 << 20  # bytes of a copy
COPIES_S = 0.03
MOST_TIMES = 100


class HostCopies:
    """Copies of at most ``COPY_BYTES`` bytes.

    Args:
        queues: two, so that two copies can run at once.
        buffers: one of the device that holds ``block`` over and over, and one to overwrite.
        block: numbers whose bytes divide the size of the buffers.
    """

    def __init__(
        self,
        queues: tuple[cl.CommandQueue, cl.CommandQueue],
        buffers: tuple[cl.Buffer, cl.Buffer],
        block: NDArray[np.float32],
    ) -> None:
        self.plain, self.queue = queues
        self.source, self.target = buffers
        self.block = block.view(np.uint8)
        self.size = min(COPY_BYTES, self.target.size)
        self._host: dict[str, tuple[Bytes, Bytes]] = {}
        self._times: dict[str, int] = {}
        self._turn = 0

    def there_and_back(self, memory: str) -> dict[str, Any]:
        """Copy to the device and back, from ``pinned`` or ``pageable`` memory, and compare.

        Raises:
            WrongResult: what comes back is not what went.
        """
        out, back = self._memory(memory)
        self._stain(out)
        times = self._repeats(memory, out)
        to_s = self._copy_time(times, lambda: self._to_device(out, self.plain))
        from_s = self._copy_time(times, lambda: self._from_device(back, self.plain, self.target))
        if not np.array_equal(out, back):
            raise WrongResult(f"what was copied from {memory} memory came back changed")
        return {"bytes": times * self.size, "to_s": to_s, "from_s": from_s, "launches": times}

    def at_once(self) -> dict[str, Any]:
        """Copy each way alone, then both ways at the same time by two queues, in pinned memory.

        Raises:
            WrongResult: a copy has changed the data.
        """
        out, back = self._memory("pinned")
        self._stain(out)
        times = self._repeats("pinned", out)

        def both() -> list[cl.Event]:
            return [*self._to_device(out, self.plain), *self._from_device(back, self.queue, self.source)]

        to_s = self._copy_time(times, lambda: self._to_device(out, self.plain))
        from_s = self._copy_time(times, lambda: self._from_device(back, self.queue, self.source))
        cl.enqueue_fill_buffer(self.queue, self.target, np.zeros(1, np.uint8), 0, self.size).wait()
        back[::PAGE] ^= 255
        both_s = self._copy_time(times, both)
        arrived = self._memory("pageable")[1]
        cl.enqueue_copy(self.queue, arrived, self.target)
        whole = np.resize(self.block, self.size)
        if not (np.array_equal(arrived, out) and np.array_equal(back, whole)):
            raise WrongResult("two copies at once changed the data")
        return {"bytes": times * self.size, "to_s": to_s, "from_s": from_s, "both_s": both_s}

    def _memory(self, memory: str) -> tuple[Bytes, Bytes]:
        """Return two pieces of host memory, touched, the first with random bytes."""
        if memory not in self._host:
            if memory == "pinned":
                made = [pinned(self.plain.context, self.plain, self.size) for _ in range(2)]
                self._pinned = [buffer for buffer, _ in made]
                out, back = (view for _, view in made)
            else:
                out, back = (np.empty(self.size, np.uint8) for _ in range(2))
            for start in range(0, self.size, len(self.block)):
                out[start : start + len(self.block)] = self.block
            self._host[memory] = out, touched(back)
        return self._host[memory]

    def _stain(self, memory: Bytes) -> None:
        """Change a byte of each page, so that an old copy shows."""
        self._turn += 1
        memory[::PAGE] = self._turn % 251

    def _repeats(self, memory: str, out: Bytes) -> int:
        """Choose the number of copies that take long enough together, by the second of two."""
        if memory not in self._times:
            seconds = [self._copy_time(1, lambda: self._to_device(out, self.plain)) for _ in range(2)][1]
            self._times[memory] = min(max(round(COPIES_S / seconds), 1), MOST_TIMES)
        return self._times[memory]

    def _copy_time(self, times: int, copy: Callable[[], list[cl.Event]]) -> float:
        start = time.perf_counter()
        # All are kept until the end: pyopencl waits for the event of a copy before it forgets it.
        events = [event for _ in range(times) for event in copy()]
        for queue in (self.plain, self.queue):
            queue.flush()
        for event in events:  # finish() of rusticl (Mesa 22.3) does not wait for what was flushed
            event.wait()
        return time.perf_counter() - start

    def _to_device(self, memory: Bytes, queue: cl.CommandQueue) -> list[cl.Event]:
        return [cl.enqueue_copy(queue, self.target, memory, is_blocking=False)]

    def _from_device(self, memory: Bytes, queue: cl.CommandQueue, buffer: cl.Buffer) -> list[cl.Event]:
        return [cl.enqueue_copy(queue, memory, buffer, is_blocking=False)]


SOURCE = Path(__file__).with_name("device_kernels.cl").read_text()
REALS = {"half": "half", "single": "float", "double": "double"}
TYPES: dict[str, Any] = {"half": np.float16, "single": np.float32, "double": np.float64}
KERNELS = {"write": "write_each", "copy": "copy_each"}
BLOCK = 16 << 20  # bytes of random numbers that fill an array, over and over
LEAST = {"cpu": 128 << 20}  # bytes of an array; of other kinds LEAST_ELSEWHERE
LEAST_ELSEWHERE, MOST = 512 << 20, 1 << 30
CACHES = 4  # an array is so many times the caches
FETCHES, CHAINS, ROUNDS = 16, 8, 1024  # ROUNDS: half precision counts exactly to 2048
LOCAL, MOST_ITEMS = 256, 1 << 22
LAUNCHES = 100
BATCH_S, TRIAL_S = 0.03, 0.005
SAMPLES, SAMPLE = 8, 64 << 10  # parts of an array that are checked after each batch, and their bytes


@dataclass(frozen=True)
class Variant:
    """A kernel built for vectors of ``width``, for so many work-items in groups of ``local``."""

    kernel: cl.Kernel
    width: int
    items: int
    local: int
    launch_s: float = 0.0


@dataclass(frozen=True)
class Timed:
    """Seconds of some launches together; ``timer``: ``device`` or ``host``."""

    seconds: float
    launches: int
    timer: str


def array_bytes(handle: Any, kind: str) -> int:
    """Choose the size of an array: beyond the caches, an eighth of the memory at most.

    Raises:
        DeviceMemoryTooSmall: not even the smallest array fits.
    """
    target = min(max(CACHES * handle.global_mem_cache_size, LEAST.get(kind, LEAST_ELSEWHERE)), MOST)
    room = min(handle.max_mem_alloc_size, handle.global_mem_size // 8)
    if kind == "cpu":
        room = min(room, psutil.virtual_memory().available // 8)
    size: int = min(target, room) // BLOCK * BLOCK
    if not size:
        raise DeviceMemoryTooSmall(f"an array of {BLOCK >> 20} MiB has no room")
    return size


class DeviceBench:
    """A device with its context, queues, arrays and kernels."""

    def __init__(self, key: str) -> None:
        self.device = opencl.find([key])[0]
        handle = self.handle = self.device.handle
        self.context = cl.Context([handle])
        profiling: Any = cl.command_queue_properties.PROFILING_ENABLE
        self.profiled = bool(handle.queue_properties & profiling)
        self.plain = cl.CommandQueue(self.context)
        options = {"properties": profiling} if self.profiled else {}
        self.queue = cl.CommandQueue(self.context, **options)
        self.size = array_bytes(handle, self.device.kind)
        self.rng = np.random.default_rng(1)
        self.block = self.rng.integers(0, 256, BLOCK // 4).astype(np.float32)
        self._programs: dict[tuple[str, int], cl.Program] = {}
        self._variants: dict[str, Variant] = {}
        self._start: cl.Buffer | None = None
        self._turn = 0
        self._allocate()
        self._copies = HostCopies((self.plain, self.queue), (self.source, self.target), self.block)

    def _allocate(self) -> None:
        flags = cl.mem_flags.READ_WRITE
        try:
            self.source, self.target = (cl.Buffer(self.context, flags, self.size) for _ in range(2))
            self.sums = cl.Buffer(self.context, flags, max(self.size // FETCHES, 4 * MOST_ITEMS))
            for offset in range(0, self.size, BLOCK):
                cl.enqueue_copy(self.queue, self.source, self.block, dst_offset=offset)
            self._fill(0, 0, self.size)
            self.queue.finish()
        except cl.MemoryError as error:  # some drivers allocate at the first use only
            raise DeviceMemoryTooSmall(str(error)) from error

    def opened(self) -> dict[str, Any]:
        """Report what the device can do, and the sizes in use."""
        extensions = self.handle.extensions.split()
        return {
            "half": "cl_khr_fp16" in extensions,
            "double": "cl_khr_fp64" in extensions,
            "array_bytes": self.size,
            "cache_bytes": self.handle.global_mem_cache_size,
        }

    # -- kernels -------------------------------------------------------------------------------------

    def bandwidth(self, kernel: str) -> dict[str, Any]:
        """Read, write or copy arrays for some time, and check the result.

        Raises:
            WrongResult: it is wrong.
        """
        variant = self._variants.get(kernel) or self._fastest(kernel, self._bandwidth_variants(kernel))
        self._arguments(kernel, variant)
        parts = self._soil(SAMPLES)
        timed = self._time(variant, max(round(BATCH_S / variant.launch_s), 1))
        self._check_arrays(kernel, variant, parts)
        moved = self.size * (2 if kernel == "copy" else 1) * timed.launches
        return {"bytes": moved, "width": variant.width, **vars(timed)}

    def arithmetic(self, precision: str) -> dict[str, Any]:
        """Multiply and add in registers for some time, and check the result; a multiply-add counts as two.

        Raises:
            WrongResult: it is wrong.
        """
        variant = self._variants.get(precision) or self._fastest(precision, self._adders(precision))
        self._add_arguments(precision, variant)
        timed = self._time(variant, max(round(BATCH_S / variant.launch_s), 1))
        self._check_sums(variant)
        flops = 2 * CHAINS * ROUNDS * variant.width * variant.items * timed.launches
        return {"flops": flops, "width": variant.width, **vars(timed)}

    def _bandwidth_variants(self, kernel: str) -> list[Variant]:
        """Build the kernel for four numbers a vector, and for the device's own width."""
        on_cpu = self.device.kind == "cpu"
        name = KERNELS.get(kernel) or ("read_along" if on_cpu else "read_across")
        variants = []
        for width in sorted({4, max(self._native_width("single"), 4)}):
            built = self._build(name, "single", width)
            items = self.size // 4 // width // (FETCHES if kernel == "read" else 1)
            variant = Variant(built, width, items, self._local(built))
            self._arguments(kernel, variant)
            variants.append(self._tried(variant))
        return variants

    def _adders(self, precision: str) -> list[Variant]:
        """Build multiply-adds for two numbers a vector, for the device's own width and for twice that."""
        native, variants = self._native_width(precision), []
        for width in sorted({2, native, min(2 * native, 16)}):
            built = self._build("multiply_add", precision, width)
            local = self._local(built)
            items = self.handle.max_compute_units * local * 4
            variant = Variant(built, width, items, local)
            self._add_arguments(precision, variant)
            variant = self._tried(variant)
            while variant.launch_s < TRIAL_S and 2 * variant.items <= MOST_ITEMS:
                variant = self._tried(Variant(built, width, 2 * variant.items, local))
            variants.append(variant)
        return variants

    def _fastest(self, name: str, variants: list[Variant]) -> Variant:
        """Keep the variant with most work a second; check all of what it did, where that is an array."""
        best = max(variants, key=lambda variant: variant.items * variant.width / variant.launch_s)
        self._variants[name] = best
        if name in ("write", "copy"):
            self._arguments(name, best)
            parts = self._soil(0)
            self._time(best, 1)
            self._check_arrays(name, best, parts)
        return best

    def _tried(self, variant: Variant) -> Variant:
        """Run the variant a few times, and note the shortest time of a launch."""
        self._time(variant, 1)
        launch_s = min(self._time(variant, 1).seconds for _ in range(3))
        return Variant(variant.kernel, variant.width, variant.items, variant.local, max(launch_s, 1e-6))

    def _arguments(self, kernel: str, variant: Variant) -> None:
        self._turn += 1
        first = np.float32(self._turn % 1024)
        arguments: dict[str, Any] = {
            "read": (self.source, self.sums),
            "write": (self.target, first),
            "copy": (self.source, self.target),
        }
        variant.kernel.set_args(*arguments[kernel])

    def _add_arguments(self, precision: str, variant: Variant) -> None:
        kind = TYPES[precision]
        start = np.arange(CHAINS * variant.width).astype(kind)
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        self._start = cl.Buffer(self.context, flags, hostbuf=start)
        variant.kernel.set_args(self._start, self.sums, kind(1), kind(1), np.int32(ROUNDS))

    def _native_width(self, precision: str) -> int:
        name = {"single": "float"}.get(precision, precision)
        return max(int(getattr(self.handle, f"native_vector_width_{name}")), 1)

    def _build(self, kernel: str, precision: str, width: int) -> cl.Kernel:
        if (precision, width) not in self._programs:
            options = [f"-DREAL={REALS[precision]}", f"-DWIDTH={width}"]
            self._programs[precision, width] = cl.Program(self.context, SOURCE).build(options=options)
        return cl.Kernel(self._programs[precision, width], kernel)

    def _local(self, kernel: cl.Kernel) -> int:
        """Choose the size of a work-group: a power of two that device and kernel allow."""
        info = cl.kernel_work_group_info.WORK_GROUP_SIZE
        most = min(LOCAL, self.handle.max_work_item_sizes[0], kernel.get_work_group_info(info, self.handle))
        return 1 << (int(most).bit_length() - 1)

    def _launch(self, variant: Variant, queue: cl.CommandQueue) -> cl.Event:
        return cl.enqueue_nd_range_kernel(queue, variant.kernel, (variant.items,), (variant.local,))

    def _time(self, variant: Variant, launches: int) -> Timed:
        """Run launches one after the other; their time is the device's own where it is known and can be."""
        start = time.monotonic()
        events = [self._launch(variant, self.queue) for _ in range(launches)]
        self.queue.finish()
        wall_s = time.monotonic() - start
        if self.profiled:
            own_s = sum(event.profile.end - event.profile.start for event in events) * 1e-9
            if 0 < own_s <= wall_s:
                return Timed(own_s, launches, "device")
        return Timed(wall_s, launches, "host")

    # -- checks --------------------------------------------------------------------------------------

    def _fill(self, byte: int, start: int, length: int) -> None:
        """Fill a part of the target."""
        pattern = np.full(1, byte, np.uint8)
        cl.enqueue_fill_buffer(self.queue, self.target, pattern, start, length)

    def _soil(self, count: int) -> list[int]:
        """Overwrite ``count`` parts of the target (0: all of it), so that an old result shows; list them."""
        starts = range(0, self.size, SAMPLE)
        chosen = [int(start) for start in self.rng.choice(starts, count)] if count else list(starts)
        for start in chosen if count else [0]:
            length = SAMPLE if count else self.size
            self._fill(255, start, length)
        self.queue.finish()
        return chosen

    def _check_arrays(self, kernel: str, variant: Variant, parts: list[int]) -> None:
        if kernel == "read":
            self._check_read(variant)
            return
        part = np.empty(SAMPLE // 4, np.float32)
        for start in parts:
            cl.enqueue_copy(self.queue, part, self.target, src_offset=start)
            if not np.array_equal(part, self._expected(kernel, variant.width, start)):
                raise WrongResult(f"the kernel {kernel} left wrong numbers at byte {start}")

    def _expected(self, kernel: str, width: int, start: int) -> NDArray[np.float32]:
        """Compute what the kernel must leave in the part of the target at byte ``start``."""
        if kernel == "copy":
            begin = start % BLOCK // 4
            return self.block[begin : begin + SAMPLE // 4]
        vectors = np.arange(SAMPLE // 4 // width) + start // 4 // width
        return np.repeat((self._turn % 1024 + (vectors & 255)).astype(np.float32), width)

    def _check_read(self, variant: Variant) -> None:
        """Compare the sum of every work-item; those of one block are those of each."""
        width = variant.width
        sums = np.empty((self.size // BLOCK, BLOCK // 4 // FETCHES // width), np.float32)
        cl.enqueue_copy(self.queue, sums, self.sums)
        if variant.kernel.function_name == "read_along":
            expected = self.block.reshape(-1, FETCHES * width).sum(axis=1)
        else:
            expected = self.block.reshape(-1, FETCHES, variant.local, width).sum(axis=(1, 3)).ravel()
        if not (sums == expected).all():
            raise WrongResult("the kernel read has wrong sums")

    def _check_sums(self, variant: Variant) -> None:
        """Compare the sum of every work-item's multiply-adds."""
        sums = np.empty(variant.items, np.float32)
        cl.enqueue_copy(self.queue, sums, self.sums)
        lanes = CHAINS * variant.width
        start = lanes * (lanes - 1) // 2 + lanes * ROUNDS
        if not (sums.reshape(-1, 16) == start + lanes * np.arange(16)).all():
            raise WrongResult("the kernel multiply_add has wrong sums")

    # -- launches and copies -------------------------------------------------------------------------

    def launches(self) -> dict[str, Any]:
        """Launch a kernel with next to no work, wait for its end, and again.

        ``seconds``: median time from the order to its end; ``queued_s``: until the kernel begins, as the
        driver tells it (None: it does not).

        Raises:
            WrongResult: some launches did nothing.
        """
        kernel = self._build("tick", "single", 4)
        cell = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, 4)
        cl.enqueue_copy(self.queue, cell, np.zeros(1, np.int32))
        kernel.set_args(cell)
        variant = Variant(kernel, 1, 1, 1)
        for queue in (self.queue, self.plain):
            self._launch(variant, queue).wait()
        each_s, queued_s = [], []
        for _ in range(LAUNCHES):
            start = time.perf_counter()
            self._launch(variant, self.plain)
            self.plain.finish()
            each_s.append(time.perf_counter() - start)
        for _ in range(LAUNCHES if self.profiled else 0):
            event = self._launch(variant, self.queue)
            self.queue.finish()
            queued_s.append((event.profile.start - event.profile.queued) * 1e-9)
        count = np.empty(1, np.int32)
        cl.enqueue_copy(self.queue, count, cell)
        if count[0] != 2 + len(each_s) + len(queued_s):
            raise WrongResult("launches of the kernel tick got lost")
        median_s = statistics.median(queued_s) if queued_s and min(queued_s) >= 0 else None
        return {"seconds": statistics.median(each_s), "queued_s": median_s, "launches": LAUNCHES}

    def copies(self, memory: str) -> dict[str, Any]:
        """Copy to the device and back: see ``HostCopies.there_and_back``."""
        return self._copies.there_and_back(memory)

    def copies_at_once(self) -> dict[str, Any]:
        """Copy each way alone, then both ways at the same time: see ``HostCopies.at_once``."""
        return self._copies.at_once()
