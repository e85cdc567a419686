"""The restore journal: originals come back whatever ends the process that changed them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import journal as module
from agent.emulation.emulated_gpus import emulated_gpus, uuid
from agent.journal import Journal, Restored, read_control, restore_leftovers
from profiles.errors import Busy, Unavailable
from tests.support.labs.components import require

OWNER = """
import os, signal, sys, time
from pathlib import Path
from agent.journal import Journal
folder, files, ending = Path(sys.argv[1]), [Path(f) for f in sys.argv[2].split(":")], sys.argv[3]
with Journal(folder, watchdog=ending != "killed with its watchdog's") as journal:
    for file in files:
        journal.control(file, "50000000")
        journal.control(file, "40000000")
    print("changed", flush=True)
    if ending == "exception":
        raise RuntimeError("the probe failed")
    if ending == "normal":
        sys.exit()
    for _ in range(600):  # a signal just before one long sleep would be heard after it
        time.sleep(0.1)
"""


@pytest.fixture
def limits(tmp_path: Path) -> list[Path]:
    """Two control files, as a two-package node has."""
    files = [tmp_path / "limit-0", tmp_path / "limit-1"]
    for i, file in enumerate(files):
        file.write_text(f"{90 + i}000000\n")
    return files


def originals(files: list[Path]) -> bool:
    return [f.read_text() for f in files] == ["90000000\n", "91000000\n"]


def start(folder: Path, files: list[Path], ending: str) -> subprocess.Popen[str]:
    """Start a process that changes ``files`` and then ends as told; return once they are changed."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(OWNER), str(folder), ":".join(map(str, files)), ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "changed\n"
    return process


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_originals_come_back_in_reverse_order(tmp_path: Path, limits: list[Path]) -> None:
    with Journal(tmp_path / "j", watchdog=False) as journal:
        for file in limits:
            journal.control(file, "50000000")
        journal.control(limits[0], "30000000")
        assert limits[0].read_text() == "30000000\n"
        assert journal.restore() == [
            Restored(limits[1], "91000000", True),
            Restored(limits[0], "90000000", True),
        ]
        assert journal.restore() == []
    assert originals(limits)
    assert list((tmp_path / "j").glob("*.json")) == []


@pytest.mark.parametrize("ending", ["normal", "exception"])
def test_restored_when_the_program_ends(tmp_path: Path, limits: list[Path], ending: str) -> None:
    start(tmp_path / "j", limits, ending).wait()
    assert originals(limits)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_restored_after_a_signal(tmp_path: Path, limits: list[Path], number: signal.Signals) -> None:
    """After SIGKILL to the whole group it is the watchdog that restores."""
    process = start(tmp_path / "j", limits, "wait")
    assert not originals(limits)
    os.killpg(process.pid, number)
    process.wait()
    assert wait_until(lambda: originals(limits) and not list((tmp_path / "j").glob("*.json")))


def test_restored_at_the_next_start_if_the_watchdog_died_too(tmp_path: Path, limits: list[Path]) -> None:
    process = start(tmp_path / "j", limits, "killed with its watchdog's")
    assert restore_leftovers(tmp_path / "j") == []  # it lives: left alone
    assert not originals(limits)
    process.kill()
    process.wait()
    assert not originals(limits)
    assert [r.done for r in restore_leftovers(tmp_path / "j")] == [True, True]
    assert originals(limits)
    assert restore_leftovers(tmp_path / "j") == []


def test_a_crashs_backup_is_never_overwritten(tmp_path: Path, limits: list[Path]) -> None:
    """A next owner who does not restore first still puts the true original back."""
    process = start(tmp_path / "j", limits, "killed with its watchdog's")
    process.kill()
    process.wait()
    with Journal(tmp_path / "j", watchdog=False) as journal:
        journal.control(limits[0], "35000000")
    assert limits[0].read_text() == "90000000\n"
    assert len(list((tmp_path / "j").glob("*.json"))) == 1  # the crash's, still there
    restore_leftovers(tmp_path / "j")
    assert originals(limits)


def test_one_writer_at_a_time(tmp_path: Path, limits: list[Path]) -> None:
    process = start(tmp_path / "j", limits, "wait")
    with Journal(tmp_path / "j") as journal, pytest.raises(Busy, match=f"process {process.pid}"):
        journal.control(limits[0], "35000000")
    process.terminate()
    process.wait()
    assert originals(limits)


def test_the_original_is_on_disk_before_the_first_write(tmp_path: Path, limits: list[Path]) -> None:
    """A control that cannot be written leaves a journal that says how it was."""
    journal = Journal(tmp_path / "j", watchdog=False)
    seen: list[str] = []
    write = module.write_control

    def spy(path: Path, value: str) -> None:
        seen.extend(f.read_text() for f in (tmp_path / "j").glob("*.json"))
        write(path, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "write_control", spy)
        journal.control(limits[0], "50000000")
    assert json.loads(seen[0])["originals"] == [{"path": str(limits[0]), "value": "90000000"}]
    journal.restore()


def test_writing_the_present_value_only_remembers(tmp_path: Path, limits: list[Path]) -> None:
    with Journal(tmp_path / "j", watchdog=False) as journal:
        journal.control(limits[0], "90000000")
        limits[0].write_text("12\n")  # a firmware changes it in passing
    assert limits[0].read_text() == "90000000\n"


def test_after_a_reboot_nothing_is_written(
    tmp_path: Path, limits: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(tmp_path / "j", limits, "killed with its watchdog's")
    process.kill()
    process.wait()
    other = tmp_path / "boot_id"
    other.write_text("another boot\n")
    monkeypatch.setattr(module, "BOOT_ID", other)
    result = restore_leftovers(tmp_path / "j")
    assert [r.done for r in result] == [False, False]
    assert "restarted" in str(result[0])
    assert limits[0].read_text() == "40000000\n"
    assert restore_leftovers(tmp_path / "j") == []


def test_what_cannot_be_restored_is_said_and_kept(tmp_path: Path, limits: list[Path]) -> None:
    process = start(tmp_path / "j", limits, "killed with its watchdog's")
    process.kill()
    process.wait()
    limits[0].unlink()
    limits[0].mkdir()  # exists, and cannot be written
    (first, second) = restore_leftovers(tmp_path / "j")
    assert (first.path, first.done) == (limits[1], True)
    assert (second.path, second.done) == (limits[0], False) and "tenbin profile restore" in second.why
    limits[0].rmdir()
    (again,) = restore_leftovers(tmp_path / "j")
    assert (again.path, again.why) == (limits[0], "it is gone")
    assert restore_leftovers(tmp_path / "j") == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 9}', '{"version": 1, "pid": 1}'])
def test_a_journal_that_cannot_be_read_is_told_and_kept(tmp_path: Path, content: str) -> None:
    file = tmp_path / "1-2.json"
    file.write_text(content)
    (result,) = restore_leftovers(tmp_path)
    assert not result.done and result.path == file and "cannot be read" in result.why
    assert file.exists()


def test_refusals_are_sentences(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal, pytest.raises(Unavailable, match="No such file"):
        journal.control(tmp_path / "missing", "1")
    assert restore_leftovers(tmp_path / "nothing here") == []


def test_a_forked_child_does_not_restore(tmp_path: Path, limits: list[Path]) -> None:
    with Journal(tmp_path / "j", watchdog=False) as journal:
        journal.control(limits[0], "50000000")
        pid = os.fork()
        if pid == 0:
            os._exit(len(journal.restore()))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert limits[0].read_text() == "50000000\n"


def test_gpu_limits_are_journalled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an emulated one: a test must not change the limits of a real GPU."""
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    control = Path("nvml") / uuid(1) / "power_limit_mw"
    with emulated_gpus("gpus-2") as folder:
        monkeypatch.setenv("TENBIN_EMULATED_GPUS", str(folder))
        with Journal(tmp_path, watchdog=False) as journal:
            journal.control(control, "300000")
            assert read_control(control) == "300000"
            with pytest.raises(Unavailable, match="Invalid Argument"):
                journal.control(control, "500000")
        assert read_control(control) == "400000"


@pytest.mark.parametrize("how", ["writable", "link", "pipe"])
def test_a_journal_that_others_laid_is_not_carried_out(how: str, tmp_path: Path, limits: list[Path]) -> None:
    process = start(tmp_path / "journal", limits[:1], "killed with its watchdog's")
    process.kill()
    process.wait()
    (left,) = (tmp_path / "journal").glob("*.json")
    if how == "writable":
        left.chmod(0o666)
    elif how == "link":
        left.rename(tmp_path / "elsewhere")
        left.symlink_to(tmp_path / "elsewhere")
    else:
        left.unlink()
        os.mkfifo(left)
    (restored,) = restore_leftovers(tmp_path / "journal")
    assert not restored.done and "cannot be read" in restored.why
    assert limits[0].read_text().strip() == "40000000"


def test_a_lock_that_others_laid_is_not_opened(tmp_path: Path, limits: list[Path]) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "lock").symlink_to(limits[1])
    with pytest.raises(Unavailable, match=f"journal {tmp_path}/journal"), Journal(tmp_path / "journal") as it:
        it.control(limits[0], "1")
    (restored,) = restore_leftovers(tmp_path / "journal")
    assert not restored.done
    assert originals(limits)
