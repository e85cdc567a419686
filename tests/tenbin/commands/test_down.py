"""``tenbin down`` comes back when the coordinator has ended, or says that it has not."""

from __future__ import annotations

import subprocess

import pytest

from tenbin.client import connection
from tenbin.errors import TenbinError
from tests.support.coordinator import Up


def test_who_has_ended_is_not_waited_for_and_who_has_not_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as ended:  # dead, and for nobody to be seen before it is waited for
        connection.await_end(ended.pid)
    connection.await_end(ended.pid)
    monkeypatch.setattr(connection, "END_S", 0.05)
    with subprocess.Popen(["sleep", "60"]) as lives:
        with pytest.raises(TenbinError, match=f"pid {lives.pid}"):
            connection.await_end(lives.pid)
        lives.kill()


def test_up_right_after_down_has_the_folder_and_the_cores(up: Up) -> None:
    for _ in range(3):
        started = up.run("up", "--daemon", "--cores", "1")
        assert started.returncode == 0 and "runs" in started.stdout, started.stderr
        assert up.run("down").returncode == 0
