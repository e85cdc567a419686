"""Threads pinned to one core each, which run the loops of ``streams.c`` in the same window of time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, Self

from probes.memory.pool import overlap
from probes.memory.writer import Written, placement
from probes.streams.library import KERNELS, Arrays, Cycle, Library, Part, Times, Window
from probes.streams.plan import CHUNK
from probes.topology import LogicalCpu

WARM_S = 0.003
LEAST_FILLED = 0.5  # of the arrays, however late: twice the caches
PIECE = 97 * 89 * 256  # elements filled in one call, 18 MB of each array: Ctrl-C waits no longer


class PinnedThreads:
    """A thread for each core; the cores of a NUMA node share three arrays in its memory (first touch).

    A context: on leaving, every thread has ended and the memory is free.
    """

    def __init__(self, library: Library, cpus: Sequence[LogicalCpu]) -> None:
        self.library = library
        self._cpus = cpus
        self._threads = {cpu.index: ThreadPoolExecutor(1) for cpu in cpus}
        self._ending = Event()
        self._windows = 0
        self._at: dict[int, int] = {}
        self.arrays: dict[int, Arrays] = {}
        self.filled: dict[int, int] = {}  # elements of each array of a node that may be used

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)
        self.arrays.clear()

    def prepare(self, elements: Mapping[int, int], within_s: float) -> None:
        """Pin the threads, and have them fill the arrays of their nodes: half at least, all if ``within_s``.

        Args:
            elements: of each array, by NUMA node.

        Raises:
            OSError: a core cannot be used, or there is not so much memory.
        """
        for cpu in self._cpus:
            self._do(cpu.index, _pin, cpu.index).result()
        self.arrays = {node: Arrays(n) for node, n in elements.items()}
        until_s = time.monotonic() + within_s
        fills: dict[int, list[Future[int]]] = {node: [] for node in elements}
        for node in elements:
            cores = [cpu.index for cpu in self._cpus if cpu.node == node]
            for first, core in enumerate(cores):
                fills[node].append(self._do(core, self._fill, node, first, len(cores), until_s))
        for node, parts in fills.items():
            pieces = min(part.result() for part in parts)
            whole = min(pieces * PIECE, self.arrays[node].elements)
            self.filled[node] = whole // CHUNK * CHUNK

    def _fill(self, node: int, first: int, step: int, until_s: float) -> int:
        """Fill every ``step``-th piece from ``first`` on; return the first that was left out as late."""
        arrays = self.arrays[node]
        pieces = -(-arrays.elements // PIECE)
        for piece in range(first, pieces, step):
            if self._ending.is_set() or (time.monotonic() > until_s and piece > LEAST_FILLED * pieces):
                return piece
            start = piece * PIECE
            self.library.fill(arrays, start, min(PIECE, arrays.elements - start))
        return pieces

    def stream(self, kernel: str, cpus: Sequence[LogicalCpu], seconds: float) -> tuple[list[Written], float]:
        """Run ``kernel`` on ``cpus`` in one window of ``seconds``, each over its part of its node's arrays.

        Returns:
            Each core's window, with bytes as STREAM counts them, and the share of it in which all worked.
        """
        self._windows += 1
        scalar = (
            1.0 + self._windows % 1000
        )  # some processors drop writes of zeros, or of what is there already
        parts = self._parts(cpus)
        begin_s = time.monotonic() + 0.001 + 0.0002 * len(cpus)
        times_s = Times(begin_s, begin_s + WARM_S, begin_s + WARM_S + seconds)
        orders = [
            self._do(cpu.index, self.library.stream, kernel, part, scalar, times_s)
            for cpu, part in zip(cpus, parts, strict=True)
        ]
        done = [_written(order.result(), KERNELS[kernel].bytes) for order in orders]
        for cpu, part in zip(cpus, parts, strict=True):
            self._at[cpu.node] = part.start + part.at.value
        return done, overlap(done, done)

    def _parts(self, cpus: Sequence[LogicalCpu]) -> list[Part]:
        """Share the arrays of each node among its cores.

        Every window goes on where the last one ended, so that it meets what was used the longest ago.
        """
        parts = []
        for i, cpu in enumerate(cpus):
            mine = [k for k, other in enumerate(cpus) if other.node == cpu.node]
            elements = self.filled[cpu.node] // len(mine) // CHUNK * CHUNK
            at = self._at.get(cpu.node, 0) % elements
            parts.append(Part(self.arrays[cpu.node], mine.index(i) * elements, elements, at))
        return parts

    def chase(self, core: int, lines: int, cycle: Cycle, windows_s: Sequence[float]) -> Iterator[Window]:
        """Let the cycle grow to ``lines``, then chase for each of ``windows_s``, the first uncounted."""
        self._do(core, cycle.grow, lines).result()
        self.follow(core, cycle, windows_s[0])
        for seconds in windows_s[1:]:
            yield self.follow(core, cycle, seconds)

    def follow(self, core: int, cycle: Cycle, seconds: float) -> Window:
        """Chase for ``seconds``, from where the last chase of that cycle ended."""
        window: Window = self._do(core, cycle.chase, seconds).result()
        return window

    def placed(self, node: int, procfs: Path = Path("/proc")) -> float | None:
        """Compute the share of a node's arrays that lies on it; None where the kernel does not tell."""
        with suppress(OSError):
            lines = (procfs / "self/numa_maps").read_text().splitlines()
            if pages := placement(lines, self.arrays[node].address):
                return pages.get(node, 0) / sum(pages.values())
        return None

    def _do(self, core: int, function: Callable[..., Any], *arguments: Any, **more: Any) -> Future[Any]:
        return self._threads[core].submit(function, *arguments, **more)


def _pin(core: int) -> None:
    """Keep the calling thread, not the process, on ``core``."""
    os.sched_setaffinity(0, {core})


def _written(window: Window, element_bytes: int) -> Written:
    return Written(window.start_s, window.wall_s, window.cpu_s, window.done * element_bytes)
