"""Counters made monotonic, against known energy; meters on trees with faults; pyRAPL as the peer."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.emulation.emulated_tree import TICK_S, Tree
from agent.emulation.machines import MACHINES, build, emulated_node, parse, truth
from probes.meters import (
    ALL_ONES,
    Counter,
    Meter,
    Reading,
    choose_meter,
    nvml_meter,
    power_w,
    powercap_meter,
    pyrapl_meter,
)
from profiles.errors import Unavailable
from profiles.records import Settings
from tests.probes.test_powercap import write_zone
from tests.support.amounts import examples
from tests.support.labs.components import require

RANGE = 262_143_328_850


class Script:
    """Raw values to be read one after another (an exception is raised), one a second."""

    def __init__(self, *values: int | Exception) -> None:
        self.values: Iterator[int | Exception] = iter(values)
        self.now = 0.0

    def read(self) -> int:
        value = next(self.values)
        if isinstance(value, Exception):
            raise value
        return value

    def clock(self) -> float:
        return self.now


def played(*values: int | Exception, range_raw: int | None = RANGE, stall_s: float = 1e9) -> Counter:
    script = Script(*values)
    counter = Counter("package-0", script.read, 1e-6, range_raw, stall_s=stall_s)
    for _ in values:
        script.now += 1.0
        counter.update(script.clock)
    return counter


@settings(max_examples=examples(200))
@given(
    start=st.integers(0, RANGE - 1),
    steps=st.lists(st.integers(0, 900_000_000), min_size=1, max_size=40),
)
def test_any_number_of_wraps_is_allowed_for(start: int, steps: list[int]) -> None:
    """Up to 900 W for some time: the total is the sum of the steps, wherever the counter wraps."""
    raw, position = [start], start
    for step in steps:
        position = (position + step) % RANGE
        raw.append(position)
    counter = played(*raw)
    if ALL_ONES not in raw:
        assert counter.energy_j == pytest.approx(sum(steps) / 1e6, abs=1e-3)
    assert counter.breaks == 0


def test_jump_back_is_a_break_and_adds_nothing() -> None:
    counter = played(100_000_000, 150_000_000, 120_000_000, 170_000_000)
    assert counter.energy_j == pytest.approx(100.0)
    assert counter.breaks == 1
    assert counter.troubles == {"jumped back": 1}


def test_jump_ahead_is_a_break() -> None:
    counter = played(0, 50_000_000, 50_000_000 + 90_000_000_000, 50_000_000 + 90_050_000_000)
    assert (counter.energy_j, counter.breaks) == (pytest.approx(100.0), 1)
    assert counter.troubles == {"jumped ahead": 1}


def test_a_wrap_of_unknown_range_is_a_break_not_a_guess() -> None:
    counter = played(65_000_000_000, 65_050_000_000, 14_389_013, 64_389_013, range_raw=None)
    assert (counter.energy_j, counter.breaks) == (pytest.approx(100.0), 1)
    assert counter.troubles == {"jumped back, and where it wraps is not known": 1}


@pytest.mark.parametrize("bad", [ALL_ONES, RANGE, RANGE + 5, -1, OSError("gone"), ValueError("no number")])
def test_one_bad_reading_loses_nothing(bad: int | Exception) -> None:
    counter = played(0, 50_000_000, bad, 150_000_000)
    assert (counter.energy_j, counter.breaks) == (pytest.approx(150.0), 0)
    assert sum(counter.troubles.values()) == 1


def test_a_counter_that_stands_still_is_a_break_once() -> None:
    counter = played(0, 50_000_000, 50_000_000, 50_000_000, 50_000_000, stall_s=1.5)
    assert (counter.breaks, counter.troubles) == (1, {"stood still": 1})


def test_a_counter_that_vanishes_is_a_break_once() -> None:
    gone = FileNotFoundError("energy_uj")
    counter = played(0, 50_000_000, gone, gone, gone, stall_s=1.5)
    assert (counter.breaks, counter.troubles) == (1, {"could not be read": 3, "stood still": 1})


def test_a_gap_in_which_it_may_have_wrapped_twice_is_a_break() -> None:
    """At 5 kW an AMD counter wraps after 13 s; after a longer silence the energy is not known."""
    script = Script(0, 50_000_000)
    counter = Counter("package-0", script.read, 1e-6, 65_532_610_987, stall_s=1e9)
    counter.update(script.clock)
    script.now = 20.0
    counter.update(script.clock)
    assert (counter.energy_j, counter.breaks) == (0.0, 1)


def test_power_between_readings() -> None:
    before = Reading({"a": 10.0, "b": 5.0}, {"a": 1.0, "b": 1.0}, {"a": 0, "b": 0})
    after = Reading({"a": 30.0, "b": 6.0}, {"a": 3.0, "b": 2.0}, {"a": 0, "b": 0})
    assert power_w(before, after) == pytest.approx(11.0)
    assert power_w(before, after, ["a"]) == pytest.approx(10.0)
    broken = Reading(after.energy_j, after.seen_s, {"a": 1, "b": 0})
    assert power_w(before, broken) is None
    assert power_w(before, broken, ["b"]) == pytest.approx(1.0)
    assert power_w(before, before) is None


@contextmanager
def virtual_meter(name: str, folder: Path) -> Iterator[tuple[Meter, Callable[[float], None]]]:
    """Open the meter of an emulated machine at rest, and a function that lets time pass."""
    build(folder, *parse(name))
    tree, now = Tree(folder, name, store=folder), 0.0
    tree.step(TICK_S)

    def sleep(seconds: float) -> None:
        nonlocal now
        for _ in range(math.ceil(seconds / TICK_S)):
            tree.step(TICK_S)
            now += TICK_S

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probes.meters.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
        with powercap_meter(folder, interval_s=3600.0) as meter:
            yield meter, sleep


@pytest.mark.parametrize(
    ("name", "trouble"),
    [(name, "") for name in MACHINES]
    + [
        ("intel-1s+wrap", ""),
        ("intel-1s+jump-back", "jumped back"),
        ("intel-1s+ffffffff", "all ones"),
        ("intel-1s+vanish", "could not be read"),
        ("intel-2s+wrap+no-max-range", "where it wraps is not known"),
    ],
)
def test_powercap_meter_finds_idle_power_whatever_the_fault(name: str, trouble: str, tmp_path: Path) -> None:
    """Windows with a break are discarded, the others are right; every fault is counted."""
    with virtual_meter(name, tmp_path) as (meter, sleep):
        windows = []
        for _ in range(25):  # five seconds
            before = meter.read()
            for _ in range(14):
                sleep(0.015)
                after = meter.read()
            windows.append(power_w(before, after, meter.total_parts))
        powers = [watts for watts in windows if watts is not None]
        assert powers == pytest.approx([truth(name).base_w] * len(powers), rel=1e-3)
        assert len(powers) == 25 if not trouble else 10 <= len(powers) <= 25
        assert trouble in str(meter.troubles()) and bool(meter.troubles()) == bool(trouble)
        assert any(counter.wraps for counter in meter._counters) == (name == "intel-1s+wrap")
        assert not any("/core" in part or "@" in part for part in meter.parts)
        if "vanish" in name:
            assert power_w(before, after, ["package-0"]) is None
            assert power_w(before, after, ["package-0/dram"]) == pytest.approx(3.0, rel=1e-3)


def test_a_virtual_machine_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t: fpu hypervisor lahf_lm\n")
    with pytest.raises(Unavailable, match="virtual machines do not see the energy counters"):
        choose_meter(Settings(sysfs=tmp_path, procfs=tmp_path))
    (tmp_path / "cpuinfo").write_text("flags\t: fpu lahf_lm\n")
    with pytest.raises(Unavailable, match="modprobe intel_rapl_msr"):
        choose_meter(Settings(sysfs=tmp_path, procfs=tmp_path))
    with pytest.raises(Unavailable, match="no meter was asked for"):
        choose_meter(Settings(meter="none"))


def test_counters_for_root_only_name_the_remedy(tmp_path: Path) -> None:
    """Root may read everything, so this reads as nobody."""
    path = write_zone(tmp_path, "intel-rapl:0", "package-0") / "energy_uj"
    path.chmod(0o400)
    if os.geteuid() != 0:
        path.chmod(0o000)
        with pytest.raises(Unavailable, match=r"CVE-2020-8694.*udev"):
            powercap_meter(tmp_path)
        return
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            powercap_meter(tmp_path)
        except Unavailable as error:
            os._exit(0 if "CVE-2020-8694" in str(error) and "udev" in str(error) else 3)
        except BaseException:
            os._exit(4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_counters_that_stand_still_are_left_out(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:0", "package-0")
    with pytest.raises(Unavailable, match="no energy counter advances"):
        powercap_meter(tmp_path)


def test_pyrapl_only_reads_the_real_sys(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="reads /sys only"):
        pyrapl_meter(tmp_path)


@pytest.mark.measures
def test_nvml_meter_where_there_is_a_gpu() -> None:
    try:
        meter: Meter = nvml_meter()
    except Unavailable as error:
        pytest.skip(str(error))
    with meter:
        before = meter.read()
        time.sleep(1.0)
        watts = power_w(before, meter.read())
        assert watts is not None and 1.0 < watts < 5000.0


IN_NAMESPACE = """
mount --make-rprivate /
mkdir -p "$1/kept"
mount --rbind /sys/class "$1/kept"
mount -t tmpfs none /sys/class
for entry in "$1"/kept/*; do ln -s "$entry" /sys/class/; done
mkdir /sys/class/powercap
mount --rbind "$2/class/powercap" /sys/class/powercap
shift 2
exec "$@"
"""

COMPARE = """
import json, logging, time
from pathlib import Path
from probes.meters import power_w, powercap_meter, pyrapl_meter
with powercap_meter(Path("/sys")) as own, pyrapl_meter(Path("/sys")) as peer:
    starts = own.read(), peer.read()
    time.sleep(0.8)
    ends = own.read(), peer.read()
    parts = sorted(set(own.parts) & set(peer.parts))
    watts = [[power_w(a, b, [part]) for a, b in zip(starts, ends)] for part in parts]
    ratios = {part: ours / theirs for part, (ours, theirs) in zip(parts, watts)}
import pyRAPL
pyRAPL.setup()
measurement = pyRAPL.Measurement("idle")
measurement.begin()
time.sleep(0.6)
measurement.end()
result = measurement.result
print(json.dumps([ratios, result.pkg[0] / result.duration, result.dram[0] / result.duration]))
"""


@pytest.mark.measures
def test_unmodified_pyrapl_reads_the_emulated_tree_and_agrees(tmp_path: Path) -> None:
    pytest.importorskip("pyRAPL")
    require(os.geteuid() == 0, "root, for a private mount namespace")
    with emulated_node("intel-1s") as sysfs:
        command = ["unshare", "-m", "sh", "-ec", IN_NAMESPACE, "sh", str(tmp_path), str(sysfs)]
        done = subprocess.run(
            [*command, sys.executable, "-P", "-c", textwrap.dedent(COMPARE)],
            capture_output=True,
            text=True,
            check=False,
        )
    require(not done.stderr.startswith("unshare:"), f"mount namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    ratios, package_w, dram_w = json.loads(done.stdout.splitlines()[-1])
    assert set(ratios) == {"package-0", "package-0/dram"}
    assert ratios == {part: pytest.approx(1.0, rel=0.05) for part in ratios}
    assert package_w == pytest.approx(12.0, rel=0.1)
    assert dram_w == pytest.approx(3.0, rel=0.1)
