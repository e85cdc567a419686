"""Program that keeps a core busy and counts its work: ``python -m probes.power_load KIND FILE SLOT MB``.

``compute`` takes logarithms, roots and sines of an array in the first-level cache, as NAS EP does; ``memory``
copies through an area too large for any cache. After each quantum (well under 1 ms of running time) the
program publishes the time, the work done and the CPU time used. It runs until it is killed or orphaned.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from probes.loads import SINGLE_THREAD
from profiles.errors import UserError

SLOT = struct.Struct("ddd")  # time (s, monotonic), work done, CPU time used (s)
SLOT_BYTES = 64  # a cache line each, so that the loads do not slow each other down
CHUNK_MB = 0.25


def compute() -> Callable[[], float]:
    """Make a quantum: log, square root and sine of 2,000 numbers, four times; its work in numbers."""
    import numpy as np  # here, because others only look for loads

    source = np.linspace(0.1, 0.9, 2000)
    target = np.empty_like(source)

    def quantum() -> float:
        for _ in range(4):
            np.log(source, out=target)
            np.multiply(target, -2.0, out=target)
            np.sqrt(target, out=target)
            np.sin(target, out=target)
        return 4.0 * len(source)

    return quantum


def memory(area_mb: float) -> Callable[[], float]:
    """Make a quantum: copy a chunk to the area's other half, round and round; its work in bytes moved."""
    import numpy as np

    chunk = int(CHUNK_MB * 2**20) // 8
    half = max(int(area_mb / 2 / CHUNK_MB), 1) * chunk
    source, target = np.ones(half), np.zeros(half)
    position = 0

    def quantum() -> float:
        nonlocal position
        np.copyto(target[position : position + chunk], source[position : position + chunk])
        position = (position + chunk) % half
        return 16.0 * chunk

    return quantum


def main(kind: str, file: Path, slot: int, area_mb: float) -> None:
    quantum = compute() if kind == "compute" else memory(area_mb)
    parent = os.getppid()
    with file.open("r+b") as handle, mmap.mmap(handle.fileno(), 0) as shared:
        work = 0.0
        quanta = 0
        while quanta % 256 or os.getppid() == parent:
            work += quantum()
            quanta += 1
            SLOT.pack_into(shared, slot * SLOT_BYTES, time.monotonic(), work, time.thread_time())


# -- a load on every core, started, watched and stopped together -------------------------------------------


MARK = "TENBIN_LOAD"  # in a load's environment: its kind, which tells loads from other processes
START_S = 20.0
PRIORITY = -5


@dataclass(frozen=True)
class LoadProgress:
    """State of a load at the end of its last quantum."""

    time_s: float
    work: float
    cpu_s: float  # time on its core
    wait_s: float  # time in which another process had its core


def speed(before: list[LoadProgress], after: list[LoadProgress]) -> float | None:
    """Compute the work a second of all loads, as if no other process had used their cores.

    For each load it is work by CPU time, times the share of the time in which the load ran or waited. A cap
    that lowers the frequency shows in the first factor, a cap that stops the load in the second; another
    process that takes the core shows in neither. None if a load got no time at all.
    """
    total = 0.0
    for b, a in zip(before, after, strict=True):
        cpu_s, passed_s = a.cpu_s - b.cpu_s, a.time_s - b.time_s
        if cpu_s <= 0 or passed_s <= 0:
            return None
        total += (a.work - b.work) / cpu_s * (cpu_s + a.wait_s - b.wait_s) / passed_s
    return total


class Loads:
    """``kind`` (compute or memory) on each of ``cores``, from the start to the end of the context.

    Raises:
        UserError: a load did not start, or has died (then also from ``read``).
    """

    def __init__(self, kind: str, cores: list[int], area_mb: float) -> None:
        self.kind = kind
        self._processes: list[subprocess.Popen[bytes]] = []
        handle, name = tempfile.mkstemp(prefix="tenbin-load-")
        self._file = Path(name)
        os.truncate(handle, SLOT_BYTES * len(cores))
        self._shared = mmap.mmap(handle, 0)
        os.close(handle)
        try:
            for slot, core in enumerate(cores):
                self._processes.append(self._start(slot, core, area_mb))
            self._wait_for_start()
            self._file.unlink()  # all have it open: nothing stays behind, even if this process is killed
        except BaseException:
            self.close()
            raise

    def read(self) -> list[LoadProgress]:
        """Read the state of each load."""
        return [self._read(slot) for slot in range(len(self._processes))]

    def close(self) -> None:
        for process in self._processes:
            process.kill()  # also ends one that is stopped
        for process in self._processes:
            process.wait()
        self._shared.close()
        self._file.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, slot: int, core: int, area_mb: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "probes.power_load", self.kind, str(self._file), str(slot)]
        process = subprocess.Popen(
            [*command, str(area_mb)],
            env={**os.environ, **SINGLE_THREAD, MARK: self.kind},
            stdin=subprocess.DEVNULL,
        )
        os.sched_setaffinity(process.pid, {core})
        with suppress(PermissionError):  # root only: background processes then disturb less
            os.setpriority(os.PRIO_PROCESS, process.pid, PRIORITY)
        return process

    def _wait_for_start(self) -> None:
        deadline = time.monotonic() + START_S
        while not all(progress.work for progress in self.read()):
            if time.monotonic() > deadline:
                raise UserError(f"the {self.kind} load did not start within {START_S:.0f} s")
            time.sleep(0.01)

    def _read(self, slot: int) -> LoadProgress:
        process = self._processes[slot]
        if process.poll() is not None:
            raise UserError(f"a {self.kind} load died (exit {process.returncode})", "is there memory enough?")
        time_s, work, cpu_s = SLOT.unpack_from(self._shared, slot * SLOT_BYTES)
        return LoadProgress(time_s, work, cpu_s, _waited_s(process.pid))


def _waited_s(pid: int) -> float:
    """Read how long a process waited for a core; 0 where the kernel does not tell (CONFIG_SCHED_INFO)."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
