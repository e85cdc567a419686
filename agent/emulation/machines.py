"""Emulated powercap hardware, for tests and demonstrations on machines without it.

``emulated_node("intel-1s")`` makes a complete sysfs root: the entries of the real root, but with a
class/powercap whose counters advance and whose caps slow the load down. All other code runs unchanged, and
its samples are marked ``emulated``. A name is a machine with faults: ``intel-2s+wrap+locked``.

The model, for a package at cap p: it idles at ``idle_w`` and draws ``busy_w[load]`` when the load runs on all
its cores; below that the cap takes time from the load until the mean power is p. So the speed is linear in p
up to a knee at ``busy_w`` and flat from there (paper C, eq. 4.5), and ``truth`` knows the coefficients.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from profiles.errors import BadInput, UserError
from profiles.files.safe_files import is_locked, try_lock, write_whole

FAULTS = {
    "wrap": "the counters wrap a few seconds after the start",
    "jump-back": "the counters lose 30 J every other second",
    "ffffffff": "one reading in twenty is 0xFFFFFFFF",
    "vanish": "energy_uj disappears after three seconds",
    "locked": "the caps read back as written, and are not obeyed",
    "unreadable": "energy_uj is for root only",
    "no-max-range": "the kernel does not say where the counters wrap",
}
INTEL_RANGE_UJ = 262143328850
AMD_RANGE_UJ = 65532610987


@dataclass(frozen=True)
class Machine:
    """An emulated node; powers are of one package."""

    packages: tuple[str, ...]
    parts: tuple[str, ...]  # the zones below each package
    idle_w: float = 12.0
    busy_w: dict[str, float] = field(default_factory=lambda: {"compute": 52.0, "memory": 44.0})
    floor_w: float = 24.0  # lower caps are not obeyed
    cap_w: float | None = 90.0  # the original sustained limit, and the TDP; None: cannot be capped
    dram_w: float = 3.0
    rest_w: float | None = None  # power that only psys counts; None: no psys
    range_uj: int = INTEL_RANGE_UJ
    mmio: bool = False


MACHINES = {
    "intel-1s": Machine(("package-0",), ("core", "uncore", "dram"), rest_w=9.0, mmio=True),
    "intel-2s": Machine(("package-0", "package-1"), ("dram",)),
    "intel-2die": Machine(("package-0-die-0", "package-0-die-1"), ("dram",)),
    "amd": Machine(("package-0",), ("core",), cap_w=None, range_uj=AMD_RANGE_UJ),
}


@dataclass(frozen=True)
class Truth:
    """The coefficients that a fit should find for one load; caps are sums over the node's packages."""

    base_w: float
    busy_w: float
    lowest_cap_w: float
    knee_w: float
    slope_per_w: float

    def speed(self, cap_w: float) -> float:
        """Speed under a cap, relative to uncapped."""
        return 1.0 - self.slope_per_w * max(self.knee_w - cap_w, 0.0)


def truth(name: str, load: str = "compute") -> Truth:
    """Return the ground truth of an emulated node."""
    machine, _ = parse(name)
    n = len(machine.packages)
    dram_w = machine.dram_w if "dram" in machine.parts else 0.0
    return Truth(
        base_w=n * (machine.idle_w + dram_w) + (machine.rest_w or 0.0),
        busy_w=n * machine.busy_w[load],
        lowest_cap_w=n * machine.floor_w,
        knee_w=n * machine.busy_w[load],
        slope_per_w=1.0 / (n * (machine.busy_w[load] - machine.idle_w)),
    )


def parse(name: str) -> tuple[Machine, frozenset[str]]:
    """Split a name such as ``intel-1s+wrap`` into machine and faults.

    Raises:
        BadInput: there is no such machine or fault.
    """
    machine, *faults = name.split("+")
    if machine not in MACHINES:
        raise BadInput(f"--emulate: no machine '{machine}'", f"choose from {', '.join(MACHINES)}")
    for fault in faults:
        if fault not in FAULTS:
            raise BadInput(f"--emulate: no fault '{fault}'", f"choose from {', '.join(FAULTS)}")
    return MACHINES[machine], frozenset(faults)


@contextmanager
def emulated_node(name: str) -> Iterator[Path]:
    """Emulate power hardware in a sysfs root until the context ends.

    The loads it slows down are those descendants of this process that have ``TENBIN_LOAD`` in their
    environment (the power probe's have).

    Raises:
        BadInput: ``name`` is not known.
    """
    sysfs, process = start_emulation(name)
    try:
        yield sysfs
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(sysfs, ignore_errors=True)  # the emulation removes it too, if it ends last


def start_emulation(
    name: str, *arguments: str, log: IO[bytes] | None = None
) -> tuple[Path, subprocess.Popen[bytes]]:
    """Build the tree of an emulated node, and start the process behind it; return sysfs root and process.

    Args:
        arguments: more arguments of the process.
        log: file of its errors; the process then has a session of its own.
    """
    machine, faults = parse(name)
    memory = Path("/dev/shm")
    sysfs = Path(tempfile.mkdtemp(prefix="tenbin-emulated-", dir=memory if memory.is_dir() else None))
    build(sysfs, machine, faults)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "agent.emulation.emulated_tree", str(sysfs), name, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=log is not None,
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        shutil.rmtree(sysfs, ignore_errors=True)
        raise UserError(f"the emulation of {name} did not start (exit {process.wait()})")
    process.stdout.close()
    return sysfs, process


def build(sysfs: Path, machine: Machine, faults: frozenset[str] = frozenset()) -> None:
    """Write the tree: class/powercap as the kernel lays it out, links to the real /sys for the rest."""
    (sysfs / "class").mkdir()
    for real in [*Path("/sys").iterdir(), *Path("/sys/class").iterdir()]:
        link = sysfs / real.relative_to("/sys")
        if link.name not in ("class", "powercap"):
            link.symlink_to(real)
    _build_control(sysfs, "intel-rapl", machine, faults)
    if machine.mmio:
        _build_control(sysfs, "intel-rapl-mmio", machine, faults)


def cores_of(machine: Machine) -> dict[str, tuple[int, ...]]:
    """Deal the CPUs that this process may use out evenly to the packages."""
    cores, n = sorted(os.sched_getaffinity(0)), len(machine.packages)
    return {
        package: tuple(c for j, c in enumerate(cores) if j * n // len(cores) == i)
        for i, package in enumerate(machine.packages)
    }


def zone_folders(machine: Machine, control: str = "intel-rapl") -> dict[tuple[str, str], str]:
    """Map (package, part) to a folder in class/powercap; ("", "psys") is psys, part "" the package."""
    folders = {}
    for i, package in enumerate(machine.packages):
        folders[package, ""] = f"{control}/{control}:{i}"
        if control == "intel-rapl":
            for j, part in enumerate(machine.parts):
                folders[package, part] = f"{control}/{control}:{i}/{control}:{i}:{j}"
    if machine.rest_w is not None and control == "intel-rapl":
        folders["", "psys"] = f"{control}/{control}:{len(machine.packages)}"
    return folders


def _build_control(sysfs: Path, control: str, machine: Machine, faults: frozenset[str]) -> None:
    powercap = sysfs / "class" / "powercap"
    for (package, part), folder in zone_folders(machine, control).items():
        path = powercap / folder
        path.mkdir(parents=True)
        files = {"name": part or package, "enabled": "1", "energy_uj": "0"}
        if "no-max-range" not in faults:
            files["max_energy_range_uj"] = str(machine.range_uj)
        if not part and machine.cap_w is not None:
            files |= _limits(machine.cap_w)
        for file, text in files.items():
            (path / file).write_text(f"{text}\n")
        # The owner, who need not be root, writes the file. The real mode 0400 would let the owner read.
        (path / "energy_uj").chmod(0o200 if "unreadable" in faults else 0o644)
        (powercap / path.name).symlink_to(folder)
    (powercap / control / "enabled").write_text("1\n")


def _limits(cap_w: float) -> dict[str, str]:
    cap_uw = round(cap_w * 1e6)
    return {
        "constraint_0_name": "long_term",
        "constraint_0_power_limit_uw": str(cap_uw),
        "constraint_0_time_window_us": "999424",
        "constraint_0_max_power_uw": str(cap_uw),
        "constraint_1_name": "short_term",
        "constraint_1_power_limit_uw": str(cap_uw * 5 // 4),
        "constraint_1_time_window_us": "2440",
        "constraint_1_max_power_uw": "0",
    }


# -- emulated hardware that outlives the process that started it -------------------------------------------
#
# It is kept in the folder ``emulated`` of the coordinator's store, and lives as long as a coordinator or a
# job. Its loads are the jobs' processes, found by their mark, and slowed down as the caps demand.


@contextmanager
def persistent_node(name: str, store: Path) -> Iterator[Path]:
    """Find, or start, the emulated node of a coordinator's store; return its sysfs root.

    Raises:
        BadInput: there is no such machine, or jobs run on another machine there.
    """
    parse(name)
    folder = store / "emulated"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with holding(folder):
        with _locked(folder / "starting", fcntl.LOCK_EX):
            where = folder / "where.json"
            emulated = (
                json.loads(where.read_text()) if where.exists() and is_locked(folder / "alive") else None
            )
            if emulated is not None and emulated["name"] != name:
                what = f"--emulate {name}: jobs run on an emulated {emulated['name']}"
                raise BadInput(what, "wait for their end")
            if emulated:
                sysfs = Path(emulated["sysfs"])
            else:
                with (folder / "log").open("ab") as log:  # it must not keep its starter's output open
                    sysfs, _ = start_emulation(name, str(store), log=log)
            write_whole(where, json.dumps({"name": name, "sysfs": str(sysfs)}))
        yield sysfs


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep the emulation in ``folder`` alive until the context ends."""
    with _locked(folder / "users", fcntl.LOCK_SH):
        yield


def sign_of_life(folder: Path) -> int:
    """Lock the file ``alive`` for the life of the emulation, and return the descriptor."""
    descriptor = os.open(folder / "alive", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def abandoned(folder: Path) -> int | None:
    """Keep new users away if there are none, and return the descriptor; else None."""
    return try_lock(folder / "users")


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)
