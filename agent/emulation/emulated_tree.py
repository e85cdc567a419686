"""The process behind an emulated powercap tree: it advances the counters and obeys the caps.

Every 5 ms it counts energy for the loads that are runnable, and holds each package to its cap by SIGSTOP and
SIGCONT to the package's loads. Unlike a cgroup's quota this needs no root, and takes a *share* of the time
that the machine gives the load. Power follows runnable time, even if another process had the core, so a busy
machine does not move the knee.

    python -P -m agent.emulation.emulated_tree SYSFS MACHINE [STORE | --node]

The loads are marked descendants of its parent, the jobs of a coordinator's STORE, or all jobs of a node of a
cluster, for which it makes the tree itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from agent.attempts.folder import Attempt
from agent.emulation.machines import Machine, abandoned, build, cores_of, parse, sign_of_life, zone_folders
from agent.processes.tree import MARK as JOB_MARK
from probes.power_load import MARK
from probes.powercap import read_int

TICK_S = 0.005
SCAN_S = 0.1
SWING_S = 0.0015  # of running time: how far a package may be ahead of its cap, or behind it
CREDIT_S = 0.05  # of running time: the most that is saved up below the cap
START_UJ = 1_000_000_000
WRAP_IN_UJ = 20_000_000
DIGITS = 16
FOLDER = "TENBIN_JOB_FOLDER"


@dataclass
class Load:
    """A process that draws power and is slowed down."""

    pid: int
    kind: str
    settled_s: float  # all its runnable time, when it was last seen not runnable
    counted_s: float = 0.0  # runnable time counted since then
    job: str = ""  # folder of its attempt
    paused: bool = False

    def active_s(self, seconds: float) -> float | None:
        """Estimate the runnable time within the ``seconds`` just passed; None once the process has ended.

        A process that is runnable now counts as runnable all the time. When it no longer is, the kernel's
        account is complete, and moments that were missed (before a stop took effect) are added.
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
        # An excess is set off later, because no counter of energy runs backwards.
        self.settled_s, self.counted_s = total_s, max(0.0, -missing_s)
        return max(0.0, missing_s)

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def runnable_s(pid: int) -> float:
    """Read how long a process has run or waited for its core; complete only while it does neither."""
    ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return (int(ran_ns) + int(waited_ns)) * 1e-9


@dataclass
class Package:
    """A package: its zone, cores and loads, and how far its energy is ahead of the cap."""

    machine: Machine
    folder: Path
    cores: frozenset[int]
    locked: bool
    loads: list[Load] = field(default_factory=list)
    ahead_j: float = 0.0
    stopped: bool = False
    cap_w: float | None = None

    def step(self, seconds: float) -> float:
        """Account for the ``seconds`` just passed, hold the cap, and return the mean power in W."""
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
        """Take a load over, and stop or continue it as the package's other loads."""
        self.loads.append(load)
        load.send(signal.SIGSTOP if self.stopped else signal.SIGCONT)

    def free(self) -> None:
        """Let all loads go on at the end of the emulation."""
        self.stopped = True
        self._stop(False)


class Zone:
    """A file ``energy_uj``, with its faults."""

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
        text = f"{raw:0{DIGITS}d}\n".encode()  # of fixed width, so that no reader sees half of it
        for file in self._files:
            os.pwrite(file, text, 0)


class Tree:
    """All zones and packages of one emulated node, and the loads below its owner."""

    def __init__(
        self, sysfs: Path, name: str, owner: int = 0, *, store: Path | None = None, node: bool = False
    ) -> None:
        """Its loads are the jobs of ``store``, or of the whole ``node``; else descendants of ``owner``."""
        self.machine, self.faults = parse(name)
        self.owner, self.store, self.node = owner, store, node
        self._known: dict[int, Load | None] = {}
        powercap = sysfs / "class" / "powercap"
        folders = zone_folders(self.machine)
        doors = zone_folders(self.machine, "intel-rapl-mmio") if self.machine.mmio else {}
        self.zones: dict[tuple[str, str], Zone] = {}
        for key, folder in folders.items():
            paths = [powercap / f / "energy_uj" for f in (folder, doors.get(key)) if f]
            faults = self.faults if key[1] == "" else frozenset()
            self.zones[key] = Zone(paths, self.machine.range_uj, faults)
        cores = cores_of(self.machine)
        self.packages = {
            package: Package(
                self.machine,
                powercap / folders[package, ""],
                frozenset(cores[package]),
                "locked" in self.faults,
            )
            for package in self.machine.packages
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
        """Adopt new marked processes; follow those of jobs to other cores and into pauses."""
        pids = self._pids()
        self._known = {pid: self._known[pid] for pid in pids if pid in self._known}
        for pid in pids:
            if pid not in self._known:
                with suppress(psutil.Error, OSError, ValueError):
                    self._classify(psutil.Process(pid))
        for load in self._known.values():
            if load is not None and load.job:
                with suppress(OSError):
                    self._follow(load)

    @property
    def idle(self) -> bool:
        """Tell if no load is left."""
        return not any(self._known.values())

    def _pids(self) -> list[int]:
        if self.store is not None or self.node:
            return psutil.pids()
        try:
            return [process.pid for process in psutil.Process(self.owner).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _classify(self, process: psutil.Process) -> None:
        environment = process.environ()
        kind, job = environment.get(MARK), self._job(environment)
        young = time.time() - process.create_time() < 2.0  # it may not have reached its exec yet
        if kind is None or job is None:
            if not young:
                self._known[process.pid] = None
            return
        cores = process.cpu_affinity() or []
        if not job and len(self.packages) > 1 and len(cores) > 1 and young:
            return  # not pinned yet
        load = Load(process.pid, kind, runnable_s(process.pid), job=job)
        self._known[process.pid] = load
        self._home(set(cores)).adopt(load)

    def _job(self, environment: Mapping[str, str]) -> str | None:
        """Return the folder of a process's attempt; "" if jobs do not count; None if it is no load."""
        mark = environment.get(JOB_MARK, "")
        number, _, attempt = mark.rpartition(":")
        if self.node:
            return f"{environment[FOLDER]}/attempt-{attempt}" if FOLDER in environment else None
        if self.store is None:
            return ""
        if not mark.startswith(f"{self.store}:"):
            return None
        return f"{self.store}/jobs/{number.rpartition(':')[2]}/attempt-{attempt}"

    def _home(self, cores: Set[int]) -> Package:
        homes = [package for package in self.packages.values() if package.cores & cores]
        return (homes or list(self.packages.values()))[0]

    def _follow(self, load: Load) -> None:
        """Move a load to the package of its cores; a paused load belongs to none."""
        home = self._home(os.sched_getaffinity(load.pid))
        paused = self._paused(load.job)
        if paused and not load.paused:
            load.send(signal.SIGSTOP)  # this process may just have continued it
        if paused or load not in home.loads:
            for package in self.packages.values():
                if load in package.loads:
                    package.loads.remove(load)
            if not paused:
                home.adopt(load)
        load.paused = paused

    def _paused(self, job: str) -> bool:
        """Return whether the job's supervisor has paused it."""
        state = Attempt(Path(job)).state()
        return state is not None and state.paused

    def free(self) -> None:
        for package in self.packages.values():
            package.free()


def run(sysfs: Path, name: str) -> None:
    """Keep the tree alive until the process that started this one ends, or SIGTERM."""
    owner = os.getppid()
    try:
        _serve(Tree(sysfs, name, owner), lambda: os.getppid() == owner)
    finally:
        if os.getppid() != owner:
            shutil.rmtree(sysfs, ignore_errors=True)


def run_for_store(sysfs: Path, name: str, store: Path) -> None:
    """Keep the tree alive until neither a coordinator nor a job of the store is left, or SIGTERM."""
    folder = store / "emulated"
    tree, alive, closed = Tree(sysfs, name, store=store), sign_of_life(folder), None

    def is_used() -> bool:
        nonlocal closed
        if tree.idle:
            closed = abandoned(folder)  # no user can come from here on
        return closed is None

    try:
        _serve(tree, is_used)
    finally:
        shutil.rmtree(sysfs, ignore_errors=True)
        os.close(alive)


def run_for_node(sysfs: Path, name: str) -> None:
    """Make the tree of a node of a cluster anew, as after a reboot, and keep it alive until SIGTERM."""
    machine, faults = parse(name)
    mark = sysfs / "class/powercap/emulated"
    if mark.exists():
        shutil.rmtree(sysfs)
    sysfs.mkdir(parents=True, exist_ok=True)
    build(sysfs, machine, faults)
    for (_, part), folder in zone_folders(machine).items():
        if not part and machine.cap_w is not None:
            lowest = sysfs / "class/powercap" / folder / "constraint_0_min_power_uw"
            lowest.write_text(f"{round(machine.floor_w * 1e6)}\n")
    mark.write_text(f"{name}\n")
    _serve(Tree(sysfs, name, node=True), lambda: True)


def _serve(tree: Tree, is_used: Callable[[], bool]) -> None:
    """Advance the tree as long as it is wanted, and then let its loads go on."""
    last, scanned = time.monotonic(), 0.0
    try:
        while is_used():
            time.sleep(TICK_S)
            now = time.monotonic()
            tree.step(now - last)
            last = now
            if scanned == 0.0:
                print("ready", flush=True)
            if now - scanned > SCAN_S:
                tree.find_loads()
                scanned = now
    finally:
        tree.free()


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which still needs the tree
    signal.signal(signal.SIGTERM, _leave)
    with suppress(PermissionError):  # for root only; without priority a busy machine makes the power uneven
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    if sys.argv[3:] == ["--node"]:
        run_for_node(Path(sys.argv[1]), sys.argv[2])
    elif len(sys.argv) > 3:
        run_for_store(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    else:
        run(Path(sys.argv[1]), sys.argv[2])
