"""One protocol for a job's power cap: requests and confirmations, also those of earlier versions."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from agent.attempts.folder import Attempt
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
