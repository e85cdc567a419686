"""The way to the coordinator: to nobody else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from profiles.errors import BadInput
from tenbin.client.client import Client
from tenbin.client.connection import LONGEST_SOCKET_PATH, socket_folder
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
        caller, _ = listener.accept()
        with caller:
            heard.append(caller.recv(1 << 20))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield heard
        thread.join(10)


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
