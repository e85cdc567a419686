"""Programs and callers that are killed in the middle of a request leave nothing behind."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from agent.opencl_layer import requests
from profiles.errors import UserError
from tests.agent.opencl_layer.test_requests import LIVE, REST, ask, other_device
from tests.support.amounts import DRILL, sweep
from tests.support.moving import Worker, variables
from tests.support.waiting import until

FEW = (1, 7)
STEPS = range(1, 1000) if DRILL else FEW


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the cache of compiled kernels of all programs here."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("request_", sweep(["move", "park", "resume"], {"move"}))
def test_killed_program(tmp_path: Path, cache: str, request_: str) -> None:
    """The caller is told so, and neither a socket nor a file is left. ``TENBIN_DRILL``: at every step."""
    missing = next((step for step in STEPS if not killed(tmp_path, cache, request_, step)), None)
    print(f"the first step that a {request_} does not have: {missing}")
    assert missing is None if STEPS == FEW else missing is not None and missing > max(FEW)


def killed(tmp_path: Path, cache: str, request_: str, step: int) -> bool:
    """Kill a program at a step of a request; return whether the request has as many steps."""
    worker = Worker(variables(tmp_path, below=True, XDG_CACHE_HOME=cache))
    worker.digest(["begin", *LIVE])
    pid = worker.process.pid
    device = other_device(tmp_path, pid)
    if request_ == "resume":
        requests.park(tmp_path, pid, tmp_path)
    ask(tmp_path, pid, f"fail {-step}")
    try:
        if request_ == "move":
            requests.move(tmp_path, pid, device)
        elif request_ == "park":
            requests.park(tmp_path, pid, tmp_path)
        else:
            requests.resume(tmp_path, pid, device)
        worker.process.kill()
        worker.process.communicate()
        return False
    except UserError as error:
        assert f"process {pid} has ended meanwhile" in str(error)
    assert worker.process.wait(10) == -signal.SIGKILL
    worker.process.communicate()
    assert list(requests.statuses(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
    return True


def test_killed_caller(tmp_path: Path, cache: str) -> None:
    """Whoever asks for a move and is gone leaves the program moved; half a request does nothing."""
    plain = Worker(variables(tmp_path, below=False, XDG_CACHE_HOME=cache))
    expected = plain.digest([*LIVE, *REST])
    plain.end()
    worker = Worker(variables(tmp_path, below=True, XDG_CACHE_HOME=cache))
    worker.digest(["begin", *LIVE])
    pid = worker.process.pid
    device = other_device(tmp_path, pid)
    for line in (f"move {device} 3", f"move {device} 30\n"):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / str(pid)))
            caller.sendall(line.encode())
        if not line.endswith("\n"):
            assert ask(tmp_path, pid, "status")["moves"] == 0
    until(lambda: ask(tmp_path, pid, "status")["moves"])
    assert requests.status(tmp_path, pid).device == device
    assert worker.digest(["end", *REST]) == expected
    worker.end()


EXIT = """
import ctypes, sys, pyopencl as cl
context = cl.create_some_context(interactive=False)
programs = [cl.Program(context, "__kernel void k%d(__global int *a) {}" % i).build() for i in range(4)]
print("built", flush=True)
sys.stdin.readline()
ctypes.CDLL(None).exit(0)  # at once, with the handlers of all libraries
"""


def test_program_that_ends_during_moves(tmp_path: Path, cache: str) -> None:
    """No move compiles while the compiler takes itself down, which crashed."""
    for _ in range(3):
        worker = Worker(variables(tmp_path, below=True, XDG_CACHE_HOME=cache), [sys.executable, "-c", EXIT])
        pid = worker.process.pid
        assert worker.process.stdout is not None
        assert worker.process.stdout.readline() == "built\n"
        moves: list[str] = []

        def move_on(pid: int = pid, moves: list[str] = moves) -> None:
            try:
                while True:
                    moves.append(requests.move(tmp_path, pid, other_device(tmp_path, pid)).device)
            except UserError:
                pass  # it has ended

        mover = threading.Thread(target=move_on)
        mover.start()
        until(lambda moves=moves: moves)  # type: ignore[misc]
        worker.end()
        mover.join(60)
        assert not mover.is_alive()
