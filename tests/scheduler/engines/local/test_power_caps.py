"""Caps, budgets and energy of real jobs, on emulated packages that obey their caps."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.emulation.machines import holding, truth
from agent.node_profile.identity import node_kind
from profiles.errors import BadInput, Unavailable
from profiles.files.store import JobStore
from profiles.jobs import CapLevel, UnderCaps
from profiles.records import Profile, Settings
from scheduler.engines.local.discovery import capped_packages
from tests.probes.test_powercap import LIMITS, write_zone
from tests.support.coordinator import Up
from tests.support.job_profiles import make_job
from tests.support.labs.components import require
from tests.support.labs.repeated import Repeated
from tests.support.records import make_coefficient, make_model, make_profile

ORIGINAL_W = 90.0
DRAM_W = 3.0
BESIDE_W = 3.0  # what the profile says of a package beside its cap
# Burns processor time, and says what cap its package has at the beginning and at the end.
SPIN = """
import os, sys, time
from pathlib import Path
def cap():
    package = max(os.sched_getaffinity(0)) * 2 // os.cpu_count()
    while True:
        zone = Path(sys.argv[2], f"class/powercap/intel-rapl:{package}")
        text = (zone / "constraint_0_power_limit_uw").read_text()
        if text:
            return int(text) / 1e6
print(cap(), flush=True)
while time.process_time() < float(sys.argv[1]):
    sum(range(1000))
print(cap(), flush=True)
"""
RANK = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()\n" + SPIN + "MPI.COMM_WORLD.Barrier()\n"


@pytest.fixture
def capped(up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Capped]:
    """Start a coordinator on two emulated packages, which stay while the test reads them."""
    require(len(os.sched_getaffinity(0)) == 2, "two cores, a package each")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = up.home / "emulated"
    up.home.mkdir(mode=0o700)
    folder.mkdir()
    with holding(folder):
        yield Capped(up)
    deadline = time.monotonic() + 20
    if up.process is not None and up.process.poll() is None:
        up.kill()
    sysfs = json.loads((folder / "where.json").read_text())["sysfs"]
    while Path(sysfs).exists():
        assert time.monotonic() < deadline, "the emulation outlives its users"
        time.sleep(0.05)


class Capped:
    """A coordinator under a power budget, and what the tests do with it."""

    def __init__(self, up: Up) -> None:
        self.up = up

    def start(
        self, budget_w: float, policy: str = "parm", machine: str = "intel-2s", profiled: bool = False
    ) -> None:
        options = ["--policy", policy, "--power-budget", str(budget_w), "--emulate", machine]
        if profiled:
            file = self.up.home.parent / "profile.json"
            file.write_text(known(Settings(emulated=machine)).model_dump_json())
            options += ["--profile", str(file)]
        self.up.start(*options)
        where = json.loads((self.up.home / "emulated" / "where.json").read_text())
        self.sysfs = Path(where["sysfs"])

    def caps_w(self) -> list[float]:
        found = []
        for package in (0, 1):
            text = ""
            while not text:  # it is empty for an instant while it is written
                zone = self.sysfs / f"class/powercap/intel-rapl:{package}"
                text = (zone / "constraint_0_power_limit_uw").read_text()
            found.append(int(text) / 1e6)
        return found

    def holds(self, **needs: Any) -> dict[str, Any]:
        """Submit a job that keeps its package and its cap, and computes nothing."""
        return {"command": ["sleep", "600"], "folder": "/", **needs}

    def spin(self, seconds: float, **needs: Any) -> dict[str, Any]:
        code = RANK if needs.get("mpi") else SPIN
        command = [sys.executable, "-c", code, str(seconds), str(self.sysfs)]
        return {"command": command, "folder": "/", "stderr": "/dev/null", **needs}


def known(settings: Settings) -> Profile:
    """Make a perfect profile of the two emulated packages."""
    real = truth("intel-2s")
    one = make_coefficient
    curve = make_model(
        one(real.knee_w, name="knee_w"),
        one(real.slope_per_w, name="slope_per_w"),
        one(1.0, name="speed_flat"),
        probe="power",
        quantity="power_speed_ratio",
        form="knee",
        labels={"load": "compute"},
        x_min=real.lowest_cap_w,
        x_max=180.0,
    )
    beside = make_model(one(6.0, name="beside_packages_w"), quantity="beside_packages_w", labels={})
    rest = make_model(one(real.base_w, name="W_base"), quantity="W_base", labels={})
    busy = make_model(one(110.0, name="power_w"), quantity="power_w", labels={"load": "compute"})
    scaling = make_model(
        one(10.0, name="T1"),
        one(8.0, name="A"),
        one(0.5, name="sigma"),
        quantity="run_s",
        labels={"load": "ep"},
    )
    models = (curve, beside, rest, busy, scaling)
    return make_profile(models=models, settings=settings, emulated=bool(settings.emulated))


class Sampler(Repeated):
    """Looks at the caps all the time; a package not at its original limit is in use."""

    def __init__(self, caps_w: Callable[[], list[float]]) -> None:
        super().__init__(0.001)
        self.most_w, self._caps_w = 0.0, caps_w

    def look(self) -> None:
        used = [cap for cap in self._caps_w() if cap != ORIGINAL_W]
        self.most_w = max(self.most_w, sum(used) + BESIDE_W * len(used))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("mpi")
def test_never_over_the_budget(capped: Capped) -> None:
    """6 jobs, plain ones whose caps change while they run and MPI jobs of one or two nodes.

    The coordinator is killed meanwhile. At no instant do the caps of the packages in use, and 3 W
    beside each, exceed the budget; no job runs without a cap; in the end everything is as it was.
    """
    up, budget_w = capped.up, 80.0
    capped.start(budget_w, profiled=True)
    specs = [capped.spin(0.3 + 0.1 * i) for i in range(4)]
    specs += [capped.spin(0.4, mpi=True, tasks=1, max_tasks=2) for _ in range(2)]
    with Sampler(capped.caps_w) as sampler:
        jobs = up.client.submit_all(specs[::2] + specs[1::2])
        up.until(lambda: sum(job.done() for job in jobs) >= 2, 120)
        up.kill()
        capped.start(budget_w, profiled=True)
        found = [job.wait(150) for job in jobs]
        assert capped.caps_w() == [ORIGINAL_W, ORIGINAL_W]
    assert sampler.looks > 100 and 0 < sampler.most_w <= budget_w
    assert [each["stage"] for each in found] == ["done"] * 6, [each["trouble"] for each in found]
    for each in found:
        seen = [float(word) for word in Path(each["stdout"]).read_text().split()]
        assert len(seen) == 2 * each["tasks"] and max(seen) < ORIGINAL_W, each
        assert each["usage"]["emulated"] and each["usage"]["energy_j"] > 0
    assert not list((up.home.parent / "state").rglob("*.json"))


def test_the_cap_of_a_running_job_changes(capped: Capped) -> None:
    """Alone it has what makes it no faster any more, 52 W; a second one takes at least 24 W of 74 from it."""
    up = capped.up
    capped.start(80.0, "parm,alpha=0", profiled=True)
    with Sampler(capped.caps_w) as sampler:
        first = up.client.submit_all([capped.holds()])[0]
        up.until(lambda: 52 <= min(capped.caps_w()) < ORIGINAL_W)
        second = up.client.submit_all([capped.spin(0.5)])[0]
        ended = second.wait(120)
        up.until(lambda: first.info()["cap_w"] >= 52)
        first.cancel()
        found = first.wait(120)
    caps = [float(e["detail"].split()[0]) for e in found["history"] if e["what"] == "power cap"]
    assert min(caps) <= 50 and caps[-1] >= 52 and min(caps) + ended["cap_w"] <= 74
    assert 0 < sampler.most_w <= 80.0
    assert capped.caps_w() == [ORIGINAL_W, ORIGINAL_W]


@pytest.mark.slow
def test_what_a_cap_costs_is_predicted_and_measured(capped: Capped) -> None:
    """Ground truth: the speed that the emulation gives a package under 34 W, of 40 W with 6 W beside it."""
    capped.start(40.0, profiled=True)
    code = "import time\nwhile time.process_time() < 1: sum(range(1000))"
    job = capped.up.client.submit([sys.executable, "-c", code], expect_s={"": 1.0})
    assert job.result(120) == 0
    found = job.info()
    of = {one["kind"]: one for one in found["forecasts"]}
    real = truth("intel-2s")
    speed = 1 - 2 * real.slope_per_w * (real.knee_w / 2 - found["cap_w"])
    assert of["cap"]["predicted"] == pytest.approx(1 / speed) and speed < 0.9
    assert of["run-time"]["stated"] == pytest.approx(1 / speed)
    assert of["cap"]["emulated"] and of["run-time"]["emulated"]
    assert of["cap"]["measured"] > 0.9 / speed  # on a busy machine it takes longer
    shown = capped.up.run("program", "calibration", "--kind", "cap")
    assert shown.returncode == 0 and "cap" in shown.stdout


@pytest.mark.measures
def test_energy_is_what_the_cap_allows(capped: Capped) -> None:
    """Ground truth: a busy package draws its cap, and its memory 3 W; the counters wrap after 20 J."""
    capped.start(40.0, machine="intel-2s+wrap")
    found = capped.up.client.submit_all([capped.spin(1.5)])[0].wait(120)
    used = found["usage"]
    assert found["cap_w"] == 40.0 and used["emulated"] and used["energy_j"] > 30
    assert used["energy_j"] / used["wall_s"] == pytest.approx(40.0 + DRAM_W, rel=0.15)
    shown = capped.up.run("info", "last").stdout
    assert "capped at 40 W" in shown and "(EMULATED)" in shown
    power = json.loads(capped.up.run("status", "--json").stdout)["power"]
    assert power == {"budget_w": 40.0, "allotted_w": 0.0}
    assert 'tenbin_power_watts{what="budget"} 40.0' in capped.up.client.call("GET", "/metrics")


def test_a_suspended_job_gives_its_package_back(capped: Capped) -> None:
    up = capped.up
    capped.start(60.0, "fifo-mid")
    job = up.client.submit_all([capped.spin(1.2)])[0]
    up.until(lambda: capped.caps_w().count(ORIGINAL_W) == 1)
    # It has read its cap: for some milliseconds the emulation lets a paused job go on.
    up.until(lambda: up.client.output(job.id))
    job.suspend()
    assert capped.caps_w() == [ORIGINAL_W, ORIGINAL_W]  # not a moment later: others may have the watts
    job.resume()
    assert job.wait(120)["stage"] == "done"
    assert max(map(float, Path(job.info()["stdout"]).read_text().split())) < ORIGINAL_W
    assert capped.caps_w() == [ORIGINAL_W, ORIGINAL_W]


@pytest.mark.parametrize("coordinator_too", [False, True])
def test_what_a_killed_supervisor_left_is_put_back(capped: Capped, coordinator_too: bool) -> None:
    up = capped.up
    capped.start(60.0, "fifo-mid")
    job = up.client.submit_all([capped.holds(requeue=False)])[0]
    up.until(lambda: capped.caps_w().count(ORIGINAL_W) == 1)
    file = up.home / f"jobs/{job.id}/attempt-1/state.json"
    up.until(file.exists)
    state = json.loads(file.read_text())
    if coordinator_too:
        up.kill()
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    if coordinator_too:
        assert capped.caps_w().count(ORIGINAL_W) == 1
        capped.start(60.0, "fifo-mid")
    assert job.wait(60)["stage"] == "failed"
    assert capped.caps_w() == [ORIGINAL_W, ORIGINAL_W]


def test_a_job_goes_on_under_its_cap_without_a_coordinator(capped: Capped) -> None:
    up = capped.up
    capped.start(60.0, "fifo-mid")
    waits = ["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"]
    job = up.client.submit(waits, folder=str(up.home), time_s=600)
    up.until(lambda: capped.caps_w().count(ORIGINAL_W) == 1)
    before = capped.caps_w()
    up.kill()
    assert capped.caps_w() == before
    capped.start(30.0, "fifo-mid")  # less than its cap: it goes on under the lowest
    up.until(lambda: min(capped.caps_w()) < min(before))
    less = capped.caps_w()
    assert [cap != ORIGINAL_W for cap in less] == [cap != ORIGINAL_W for cap in before]
    up.kill()
    assert capped.caps_w() == less
    (up.home / "go").touch()
    result = up.home / f"jobs/{job.id}/attempt-1/result.json"
    up.until(result.exists, 120)
    assert capped.caps_w() == [ORIGINAL_W, ORIGINAL_W]
    capped.start(60.0, "fifo-mid")
    assert job.wait(30)["stage"] == "done"


@pytest.mark.timeout(120)
def test_a_daemon_lets_go_of_its_starter(capped: Capped) -> None:
    """Neither it nor the emulation keeps the pipe that ``tenbin up`` wrote to: this comes back."""
    done = capped.up.run(
        "up", "--daemon", "--policy", "fifo-min", "--power-budget", "200", "--emulate", "intel-2s"
    )
    assert done.returncode == 0 and "runs" in done.stdout, done.stderr
    assert capped.up.run("down").returncode == 0


def test_refusals(up: Up) -> None:
    for options, message in (
        (("--policy", "easy", "--power-budget", "80", "--emulate", "intel-2s"), "easy chooses no power caps"),
        (
            ("--policy", "parm", "--power-budget", "80", "--emulate", "intel-1s", "--nodes", "2"),
            "1 package here",
        ),
        (("--policy", "parm", "--power-budget", "20", "--emulate", "intel-2s"), "lowest cap draws 22.5 W"),
        (("--policy", "parm", "--power-budget", "80", "--emulate", "amd"), "no package below"),
        (("--policy", "parm", "--power-budget", "80", "--emulate", "intel-9s"), "no machine 'intel-9s'"),
        (("--policy", "parm", "--emulate", "intel-2s"), "add --power-budget"),
        (("--policy", "parm", "--power-budget", "80", "--cores", "1"), "jobs get whole packages"),
    ):
        done = up.run("up", *options)
        code = 4 if message == "no package below" else 2
        assert done.returncode == code and message in done.stderr, (options, done.stderr)
        assert "Traceback" not in done.stderr


# -- how a real machine is divided ---------------------------------------------------------------------


def two_sockets(sysfs: Path) -> None:
    """Two packages; of the usable CPUs the first is on one, the rest on the other."""
    for number in (0, 1):
        write_zone(sysfs, f"intel-rapl:{number}", f"package-{number}", **LIMITS)
    for place, cpu in enumerate(sorted(os.sched_getaffinity(0))):
        topology = sysfs / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{min(place, 1)}\n")
        (topology / "die_id").write_text("0\n")


def test_real_packages_and_their_cores(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    require(len(cpus) > 1, "two cores")
    two_sockets(tmp_path)
    machine = capped_packages("parm,alpha=0", 100.0, None, None, sysfs=tmp_path, emulated="")
    pool = machine.cluster.pools[0]
    assert machine.cores == [cpus[:1], cpus[1:2]] and machine.cluster.budget_w == 100.0
    assert machine.packages is not None and machine.packages.keys == ("package-0", "package-1")
    assert (
        pool.units == 2 and pool.caps_w[0] == 95.0 / 4 and pool.caps_w[1] == 25.0 and pool.caps_w[-1] == 95.0
    )
    assert capped_packages("parm", 100.0, 1, None, sysfs=tmp_path, emulated="").cluster.units == 1
    with pytest.raises(BadInput, match=r"--nodes 3: a cap is of a whole package, and there are 2 packages"):
        capped_packages("parm", 100.0, 3, None, sysfs=tmp_path, emulated="")
    with pytest.raises(Unavailable, match="no package below"):
        capped_packages("parm", 100.0, None, None, sysfs=tmp_path / "nothing", emulated="")


def test_a_profile_of_the_node_is_taken_for_each_package(tmp_path: Path) -> None:
    """Its sums over two packages come out as halves; the speed is that of the emulation's truth."""
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    two_sockets(tmp_path)
    real, profile = truth("intel-2s"), known(Settings())
    machine = capped_packages("parm", 100.0, None, profile, sysfs=tmp_path, emulated="")
    pool = machine.cluster.pools[0]
    assert (pool.base_w, pool.peak_w, pool.caps_w[0]) == (3.0, 52.0, real.lowest_cap_w / 2)
    line = machine.unit.caps["compute"]
    for cap_w in (24.0, 30.0, 45.0, 52.0, 80.0):
        assert line(cap_w) == pytest.approx(real.speed(2 * cap_w) / real.speed(real.lowest_cap_w))
    assert machine.unit.scaling == {"compute": (8.0, 0.5)}
    with pytest.raises(BadInput, match="it was measured on the real machine, not on intel-2s"):
        capped_packages("parm", 100.0, None, profile, sysfs=tmp_path, emulated="intel-2s")


def test_a_job_profile_says_what_a_cap_costs(
    capped: Capped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is as fast as it gets at 30 W, one at 50 W: with 80 W each has what it needs, and no more."""
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    for name, knee_w in (("modest", 30.0), ("hungry", 50.0)):
        coefficients = make_coefficient(knee_w, name="knee_w"), make_coefficient(0.02, name="slope_per_w")
        curve = make_model(
            *coefficients,
            make_coefficient(1.0, name="speed_flat"),
            quantity="job_power_speed_ratio",
            form="knee",
        )
        need = make_coefficient(1.0, name="run_s")
        level = CapLevel(cap_w=None, run_s=need, power_w=need, energy_j=need)
        caps = UnderCaps(levels=(level,), speed=curve, emulated="intel-2s")
        JobStore().save(make_job(name, kind=node_kind(), caps=caps), {})
    capped.start(80.0)
    jobs = capped.up.client.submit_all(
        [capped.holds(job_profile=name, nodes=1) for name in ("modest", "hungry")]
    )
    capped.up.until(lambda: all(job.info()["cap_w"] for job in jobs))
    assert [job.info()["cap_w"] for job in jobs] == [30.0, 50.0]
    for job in jobs:
        job.cancel()
        job.wait(60)
