"""Jobs in the foreground: a terminal, pipes, signals; what ends them, and what does not."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from select import select
from unittest.mock import ANY

import pytest
from pydantic import ValidationError

from agent.attempts.terminal import address
from profiles.errors import BadInput
from tenbin.errors import TenbinError
from tests.support.coordinator import Up
from tests.support.programs import TENBIN
from tests.support.scheduling.manual_engine import ManualEngine, a_job, submit
from tests.support.waiting import until

ASKS = ("python3", "-qi")
ATTENDS = """
import sys
from tenbin.client.client import Client
from tenbin.commands.jobs.jobs import Output
sys.exit(Output(Client(), 2).attend(once_more_s=600))
"""  # tenbin attach 2, with more time for a second Ctrl-C

SHOWS_STREAMS = """
import os, sys
with open(sys.argv[1], "w") as file:
    print(*(os.readlink(f"/proc/self/fd/{number}") for number in range(3)), file=file)
print("out" + sys.stdin.read())
sys.exit(3)
"""


class Screen:
    """A command line in a terminal of its own."""

    def __init__(self, up: Up, *arguments: str) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.execve(TENBIN[0], [*TENBIN, *arguments], {**os.environ, "TENBIN_HOME": str(up.home)})
        self.shown = ""
        self.code: int | None = None

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def wait_for(self, text: str) -> None:
        """Wait until the screen shows a text, and forget what it showed up to there."""

        def shows() -> bool:
            self._read()
            return text in self.shown

        until(shows)
        self.shown = self.shown.partition(text)[2]

    def end(self) -> int:
        """Wait for the end; return the exit code."""

        def ended() -> bool:
            self._read()
            if self.code is None and (status := os.waitpid(self.pid, os.WNOHANG))[0]:
                self.code = os.waitstatus_to_exitcode(status[1])
            return self.code is not None

        until(ended)
        assert self.code is not None
        return self.code

    def _read(self) -> None:
        with suppress(OSError):  # EIO: nobody has the terminal any more
            while select([self._master], [], [], 0.02)[0] and (piece := os.read(self._master, 65536)):
                self.shown += piece.decode(errors="replace")

    def hang_up(self) -> None:
        """Close the terminal, as a window is closed."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        """Leave nothing."""
        if self._master >= 0:
            self.hang_up()
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.close()


def begin(up: Up, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command line between pipes."""
    pipe = subprocess.PIPE
    environment = {**os.environ, "TENBIN_HOME": str(up.home)}
    return subprocess.Popen([*TENBIN, *arguments], env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


def stage(up: Up, job: int) -> str:
    with suppress(TenbinError):
        return str(up.client.job(job).info()["stage"])
    return ""


def test_a_program_has_the_terminal(up: Up, screens: list[Screen]) -> None:
    up.start("--cores", "1")
    screens.append(screen := Screen(up, "run", "--name", "shell", *ASKS))
    screen.resize(40, 132)
    screen.wait_for(">>> ")
    screen.type("import os, sys; os.isatty(0), open('/dev/tty').isatty(), os.getsid(0) == os.getpid()\r")
    screen.wait_for("(True, True, True)")
    until(lambda: stage(up, 1) == "running")
    screen.resize(50, 160)
    screen.type("while os.get_terminal_size() != (160, 50): pass\r\rprint('si' + 'zed')\r")
    screen.wait_for("sized")
    screen.type("import time; print('sle' + 'eps'); time.sleep(600)\r")
    screen.wait_for("sleeps")
    screen.type("\x03")
    screen.wait_for("KeyboardInterrupt")
    screen.type("sys.exit(7)\r")
    assert screen.end() == 7
    job = up.client.job(1).info()
    assert (job["stage"], job["code"], job["name"]) == ("failed", 7, "shell")
    assert "has written to the terminal of tenbin run" in up.run("logs", "1").stderr
    again = up.run("retry", "1")
    assert again.returncode == 2 and again.stderr.startswith("tenbin: job 1 had a terminal, which is gone;")


def test_a_program_in_a_pipe(shared: Up) -> None:
    cat = begin(shared, "run", "-c", "1", "sh", "-c", "cat; echo aside >&2; exit 3")
    assert cat.communicate(b"x\ny\n") == (b"x\ny\n", b"aside\n") and cat.returncode == 3
    sleeper = begin(
        shared, "run", "sh", "-c", "trap 'echo interrupted; exit 4' INT; echo on; sleep 600 & wait"
    )
    assert sleeper.stdout is not None and sleeper.stdout.readline() == b"on\n"
    sleeper.send_signal(signal.SIGINT)
    assert sleeper.communicate() == (b"interrupted\n", b"") and sleeper.returncode == 4
    killed = begin(shared, "run", "sh", "-c", "kill -9 $$")
    assert killed.communicate() == (b"", b"") and killed.returncode == 137
    absent = shared.run("run", "/no/such/program")
    assert absent.returncode == 2 and "/no/such/program: No such file or directory; correct" in absent.stderr


@pytest.mark.parametrize(
    ("closed", "numbers"), [("<&-", [0]), (">&-", [1]), ("2>&-", [2]), ("<&- >&- 2>&-", [0, 1, 2])]
)
def test_a_closed_stream_reads_and_writes_nothing(
    shared: Up, tmp_path: Path, closed: str, numbers: list[int]
) -> None:
    """As ``/dev/null``, so that no other file of the job gets its number."""
    streams = tmp_path / "streams"
    job = (*TENBIN, "run", sys.executable, "-c", SHOWS_STREAMS, str(streams))
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *job],
        env={**os.environ, "TENBIN_HOME": str(shared.home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert {streams.read_text().split()[number] for number in numbers} == {"/dev/null"}
    assert done.stdout == (b"" if 1 in numbers else b"out\n")


def test_who_waits_is_told_why_and_may_give_up(up: Up, screens: list[Screen]) -> None:
    up.start("--cores", "1")
    first = up.client.submit(["sleep", "600"], time_s=600.0)
    screens.append(screen := Screen(up, "run", "true"))
    screen.wait_for("tenbin: job 2 waits for 1 core (0 of 1 free); first in the queue; starts about")
    screen.type("\x03")
    screen.wait_for("tenbin: job 2: cancelled")
    assert screen.end() == 130 and stage(up, 2) == "cancelled"
    screens.append(gone := Screen(up, "run", "sh", "-c", "echo ran > ran"))
    gone.wait_for("tenbin: job 3 ")
    os.kill(gone.pid, signal.SIGKILL)
    elsewhere = begin(up, "run", "true")
    until(lambda: stage(up, 4) == "waiting")
    up.client.job(4).cancel()
    assert b"tenbin: job 4: cancelled" in elsewhere.communicate()[1] and elsewhere.returncode == 125
    first.cancel()
    lost = up.client.job(3).wait(60)
    assert lost["stage"] == "failed" and "terminal: closed before the job began" in lost["trouble"]


@pytest.mark.parametrize("how", ["killed", "window", "pipes"])
def test_it_ends_with_its_terminal(up: Up, screens: list[Screen], how: str) -> None:
    up.start("--cores", "1")
    command = ("run", "--grace", "0s", "sh", "-c", "trap '' HUP; echo on; sleep 600")
    if how == "pipes":
        client = begin(up, *command)
        assert client.stdout is not None and client.stdout.readline() == b"on\n"
        client.kill()
        client.communicate()
    else:
        screens.append(screen := Screen(up, *command))
        screen.wait_for("on\r\n")
        os.kill(screen.pid, signal.SIGKILL) if how == "killed" else screen.hang_up()
    job = up.client.job(1).wait(60)
    assert (job["stage"], job["trouble"]) == ("cancelled", "its terminal is gone")


def test_a_restart_of_the_coordinator_is_not_noticed(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    first = up.client.submit(["sleep", "600"])
    waits = begin(up, "run", "sh", "-c", "echo on; read line; exit $line")
    until(lambda: stage(up, 2) == "waiting")
    up.kill()
    up.start("--cores", "1")
    first.cancel()
    assert waits.stdout is not None and waits.stdout.readline() == b"on\n"
    up.kill()
    up.start("--cores", "1")
    assert stage(up, 2) == "running" and waits.stdin is not None
    up.kill(signal.SIGTERM)
    out, error = waits.communicate(b"9\n")  # nobody but the attempt itself knows how it ended
    assert (waits.returncode, out) == (9, b""), error
    up.start("--cores", "1")
    assert up.client.job(2).wait(60)["code"] == 9


def test_cancelled_from_elsewhere_and_kept(up: Up) -> None:
    up.start("--cores", "2")
    client = begin(up, "run", "sh", "-c", "echo on; exec sleep 600")
    assert client.stdout is not None and client.stdout.readline() == b"on\n"
    up.client.job(1).cancel()
    assert b"tenbin: job 1: cancelled" in client.communicate()[1] and client.returncode == 143
    kept = begin(up, "run", "--keep", "sh", "-c", "echo on; echo aside >&2; read line; sleep 600")
    assert kept.stdout is not None and kept.stdout.readline() == b"on\n"
    kept.kill()
    kept.communicate()
    assert stage(up, 2) == "running" and up.client.job(2).stderr() == "aside\n"


def test_attach(up: Up, screens: list[Screen], tmp_path: Path) -> None:
    up.start("--cores", "2")
    go = tmp_path / "go"
    job = up.client.submit(
        ["sh", "-c", "echo out; echo err >&2; until [ -e $0 ]; do sleep 0.05; done; exit 3", str(go)]
    )
    screens.append(first := Screen(up, "attach", "1"))
    first.wait_for("out")
    first.type("\x03")
    first.wait_for("job 1 stays; Ctrl-C once more ends it")
    assert first.end() == 130 and job.running()
    second = begin(up, "attach", "1")
    assert second.stdout is not None and second.stdout.readline() == b"out\n"
    go.touch()
    assert second.communicate() == (b"", b"err\njob 1: failed: exit code 3\n") and second.returncode == 3
    late = up.run("attach", "1")
    assert (late.stdout, late.returncode) == ("out\n", 3)
    up.client.submit(["sh", "-c", "echo on; exec sleep 600"])
    third = subprocess.Popen(
        [sys.executable, "-c", ATTENDS],
        env={**os.environ, "TENBIN_HOME": str(up.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert third.stdout is not None and third.stdout.readline() == b"on\n"
    third.send_signal(signal.SIGINT)
    said = b"tenbin: job 2 stays; Ctrl-C once more ends it\n"
    assert third.stderr is not None and third.stderr.readline() == said
    third.send_signal(signal.SIGINT)
    third.communicate()
    assert third.returncode == 130 and stage(up, 2) == "cancelled"


def test_where_a_job_can_have_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENBIN_URL", "http://127.0.0.1:1")
    remote = subprocess.run([*TENBIN, "run", "true"], capture_output=True, text=True, check=False)
    assert remote.returncode == 2
    assert remote.stderr.startswith("tenbin: over TCP a job cannot have this terminal; tenbin run --keep")
    with pytest.raises(ValidationError, match="terminal: such a job is started once"):
        a_job(terminal="x")
    refused = pytest.raises(BadInput, match="jobs of a cluster have no terminal; tenbin run --keep")
    with ManualEngine().coordinator(tmp_path) as coordinator, refused:
        submit(coordinator, terminal="x", requeue=False)


def test_the_streams_are_for_this_user_alone(up: Up) -> None:
    """Everybody sees the name of the socket, and may connect."""
    if os.geteuid() != 0:
        pytest.skip("takes root, to be another user")
    up.start("--cores", "1")
    first = up.client.submit(["sleep", "600"])
    client = begin(up, "run", "echo", "on")
    until(lambda: stage(up, 2) == "waiting")
    name = up.client.job(2).info()["spec"]["terminal"]
    with socket.socket(socket.AF_UNIX) as stranger:
        os.seteuid(65534)
        try:
            stranger.connect(address(name))
        finally:
            os.seteuid(0)
        assert stranger.recv(1) == b""
    first.cancel()
    assert client.communicate() == (b"on\n", ANY) and client.returncode == 0
