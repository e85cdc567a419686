"""Facts and conditions of made-up machines, and those of this one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.node_check import CheckWatch, facts_of, temperature_c, throttle_events
from profiles.records import Limits, PowerZone, Settings
from tests.support.records import make_inventory


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.fixture
def machine(tmp_path: Path) -> Settings:
    gpu, disk, bridge = (f"bus/pci/devices/0000:{n}:00.0" for n in ("17", "18", "00"))
    write(
        tmp_path / "sys",
        {
            "class/dmi/id/bios_vendor": "Example",
            "class/dmi/id/bios_version": "2.1",
            "class/dmi/id/bios_date": "01/02/2026",
            f"{gpu}/class": "0x030200",
            f"{gpu}/current_link_width": "16",
            f"{disk}/class": "0x010802",
            f"{disk}/current_link_width": "4",
            f"{bridge}/class": "0x060000",
            f"{bridge}/current_link_width": "16",
            "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3",
            "devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "4",
        },
    )
    write(tmp_path / "proc", {"cpuinfo": "processor\t: 0\nmicrocode\t: 0xb000040"})
    return Settings(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")


def test_facts_beyond_the_fingerprint(machine: Settings) -> None:
    zone = PowerZone(name="package-0", path="/x", cap_w=150.0, cap_max_w=200.0, readable=True, writable=True)
    facts, amounts = facts_of(make_inventory(power=(zone,), limits=Limits(quota_cores=1.5)), machine)
    expected = {
        "BIOS": "Example 2.1 01/02/2026",
        "microcode": "0xb000040",
        "PCIe link 0000:17:00.0": "x16 (GPU, no driver)",
        "PCIe link 0000:18:00.0": "x4 (storage, no driver)",
        "cap of package-0": "150 W",
        "CPU quota": "1.5 processors",
        "kernel": "6.1.0",
    }
    assert expected.items() <= facts.items()
    assert not any("0000:00" in name for name in facts)
    assert amounts.keys() <= facts.keys()
    assert amounts["PCIe link 0000:17:00.0"] == 16 and amounts["memory"] == int(facts["memory"].split()[0])


def test_throttling_is_counted_where_the_processor_tells(machine: Settings, tmp_path: Path) -> None:
    assert throttle_events(machine.sysfs) == 7
    assert throttle_events(tmp_path / "nowhere") is None
    assert temperature_c() is None or 0 < (temperature_c() or 0) < 150


def test_a_process_that_computes_meanwhile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.node_check.MOST_NAMED", 1000)  # others may compute as well
    watch = CheckWatch.begin()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        time.sleep(1.5)
        conditions = watch.ended()
        other.kill()
    assert other.pid in [consumer.pid for consumer in conditions.consumers]
    assert conditions.others_processors > 0
