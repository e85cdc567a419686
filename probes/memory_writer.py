"""A writer: a process on one core that writes to memory at cache-line stride.

By itself a writer is a graded load, here 40 % of what the core can write, for ten seconds:

    python -P -m probes.memory_writer --core 1 --intensity 40 --seconds 10 --area-mb 128

With ``--serve`` the writer takes orders on stdin, one JSON object a line, and answers each on stdout (see
``probes.memory``). It ends when stdin does, so it never outlives its parent.
Method: Konishi, Nomura, Matsuba, Ishikawa (2008), "memprobe".
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import mmap
import os
import platform
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

HUGE = 2 * 2**20  # transparent huge pages: without them the walk measures the TLB
CHUNK = 2 * 2**20  # about 0.1 ms of writing: fine enough to end on time, coarse enough to hide Python

# The C library has no mbind(2), and libnuma need not be there. Numbers from each architecture's unistd.h.
MBIND = {"x86_64": 237, "aarch64": 235, "riscv64": 235, "ppc64le": 259}
MPOL_PREFERRED = 1


class Area:
    """Memory that is written line by line, chunk after chunk, round and round.

    Pages land on the NUMA node of the CPU that creates the area (first touch).
    """

    def __init__(self, size_mb: float, line_bytes: int = 64) -> None:
        size = max(math.ceil(size_mb * 2**20 / CHUNK), 1) * CHUNK
        mapping = mmap.mmap(-1, size + 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole = np.frombuffer(mapping, dtype=np.int64)
        base = whole.ctypes.data
        # Never at the very start: the kernel would then count our pages together with a neighbour's.
        skip = HUGE - base % HUGE
        with suppress(OSError):  # a kernel without huge pages: slower, and still right
            mapping.madvise(mmap.MADV_HUGEPAGE, skip, size)
        words = whole[skip // 8 : (skip + size) // 8]
        stride = line_bytes // 8
        self.address = base + skip
        self.size = size
        self.line_bytes = line_bytes
        self._chunks = [words[i : i + CHUNK // 8 : stride] for i in range(0, len(words), CHUNK // 8)]
        self._next = 0
        self._value = 0
        for _ in self._chunks:
            self.write_chunk()

    def write_chunk(self) -> int:
        """Store 8 bytes in every line of the next chunk; return the bytes of lines written."""
        chunk = self._chunks[self._next]
        # A changing value, never 0: some processors drop writes of zeros, or of what is there already.
        self._value = self._value % 1000 + 1
        chunk[...] = self._value
        self._next = (self._next + 1) % len(self._chunks)
        return len(chunk) * self.line_bytes

    def stay_on(self, node: int) -> bool:
        """Keep the kernel's automatic NUMA balancing from moving the pages to where they are used.

        The kernel leaves memory with a policy alone; where none can be set, ``placed_on`` still tells.
        """
        number = MBIND.get(platform.machine())
        if number is None:
            return False
        bits = 8 * ctypes.sizeof(ctypes.c_ulong)
        mask = (ctypes.c_ulong * (node // bits + 1))()
        mask[node // bits] = 1 << (node % bits)
        numbers = (self.address, self.size, MPOL_PREFERRED, ctypes.addressof(mask), len(mask) * bits + 1, 0)
        syscall = ctypes.CDLL(None).syscall
        return bool(syscall(ctypes.c_long(number), *map(ctypes.c_ulong, numbers)) == 0)


@dataclass
class Pace:
    """Pace of a writer: ``intensity`` (0-1) is the share of the time spent writing.

    The writer writes until the share due at the end of a period is reached, then sleeps. What a period
    overshoots or misses goes into the next, but no more than ``forgive_s``; else a writer that was stopped
    for a minute would write at full speed for the next minute.
    """

    intensity: float
    period_s: float = 0.004
    forgive_s: float = 0.1
    _forgiven_s: float = 0.0

    def rest_s(self, elapsed_s: float, busy_s: float) -> float:
        """Compute seconds to sleep now (0: write on), from the time so far and the part spent writing."""
        missed = self.intensity * elapsed_s - self._forgiven_s - busy_s - self.forgive_s
        self._forgiven_s += max(missed, 0.0)
        end = (int(elapsed_s / self.period_s) + 1) * self.period_s
        due = self.intensity * end - self._forgiven_s
        return end - elapsed_s if busy_s >= due else 0.0


@dataclass(frozen=True)
class Written:
    """A window of one writer (monotonic clock, the same for all processes)."""

    start_s: float
    wall_s: float
    thread_cpu_s: float
    bytes: int
    placed: float | None = None  # share of the area on the wanted NUMA node; None: not looked at


def write(area: Area, seconds: float, intensity: float = 1.0) -> Written:
    """Write for ``seconds``, at ``intensity`` (0-1) of the time."""
    pace = Pace(intensity)
    written = 0
    start, cpu = time.monotonic(), time.thread_time()
    with suppress(KeyboardInterrupt):  # a load that is told to stop still reports
        while (elapsed := time.monotonic() - start) < seconds:
            # At full speed the CPU clock is not read: that takes a system call for every 0.1 ms of writing.
            rest = 0.0 if intensity >= 1 else pace.rest_s(elapsed, time.thread_time() - cpu)
            if rest:
                time.sleep(min(rest, seconds - elapsed))
            else:
                written += area.write_chunk()
    return Written(start, time.monotonic() - start, time.thread_time() - cpu, written)


def placement(numa_maps: Iterable[str], address: int) -> dict[int, int]:
    """Count pages per NUMA node of the mapping that holds ``address``, in lines of /proc/self/numa_maps."""
    best, pages = -1, dict[int, int]()
    for line in numa_maps:
        fields = line.split()
        start = int(fields[0], 16)
        if best < start <= address:
            best = start
            counts = (field[1:].split("=") for field in fields if field[0] == "N" and "=" in field)
            pages = {int(node): int(count) for node, count in counts}
    return pages


def placed_on(area: Area, node: int, procfs: Path = Path("/proc")) -> float | None:
    """Compute the share of the area's pages on ``node``; None where the kernel does not tell."""
    try:
        pages = placement((procfs / "self/numa_maps").read_text().splitlines(), area.address)
    except OSError:
        return None
    return pages.get(node, 0) / sum(pages.values()) if pages else None


def make_area(core: int, touch_core: int, size_mb: float, line_bytes: int) -> Area:
    """Make an area on the NUMA node of ``touch_core``; afterwards this process is on ``core``."""
    os.sched_setaffinity(0, {touch_core})
    area = Area(size_mb, line_bytes)
    os.sched_setaffinity(0, {core})
    return area


class WriterServer:
    """Orders carried out: ``place`` makes the area for one NUMA node, ``write`` writes through it."""

    def __init__(self, core: int, line_bytes: int) -> None:
        self.core = core
        self.line_bytes = line_bytes
        self.areas: dict[int, Area] = {}

    def place(self, node: int, touch_core: int, size_mb: float) -> dict[str, Any]:
        if node not in self.areas:
            self.areas[node] = make_area(self.core, touch_core, size_mb, self.line_bytes)
            self.areas[node].stay_on(node)
        return {"node": node}

    def write(
        self,
        *,
        node: int,
        start_s: float,
        warm_s: float,
        seconds: float,
        check: bool = False,
        intensity: float = 1.0,
    ) -> dict[str, Any]:
        area = self.areas[node]
        time.sleep(max(start_s - warm_s - time.monotonic(), 0.0))
        write(area, start_s - time.monotonic())  # uncounted: wakes the core, fills the cache with our lines
        done = asdict(write(area, start_s + seconds - time.monotonic(), intensity))
        return done | {"placed": placed_on(area, node) if check else None}


def serve(core: int, line_bytes: int) -> None:
    """Answer orders until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends us by our stdin
    os.sched_setaffinity(0, {core})
    server = WriterServer(core, line_bytes)
    print(json.dumps({"ready": core}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        carry_out = server.place if order.pop("do") == "place" else server.write
        try:
            answer = carry_out(**order)
        except OSError as error:  # no memory, core gone
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -P -m probes.memory_writer", description=__doc__)
    parser.add_argument("--core", type=int, required=True, help="CPU to write from")
    parser.add_argument(
        "--touch-core", type=int, help="CPU whose NUMA node gets the memory (default: --core)"
    )
    parser.add_argument("--area-mb", type=float, default=256, help="at least 4 times the last-level cache")
    parser.add_argument("--line-bytes", type=int, default=64, choices=(32, 64, 128, 256))
    parser.add_argument("--intensity", type=float, default=100, help="percent of the time spent writing")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--serve", action="store_true", help="take orders on stdin")
    args = parser.parse_args()
    if not 0 <= args.intensity <= 100:
        parser.error(f"--intensity {args.intensity:g}: must be from 0 to 100 (percent)")
    if not args.area_mb > 0:
        parser.error(f"--area-mb {args.area_mb:g}: must be more than 0")
    if not args.seconds >= 0:
        parser.error(f"--seconds {args.seconds:g}: must be 0 or more")
    try:
        if args.serve:
            serve(args.core, args.line_bytes)
            return
        touch_core = args.core if args.touch_core is None else args.touch_core
        area = make_area(args.core, touch_core, args.area_mb, args.line_bytes)
    except OSError as error:
        parser.error(f"--core {args.core} --area-mb {args.area_mb:g}: {error}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    print(json.dumps(asdict(write(area, args.seconds, args.intensity / 100))))


if __name__ == "__main__":
    main()
