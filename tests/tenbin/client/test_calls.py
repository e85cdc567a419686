"""The folder of calls: what is read there is run, so nobody else may have written it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tenbin.client.executor import RUNNER, CallFolder
from tenbin.client.run_function import OWNER, own_folder
from tenbin.errors import TenbinError

OTHER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user too")


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def run(folder: Path, number: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", RUNNER, str(folder), str(number)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_folder_that_others_can_write_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(TenbinError, match=r"not a folder of this user alone; .*mkdir -m 700") as caught:
        CallFolder(tmp_path / "open")
    assert caught.value.exit_code == 2


@as_root
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", OTHER, -1)
    with pytest.raises(TenbinError, match="not a folder of this user alone"):
        CallFolder(tmp_path / "theirs")


@as_root
def test_a_folder_in_which_nothing_can_be_made_is_refused() -> None:
    with pytest.raises(
        TenbinError, match=r"shared_folder /proc: nothing can be written there .*; name"
    ) as caught:
        CallFolder(Path("/proc"))
    assert caught.value.exit_code == 2


def test_what_others_lay_beside_is_passed_over(tmp_path: Path) -> None:
    """As the pipe that made the caller wait for ever."""
    for name, lay in {"pipe": os.mkfifo, "link": lambda path: path.symlink_to("/etc/hostname")}.items():
        (tmp_path / name).mkdir()
        lay(tmp_path / name / OWNER)
    (tmp_path / "to-folder").symlink_to(tmp_path / "pipe")
    os.mkfifo(tmp_path / "neither")
    before = {path.name for path in tmp_path.iterdir()}
    folder = CallFolder(tmp_path)
    folder.remove()
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_folder_in_the_place_of_the_callers_is_not_read(tmp_path: Path) -> None:
    folder = CallFolder(tmp_path)
    call = folder.call()
    folder.write(call, (pow, (2, 8), {}))
    folder.path.rename(tmp_path / "moved")
    folder.path.mkdir(mode=0o700)
    for name in ("result", "started", "call"):
        content = pickle.dumps((True, "")) + pickle.dumps(Touch(tmp_path / "read"))
        (folder.path / f"{call.number}.{name}").write_bytes(content)
    assert call.outcome() is None and not call.has_begun() and not call.is_withdrawn()
    assert run(tmp_path / "moved", call.number).returncode == 0
    found = call.outcome()
    assert found is not None and found.value == 256
    call.discard()
    assert [path.name for path in (tmp_path / "moved").iterdir()] == [OWNER]
    assert not (tmp_path / "read").exists()


@pytest.mark.parametrize("how", ["writable", "link", pytest.param("theirs", marks=as_root)])
def test_a_job_runs_nothing_that_others_could_write(how: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    content = pickle.dumps(([], "")) + pickle.dumps(Touch(tmp_path / "run"))
    (folder / "0.call").write_bytes(content)
    if how == "writable":
        folder.chmod(0o777)
    elif how == "link":
        folder = tmp_path / "link"
        folder.symlink_to(tmp_path / "folder")
    else:
        os.chown(folder, OTHER, -1)
    done = run(folder, 0)
    assert done.returncode == 1 and done.stderr.startswith("not called: ") and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_function_may_close_what_it_did_not_open(tmp_path: Path) -> None:
    folder = CallFolder(tmp_path)
    call = folder.call()
    folder.write(call, (os.closerange, (3, 100), {}))
    done = run(folder.path, call.number)
    assert done.returncode == 0, done.stderr
    found = call.outcome()
    assert found is not None and found.value is None
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_own_folders_are_opened(tmp_path: Path) -> None:
    os.close(own_folder(str(tmp_path)))
