"""``tenbin up --page``: a page in a process of its own, which ends with the coordinator, not the reverse."""

from __future__ import annotations

import re
import signal
import socket
import stat
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenbin.page.beside import FILE
from tests.support.coordinator import Up
from tests.support.page import PageProcess
from tests.support.viewer import Viewer


class Beside(PageProcess):
    """The page that a coordinator has started; it prints with the coordinator."""

    def __init__(self, up: Up) -> None:
        assert up.process is not None
        self.home, self.process, self.cookie = up.home, up.process, ""
        self.log = up.home.parent / "coordinator.log"
        self.address = self.addresses(1)[-1]
        self.url = self.address.partition("/enter")[0]


def pages_of(up: Up) -> list[psutil.Process]:
    """Find the processes of pages below a coordinator."""
    assert up.process is not None
    below = psutil.Process(up.process.pid).children()
    return [one for one in below if "tenbin.page.beside" in one.cmdline()]


def test_the_page_comes_and_goes_with_the_coordinator(up: Up, browser: Any) -> None:
    up.start("--cores", "2", "--page-listen", "0")
    job = up.client.submit(["sleep", "600"], name="here")
    page = Beside(up)
    file = up.home / FILE
    assert file.read_text().strip() == page.address and stat.S_IMODE(file.stat().st_mode) == 0o600
    viewer = Viewer(browser, page)
    viewer.row("here").get_by_text("▶ running").wait_for()
    assert file.read_text().strip() == page.addresses(2)[1]
    viewer.close()
    (process,) = pages_of(up)
    port = page.url.rpartition(":")[2]
    up.kill(signal.SIGTERM)
    assert not process.is_running() and not file.exists()
    up.start("--cores", "2", "--page", "--page-listen", port)  # the port is free again, though a job runs
    assert not job.done()
    (process,) = pages_of(up)
    up.kill()
    psutil.wait_procs([process], timeout=90)
    assert not process.is_running()


def test_a_page_that_is_killed_leaves_coordinator_and_jobs_alone(up: Up) -> None:
    up.start("--cores", "2", "--page-listen", "0")
    job = up.client.submit(["sleep", "600"])
    page = Beside(up)
    (process,) = pages_of(up)
    process.kill()
    up.until(lambda: process.status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(ConnectionError):  # refused, or reset while its threads end
        page.ask("/")
    up.until(lambda: job.info()["stage"] == "running")
    assert up.client.submit(["true"]).result(30) == 0
    up.kill(signal.SIGTERM)


def test_in_the_background_the_address_is_printed_at_once(up: Up) -> None:
    done = up.run("up", "--cores", "1", "--daemon", "--page-listen", "0")
    try:
        assert done.returncode == 0, done.stderr
        found = re.search(r"page at (http://\S+/enter\?token=[\w-]{43})$", done.stdout, re.M)
        assert found and (up.home / FILE).read_text().strip() == found[1]
        assert str(up.home / FILE) in done.stdout
        assert "token" not in (up.home / "coordinator.log").read_text()
    finally:
        assert up.run("down").returncode == 0
    up.until(lambda: not (up.home / FILE).exists())


def test_a_wrong_address_is_refused_before_anything_starts(up: Up, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for place in ("nowhere:", str(taken.getsockname()[1])):
            done = up.run("up", "--page-listen", place)
            assert done.returncode == 2 and f"--page-listen {place}".rstrip(":") in done.stderr.replace(
                "'", ""
            )
            assert "Traceback" not in done.stderr and not (up.home / "journal.sqlite").exists()
