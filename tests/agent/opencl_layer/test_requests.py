"""Requests to a running program: each is carried out, or leaves the program as it was."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.opencl_layer import requests
from profiles.errors import BadInput, Unavailable, UserError
from tests.support.amounts import ALL, sweep
from tests.support.moving import Worker, variables
from tests.support.waiting import until

LIVE = [
    *(["part", i, i, 0] for i in range(4)),
    *(["run_part", 0, 1, 0], ["image", 1, 2, 3], ["map", 2, 5, 0], ["write", 3, 7, 1], ["argument", 1, 0, 3]),
    *(["run", 0, 1, 5], ["copy", 0, 1, 2]),
]
REST = [
    ["run", 1, 0, 3],
    ["run_part", 2, 3, 1],
    ["unmap", 0, 3, 9],
    ["image", 0, 1, 2],
    ["run", 0, 0, 1],
    ["read", 2, 0, 0],
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the digest of ``LIVE`` and ``REST`` without the layer."""
    worker = Worker(variables(tmp_path_factory.mktemp("plain"), below=False))
    found = worker.digest([*LIVE, *REST])
    worker.end()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("moved")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Worker]:
    made = Worker(variables(folder, below=True))
    made.digest([])
    yield made
    made.end()
    assert not (folder / str(made.process.pid)).exists()


def ask(folder: Path, pid: int, request: str) -> dict[str, object]:
    """Ask what only a layer for tests knows."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(folder / str(pid)))
        line.sendall(f"{request}\n".encode())
        return dict(json.loads(line.makefile().readline()))


def other_device(folder: Path, pid: int) -> str:
    now = requests.status(folder, pid)
    return next(one["key"] for one in now.devices if one["key"] != now.device)


def test_move(worker: Worker, folder: Path, expected: str) -> None:
    pid = worker.process.pid
    worker.digest(["begin", *LIVE])
    device = other_device(folder, pid)
    moved = requests.move(folder, pid, device)
    assert (moved.device, moved.state, moved.movable) == (device, "running", True)
    assert moved.last_pause_s is not None and moved.last_total_s is not None
    assert 0 < moved.last_pause_s <= moved.last_total_s
    assert worker.digest(["end", *REST]) == expected
    assert [one.pid for one in requests.statuses(folder)] == [pid]


@pytest.mark.parametrize("place", ["memory", "file"])
def test_park_and_resume(worker: Worker, folder: Path, expected: str, place: str) -> None:
    pid = worker.process.pid
    worker.digest(["begin", *LIVE])
    parked = requests.park(folder, pid, folder if place == "file" else None)
    assert (parked.state, parked.parked_in) == ("parked", place)
    assert parked.parked_bytes == 4 * 4 * 4096 + 4 * 32 * 32
    with pytest.raises(UserError, match="is parked; resume it"):
        requests.move(folder, pid, parked.device)
    answer: list[str] = []
    caller = threading.Thread(target=lambda: answer.append(worker.digest(["end", *REST])))
    caller.start()
    assert worker.process.stdout is not None
    assert select.select([worker.process.stdout], [], [], 0.3)[0] == []  # it waits at its first call
    device = other_device(folder, pid)
    resumed = requests.resume(folder, pid, device)
    caller.join(60)
    assert answer == [expected]
    assert (resumed.state, resumed.device) == ("running", device)


@pytest.mark.parametrize("request_", sweep(["move", "park", "resume", "estimate"], {"move"}))
def test_every_step_may_fail(worker: Worker, folder: Path, expected: str, request_: str) -> None:
    """Each third step fails (under ``--all`` each); then all succeed, and results are as if undisturbed."""
    pid = worker.process.pid
    worker.digest(["begin", *LIVE])
    if request_ == "resume":
        requests.park(folder, pid)
    other = other_device(folder, pid)
    lines = {"move": f"move {other} 0", "park": "park 0", "resume": "resume", "estimate": f"estimate {other}"}
    line = lines[request_]
    before = requests.status(folder, pid)
    for step in itertools.count(1, 1 if ALL else 3):
        ask(folder, pid, f"fail {step}")
        answer = ask(folder, pid, line)
        if "trouble" not in answer:
            break
        assert str(answer["trouble"]).startswith("injected failure: ")
        now = requests.status(folder, pid)
        assert (now.state, now.device) == (before.state, before.device)
    ask(folder, pid, "fail 0")
    assert step > {"move": 40, "park": 5, "resume": 20, "estimate": 20}[request_]
    if request_ == "park":
        requests.resume(folder, pid)
    assert worker.digest(["end", *REST]) == expected


def test_move_waits_for_user_events(worker: Worker, folder: Path) -> None:
    pid = worker.process.pid
    worker.digest(["begin", ["gate", 0, 0, 0], ["run", 0, 1, 0]])
    with pytest.raises(
        UserError, match=r"postponed, and given up: a user event .* is not set; try again later"
    ):
        requests.move(folder, pid, other_device(folder, pid), patience_s=0.05)
    moves: list[str] = []
    device = other_device(folder, pid)
    caller = threading.Thread(target=lambda: moves.append(requests.move(folder, pid, device).device))
    caller.start()
    until(lambda: requests.status(folder, pid).postponed)
    worker.digest(["go on", ["open", 0, 0, 0]])
    caller.join(60)
    assert moves == [device]


def test_shared_virtual_memory_is_not_moved(folder: Path, expected: str) -> None:
    worker = Worker(variables(folder, below=True))
    pid = worker.process.pid
    worker.digest(["begin", *LIVE, ["svm", 0, 0, 0]])
    status = requests.status(folder, pid)
    assert [one["uses"] for one in status.hindrances] == ["shared virtual memory"]
    for request in (
        lambda: requests.move(folder, pid, status.devices[1]["key"]),
        lambda: requests.park(folder, pid),
    ):
        with pytest.raises(UserError, match="cannot be moved: it uses shared virtual memory"):
            request()
    assert worker.digest(["end", *REST]) == expected
    worker.end()


def test_a_stopped_program_is_told_of_at_once(worker: Worker, folder: Path) -> None:
    """Nothing is sent that it would carry out when it goes on."""
    worker.digest(["begin"])
    pid = worker.process.pid
    before = requests.status(folder, pid)
    device = other_device(folder, pid)
    worker.process.send_signal(signal.SIGSTOP)
    until(lambda: requests.is_stopped(pid))
    for request in (
        lambda: requests.move(folder, pid, device),
        lambda: requests.estimate(folder, pid, device),
        lambda: requests.try_on(folder, pid, device),
        lambda: requests.park(folder, pid),
        lambda: requests.resume(folder, pid),
        lambda: requests.status(folder, pid),
    ):
        with pytest.raises(Unavailable, match=rf"process {pid} is stopped; .* kill -CONT {pid}"):
            request()
    silent: list[tuple[int, str]] = []
    assert list(requests.statuses(folder, silent)) == []
    assert silent == [(pid, f"process {pid} is stopped; let it go on first: kill -CONT {pid}")]
    worker.process.send_signal(signal.SIGCONT)
    assert requests.status(folder, pid) == before


CLOSES = """
import os, sys, pyopencl as cl
context = cl.create_some_context(interactive=False)
sys.stdin.readline()
os.closerange(3, 1000)
theirs = open("/dev/null")  # has the number of the socket
print("closed", theirs.fileno(), flush=True)
sys.stdin.readline()
theirs.close()  # it is still theirs
"""


def test_a_program_that_closes_what_it_did_not_open(tmp_path: Path) -> None:
    """Requests go on to be answered, and its own files are left alone."""
    program = subprocess.Popen(
        [sys.executable, "-c", CLOSES],
        env=variables(tmp_path, below=True),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    until(lambda: requests.programs(tmp_path, [program.pid]))
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "closed 3\n"
    for device in ("pocl-1", "pocl-0", "pocl-1"):
        until(lambda: list(requests.statuses(tmp_path)))  # it listens again as soon as the layer has seen it
        assert requests.move(tmp_path, program.pid, device).device == device
    program.communicate("\n", timeout=30)
    assert program.returncode == 0
    assert not list(tmp_path.glob("[0-9]*"))


def test_what_cannot_be_asked(worker: Worker, folder: Path, tmp_path: Path) -> None:
    pid = worker.process.pid
    with pytest.raises(UserError, match="may not use a device nvidia-9; choose from pocl-0, pocl-1"):
        requests.move(folder, pid, "nvidia-9")
    with pytest.raises(UserError, match="cannot leave this machine for nvidia-0@node5; choose from pocl-0"):
        requests.move(folder, pid, "nvidia-0@node5")
    with pytest.raises(UserError, match="is not parked"):
        requests.resume(folder, pid)
    with pytest.raises(UserError, match=r"no file without a name|No such file"):
        requests.park(folder, pid, tmp_path / "none")
    with pytest.raises(BadInput, match="no OpenCL program with process ID 1 "):
        requests.status(folder, 1)
    left = tmp_path / "77"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    assert list(requests.statuses(tmp_path)) == []
    assert not left.exists()


def test_folder_of_somebody_else(tmp_path: Path) -> None:
    assert requests.own_folder(tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(BadInput, match="not a folder of yours alone"):
        requests.own_folder(tmp_path / "open")
    with pytest.raises(BadInput, match=r"12 bytes too long for sockets; name a shorter folder"):
        requests.own_folder(Path("/tmp") / ("x" * (107 + 12 - len("/tmp//4194304"))))
    if os.getuid() == 0:
        os.chown(tmp_path / "new", 12345, -1)
        with pytest.raises(BadInput, match="not a folder of yours alone"):
            requests.own_folder(tmp_path / "new")


def test_nothing_is_removed_through_a_link_that_others_laid(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "77").write_text("a call there is refused, as by a program that has ended")
    laid = tmp_path / "laid"
    laid.symlink_to(tmp_path / "precious")
    with pytest.raises(BadInput, match="not a folder of yours alone"):
        requests.status(laid, 77)
    with pytest.raises(BadInput, match="not a folder of yours alone"):
        list(requests.statuses(laid))
    assert (tmp_path / "precious" / "77").exists()


def test_the_folder_is_the_same_for_programs_with_another_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", "TENBIN_OPENCL_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    monkeypatch.setattr("tempfile.tempdir", None)
    assert requests.default_folder() == Path(f"/tmp/tenbin-opencl-{os.getuid()}")
