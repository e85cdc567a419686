"""The emulated powercap hardware keeps its own promises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agent.emulation.emulated_tree import TICK_S, Load, Tree
from agent.emulation.machines import FAULTS, MACHINES, build, emulated_node, parse, truth
from agent.processes.tree import MARK as JOB_MARK
from probes.power_load import MARK
from probes.powercap import capped, metered, zones
from profiles.errors import BadInput
from tests.support.labs.components import require


def test_names() -> None:
    machine, faults = parse("intel-2s+wrap+locked")
    assert (machine, faults) == (MACHINES["intel-2s"], {"wrap", "locked"})
    with pytest.raises(BadInput, match="no machine 'sparc'; choose from intel-1s"):
        parse("sparc")
    with pytest.raises(BadInput, match="no fault 'fire'; choose from wrap"):
        parse("intel-1s+fire")


def test_the_truth_is_the_papers_form() -> None:
    """s(p) = (p - p_min) m + 1 below the knee, relative to the speed at p_min (eq. 4.5)."""
    for name in ("intel-1s", "intel-2s"):
        t = truth(name)
        m = t.slope_per_w / t.speed(t.lowest_cap_w)
        for cap in (t.lowest_cap_w, (t.lowest_cap_w + t.knee_w) / 2, t.knee_w):
            assert t.speed(cap) / t.speed(t.lowest_cap_w) == pytest.approx((cap - t.lowest_cap_w) * m + 1)
        assert t.speed(t.knee_w) == t.speed(t.knee_w + 30) == 1.0


@pytest.mark.parametrize("name", list(MACHINES))
def test_the_tree_looks_like_the_kernels(name: str) -> None:
    machine, _ = parse(name)
    with emulated_node(name) as sysfs:
        tree = zones(sysfs)
        packages = [z for z in metered(tree) if z.is_package]
        assert [z.name for z in packages] == list(machine.packages)
        assert all(z.readable and z.energy_range_uj == machine.range_uj for z in packages)
        assert [z.cap_w for z in capped(tree)] == ([] if name == "amd" else [90.0] * len(packages))
        assert any(z.is_duplicate for z in tree) == machine.mmio
        # Everything else is the real machine's.
        assert (sysfs / "devices/system/cpu/online").read_text() == Path(
            "/sys/devices/system/cpu/online"
        ).read_text()
        assert sorted(p.name for p in (sysfs / "class").iterdir()) == sorted(
            {p.name for p in Path("/sys/class").iterdir()} | {"powercap"}
        )
    assert not sysfs.exists()
    assert Path("/sys/class").is_dir()


def test_faults_are_in_the_tree() -> None:
    assert set(FAULTS) == {
        "wrap", "jump-back", "ffffffff", "vanish", "locked", "unreadable", "no-max-range"
    }  # fmt: skip
    with emulated_node("intel-1s+no-max-range+unreadable") as sysfs:
        package = zones(sysfs)[0]
        assert package.energy_range_uj is None
        assert package.energy_path.stat().st_mode & 0o777 == 0o200


class MadeLoad(Load):
    """A load that wants its core all the time, and obeys signals at once."""

    stopped = False

    def active_s(self, seconds: float) -> float:
        return 0.0 if self.stopped else seconds

    def send(self, number: signal.Signals) -> None:
        self.stopped = number == signal.SIGSTOP


def test_a_cap_takes_its_share_of_time_and_gives_it_back(tmp_path: Path) -> None:
    """In virtual time the loads get what the ground truth gives them."""
    build(tmp_path, *parse("intel-1s"))
    tree = Tree(tmp_path, "intel-1s", store=tmp_path)
    (package,) = tree.packages.values()
    loads = [MadeLoad(0, "compute", 0.0) for _ in package.cores]
    for load in loads:
        package.adopt(load)

    def share() -> float:
        ran = 0
        for _ in range(1000):
            ran += not loads[0].stopped
            tree.step(TICK_S)
        return ran / 1000

    for cap_w in (24.0, 32.0, 44.0, 90.0):
        (package.folder / "constraint_0_power_limit_uw").write_text(f"{round(cap_w * 1e6)}\n")
        assert share() == pytest.approx(truth("intel-1s").speed(cap_w), abs=0.01), cap_w
    (package.folder / "constraint_0_power_limit_uw").write_text("31000000\n")
    (package.folder / "enabled").write_text("0\n")
    assert share() == pytest.approx(1.0, abs=0.01)


def test_loads_go_on_and_the_tree_goes_when_the_owner_is_killed(tmp_path: Path) -> None:
    program = """
import sys, time
from agent.emulation.machines import emulated_node
from probes.power_load import Loads
with emulated_node("intel-1s") as sysfs, Loads("compute", [int(sys.argv[1])], 1.0) as loads:
    (sysfs / "class/powercap/intel-rapl:0/constraint_0_power_limit_uw").write_text("24000000")
    time.sleep(0.3)
    print(sysfs, loads._processes[0].pid, loads._file, flush=True)
    time.sleep(60)
"""
    core = min(os.sched_getaffinity(0))
    owner = subprocess.Popen(
        [sys.executable, "-P", "-c", program, str(core)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    sysfs, load, shared = owner.stdout.readline().split()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    deadline = time.monotonic() + 20
    while (Path(sysfs).exists() or Path(f"/proc/{load}").exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    Path(shared).unlink(missing_ok=True)
    assert not Path(sysfs).exists()
    assert not Path(f"/proc/{load}").exists()  # continued, and then found itself orphaned


def test_a_load_that_binds_itself_to_cores_of_a_package_that_runs_goes_on(tmp_path: Path) -> None:
    """Stopped as the first package was, with the second one's cores; it once stayed stopped for ever."""
    require(len(os.sched_getaffinity(0)) > 1, "two cores, a package each")
    sysfs, store = tmp_path / "sys", tmp_path / "store"
    sysfs.mkdir()
    build(sysfs, parse("intel-2s")[0])
    machine = Tree(sysfs, "intel-2s", store=store)
    first, second = machine.packages.values()
    marks = {MARK: "compute", JOB_MARK: f"{store}:1:1"}
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}) as load:
        try:
            os.sched_setaffinity(load.pid, first.cores)
            machine.find_loads()
            first._stop(True)
            assert comes_to(load.pid, psutil.STATUS_STOPPED)
            os.sched_setaffinity(load.pid, second.cores)
            machine.find_loads()
            assert comes_to(load.pid, psutil.STATUS_SLEEPING) and not first.loads
            second._stop(True)
            assert comes_to(load.pid, psutil.STATUS_STOPPED)
        finally:
            load.kill()


def comes_to(pid: int, status: str) -> bool:
    """Wait until the process has handled its signal; return True if its state is ``status``."""
    deadline = time.monotonic() + 10
    while psutil.Process(pid).status() != status and time.monotonic() < deadline:
        time.sleep(0.01)
    return str(psutil.Process(pid).status()) == status
