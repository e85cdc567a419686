"""Caps of jobs: requests and confirmations in files, and the keeper that puts everything back."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.attempts.folder import Attempt
from agent.power.cap_keeper import keeper_of_node
from agent.power.caps import (
    CapInForce,
    CapRequest,
    PackageCaps,
    cap_in_force,
    confirm_cap,
    request_cap,
    requested_cap,
    set_package_caps,
)
from tests.probes.test_powercap import LIMITS, write_zone

# One protocol for a job's power cap: requests and confirmations, also those of earlier versions.


ORIGINAL = int(LIMITS["constraint_0_power_limit_uw"])


def test_a_request_and_its_confirmation_are_read_as_written(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    assert requested_cap(attempt) is None and cap_in_force(attempt) is None
    request_cap(attempt, CapRequest(40.0, 3, 50.0, ("package-0",)))
    confirm_cap(attempt, CapInForce(3, None))
    assert requested_cap(attempt) == CapRequest(40.0, 3, 50.0, ("package-0",))
    assert cap_in_force(attempt) == CapInForce(3, None)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"packages": ["0"], "cap_w": 40.0, "held": ["0"]}, CapRequest(40.0, packages=("0",))),
        ({"packages": ["0"], "cap_w": None, "held": []}, CapRequest(None, packages=("0",))),
        ({"number": 2, "cap_w": 40.0, "most_w": 60.0}, CapRequest(40.0, 2, 60.0)),
    ],
)
def test_the_two_earlier_formats_are_understood(
    tmp_path: Path, written: dict[str, object], read: CapRequest
) -> None:
    (tmp_path / "cap.json").write_text(json.dumps(written))
    assert requested_cap(Attempt(tmp_path)) == read


def test_a_cap_is_changed_at_once_only_while_a_supervisor_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    sysfs = tmp_path / "sysfs"
    limit = write_zone(sysfs, "intel-rapl:0", "package-0", **LIMITS) / "constraint_0_power_limit_uw"
    attempt = Attempt(tmp_path / "attempt")
    attempt.path.mkdir()
    alive = os.open(attempt.path / "alive", os.O_CREAT | os.O_RDWR)
    fcntl.flock(alive, fcntl.LOCK_EX)
    set_package_caps(attempt, sysfs, ["package-0"], 40.0)
    assert int(limit.read_text()) == ORIGINAL
    caps = PackageCaps(attempt, sysfs)
    caps.begin()
    assert int(limit.read_text()) == 40_000_000
    set_package_caps(attempt, sysfs, ["package-0"], 30.0)
    assert int(limit.read_text()) == 30_000_000
    caps.release()
    assert int(limit.read_text()) == ORIGINAL
    set_package_caps(attempt, sysfs, ["package-0"], 35.0)
    assert int(limit.read_text()) == ORIGINAL
    caps.begin()
    assert int(limit.read_text()) == 35_000_000
    caps.release()
    os.close(alive)
    assert int(limit.read_text()) == ORIGINAL


# The keeper of one node's caps puts everything back, whatever comes in between.


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
