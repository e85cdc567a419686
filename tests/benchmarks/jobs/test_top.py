"""Time of a key of ``tenbin top`` with a long queue, its bytes, and what looking costs the coordinator."""

from __future__ import annotations

import fcntl
import os
import re
import select
import statistics
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from tests.benchmarks import amount
from tests.benchmarks.jobs.job_systems import Tenbin
from tests.support.programs import TENBIN

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(900)]
QUEUES = amount((10_000, 100_000), (10_000,), (300,))
ROUNDS, LOOKED_S = amount((10, 20.0), (10, 20.0), (1, 1.0))
LIMIT_S = 60.0
CODES = re.compile(rb"\x1b\[[0-9;?$]*[A-Za-z]")
PAGE = 18


class Terminal:
    """A program on a terminal of 80x24, of which every byte is read here."""

    def __init__(self, command: list[str]) -> None:
        self.own, other = os.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environment, start_new_session=True
        )
        os.close(other)
        self.read = b""

    def until(self, pattern: bytes) -> float:
        """Read until the pattern was sent since the last key; return the seconds."""
        began = time.perf_counter()
        while not re.search(pattern, CODES.sub(b"", self.read)):
            assert time.perf_counter() - began < LIMIT_S, (pattern, self.read[-2000:])
            self.take(0.2)
        return time.perf_counter() - began

    def take(self, wait_s: float) -> None:
        if select.select([self.own], [], [], wait_s)[0]:
            self.read += os.read(self.own, 1 << 16)

    def press(self, key: str) -> None:
        while select.select([self.own], [], [], 0.1)[0]:
            self.take(0)
        self.read = b""
        os.write(self.own, key.encode())

    def listen(self, seconds: float) -> int:
        """Read for so long; return the number of bytes."""
        end, self.read = time.perf_counter() + seconds, b""
        while (left := end - time.perf_counter()) > 0:
            self.take(left)
        return len(self.read)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.own)


@pytest.mark.parametrize("queued", QUEUES)
def test_keys_and_refreshes(tmp_path: Path, queued: int) -> None:
    """From the key until the terminal has got what it changes.

    The peer: the request of ``tenbin jobs``, of the same queue.
    """
    tenbin = Tenbin(tmp_path / "top", 1)
    terminal = None
    print()
    try:
        sleep = {"command": ["sleep", "600"], "folder": "/"}
        tenbin.client.submit_all([{**sleep, "name": f"n{n}"} for n in range(queued)])
        began = time.perf_counter()
        tenbin.client.call("GET", "/jobs?members=false&limit=50")
        peer_s = time.perf_counter() - began
        terminal = Terminal([*TENBIN, "top", "--home", str(tenbin.client.home)])
        terminal.until(f"{queued:,} listed".encode())
        keys = {
            "down": ("j", rb">\s+2 "),
            "page down": ("\x1b[6~", rf">\s+{2 + PAGE} ".encode()),
            "end": ("G", rf">\s+{queued} ".encode()),
            "up": ("k", rf">\s+{queued - 1} ".encode()),
            "begin": ("g", rb">\s+1 "),
        }
        took: dict[str, list[float]] = {name: [] for name in keys}
        sent: dict[str, list[int]] = {name: [] for name in keys}
        for _ in range(ROUNDS):
            for name, (key, pattern) in keys.items():
                terminal.press(key)
                took[name].append(terminal.until(pattern))
                sent[name].append(len(terminal.read))
        for name in keys:
            print(
                f"BENCH {queued} jobs, key {name}: median {1e3 * statistics.median(took[name]):.0f} ms, "
                f"slowest {1e3 * max(took[name]):.0f} ms, {statistics.median(sent[name]):.0f} bytes; "
                f"the request of tenbin jobs {1e3 * peer_s:.0f} ms"
            )
        looking_s = tenbin.cpu_s()
        count = terminal.listen(LOOKED_S)
        looking_s = tenbin.cpu_s() - looking_s
        terminal.close()
        terminal = None
        alone_s = tenbin.cpu_s()
        time.sleep(LOOKED_S)
        alone_s = tenbin.cpu_s() - alone_s
        print(
            f"BENCH {queued} jobs: with one tenbin top the coordinator takes "
            f"{100 * looking_s / LOOKED_S:.2f} % of a core, {100 * alone_s / LOOKED_S:.2f} % without; "
            f"the terminal gets {count / LOOKED_S:.0f} bytes/s"
        )
    finally:
        if terminal is not None:
            terminal.close()
        tenbin.stop()
