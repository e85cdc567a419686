"""The power probe, its fits and its pictures; the whole of it on emulated hardware with known truth."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from agent.emulation.machines import emulated_node
from agent.journal import Journal
from probes import power
from probes.power import held, measure
from probes.power_load import LoadProgress, Loads, speed
from probes.powercap import Caps, find_caps
from probes.run import Event, Run, collect, samples_of
from profiles.errors import Unavailable, UserError
from profiles.fits import fit_samples
from profiles.records import Settings
from scheduler.model.jobs import Pool
from scheduler.prediction.profiles import with_power
from tenbin.report.probes.power import EXPLANATION, figures
from tests.probes.test_powercap import LIMITS, write_zone
from tests.support.amounts import sweep
from tests.support.records import make_profile


def measured(name: str, sysfs: Path, journal: Path, round_: int = 0, *, budget_s: float = 1.0) -> list[Event]:
    """Return the samples of one round of the probe on an emulated node."""
    events: list[Event] = []
    settings = Settings(sysfs=sysfs, emulated=name, budget_s=budget_s, round=round_)
    with Journal(journal) as j:
        measure(Run("power", settings, events.append, j.control))
    return events


def absents(events: list[Event]) -> list[str]:
    return [f"{e['absent']['what']}: {e['absent']['reason']}" for e in events if e["event"] == "absent"]


def known(sysfs: Path) -> dict[str, str]:
    """Every value that a power probe may change."""
    powercap = sysfs / "class/powercap/intel-rapl"
    return {
        str(p): p.read_text()
        for pattern in ("*/constraint_*", "*/enabled")
        for p in sorted(powercap.glob(pattern))
    }


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where noise does not matter, nor what the caches hold."""
    monkeypatch.setattr(power, "WINDOW_S", 0.08)
    monkeypatch.setattr(power, "SETTLE_S", 0.05)
    monkeypatch.setattr(power, "_area_mb", lambda run, loads: power.LEAST_AREA_MB)


@pytest.mark.usefixtures("short_windows")
def test_the_whole_probe_samples_every_kind_and_puts_the_limits_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the fit makes of samples: ``test_the_fit_of_samples_with_known_truth``."""
    monkeypatch.setattr(power, "LOADS", ("compute",))
    name = "intel-1s"
    with emulated_node(name) as sysfs:
        before = known(sysfs)
        samples = samples_of(measured(name, sysfs, tmp_path / "journal"))
        assert known(sysfs) == before
    assert samples["emulated"].all()
    assert set(samples["kind"]) == {"idle", "uncapped", "cap", "reference"}
    assert samples[samples["kind"] == "cap"]["cap_w"].nunique() >= 8
    models = {m.title: m for m in fit_samples("power", samples)}
    assert all(np.isfinite(c.value) for model in models.values() for c in model.coefficients)
    assert "power_speed_ratio{load=compute}" in models and all(m.emulated for m in models.values())
    assert "W_base" in models
    assert models["beside_packages_w"]["beside_packages_w"].value > 0  # DRAM and what only psys sees


@pytest.mark.usefixtures("short_windows")
def test_caps_that_read_back_but_do_not_hold(tmp_path: Path) -> None:
    with emulated_node("intel-1s+locked") as sysfs:
        events = measured("intel-1s+locked", sysfs, tmp_path)
    disobeyed = [a.split(":")[0] for a in absents(events) if "cap not obeyed" in a]
    assert disobeyed == ["speed under power caps (compute)", "speed under power caps (memory)"]
    samples = samples_of(events)
    caps = samples[samples["kind"] == "cap"]
    assert len(caps) >= 4 and not caps["held"].any()
    titles = [m.title for m in fit_samples("power", samples)]
    assert "W_base" in titles and "power_w{load=memory}" in titles
    assert not any("ratio" in t for t in titles)


@pytest.mark.usefixtures("short_windows")
def test_amd_has_power_and_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "LOADS", ("compute",))
    with emulated_node("amd") as sysfs:
        events = measured("amd", sysfs, tmp_path)
    assert any("no power limits" in a for a in absents(events))
    models = {m.title: m for m in fit_samples("power", samples_of(events))}
    assert models["beside_packages_w"]["beside_packages_w"].value == 0.0  # its meter sees packages only
    assert {"W_base", "power_w{load=compute}"} <= set(models) and not any("ratio" in t for t in models)


@pytest.mark.usefixtures("short_windows")
def test_a_meter_lost_in_the_middle_keeps_what_was_seen(tmp_path: Path) -> None:
    """The emulated meter is lost after 3 s: the probe is at rest for 8 % of its budget, then loads run."""
    with emulated_node("intel-1s+vanish") as sysfs:
        before = known(sysfs)
        events = measured("intel-1s+vanish", sysfs, tmp_path, budget_s=25.0)
        assert known(sysfs) == before
    assert any("could not be read" in a for a in absents(events))
    assert "W_base" in [m.title for m in fit_samples("power", samples_of(events))]


def test_without_a_meter_it_says_why(tmp_path: Path) -> None:
    samples, absent = collect("power", Settings(sysfs=tmp_path), measure)
    assert samples.empty or set(samples["kind"]) == {"gpu"}
    (why,) = [a for a in absent if a.what == "power of the processor"]
    assert "no powercap interface" in why.reason and why.remedy


@pytest.mark.usefixtures("short_windows")
def test_no_journal_no_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a journal nothing is changed; what can be measured without caps is."""
    monkeypatch.setattr(power, "LOADS", ("compute",))
    with emulated_node("intel-2die") as sysfs:
        before = known(sysfs)
        events: list[Event] = []
        measure(Run("power", Settings(sysfs=sysfs, emulated="intel-2die", budget_s=1.0), events.append))
        assert known(sysfs) == before
    assert any("no journal" in a for a in absents(events))
    assert "W_base" in [m.title for m in fit_samples("power", samples_of(events))]


PROBE = """
import sys
from pathlib import Path
from agent.journal import Journal
from probes import power
from probes.run import Run
from profiles.records import Settings
sysfs = Path(sys.argv[1])
power.WINDOW_S = power.SETTLE_S = 0.05
def emit(event):
    if "under" in event.get("doing", ""):
        power.WINDOW_S = 60  # the first cap is in force when the signal comes
        print("sweeping", flush=True)
with Journal(Path(sys.argv[2])) as journal:
    power.measure(Run("power", Settings(sysfs=sysfs, emulated="intel-2s", budget_s=5), emit, journal.control))
"""


@pytest.mark.parametrize("number", sweep((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), {signal.SIGTERM}))
def test_originals_come_back_when_the_probe_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    with emulated_node("intel-2s") as sysfs:
        before = known(sysfs)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", textwrap.dedent(PROBE), str(sysfs), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "sweeping\n"
        deadline = time.monotonic() + 20
        while known(sysfs) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert known(sysfs) != before
        process.send_signal(number)
        process.wait()
        deadline = time.monotonic() + 20
        while known(sysfs) != before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert known(sysfs) == before


def test_caps_are_spread_over_the_packages_and_everything_is_journalled(tmp_path: Path) -> None:
    for i in range(2):
        write_zone(tmp_path, f"intel-rapl:{i}", f"package-{i}", **LIMITS, enabled="0")
    written: list[tuple[str, str]] = []
    caps = find_caps(tmp_path, lambda path, value: written.append((path.name, value)))
    assert (caps.original_w, caps.lowest_w) == (190.0, 47.5)
    caps.remember()
    assert sorted(set(written)) == [
        ("constraint_0_power_limit_uw", "95000000"),
        ("constraint_0_time_window_us", "999424"),
        ("constraint_1_power_limit_uw", "118750000"),
        ("constraint_1_time_window_us", "2440"),
        ("enabled", "1"),
    ]
    written.clear()
    caps.set_w(100.0)
    assert (
        written
        == [("constraint_0_power_limit_uw", "50000000"), ("constraint_1_power_limit_uw", "50000000")] * 2
    )
    written.clear()
    caps.reset()
    assert (
        written
        == [("constraint_0_power_limit_uw", "95000000"), ("constraint_1_power_limit_uw", "118750000")] * 2
    )


def test_a_firmware_that_names_the_lowest_cap_is_believed(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:0", "package-0", **LIMITS, constraint_0_min_power_uw="40000000")
    assert find_caps(tmp_path, lambda path, value: None).lowest_w == 40.0


def test_no_limits_is_a_sentence(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:0", "package-0")
    with pytest.raises(Unavailable, match="no power limits"):
        find_caps(tmp_path, lambda path, value: None)
    assert Caps([], lambda path, value: None).original_w == 0


def test_speed_is_blind_to_other_processes_and_sees_caps() -> None:
    start = [LoadProgress(0.0, 0.0, 0.0, 0.0)]
    alone = speed(start, [LoadProgress(1.0, 100.0, 1.0, 0.0)])
    shared = speed(start, [LoadProgress(1.0, 40.0, 0.4, 0.6)])  # another process had the core for 0.6 s
    slow_clock = speed(start, [LoadProgress(1.0, 50.0, 1.0, 0.0)])
    stopped_half = speed(start, [LoadProgress(1.0, 50.0, 0.5, 0.0)])
    assert (alone, shared, slow_clock, stopped_half) == (100.0, 100.0, 50.0, 50.0)
    assert speed(start, start) is None


def test_a_load_that_dies_is_told() -> None:
    core = min(os.sched_getaffinity(0))
    with Loads("memory", [core], 1.0) as loads:
        loads._processes[0].kill()
        loads._processes[0].wait()
        with pytest.raises(UserError, match="memory load died"):
            loads.read()
    assert not loads._file.exists()


def test_held() -> None:
    assert held(100.0, 109.0) and not held(100.0, 111.0)
    assert held(10.0, 11.9) and not held(10.0, 12.1)


def synthetic(rounds: int = 1, drift: float = 0.0, locked: bool = False) -> pd.DataFrame:
    """Make samples of a node with knee 52 W, slope 0.025 / W and a speed noise of 2 %."""
    rng = np.random.default_rng(5)
    rows: list[dict[str, object]] = []
    for round_ in range(rounds):
        for noise in rng.normal(0, 0.1, 8):
            rows.append({"kind": "idle", "package_w": 15.0, "total_w": 24 + noise, "round": round_})
        common = {"load": "compute", "round": round_}
        for cap in np.linspace(25, 60, 8).tolist() * 3:
            ratio = 1 - 0.025 * max(52 + drift * round_ - cap, 0) + rng.normal(0, 0.02)
            seen = {"package_w": min(cap, 52.0), "total_w": 60.0, "held": not (locked and cap < 40)}
            rows.append({"kind": "cap", "cap_w": cap, "speed_ratio": ratio, **seen, **common})
            seen = {"package_w": 52.0, "total_w": 64.0, "held": None}
            ratio = 1 + rng.normal(0, 0.02)
            rows.append({"kind": "reference", "cap_w": 90.0, "speed_ratio": ratio, **seen, **common})
    return pd.DataFrame(rows).assign(emulated=False, time_s=0.0)


def test_the_fit_of_samples_with_known_truth() -> None:
    models = {m.title: m for m in fit_samples("power", synthetic())}
    curves = {"power_w{load=compute}", "power_speed_ratio{load=compute}"}
    assert set(models) == {"W_base", "beside_packages_w", *curves}
    assert models["beside_packages_w"]["beside_packages_w"].value == pytest.approx(9.0, abs=0.1)
    curve = models["power_speed_ratio{load=compute}"]
    assert curve["knee_w"].value == pytest.approx(52.0, abs=2.0)
    assert curve["slope_per_w"].value == pytest.approx(0.025, rel=0.05)
    assert curve["m"].value == pytest.approx(0.025 / 0.325, rel=0.15)
    assert (curve.x_min, curve.x_max) == (25.0, 90.0)
    assert models["power_w{load=compute}"]["power_w"].value == pytest.approx(64.0)
    pool, _ = with_power(Pool("node", 1), make_profile(models=tuple(models.values())))
    # Packages that draw what they draw at rest are not in it twice.
    assert pool.power_w(1, 15.0) == pytest.approx(24.0, rel=0.01)


def test_rounds_that_differ_widen_the_interval() -> None:
    def width(samples: pd.DataFrame) -> float:
        knee = next(m for m in fit_samples("power", samples) if m.form == "knee")["knee_w"]
        return (knee.high or np.inf) - (knee.low or -np.inf)

    assert width(synthetic(rounds=3, drift=3.0)) > 2 * width(synthetic(rounds=3))


def test_caps_that_did_not_hold_are_left_out_and_counted() -> None:
    models = fit_samples("power", synthetic(locked=True))
    curve = next((m for m in models if m.form == "knee"), None)
    assert curve is not None and "did not hold" in curve.note
    assert curve.x_min == 40.0


@pytest.mark.parametrize("keep", [0, 1, 3, 12, 20])
def test_interrupted_samples_give_fewer_models_and_figures(keep: int) -> None:
    samples = synthetic().head(keep)
    models = fit_samples("power", samples)
    assert all(np.isfinite(m.coefficients[0].value) for m in models)
    assert len(figures(samples, models)) in (0, 2)
    assert fit_samples("power", samples.drop(columns=["held", "speed_ratio"], errors="ignore")) is not None


def test_figures() -> None:
    samples = synthetic(locked=True)
    models = fit_samples("power", samples)
    speed_figure, power_figure = figures(samples, models)
    assert speed_figure.layout.title.text == "Speed under a power cap"
    assert {"compute", "compute, fit"} <= {trace.name for trace in speed_figure.data}
    assert {"compute, obeyed", "compute, not obeyed", "cap"} == {trace.name for trace in power_figure.data}
    marked = figures(samples.assign(emulated=True), models)
    assert all("(emulated)" in f.layout.title.text for f in marked)
    assert len(EXPLANATION) > 200
