"""The process behind an emulated powercap tree: advances the counters, obeys the caps.

Every 5 ms it looks which loads are runnable, turns that into energy, and holds each package to its cap by
stopping and continuing the package's loads: a CPU quota by SIGSTOP and SIGCONT. Unlike a cgroup's quota this
needs no root, and it takes a *share* of whatever time the machine gives the load. Power follows runnable
time, whether or not another process had the core: so a busy machine does not move the knee.

Its loads are marked descendants of its owner; or, where it stands for a coordinator
(``agent.emulation.persistent``), the processes of the jobs in a store, except while they are paused. On a
node of a cluster they are those of all jobs there:

    python -P -m agent.emulation.emulated_tree SYSFS MACHINE --node

makes the tree in the folder SYSFS, and keeps it until SIGTERM.
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
from agent.emulation.machines import Machine, build, cores_of, parse, zone_folders
from agent.emulation.persistent import abandoned, sign_of_life
from agent.processes.tree import MARK as JOB_MARK
from probes.power.loads import MARK
from probes.power.powercap import read_int

TICK_S = 0.005
SCAN_S = 0.1
SWING_S = 0.0015  # of running time that a package may be ahead of its cap, or behind, before it is stopped
CREDIT_S = 0.05  # of running time: the most that is saved up while less than the cap is drawn
START_UJ = 1_000_000_000
WRAP_IN_UJ = 20_000_000
DIGITS = 16
FOLDER = "TENBIN_JOB_FOLDER"


@dataclass
class Load:
    """A process that draws power, and is slowed down."""

    pid: int
    kind: str
    settled_s: float  # all the time it was runnable, when it was last seen not to be
    counted_s: float = 0.0  # runnable time counted since then
    job: str = ""  # folder of the attempt that it belongs to
    paused: bool = False

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
        # What was counted too much is set off later: no counter of energy runs backwards.
        self.settled_s, self.counted_s = total_s, max(0.0, -missing_s)
        return max(0.0, missing_s)

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
        """Take a load over: it stops or goes on as the package does, whatever it did where it comes from."""
        self.loads.append(load)
        load.send(signal.SIGSTOP if self.stopped else signal.SIGCONT)

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
                    self._meet(psutil.Process(pid))
        for load in self._known.values():
            if load is not None and load.job:
                with suppress(OSError):
                    self._follow(load)

    @property
    def idle(self) -> bool:
        """Whether no load is left."""
        return not any(self._known.values())

    def _pids(self) -> list[int]:
        if self.store is not None or self.node:
            return psutil.pids()
        try:
            return [process.pid for process in psutil.Process(self.owner).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _meet(self, process: psutil.Process) -> None:
        environment = process.environ()
        kind, job = environment.get(MARK), self._job(environment)
        young = time.time() - process.create_time() < 2.0  # it may not have reached its own program yet
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
        """Folder of the attempt that a process belongs to; "" where jobs do not count; None: no load."""
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
            load.send(signal.SIGSTOP)  # it may just have been continued here
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
    _prepare()
    tree = Tree(sysfs, name, owner)
    try:
        _loop(tree, lambda: os.getppid() == owner)
    finally:
        tree.free()
        if os.getppid() != owner:
            shutil.rmtree(sysfs, ignore_errors=True)


def stand(sysfs: Path, name: str, store: Path) -> None:
    """Keep the tree alive until neither a coordinator nor a job of the store is left, or SIGTERM."""
    folder = store / "emulated"
    _prepare()
    tree, alive, door = Tree(sysfs, name, store=store), sign_of_life(folder), None

    def wanted() -> bool:
        nonlocal door
        if tree.idle:
            door = abandoned(folder)  # nobody comes in from here on
        return door is None

    try:
        _loop(tree, wanted)
    finally:
        tree.free()
        shutil.rmtree(sysfs, ignore_errors=True)
        os.close(alive)


def keep(sysfs: Path, name: str) -> None:
    """Make the tree of a node of a cluster, and keep it alive until SIGTERM; one of before is made anew, as a
    machine that was started again has its own caps."""
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
    _prepare()
    tree = Tree(sysfs, name, node=True)
    try:
        _loop(tree, lambda: True)
    finally:
        tree.free()


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which still needs the tree
    signal.signal(signal.SIGTERM, _leave)
    with suppress(PermissionError):  # root only; without it a busy machine makes the power uneven
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _loop(tree: Tree, wanted: Callable[[], bool]) -> None:
    last = time.monotonic()
    scanned = 0.0
    while wanted():
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
    if sys.argv[3:] == ["--node"]:
        keep(Path(sys.argv[1]), sys.argv[2])
    elif len(sys.argv) > 3:
        stand(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    else:
        run(Path(sys.argv[1]), sys.argv[2])
