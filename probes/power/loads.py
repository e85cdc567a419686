"""A load on every core, started, watched and stopped together."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from probes.loads import SINGLE_THREAD
from probes.power.load import SLOT, SLOT_BYTES
from profiles.errors import UserError

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
        command = [sys.executable, "-P", "-m", "probes.power.load", self.kind, str(self._file), str(slot)]
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
