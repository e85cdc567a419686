"""Files that users name: never half written, and what is no plain file is never replaced."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from profiles.files.safe_files import write_chosen
from tests.support.labs.components import require

NULL = (1, 3)  # device numbers


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    """Root that writes a report to /dev/null would else leave a plain file there, for all programs."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(*NULL))
        device.write_bytes(b"")
    except PermissionError as error:
        require(False, f"rights to make a device ({error})")
    write_chosen(device, "much")
    assert stat.S_ISCHR(device.stat().st_mode) and device.read_text() == ""
    assert list(tmp_path.iterdir()) == [device]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_chosen(pipe, "through")
    reader.join()
    assert got == ["through"] and pipe.is_fifo()


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for text in ("first", "second"):
        write_chosen(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == text


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_chosen(tmp_path, "text")
