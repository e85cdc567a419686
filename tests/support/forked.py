"""Start ``tenbin`` as a process of its own, without the time that its imports take."""

from __future__ import annotations

import atexit
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from select import select
from typing import IO

BEFORE = dict(os.environ)  # no test has changed it yet
AT_START = ("PYTHON", "LC_", "LANG", "LD_")  # variables
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
SERVER = Path(__file__).with_name("fork_server.py")


class Forked:
    """A process that the fork server started, used as ``subprocess.Popen`` is."""

    def __init__(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], out: IO[str], error: IO[str]
    ):
        self.args = ("tenbin", *arguments)
        self.returncode: int | None = None
        self.answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mask = os.umask(0o22)
        os.umask(mask)
        asked = {
            "command": self.args,
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "umask": mask,
            "cpus": sorted(os.sched_getaffinity(0)),
            "limits": [(kind, resource.getrlimit(kind)) for kind in LIMITS],
        }
        with theirs:
            files = [out.fileno(), error.fileno(), theirs.fileno()]
            socket.send_fds(_server(), [json.dumps(asked).encode()], files)
        self.pid = int(self.answers.recv(20))

    def poll(self) -> int | None:
        if self.returncode is None and select([self.answers], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select([self.answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            with self.answers:
                self.returncode = int(self.answers.recv(20))
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def suits(environment: Mapping[str, str]) -> bool:
    """Tell if all is as when the server started that a Python reads only at its start."""
    return _at_start(environment) == _at_start(BEFORE)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


def run(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        code = Forked(arguments, environment, out, error).wait()
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(["tenbin", *arguments], code, out.read(), error.read())


@cache
def _server() -> socket.socket:
    """Connect to the fork server of this run; the first that asks for it starts it."""
    ours, listener = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    name = f"\0tenbin-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    clean = {name: value for name, value in BEFORE.items() if not name.startswith("TENBIN_")}
    with listener, suppress(OSError):  # the name is taken: another worker has started it
        listener.bind(name)
        listener.listen()
        subprocess.run(
            [sys.executable, "-P", str(SERVER), str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=clean,
            cwd="/",
            pass_fds=[listener.fileno()],
            check=True,
        )
    deadline = time.monotonic() + 10
    while True:
        try:
            ours.connect(name)
            atexit.register(ours.close)
            return ours
        except ConnectionRefusedError:  # the other one is about to listen
            assert time.monotonic() < deadline
            time.sleep(0.01)
