"""Emulated GPUs, for tests and demonstrations on machines without one.

``emulated_gpus("gpus-4")`` makes a folder with a file for each GPU (``dev/nvidia0``), a library that answers
as NVML does (``nvml_library.c``), and the state from which that answers. A process behind it writes the state
anew ten times a second, from what real processes do:

- a process **holds** a GPU if it has the GPU's file open, as with a real one;
- its **memory** there is a context's, and as much as it has mapped of that file;
- its **utilisation** is the share of time in which it was runnable: a stopped or waiting one has none.

``gpus-2+amd`` and ``gpus-2+intel`` are GPUs of those vendors: in place of library and state the folder has
trees of the files by which the kernel tells of them (``probes.drm``).

All that reads GPUs runs unchanged, with ``TENBIN_EMULATED_GPUS`` naming the folder. What is seen is marked by
its name as emulated.

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
NAME = re.compile(r"gpus-(\d+)(?:\+(mig|amd|intel))?")
PCI_IDS = {"amd": ("0x1002", "0x740f"), "intel": ("0x8086", "0x0bd5")}  # vendor and device


def number_of_gpus(name: str) -> tuple[int, str]:
    """Read ``gpus-4`` or ``gpus-4+mig``: how many, and what they are: the last one divided, or of a vendor.

    Raises:
        BadInput: it is neither.
    """
    match = NAME.fullmatch(name)
    if not match or not 1 <= int(match[1]) <= MOST:
        remedy = f"write gpus-1 to gpus-{MOST}, gpus-4+mig, gpus-4+amd or gpus-4+intel"
        raise BadInput(f"--emulate: no GPUs {name!r}", remedy)
    return int(match[1]), match[2] or ""


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
    """Make the GPUs' files, and the library or the tree by which they are read.

    Raises:
        Unavailable: there is no C compiler.
    """
    number, kind = number_of_gpus(name)
    files = device_files(folder, number, kind)
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        with file.open("ab") as opened:
            opened.truncate(TOTAL)  # sparse: a process maps as much as it wants memory
        file.chmod(0o666)
    for tree in ("sys", "proc"):
        shutil.rmtree(folder / tree, ignore_errors=True)
    (folder / LIBRARY).unlink(missing_ok=True)
    if kind in PCI_IDS:
        for index in range(number):
            _build_device(folder, index, kind)
    else:
        _build_library(folder)


def device_files(folder: Path, number: int, kind: str) -> list[Path]:
    """Return the files by which programs use the GPUs."""
    names = [f"dri/renderD{128 + index}" if kind in PCI_IDS else f"nvidia{index}" for index in range(number)]
    return [folder / "dev" / name for name in names]


def _build_device(folder: Path, index: int, kind: str) -> None:
    """Make the part of sysfs that is about a GPU."""
    device = folder / "sys/devices" / pci_address(index)
    (device / "drm" / f"renderD{128 + index}").mkdir(parents=True)
    card = folder / f"sys/class/drm/card{index}"
    card.mkdir(parents=True)
    (card / "device").symlink_to(device)
    vendor, model = PCI_IDS[kind]
    name = f"Emulated {kind.upper() if kind == 'amd' else kind.capitalize()} GPU 80GB"
    files = {"vendor": vendor, "device": model, "product_name": name, "numa_node": str(index // 4)}
    if kind == "amd":
        files |= {"unique_id": f"e{index:015x}", "mem_info_vram_total": str(TOTAL), "mem_info_vram_used": "0"}
    else:
        (card / "lmem_total_bytes").write_text(f"{TOTAL}\n")
    for file, text in files.items():
        (device / file).write_text(f"{text}\n")


def pci_address(index: int) -> str:
    """Return the PCI address of an emulated GPU."""
    return f"0000:{index + 1:02x}:00.0"


def _build_library(folder: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("emulated GPUs need a C compiler", "as root: apt-get install gcc libc6-dev")
    aside = folder / "library"  # a process may have loaded that of before
    options = ["-O0", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-o", str(aside)]
    subprocess.run([compiler, *options, str(SOURCE), "-lpthread"], check=True)
    aside.replace(folder / LIBRARY)


# -- the process behind it ---------------------------------------------------------------------------------


@dataclass
class Gpus:
    """The GPUs of a folder, and what was seen of their processes."""

    folder: Path
    number: int
    kind: str
    joules: list[float] = field(default_factory=list)
    runnable: dict[int, float] = field(default_factory=dict)
    seen_s: float = field(default_factory=time.monotonic)

    def state(self) -> str:
        """Look at all processes, and write what NVML is to tell."""
        now_s = time.monotonic()
        passed_s, self.seen_s = max(now_s - self.seen_s, 1e-3), now_s
        held = self._held()
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
        return self.kind == "mig" and index == self.number - 1

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

    def write_tree(self) -> None:
        """Write what the kernel would tell of GPUs of AMD or Intel, each process as one client of each."""
        held = self._held()
        files = device_files(self.folder, self.number, self.kind)
        used, region = [0] * self.number, "vram" if self.kind == "amd" else "vram0"
        for pid, memory in held:
            with suppress(OSError, ValueError):
                self.runnable[pid] = runnable_s(pid)
            process = self.folder / "proc" / str(pid)
            for index, mapped in memory.items():
                used[index] += CONTEXT + mapped
                for name in ("fd", "fdinfo"):
                    (process / name).mkdir(parents=True, exist_ok=True)
                words = {
                    "pdev": pci_address(index),
                    "client-id": f"{pid}",
                    f"total-{region}": CONTEXT + mapped,
                }
                words["engine-compute"] = f"{round(1e9 * self.runnable.get(pid, 0.0))} ns"
                text = "".join(f"drm-{word}:\t{value}\n" for word, value in words.items())
                _replace(process / "fdinfo" / f"{index}", text)
                with suppress(FileExistsError):
                    (process / "fd" / f"{index}").symlink_to(files[index])
            for descriptor in (process / "fd").iterdir():
                if int(descriptor.name) not in memory:
                    descriptor.unlink()
        for process in (self.folder / "proc").glob("*"):
            if int(process.name) not in dict(held):
                shutil.rmtree(process, ignore_errors=True)
        for index in range(self.number if self.kind == "amd" else 0):
            _replace(
                self.folder / "sys/devices" / pci_address(index) / "mem_info_vram_used", f"{used[index]}\n"
            )

    def _held(self) -> list[tuple[int, Mapping[int, int]]]:
        """List the processes that hold a GPU, with their memory on each."""
        files = device_files(self.folder, self.number, self.kind)
        number_of = {str(file): index for index, file in enumerate(files)}
        return [(pid, memory) for pid in _processes() if (memory := self._memory(pid, number_of))]

    def _memory(self, pid: int, number_of: Mapping[str, int]) -> Mapping[int, int]:
        """Return the GPUs whose file a process has open, with the bytes that it has mapped of it."""
        mapped: dict[int, int] = {}
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):  # it is closed meanwhile
                    index = number_of.get(os.readlink(entry.path))  # noqa: PTH115
                    if index is not None:
                        mapped[index] = 0
        if mapped:
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    words = line.split()
                    index = number_of.get(words[-1])
                    if index in mapped:
                        first, last = (int(end, 16) for end in words[0].split("-"))
                        mapped[index] += last - first
        return mapped


def _processes() -> Iterator[int]:
    return (pid for pid in psutil.pids() if pid != os.getpid())


def main(folder: str, name: str) -> None:
    """Write the state until standard input ends."""
    gpus = Gpus(Path(folder), *number_of_gpus(name))
    write(gpus)
    print("ready", flush=True)
    while not select([sys.stdin], [], [], TICK_S)[0]:
        write(gpus)


def write(gpus: Gpus) -> None:
    """Write the state, or the tree."""
    if gpus.kind in PCI_IDS:
        gpus.write_tree()
    else:
        _replace(gpus.folder / "state", gpus.state())


def _replace(file: Path, text: str) -> None:
    """Write a file aside, and put it in its place."""
    aside = file.with_name(f"{file.name}.next")
    aside.write_text(text)
    aside.replace(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
