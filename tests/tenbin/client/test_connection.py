"""The way to the coordinator: to nobody else, found by the process that holds its folder."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import BadInput
from scheduler.coordinator.journal.journal_file import hold
from tenbin.client.client import Client
from tenbin.client.connection import LONGEST_SOCKET_PATH, MOST_IDS, Connection, holder, socket_folder
from tenbin.errors import TenbinError
from tenbin.server.serve import close_home, listen

OTHER = 65534


def test_the_folder_of_sockets_depends_on_the_home_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * LONGEST_SOCKET_PATH)
    before = socket_folder(long)
    for place in (tmp_path, "/var/tmp"):
        monkeypatch.setenv("TMPDIR", str(place))
        monkeypatch.setattr("tempfile.tempdir", None)
        assert socket_folder(long) == before


@pytest.mark.parametrize("letter", ["x", "ö", "語", "\udcff"])
def test_sockets_can_be_bound_in_any_home(letter: str) -> None:
    """The kernel counts bytes."""
    for letters in range(LONGEST_SOCKET_PATH // 2):
        folder = socket_folder(Path("/home") / (letter * letters))
        with socket.socket(socket.AF_UNIX) as line, pytest.raises(FileNotFoundError):  # and not: too long
            line.connect(os.fsencode(folder / "none" / "1234567"))


@contextmanager
def somebody_elses_server(path: Path) -> Iterator[list[bytes]]:
    """Listen as another user; yields what was sent."""
    heard: list[bytes] = []
    listener = listen(path)
    os.seteuid(OTHER)
    try:
        listener.listen()  # whose process the caller sees is settled by this call
    finally:
        os.seteuid(0)

    def serve() -> None:
        caller, _ = socket.socket.accept(listener)  # without a loop
        with caller:
            heard.append(caller.recv(1 << 20))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield heard
        thread.join(60)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user too")
def test_nothing_is_sent_to_a_server_of_somebody_else(tmp_path: Path) -> None:
    with (
        somebody_elses_server(tmp_path / "api.sock") as heard,
        pytest.raises(TenbinError, match=f"user {OTHER} .* nothing was sent") as caught,
    ):
        Client(tmp_path).submit_all([{"command": ["true"]}], environment={"SECRET": "x"})
    assert caught.value.exit_code == 2
    assert heard == [b""]


def test_a_home_is_closed_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        close_home(tmp_path / "state" / "home")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("state", "state/home")]
    assert modes == [0o755, 0o700]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user too")
def test_no_coordinator_in_a_folder_that_another_made_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenbin.server.serve import own_sockets

    monkeypatch.setattr("tenbin.client.connection.SHARED", str(tmp_path))
    home = tmp_path / ("x" * LONGEST_SOCKET_PATH)
    socket_folder(home).mkdir()
    os.chown(socket_folder(home), OTHER, -1)
    with pytest.raises(BadInput, match=r"not a folder of yours alone .*--home of at most 90 bytes"):
        own_sockets(home)


class Recorded(Connection):
    """Answers by itself, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.bodies: list[dict[str, Any]] = []
        self.ended_already: set[int] = set()

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        self.bodies.append(body)
        assert all(len(ids) <= MOST_IDS for ids in body.values() if isinstance(ids, list))
        if path == "/wait":
            return [{"id": number} for number in body["ids"] if number in self.ended_already]
        ids = [*body.get("ids", ()), *body["where_possible"]]
        return {
            "ids": [number for number in ids if number % 2],
            "left_out": {str(number): "it has ended" for number in ids if not number % 2},
            "before": {"0": ids[:1]},
        }


def test_very_many_jobs_go_in_several_requests() -> None:
    line, most = Recorded(), 2 * MOST_IDS + 5
    found = line.change("priority", [1, 3], range(most), priority=7)
    assert [body.get("ids", []) for body in line.bodies] == [[1, 3], [], []]
    assert [number for body in line.bodies for number in body["where_possible"]] == [
        number for number in range(most) if number not in (1, 3)
    ]
    assert {body["priority"] for body in line.bodies} == {7}
    assert sorted(found["ids"]) == list(range(1, most, 2))
    assert set(found["left_out"]) == {str(number) for number in range(0, most, 2)}
    assert len(found["before"]["0"]) == len(line.bodies)


def test_one_of_very_many_ends() -> None:
    line, most = Recorded(), 2 * MOST_IDS + 5
    line.ended_already = {most - 1}
    assert line.ended(range(most), 60.0) == [{"id": most - 1}]
    assert line.ended(range(10), 60.0) == []
    assert line.bodies[-1]["wait_s"] == 60.0


# The process that holds a coordinator's folder, against locks that are held here.


HOLD = """
import sys
from pathlib import Path
from scheduler.coordinator.journal.journal_file import hold
descriptor = hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_seen_while_others_lock_and_unlock(tmp_path: Path) -> None:
    """The list of all locks, read in pieces, lacks the lock in seven of a thousand looks."""
    descriptor = hold(tmp_path)
    done = threading.Event()

    def lock_and_unlock() -> None:
        with ExitStack() as opened:
            files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(300)]
            while not done.is_set():
                for file in files:
                    fcntl.flock(file, fcntl.LOCK_EX)
                for file in files:
                    fcntl.flock(file, fcntl.LOCK_UN)

    others = threading.Thread(target=lock_and_unlock)
    others.start()
    try:
        assert {holder(tmp_path) for _ in range(1000)} == {os.getpid()}
    finally:
        done.set()
        others.join()
        os.close(descriptor)


def test_who_has_gone_holds_nothing(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    arguments = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        assert holder(tmp_path) == other.pid
        other.kill()
    assert holder(tmp_path) is None and (tmp_path / "lock").read_text() == str(other.pid)
    (tmp_path / "lock").write_text(str(os.getpid()))  # a number that another process has now
    assert holder(tmp_path) is None
    (tmp_path / "lock").write_text("")
    assert holder(tmp_path) is None
