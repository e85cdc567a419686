"""The process behind an emulated powercap tree: advances the counters, obeys the caps.

Every 5 ms it looks which loads are runnable, turns that into energy, and holds each package to its cap by
stopping and continuing the package's loads: a CPU quota by SIGSTOP and SIGCONT. Unlike a cgroup's quota this
needs no root, and it takes a *share* of whatever time the machine gives the load. Power follows runnable
time, whether or not another process had the core: so a busy machine does not move the knee.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from agent.emulation import Machine, parse, zone_folders
from probes.power_loads import MARK
from probes.powercap import read_int

TICK_S = 0.005
SCAN_S = 0.1
SWING_S = 0.0015  # of running time that a package may be ahead of its cap, or behind, before it is stopped
CREDIT_S = 0.05  # of running time: the most that is saved up while less than the cap is drawn
START_UJ = 1_000_000_000
WRAP_IN_UJ = 20_000_000
DIGITS = 16


@dataclass
class Load:
    """A process that draws power, and is slowed down."""

    pid: int
    kind: str
    settled_s: float  # all the time it was runnable, when it was last seen not to be
    counted_s: float = 0.0  # runnable time counted since then

    def active_s(self, seconds: float) -> float | None:
        """For how much of the ``seconds`` just passed it was runnable; None once it has ended.

        One that is runnable now counts as runnable all the time. Once it is not, the kernel's own account is
        complete, and what was counted too little (the moments before a stop took effect) is made up.
        """
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "R":
                self.counted_s += seconds
                return seconds
            if state in "ZX":
                return None
            total_s = runnable_s(self.pid)
        except (OSError, ValueError, IndexError):
            return None
        missing_s = total_s - self.settled_s - self.counted_s
        self.settled_s, self.counted_s = total_s, 0.0
        return missing_s

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def runnable_s(pid: int) -> float:
    """Time for which a process has run or waited for its core; complete only while it does neither."""
    ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return (int(ran_ns) + int(waited_ns)) * 1e-9


@dataclass
class Package:
    """One package: its zone, its cores, the loads on them, and how far its energy is ahead of the cap."""

    machine: Machine
    folder: Path
    cores: frozenset[int]
    locked: bool
    loads: list[Load] = field(default_factory=list)
    ahead_j: float = 0.0
    stopped: bool = False
    cap_w: float | None = None

    def step(self, seconds: float) -> float:
        """Account for the ``seconds`` just passed, then hold the cap. Returns the mean power in them, W."""
        dynamic_w = 0.0
        full_w = 0.0
        for load in list(self.loads):
            active_s = load.active_s(seconds)
            if active_s is None:
                self.loads.remove(load)
                continue
            span_w = self.machine.busy_w.get(load.kind, self.machine.busy_w["compute"]) - self.machine.idle_w
            dynamic_w += span_w * active_s / seconds / len(self.cores)
            full_w = max(full_w, span_w)
        power_w = self.machine.idle_w + dynamic_w
        self._hold(power_w, seconds, full_w)
        return power_w

    def _hold(self, power_w: float, seconds: float, full_w: float) -> None:
        cap_w = self._cap_in_force_w()
        if cap_w is None or not self.loads:
            self.ahead_j = 0.0
            self._stop(False)
            return
        self.ahead_j = max(self.ahead_j + (power_w - cap_w) * seconds, -CREDIT_S * full_w)
        if self.ahead_j > SWING_S * full_w:
            self._stop(True)
        elif self.ahead_j < -SWING_S * full_w:
            self._stop(False)

    def _stop(self, stop: bool) -> None:
        if stop != self.stopped:
            self.stopped = stop
            for load in self.loads:
                load.send(signal.SIGSTOP if stop else signal.SIGCONT)

    def _cap_in_force_w(self) -> float | None:
        if self.machine.cap_w is None or self.locked or read_int(self.folder / "enabled") == 0:
            return None
        limits = [read_int(self.folder / f"constraint_{i}_power_limit_uw") for i in (0, 1)]
        known = [limit / 1e6 for limit in limits if limit is not None]
        if len(known) == 2:  # a file is empty for an instant while it is written: keep the last cap
            cap_w = max(min(known), self.machine.floor_w)
            if cap_w != self.cap_w:
                self.cap_w, self.ahead_j = cap_w, 0.0
        return self.cap_w

    def adopt(self, load: Load) -> None:
        """Take a load over; one that comes while the package is stopped stops too."""
        self.loads.append(load)
        if self.stopped:
            load.send(signal.SIGSTOP)

    def free(self) -> None:
        """Let every load go on (at the end of the emulation)."""
        self.stopped = True
        self._stop(False)


class Zone:
    """One ``energy_uj`` file, and what its fault makes of the energy."""

    def __init__(self, paths: list[Path], range_uj: int, faults: frozenset[str]) -> None:
        self._paths = paths
        self._files = [os.open(path, os.O_WRONLY) for path in paths]
        self._range_uj = range_uj
        self._faults = faults
        self._uj = float(range_uj - WRAP_IN_UJ if "wrap" in faults else START_UJ)
        self._ticks = 0
        self._age_s = 0.0

    def add(self, power_w: float, seconds: float) -> None:
        self._uj += power_w * seconds * 1e6
        self._ticks += 1
        before_s, self._age_s = self._age_s, self._age_s + seconds
        if "jump-back" in self._faults and before_s // 2 != self._age_s // 2:
            self._uj -= 30e6
        if "vanish" in self._faults and self._age_s > 3.0:
            for path in self._paths:
                path.unlink(missing_ok=True)
        all_ones = "ffffffff" in self._faults and self._ticks % 20 == 0
        raw = 0xFFFFFFFF if all_ones else int(self._uj) % self._range_uj
        text = f"{raw:0{DIGITS}d}\n".encode()  # of fixed width: a reader never sees half of it
        for file in self._files:
            os.pwrite(file, text, 0)


class Tree:
    """All zones and packages of one emulated node, and the loads below its owner."""

    def __init__(self, sysfs: Path, name: str, owner: int) -> None:
        self.machine, self.faults = parse(name)
        self.owner = owner
        self._known: dict[int, Load | None] = {}
        powercap = sysfs / "class" / "powercap"
        folders = zone_folders(self.machine)
        doors = zone_folders(self.machine, "intel-rapl-mmio") if self.machine.mmio else {}
        self.zones: dict[tuple[str, str], Zone] = {}
        for key, folder in folders.items():
            paths = [powercap / f / "energy_uj" for f in (folder, doors.get(key)) if f]
            faults = self.faults if key[1] == "" else frozenset()
            self.zones[key] = Zone(paths, self.machine.range_uj, faults)
        cores = sorted(os.sched_getaffinity(0))
        n = len(self.machine.packages)
        self.packages = {
            package: Package(
                self.machine,
                powercap / folders[package, ""],
                frozenset(c for j, c in enumerate(cores) if j * n // len(cores) == i),
                "locked" in self.faults,
            )
            for i, package in enumerate(self.machine.packages)
        }

    def step(self, seconds: float) -> None:
        total_w = self.machine.rest_w or 0.0
        for name, package in self.packages.items():
            power_w = package.step(seconds)
            parts = {"": power_w, "core": power_w - 4.0, "uncore": 2.0, "dram": self.machine.dram_w}
            total_w += power_w + (self.machine.dram_w if "dram" in self.machine.parts else 0.0)
            for part in ("", *self.machine.parts):
                self.zones[name, part].add(parts[part], seconds)
        if ("", "psys") in self.zones:
            self.zones["", "psys"].add(total_w, seconds)

    def find_loads(self) -> None:
        """Adopt the owner's new descendants that are marked as loads."""
        try:
            descendants = psutil.Process(self.owner).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self._known = {p.pid: self._known[p.pid] for p in descendants if p.pid in self._known}
        for process in descendants:
            if process.pid in self._known:
                continue
            with suppress(psutil.Error, OSError, ValueError):
                kind = process.environ().get(MARK)
                if kind is None:  # a young process may not have reached its own program yet: look again
                    if time.time() - process.create_time() > 2.0:
                        self._known[process.pid] = None
                    continue
                self._adopt(process, kind)

    def _adopt(self, process: psutil.Process, kind: str) -> None:
        cores = process.cpu_affinity() or []
        if len(cores) > 1 and time.time() - process.create_time() < 2.0:
            return  # not pinned yet
        load = Load(process.pid, kind, runnable_s(process.pid))
        self._known[process.pid] = load
        homes = [p for p in self.packages.values() if p.cores & set(cores)]
        (homes or list(self.packages.values()))[0].adopt(load)

    def free(self) -> None:
        for package in self.packages.values():
            package.free()


def run(sysfs: Path, name: str) -> None:
    """Keep the tree alive until the process that started this one ends, or SIGTERM."""
    owner = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which still needs the tree
    signal.signal(signal.SIGTERM, _leave)
    with suppress(PermissionError):  # root only; without it a busy machine makes the power uneven
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    tree = Tree(sysfs, name, owner)
    try:
        _loop(tree, owner)
    finally:
        tree.free()
        if os.getppid() != owner:
            shutil.rmtree(sysfs, ignore_errors=True)


def _loop(tree: Tree, owner: int) -> None:
    last = time.monotonic()
    scanned = 0.0
    while os.getppid() == owner:
        time.sleep(TICK_S)
        now = time.monotonic()
        tree.step(now - last)
        last = now
        if scanned == 0.0:
            print("ready", flush=True)
        if now - scanned > SCAN_S:
            tree.find_loads()
            scanned = now


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
