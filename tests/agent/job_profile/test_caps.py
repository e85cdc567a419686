"""``tenbin program profile --caps``: runs under power caps, on emulated packages whose truth is known."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from agent.emulation.machines import truth
from agent.job_profile import caps
from agent.job_profile.caps import UnderCapsOrder, measure
from agent.job_profile.trial import CommandFailed
from probes.meters import Reading
from probes.powercap import capped, cores_of, zones
from profiles.errors import Unavailable
from profiles.files.store import JobStore
from profiles.fits.job import fit_caps
from profiles.records import NodeKind
from scheduler.jobs.sizes import Unit, speed_of, under_caps
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Pool
from scheduler.prediction.profiles import ProfiledJobs
from tenbin.commands.job import print_job
from tenbin.report import drawings as report
from tests.support.job_profiles import make_job
from tests.support.labs.components import processes_below, require
from tests.support.programs import tenbin

CPUS = sorted(os.sched_getaffinity(0))
KIND = NodeKind(key="0123456789ab", title="Example 9000, 2 cores, 7 GiB")
REAL = truth("intel-1s")  # one package: the node's caps are its own
SPIN = "import time\nwhile time.process_time() < float({}): sum(range(1000))"


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("agent.measured_node.NAME", f"tenbin-{os.getpid()}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def table(noise: float = 0.02, repetitions: int = 4, run_s: float = 10.0) -> pd.DataFrame:
    """Make the samples of a job under the emulated package's caps; caps under 24 W do not hold."""
    rng, rows = np.random.default_rng(3), []
    for repetition in range(1, repetitions + 1):
        for cap in (None, 20.0, 24.0, 31.0, 38.0, 45.0, 52.0, 60.0):
            power = min(max(cap or 90.0, REAL.lowest_cap_w), REAL.busy_w)
            took = run_s / REAL.speed(power) * float(np.exp(rng.normal(0, noise)))
            held = None if cap is None else cap >= REAL.lowest_cap_w
            row = {"repetition": repetition, "cap_w": cap, "wall_s": took, "cpu_s": run_s, "held": held}
            rows.append({**row, "power_w": power, "energy_j": power * took})
    return pd.DataFrame(rows)


def test_the_curve_is_that_of_the_machine() -> None:
    """Knee 52 W, 1/40 a watt below; each within its interval; what does not hold is left out, and told."""
    curve = fit_caps(table(), "intel-1s")
    assert curve.speed is not None and curve.speed.emulated and curve.emulated == "intel-1s"
    for name, value in (("knee_w", REAL.knee_w), ("slope_per_w", REAL.slope_per_w)):
        coefficient = curve.speed[name]
        low, high = coefficient.low, coefficient.high
        assert low is not None and high is not None and low <= value <= high
        assert coefficient.value == pytest.approx(value, rel=0.1)
    assert "4 of 28 runs did not keep to their cap" in curve.note
    *under, free = curve.levels
    assert free.cap_w is None and [level.cap_w for level in under] == [20, 24, 31, 38, 45, 52, 60]
    assert [level.held for level in under] == [False] + [True] * 6
    assert under[1].run_s.value == pytest.approx(10.0 / REAL.speed(24.0), rel=0.05)
    assert under[1].energy_j.value == pytest.approx(240.0 / REAL.speed(24.0), rel=0.05)
    few = fit_caps(table(repetitions=1).query("cap_w != cap_w or cap_w > 50"), doubt="no caps here")
    assert few.speed is None and few.note == "no caps here"


@pytest.mark.measures
def test_real_runs_under_emulated_caps() -> None:
    command = (sys.executable, "-S", "-c", SPIN.format(0.25))
    rows, doubt = measure(UnderCapsOrder(command, "/", tuple(CPUS), 100.0, quick=True, emulated="intel-1s"))
    assert not doubt and sorted(set(rows["repetition"])) == [1, 2]
    caps = sorted(set(rows["cap_w"].dropna()))
    assert len(caps) == 5 and len(rows) == 12 and REAL.lowest_cap_w <= caps[0] + 1.5
    assert (rows["power_w"] > 0).all() and (rows["wall_s"] > 0.24).all()
    assert (rows["energy_j"] / rows["wall_s"]).tolist() == pytest.approx(rows["power_w"].tolist())
    assert not processes_below()


def test_a_job_is_metered_by_the_packages_that_it_runs_on() -> None:
    require(len(CPUS) > 1, "two cores, a package each")
    meter: Any = SimpleNamespace(packages=("package-0", "package-1"))
    for cpus, used in (((CPUS[0],), ("package-0",)), ((CPUS[-1],), ("package-1",)), (CPUS, meter.packages)):
        order = UnderCapsOrder(("true",), "/", tuple(cpus), emulated="intel-2s")
        assert caps._packages(order, Path("/sys"), meter) == used


def test_each_run_is_under_its_cap_on_every_package() -> None:
    watts: list[float | None] = []
    packages = ("package-0", "package-1")
    node: Any = SimpleNamespace(packages=packages, set_w=watts.append, reset=lambda: watts.append(None))
    meter: Any = SimpleNamespace(
        read=lambda: Reading(dict.fromkeys(packages, 0.0), {}, dict.fromkeys(packages, 0))
    )
    bench = caps._Bench(UnderCapsOrder(("true",), "/", (CPUS[0],)), meter, node, packages[:1])
    for cap_w in (None, 40.0, None):
        bench.run(cap_w, 1)
    assert watts == [None, 80.0, None] and [row["cap_w"] for row in bench.rows] == [None, 40.0, None]


def test_what_fails_is_said() -> None:
    order = UnderCapsOrder(("sh", "-c", "exit 3"), "/", (CPUS[0],), emulated="intel-1s")
    with pytest.raises(CommandFailed, match="failed with exit code 3"):
        measure(order)
    spin = (sys.executable, "-S", "-c", SPIN.format(0.1))
    rows, doubt = measure(UnderCapsOrder(spin, "/", (CPUS[0],), quick=True, emulated="amd"))
    assert "no power limits" in doubt and rows["cap_w"].isna().all() and (rows["energy_j"] > 0).all()


def test_no_meter_is_said_before_anything_is_run() -> None:
    require(not Path("/sys/class/powercap/intel-rapl:0").exists(), "a machine without a meter")
    with pytest.raises(Unavailable, match="no powercap interface"):
        caps.check_meter("")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--emulate", "intel-1s"], "--emulate: only power caps are emulated"),
        (["--caps", "--emulate", "sparc"], "no machine 'sparc'"),
        (["--caps", "--hosts", "a,b"], "--caps with --hosts"),
    ],
)
def test_bad_input(options: list[str], says: str, tmp_path: Path) -> None:
    done = tenbin("program", "profile", "x", *options, "--", "true", store=tmp_path)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_package_s_cpus_are_those_of_its_number(tmp_path: Path) -> None:
    """Two packages of two CPUs, one of which this process may not use."""
    for package in (0, 1):
        zone = tmp_path / f"class/powercap/intel-rapl:{package}"
        zone.mkdir(parents=True)
        files = {"name": f"package-{package}", "constraint_0_name": "long_term"}
        for file, text in {**files, "constraint_0_power_limit_uw": "90000000", "energy_uj": "1"}.items():
            (zone / file).write_text(text)
    for cpu in range(4):
        topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(str(cpu // 2))
    cores = cores_of(tmp_path, capped(zones(tmp_path)), {0, 2, 3})
    assert cores == {"package-0": (0,), "package-1": (2, 3)}


def test_parm_s_speed_is_the_job_s_own(tmp_path: Path) -> None:
    """Against its speed at the pool's lowest cap; only of the machine it was measured on; fixed then."""
    JobStore(tmp_path).save(make_job("lu", kind=KIND, caps=fit_caps(table(), "intel-2s")), {"caps": table()})
    measured, pool = ProfiledJobs(JobStore(tmp_path), KIND), Pool("node", 2, caps_w=(30.0, 40.0, 50.0, 60.0))
    unit = Unit(node=True, cores=1, package=True, emulated="intel-2s")
    spec = JobSpec(command=("lu",), folder="/", nodes=1, job_profile="lu")
    profiled = under_caps(spec, measured.caps, unit)
    assert profiled.cap_curve == pytest.approx((REAL.knee_w, REAL.slope_per_w), rel=0.1)
    speed = speed_of(profiled, pool, unit, 1, most=None)
    assert speed is not None and speed(1, 30.0) == 1.0
    for cap in (40.0, 50.0, 60.0):
        assert speed(1, cap) == pytest.approx(REAL.speed(cap) / REAL.speed(30.0), rel=0.1)
    own = spec.model_copy(update={"cap_curve": (40.0, 0.01)})
    assert under_caps(own, measured.caps, unit) == own
    nodes, real = Unit(node=True, cores=1, emulated="intel-2s"), Unit(node=True, cores=1, package=True)
    assert under_caps(spec, measured.caps, nodes) == spec  # caps of whole nodes, or none
    assert under_caps(spec, measured.caps, real) == spec  # not the emulated ones
    plain, other = (speed_of(job, pool, nodes, 1, most=None) for job in (spec, profiled))
    assert plain == other
    steep = speed_of(spec.model_copy(update={"cap_curve": (60.0, 0.1)}), pool, unit, 1, most=None)
    assert steep is not None and steep(1, 60.0) == pytest.approx(100.0)


def test_a_job_that_draws_less_than_a_cap_is_not_slowed_by_it(tmp_path: Path) -> None:
    """Its speed under caps was not measured: full at the 29 W that it draws, in proportion below."""
    rows = table().query("cap_w != cap_w").assign(power_w=29.0)
    JobStore(tmp_path).save(make_job("ls", kind=KIND, caps=fit_caps(rows, "intel-2s")), {"caps": rows})
    unit = Unit(node=True, cores=1, package=True, emulated="intel-2s")
    spec = JobSpec(command=("ls",), folder="/", nodes=1, job_profile="ls")
    spec = under_caps(spec, ProfiledJobs(JobStore(tmp_path), KIND).caps, unit)
    assert spec.cap_curve == pytest.approx((29.0, 1 / 29))
    for caps_w, gain in (((30.0, 60.0), 1.0), ((14.5, 60.0), 2.0)):
        speed = speed_of(spec, Pool("node", 2, caps_w=caps_w), unit, 1, most=None)
        assert speed is not None and speed(1, 60.0) == pytest.approx(gain)


def test_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    job = make_job("lu", kind=KIND, caps=fit_caps(table(), "intel-1s"))
    print_job(job)
    shown = capsys.readouterr().out
    assert "Under power caps (EMULATED: intel-1s)" in shown and "least energy" in shown
    assert "cap not kept to" in shown and "knee" in shown
    drawn = next(figure for figure in report.job_figures([job]) if "power caps" in figure.layout.title.text)
    assert drawn.data[0].name == "lu EMULATED" and drawn.data[0].y[1] == pytest.approx(0.3, rel=0.1)
    assert json.loads(job.model_dump_json())["caps"]["speed"]["form"] == "knee"
