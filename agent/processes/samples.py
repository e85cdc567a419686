"""Samples of a job's use of resources: a line a second, in a file of bounded length.

All processes below the supervisor count, and all that it or its descendants have reaped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from agent.processes import tree
from profiles.files.safe_files import read_plain

FIRST_S, LATER_S = 0.1, 1.0  # until the first sample; between samples, after doubling
SHARE = 0.005  # of a core that sampling may take, so that large trees are sampled less often
MOST_ROWS = 1000  # then two rows become one, and rows come half as often
MOST_BYTES = 1 << 20  # a sampler writes less
MOST_COUNTED = 1e18  # larger numbers are damage
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


class Sample(NamedTuple):
    """Use of resources by a job at one moment.

    Attributes:
        at_s: seconds since 1970.
        cpu_s: processor time so far.
        memory_mb: the most resident memory since the row before; a shared page counts for each process.
        read_mb, written_mb: from and to storage so far, with cached writes.
        processes, threads: their numbers now.
        energy_j: energy so far; None without a meter.
    """

    at_s: float
    cpu_s: float
    memory_mb: float
    read_mb: float
    written_mb: float
    processes: int
    threads: int
    energy_j: float | None = None


def look(root: int, reaped: tree.Reaped, energy_j: float | None = None) -> Sample:
    """Sample all processes below ``root``; a process that ends meanwhile may be missed."""
    ticks = pages = threads = bytes_read = bytes_written = 0
    below = tree.descendants(root)
    for pid in below:
        with suppress(OSError, ValueError, IndexError):
            stat = (
                _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            )  # from the third field on, see proc(5)
            ticks += sum(map(int, stat[11:15]))  # with its reaped children
            threads += int(stat[17])
            pages += int(stat[21])
            for line in _read(f"/proc/{pid}/io").splitlines():  # likewise
                name, value = line.split()
                bytes_read += int(value) if name == b"read_bytes:" else 0
                bytes_written += int(value) if name == b"write_bytes:" else 0
    return Sample(
        at_s=time.time(),
        cpu_s=reaped.user_s + reaped.system_s + ticks * TICK_S,
        memory_mb=pages * PAGE_MB,
        read_mb=reaped.read_mb + bytes_read / 1e6,
        written_mb=reaped.written_mb + bytes_written / 1e6,
        processes=len(below),
        threads=threads,
        energy_j=energy_j,
    )


class Sampler:
    """Samples a job into a file.

    Args:
        file: path of the file of samples.
        root: this process, below which the job runs.
        reaped: use of the job's processes that were reaped.
        meter: returns the joules so far, or None.
        steady: sample every second, however large the job.

    Attributes:
        due: when to sample next (``time.monotonic``).
        peak_mb: the most resident memory seen.
        rows: number of rows in the file.
    """

    def __init__(
        self,
        file: Path,
        root: int,
        reaped: tree.Reaped,
        meter: Callable[[], float | None] = lambda: None,
        *,
        steady: bool = False,
    ) -> None:
        self.file, self.root, self.reaped, self.meter, self.steady = file, root, reaped, meter, steady
        self.wait_s = FIRST_S
        self.due = time.monotonic() + FIRST_S
        self.peak_mb = 0.0
        self.rows = 0
        self._last: Sample | None = None
        self._since_row_mb = 0.0
        self._row_s = 0.0  # least time between rows
        self._written_at = 0.0

    def look(self) -> Sample:
        """Sample now; counts never fall."""
        began = time.thread_time()
        sample, last = look(self.root, self.reaped, self.meter()), self._last
        if last is not None:
            sample = sample._replace(
                cpu_s=max(sample.cpu_s, last.cpu_s),
                read_mb=max(sample.read_mb, last.read_mb),
                written_mb=max(sample.written_mb, last.written_mb),
            )
        self._last = sample
        self.peak_mb = max(self.peak_mb, sample.memory_mb)
        self._since_row_mb = max(self._since_row_mb, sample.memory_mb)
        now = time.monotonic()
        if now >= self._written_at + self._row_s:
            self._append(sample, now)
        slow_s = 0.0 if self.steady else (time.thread_time() - began) / SHARE
        self.due = now + max(self.wait_s, slow_s)
        self.wait_s = min(2 * self.wait_s, LATER_S)
        return sample

    def end(self) -> Sample:
        """Take the last sample, which becomes a row if there are others."""
        self._row_s = 0.0
        if self.rows:
            return self.look()
        return look(self.root, self.reaped, self.meter())

    def _append(self, sample: Sample, now: float) -> None:
        head = "" if self.rows else ",".join(Sample._fields) + "\n"
        with suppress(OSError):  # a full disk leaves gaps
            _append(self.file, head + _line(sample._replace(memory_mb=self._since_row_mb)))
            self.rows += 1
            self._since_row_mb, self._written_at = 0.0, now
            if self.rows >= MOST_ROWS:
                self._thin()

    def _thin(self) -> None:
        rows = read(self.file)
        pairs = zip_longest(rows[::2], rows[1::2])
        kept = [b._replace(memory_mb=max(a.memory_mb, b.memory_mb)) if b else a for a, b in pairs]
        aside = self.file.with_suffix(".aside")
        try:
            aside.write_text(",".join(Sample._fields) + "\n" + "".join(map(_line, kept)))
            aside.replace(self.file)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        self.rows = len(kept)
        self._row_s = 1.9 * LATER_S if self._row_s == 0 else 2 * self._row_s


def read(file: Path, most: int = MOST_BYTES) -> list[Sample]:
    """Read the rows in the last bytes of a file, none if there is no file; damaged lines are left out."""
    with suppress(OSError):
        return parse(read_plain(file, most, last=True))
    return []


def parse(content: bytes) -> list[Sample]:
    """Return the rows of a file's content; as ``read``."""
    rows: list[Sample] = []
    for line in content.decode(errors="replace").splitlines(keepends=True):
        with suppress(ValueError):  # also the line of names
            at, cpu, memory, read_mb, written, processes, threads, energy = line.split(",")
            row = Sample(
                at_s=float(at),
                cpu_s=float(cpu),
                memory_mb=float(memory),
                read_mb=float(read_mb),
                written_mb=float(written),
                processes=int(processes),
                threads=int(threads),
                energy_j=float(energy) if energy.strip() else None,
            )
            known = all(value is None or 0.0 <= value <= MOST_COUNTED for value in row)
            rows += [row] if known and line.endswith("\n") else []
    return rows


def _line(sample: Sample) -> str:
    return ",".join("" if value is None else str(value) for value in sample) + "\n"


def _append(file: Path, text: str) -> None:
    """Append all of the text, or nothing and raise OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(file, flags, 0o600)
    try:
        size, content = os.fstat(descriptor).st_size, text.encode()
        if os.write(descriptor, content) < len(content):
            os.ftruncate(descriptor, size)
            raise OSError("no room")
    finally:
        os.close(descriptor)


def _read(path: str) -> bytes:
    """Read a file of /proc, four times faster than by ``Path``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
