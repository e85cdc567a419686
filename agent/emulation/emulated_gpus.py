"""Emulated GPUs, for tests and demonstrations on machines without one.

``emulated_gpus("gpus-4")`` makes a folder with a file for each GPU (``dev/nvidia0``), a library that answers
as NVML does (``nvml_library.c``), and the state from which that answers. A process behind it writes the state
anew ten times a second, from what real processes do:

- a process **holds** a GPU if it has the GPU's file open, as with a real one;
- its **memory** there is a context's, and as much as it has mapped of that file;
- its **utilisation** is the share of time in which it was runnable: a stopped or waiting one has none.

All that reads NVML runs unchanged, with ``TENBIN_EMULATED_GPUS`` naming the folder. What is seen is marked as
emulated by its name.

    python -P -m agent.emulation.emulated_gpus FOLDER MACHINE

writes the state until its standard input ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select

import psutil

from agent.emulation.emulated_tree import runnable_s
from probes.nvml import LIBRARY
from profiles.errors import BadInput, Unavailable, UserError

SOURCE = Path(__file__).with_name("nvml_library.c")
TICK_S = 0.1
END_S = 0.5  # for the process behind it
MIB = 2**20
MODEL = "Emulated GPU 80GB"
TOTAL = 80 * 1024 * MIB
CONTEXT = 512 * MIB  # of a process that has made a context, on an H100
PARTS = 7  # of a divided GPU
IDLE_W, BUSY_W, LIMITS_W = 70, 350, (200, 400)
IDLE_MHZ, BUSY_MHZ = 345, 1980
NO_INSTANCE = 2**32 - 1
MOST = 16
NAME = re.compile(r"gpus-(\d+)(\+mig)?")


def number_of_gpus(name: str) -> tuple[int, bool]:
    """Read ``gpus-4`` or ``gpus-4+mig``: how many, and whether the last one is divided into parts.

    Raises:
        BadInput: it is neither.
    """
    match = NAME.fullmatch(name)
    if not match or not 1 <= int(match[1]) <= MOST:
        raise BadInput(f"--emulate: no GPUs {name!r}", f"write gpus-1 to gpus-{MOST}, or gpus-4+mig")
    return int(match[1]), bool(match[2])


def uuid(index: int, part: int | None = None) -> str:
    """Return the identity of an emulated GPU, or of a part of it."""
    return f"{'GPU' if part is None else 'MIG'}-e0000000-0000-0000-{part or 0:04x}-{index:012x}"


@contextmanager
def emulated_gpus(name: str, folder: Path | None = None) -> Iterator[Path]:
    """Emulate GPUs until the context ends; yields the folder for ``TENBIN_EMULATED_GPUS``.

    Args:
        folder: where they are emulated, and which stays; None: one that is gone at the end.

    Raises:
        BadInput: ``name`` is not known.
        Unavailable: there is no C compiler.
    """
    number_of_gpus(name)
    with (
        tempfile.TemporaryDirectory(prefix="tenbin-gpus-") if folder is None else nullcontext(folder) as made
    ):
        build(Path(made), name)
        with (Path(made) / "log").open("ab") as log:  # a pipe of the caller's would stay open
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "agent.emulation.emulated_gpus", str(made), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert process.stdin is not None and process.stdout is not None
        try:
            if not process.stdout.readline():
                raise UserError(f"the emulation of {name} did not start (exit {process.wait()})")
            yield Path(made)
        finally:
            process.stdin.close()
            process.stdout.close()
            with suppress(subprocess.TimeoutExpired):  # it goes on for a fork of this process
                process.wait(END_S)


def build(folder: Path, name: str) -> None:
    """Compile the library, and make the GPUs' files.

    Raises:
        Unavailable: there is no C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("emulated GPUs need a C compiler", "as root: apt-get install gcc libc6-dev")
    aside = folder / "library"  # a process may have loaded that of before
    options = ["-O1", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-o", str(aside)]
    subprocess.run([compiler, *options, str(SOURCE), "-lpthread"], check=True)
    aside.replace(folder / LIBRARY)
    (folder / "dev").mkdir(exist_ok=True)
    for index in range(number_of_gpus(name)[0]):
        with (folder / "dev" / f"nvidia{index}").open("ab") as file:
            file.truncate(TOTAL)  # sparse: a process maps as much as it wants memory
        (folder / "dev" / f"nvidia{index}").chmod(0o666)


# -- the process behind it ---------------------------------------------------------------------------------


@dataclass
class Gpus:
    """The GPUs of a folder, and what was seen of their processes."""

    folder: Path
    number: int
    divided: bool
    joules: list[float] = field(default_factory=list)
    runnable: dict[int, float] = field(default_factory=dict)
    seen_s: float = field(default_factory=time.monotonic)

    def state(self) -> str:
        """Look at all processes, and write what NVML is to tell."""
        now_s = time.monotonic()
        passed_s, self.seen_s = max(now_s - self.seen_s, 1e-3), now_s
        held = [(pid, memory) for pid in _processes() for memory in [self._memory(pid)] if memory]
        before, self.runnable = self.runnable, {}
        lines, shares = [], [0.0] * self.number
        used = [0] * self.number
        for pid, memory in held:
            with suppress(OSError, ValueError):
                self.runnable[pid] = runnable_s(pid)
            share = (self.runnable.get(pid, 0.0) - before.get(pid, self.runnable.get(pid, 0.0))) / passed_s
            for index, mapped in memory.items():
                shares[index] = min(1.0, shares[index] + max(0.0, share))
                used[index] += CONTEXT + mapped
                part = 0 if self._is_divided(index) else NO_INSTANCE
                percent = round(100 * min(1.0, max(0.0, share)))
                lines.append(f"process {index} {pid} {CONTEXT + mapped} {percent} {part} {part}")
        self.joules = self.joules or [0.0] * self.number
        for index in range(self.number):
            watts = IDLE_W + (BUSY_W - IDLE_W) * shares[index]
            self.joules[index] += watts * passed_s
            lines += self._lines(index, used[index], shares[index], watts)
        return "\n".join(lines) + "\n"

    def _is_divided(self, index: int) -> bool:
        return self.divided and index == self.number - 1

    def _lines(self, index: int, used: int, share: float, watts: float) -> Iterator[str]:
        low, high = (1000 * limit for limit in LIMITS_W)
        divided, percent = self._is_divided(index), round(100 * share)
        clock = BUSY_MHZ if share > 0.01 else IDLE_MHZ
        place = f"{uuid(index)} 00000000:{index + 1:02X}:00.0 {index}"
        power = f"{round(1000 * watts)} {high} {low} {high} {round(1000 * self.joules[index])}"
        load = f"{TOTAL} {min(used, TOTAL)} {percent} {percent // 3}"
        yield f"gpu {place} {load} {power} {clock} {divided:d} {MODEL}"
        for part in range(PARTS if divided else 0):
            taken = used if part == 0 else 0  # all that open its file are in the first part
            memory = f"{TOTAL // 8} {min(taken, TOTAL // 8)}"
            yield f"mig {index} {uuid(index, part)} {memory} {part} 0 {MODEL} MIG 1g.10gb"

    def _memory(self, pid: int) -> Mapping[int, int]:
        """Return the GPUs whose file a process has open, with the bytes that it has mapped of it."""
        prefix = str(self.folder / "dev" / "nvidia")
        mapped: dict[int, int] = {}
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):  # it is closed meanwhile
                    path = str(Path(entry.path).readlink())
                    if path.startswith(prefix):
                        mapped[int(path.removeprefix(prefix))] = 0
        if mapped:
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    words = line.split()
                    index = int(words[-1].removeprefix(prefix)) if words[-1].startswith(prefix) else None
                    if index in mapped:
                        first, last = (int(end, 16) for end in words[0].split("-"))
                        mapped[index] += last - first
        return mapped


def _processes() -> Iterator[int]:
    return (pid for pid in psutil.pids() if pid != os.getpid())


def main(folder: str, name: str) -> None:
    """Write the state until standard input ends."""
    number, divided = number_of_gpus(name)
    gpus = Gpus(Path(folder), number, divided)
    write(gpus)
    print("ready", flush=True)
    while not select([sys.stdin], [], [], TICK_S)[0]:
        write(gpus)


def write(gpus: Gpus) -> None:
    """Write the state aside, and put it in its place."""
    aside = gpus.folder / "next"
    aside.write_text(gpus.state())
    aside.replace(gpus.folder / "state")


if __name__ == "__main__":
    main(*sys.argv[1:])
