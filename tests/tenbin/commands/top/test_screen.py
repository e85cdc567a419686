"""``tenbin top`` on a real terminal, 80x24, by what tmux sees on its screen and on its line."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.programs import TENBIN

LIMIT_S = 20.0


class Terminal:
    """One window of a tmux of the test's own."""

    def __init__(self, folder: Path, command: str) -> None:
        self.socket, self.sent = folder / "tmux", folder / "sent"
        started = self.call("-u", "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", command)
        require(started.returncode == 0, f"tmux does not start: {started.stderr.strip()}")

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["tmux", "-S", str(self.socket), *words]
        environment = {
            **os.environ,
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm-256color",
            "COLUMNS": "70",
            "LINES": "20",
        }
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def screen(self) -> str:
        return self.call("capture-pane", "-p").stdout

    def shows(self, pattern: str) -> str:
        """Wait for a pattern on the screen, which is returned."""
        deadline = time.monotonic() + LIMIT_S
        while not re.search(pattern, screen := self.screen(), re.MULTILINE):
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)
        return screen

    def record(self) -> None:
        self.call("pipe-pane", "-o", f"cat > {shlex.quote(str(self.sent))}")


@pytest.fixture
def terminal(up: Up, tmp_path: Path) -> Iterator[Terminal]:
    """Start ``tenbin top`` in a terminal."""
    require(shutil.which("tmux"), "tmux (Debian: tmux)")
    up.start("--cores", "1")
    up.client.submit(["sleep", "600"], name="[red]x\x1b[2J\u202e漢字")
    up.client.submit_all([{"command": ["sleep", "600"], "folder": "/", "name": f"n{n}"} for n in range(40)])
    up.until(lambda: up.client.job(1).info()["stage"] == "running")
    program = shlex.join([*TENBIN, "top", "--home", str(up.home)])
    found = Terminal(tmp_path, f"{program}; echo ended with $?; sleep 60")
    yield found
    found.call("kill-server")


def test_screen(up: Up, terminal: Terminal) -> None:
    """The screen is whole, resizes, and is given back at the end; what is sent is what has changed."""
    screen = terminal.shows("^41 listed, by queue")
    lines = screen.splitlines()
    assert len(lines) == 24 and all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("tenbin top  policy weigh; 40 waiting, 1 running")
    assert re.match(r">    1 \[red\]x\\x1b\[2J\\u202e漢字 running       1 +\d+ s", lines[4])
    assert lines[23].startswith("? keys  / filter")
    terminal.record()
    terminal.call("send-keys", "Down")
    terminal.shows(r"^> +2 n0 +waiting")
    terminal.call("send-keys", "/", "n3", "Enter")
    terminal.shows("^11 listed, by queue; filter: n3")
    terminal.call("send-keys", "Space", "c")
    terminal.shows(r"^cancel job 5\? y: yes")
    terminal.call("send-keys", "y")
    terminal.shows("^cancel 5: accepted")
    assert up.client.job(5).wait(30)["stage"] == "cancelled"
    sent = terminal.sent.read_bytes()
    # No whole screen (1.9 kB and more) for a key: only the list that the filter changed is drawn anew.
    assert len(sent) < 20_000 and b"\x1b[2J" not in sent and b"\x1b[?1003h" not in sent
    terminal.call("resize-window", "-x", "120", "-y", "30")
    terminal.shows(r"^ +job +name +stage +cores +since +place")
    terminal.call("send-keys", "q")
    assert "tenbin top" not in terminal.shows("^ended with 0")
