"""Copies between host and device, each way and both ways at once, with a comparison of the data."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from probes.opencl.session import PAGE, Bytes, WrongResult, pinned, touched

SIZE = 64 << 20  # bytes of a copy
BATCH_S = 0.03
MOST_TIMES = 100


class HostCopies:
    """Copies of at most ``SIZE`` bytes.

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
        self.size = min(SIZE, self.target.size)
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
            self._times[memory] = min(max(round(BATCH_S / seconds), 1), MOST_TIMES)
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
