"""Folders whose file system never answers: the inventory, the doctor and the probe go on without them."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import probes.folders
from agent.doctor import examine
from agent.inventory import read_machine
from agent.node_profile.profiler import make_profile
from probes.folders import inspect_folder, scratch
from profiles.errors import BadInput, Unavailable
from profiles.records import Settings
from tenbin.commands.options import storage_folder
from tests.support.labs.components import processes_below, require

_MNT_DETACH = 2


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Mount a FUSE file system whose server reads no request: every call waits, as with a lost NFS."""
    require(os.geteuid() == 0, "root, to mount")
    require(Path("/dev/fuse").exists(), "/dev/fuse")
    monkeypatch.setattr(probes.folders, "ANSWER_S", 1.0)
    point = tmp_path / "dead"
    point.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    try:
        done = libc.mount(b"lost:/export", bytes(point), b"fuse", 0, options)
        require(done == 0, f"mounting FUSE ({os.strerror(ctypes.get_errno())})")
        yield point
    finally:
        os.close(server)  # which ends all waiting
        libc.umount2(bytes(point), _MNT_DETACH)


def test_the_file_system_of_these_tests_hangs(dead: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", f"import os; os.statvfs({str(dead)!r})"], timeout=1, check=False
        )


def test_a_dead_mount_is_told_in_time(dead: Path) -> None:
    before = time.monotonic()
    with pytest.raises(
        Unavailable, match=rf"the file system of {dead} has not answered within 1 s; see whether"
    ):
        inspect_folder(dead)
    assert time.monotonic() - before < 60  # not for ever
    assert not processes_below()  # FUSE lets a killed process die


@pytest.mark.measures
def test_the_inventory_goes_on_without_a_dead_mount(dead: Path, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    alive.mkdir()
    machine = read_machine(Settings(storage=(dead / "checkpoints", alive)))
    assert [storage.folder for storage in machine.storage] == [str(alive)]
    (missing,) = machine.missing
    assert missing.what == f"storage {dead / 'checkpoints'}"
    assert missing.reason.endswith("has not answered within 1 s (fuse from lost:/export)")
    said = examine(Settings(storage=(dead / "checkpoints",)), machine)
    (finding,) = [f for f in said if f.what == f"no {missing.what}"]
    assert (finding.topic, finding.state, finding.reason) == ("checkpoint", "missing", missing.reason)


@pytest.mark.measures
def test_a_probe_and_the_command_line_go_on_without_a_dead_mount(dead: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="has not answered"), scratch(dead):
        pass
    (tmp_path / "link").symlink_to(tmp_path)
    assert storage_folder(tmp_path / "link") == tmp_path
    assert storage_folder(dead) == dead  # kept, for the probe to say why it is not measured


@pytest.mark.parametrize("probe", ["checkpoint", "storage"])
def test_a_profile_goes_on_where_its_own_folder_is_on_a_dead_mount(
    probe: str, dead: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("agent.measured_node.NAME", f"tenbin-{os.getpid()}")  # nothing is measured here
    monkeypatch.setattr("agent.measured_node.default_storage", lambda: dead / "tenbin")
    made, _ = make_profile(Settings(quick=True, only=(probe,)))
    assert made.settings.storage == (dead / "tenbin",)
    (storage,) = [m for m in made.inventory.missing if m.what == f"storage {dead / 'tenbin'}"]
    assert "has not answered within 1 s" in storage.reason
    assert any("has not answered" in absent.reason for absent in made.absent)


def test_a_storage_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"--storage {tmp_path}/no: not a folder; mkdir -p"):
        storage_folder(tmp_path / "no")


def test_of_what_is_left_behind_only_the_own_is_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    start = f".tenbin-probe-{socket.gethostname()}-{gone.pid}"
    for name in (start, f"{start}-abc"):  # the first as earlier versions named it
        (tmp_path / name).mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / f"{start}-link").symlink_to(tmp_path / "precious")
    kept = {"precious", f"{start}-link"}
    if os.getuid() == 0:
        (tmp_path / f"{start}-theirs").mkdir()
        os.chown(tmp_path / f"{start}-theirs", 65534, -1)
        kept.add(f"{start}-theirs")
    with scratch(tmp_path) as mine:
        assert mine.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in tmp_path.iterdir()} == {*kept, mine.name}
    assert {path.name for path in tmp_path.iterdir()} == kept
