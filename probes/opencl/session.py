"""Parts of every session with a device: failures that have a name, and host memory for copies."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
PAGE = 4096


class SessionFailure(Exception):
    """An operation that failed; ``kind`` as of ``probes.checkpoint.device_process.Failure``."""

    kind: ClassVar[str]


class DeviceMemoryTooSmall(SessionFailure):
    """The device cannot hold data of the size asked for."""

    kind = "memory"


class WrongResult(SessionFailure):
    """A kernel or a copy whose result is not what it must be."""

    kind = "data"


def pinned(context: cl.Context, queue: cl.CommandQueue, length: int) -> tuple[cl.Buffer, Bytes]:
    """Allocate ``length`` bytes of pinned host memory, from which a device copies at full speed.

    The memory lasts as long as the buffer.
    """
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, length)
    access: Any = cl.map_flags.READ | cl.map_flags.WRITE
    view, _ = cl.enqueue_map_buffer(queue, buffer, access, 0, (length,), np.dtype(np.uint8))
    return buffer, view


def touched(memory: Bytes) -> Bytes:
    """Write to every page once: a first touch costs microseconds, later ones nothing."""
    memory[::PAGE] = 0
    return memory
