"""The keeper of one node's caps puts everything back, whatever comes in between."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.power.cap_keeper import keeper_of_node
from tests.probes.test_powercap import LIMITS, write_zone

ORIGINAL = int(LIMITS["constraint_0_power_limit_uw"])


@pytest.fixture
def limit(tmp_path: Path) -> Path:
    """Of the node's only package."""
    zone = write_zone(tmp_path / "sysfs", "intel-rapl:0", "package-0", **LIMITS)
    return zone / "constraint_0_power_limit_uw"


def test_what_could_not_be_put_back_is_tried_again(tmp_path: Path, limit: Path) -> None:
    keeper = keeper_of_node(str(tmp_path / "sysfs"), str(tmp_path / "states"))
    keeper.hold_node(40.0)
    assert int(limit.read_text()) == 40_000_000
    limit.unlink()
    limit.mkdir()  # not even root can write it
    keeper.release_node()
    limit.rmdir()
    limit.write_text("40000000")
    keeper.release_node()
    assert int(limit.read_text()) == ORIGINAL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("told", [True, False])
def test_whatever_ends_it_caps_are_put_back(
    tmp_path: Path, limit: Path, number: signal.Signals, told: bool
) -> None:
    """Slurm ends the step while the caps are put back, or before anybody said so; by two signals."""
    words = str(tmp_path / "sysfs"), str(tmp_path / "states"), f"nobody's {tmp_path}"
    command = [sys.executable, "-P", "-m", "agent.power.cap_keeper", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdin is not None and keeper.stdout is not None
        keeper.stdin.write(b'{"cap_w": 40.0}\n')
        keeper.stdin.flush()
        assert json.loads(keeper.stdout.readline())["cap_w"] == 40.0
        assert int(limit.read_text()) == 40_000_000
        if told:
            keeper.stdin.write(b'{"cap_w": null}\n')
            keeper.stdin.flush()
        keeper.send_signal(number)
        time.sleep(0.001)
        keeper.send_signal(signal.SIGTERM)
        keeper.wait(30)
    assert int(limit.read_text()) == ORIGINAL and not list((tmp_path / "states").rglob("*.json"))
