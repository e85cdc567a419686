"""A coordinator as users start it, in a folder of the test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent.processes import tree
from tenbin.client.client import Client
from tenbin.errors import TenbinError
from tests.support.forked import Forked
from tests.support.programs import TENBIN, start, tenbin

# A Python that has an earlier tenbin: each test's first starts of a coordinator are of that one (an upgrade).
BEFORE, STARTS_BEFORE = os.environ.get("TENBIN_BEFORE"), 3


class Up:
    """``tenbin up`` in a process of its own, which can be killed and started again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.client = Client(home)
        self.process: Forked | subprocess.Popen[str] | None = None
        self.starts = 0

    def start(self, *options: str) -> None:
        arguments = ("up", "--home", str(self.home), *options)
        with (self.home.parent / "coordinator.log").open("a") as log:
            before = BEFORE if self.starts < STARTS_BEFORE else None
            if before:
                command = [before, *TENBIN[1:], *arguments]
                self.process = subprocess.Popen(command, stdout=log, stderr=log, text=True)
            else:
                self.process = start(*arguments, out=log)
        self.starts += 1
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            with suppress(TenbinError):
                if self.client.call("GET", "/status")["pid"] == self.process.pid:
                    return
            assert self.process.poll() is None, (self.home.parent / "coordinator.log").read_text()
            time.sleep(0.01)
        raise AssertionError("the coordinator does not answer")

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(20)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line."""
        return tenbin(*arguments, TENBIN_HOME=str(self.home))

    def sweep(self) -> None:
        """Kill the coordinator, and what runs."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        with suppress(TenbinError):  # one that was started as a daemon
            os.kill(self.client.call("GET", "/status")["pid"], signal.SIGKILL)
        for folder in (self.home / "jobs").glob("*/attempt-*"):
            if (folder / "state.json").exists() and not (folder / "result.json").exists():
                job, attempt = folder.parent.name, folder.name.removeprefix("attempt-")
                assert tree.kill_marked(f"{self.home}:{job}:{attempt}")

    def until(self, condition: Callable[[], object], limit_s: float = 90.0) -> None:
        began = time.monotonic()
        while not condition():
            waited_s = time.monotonic() - began
            assert waited_s < limit_s, self.client.call("GET", "/jobs?all=true")
            time.sleep(min(max(0.01, waited_s / 20), 0.1))  # asking costs processor time, others' as well


@contextmanager
def small_disk(up: Up, size: str) -> Iterator[bool]:
    """Mount a disk of that size as the coordinator's folder; False where this user may not mount.

    Nothing of the coordinator is left at the end.
    """
    up.home.mkdir(mode=0o700, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(up.home)]
    small = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield small
    finally:
        up.sweep()
        if small:
            subprocess.run(["umount", "-l", str(up.home)], check=True)


def fill(ballast: Path) -> None:
    """Take all the room that is left, to the last page."""
    for size in (1 << 20, 512):
        with suppress(OSError), ballast.open("ab", buffering=0) as file:
            while file.write(b"x" * size):
                pass


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """Yield a coordinator, which the test starts itself; remove everything at the end."""
    home = tmp_path / "home"
    one = Up(home)
    yield one
    one.sweep()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Yield a coordinator of two cores for the tests of a file that only ask something of it."""
    one = Up(tmp_path_factory.mktemp("shared") / "home")
    one.start("--cores", "2")
    yield one
    one.sweep()
