"""A network's disk that is cut in the middle of anything, and a client that remembers.

The disk: ``tests.support.labs.network_disk``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent.attempts.folder import Attempt
from agent.multi_node.lease import node_name, prepare
from tenbin.checkpoint import Generations
from tests.agent.supervisor.test_foreground import placed
from tests.agent.supervisor.test_supervisor import Running
from tests.support.labs.network_disk import Server, network_disk
from tests.support.paths import ROOT
from tests.support.waiting import until
from tests.tenbin.checkpoint.test_generations import Content, begin, names, save, stopped, taken

LIMIT_S = 40.0  # far below the minute for which the client remembers
LEASES_S = 6.0  # twice the lease
EXITING = 4  # PF_EXITING of linux/sched.h
OLD_COPY = """
import os, signal, sys
from pathlib import Path
from tenbin.checkpoint import Generations
from tests.tenbin.checkpoint.test_generations import Content, save, taken

mine, left = Generations.here(Path("checkpoint.tenbin")), int(sys.argv[1])
taken(mine)
save(mine, Content(1, 1))

def stop(event, arguments):
    global left
    if event in ("open", "os.rename", "os.remove", "os.listdir"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

sys.addaudithook(stop)
save(mine, Content(1, 2))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Server]:
    with network_disk(tmp_path / "behind", tmp_path / "disk") as server:
        yield server


def fields(pid: int) -> list[str]:
    """Of its line in /proc, from the state on."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ["", *"0" * 50]


def state(pid: int) -> str:
    """R, S, D (cannot even be killed), Z; empty: there is none."""
    return fields(pid)[0]


def over(pid: int) -> bool:
    """No further instruction of it is carried out: it has ended, or ends and waits for its files."""
    return state(pid) in ("", "Z") or bool(int(fields(pid)[6]) & EXITING)


@pytest.mark.parametrize("call", range(1, 8))
def test_what_is_on_its_way_when_the_network_is_cut(disk: Server, tmp_path: Path, call: int) -> None:
    """The old copy's call waits for the server, which carries it out when all is over; it cannot be killed.

    The next attempt runs on another node meanwhile, which reaches the disk. Calls 1 to 7 of a save: among
    them the file aside, its data, the last look and the rename.
    """
    begin(tmp_path / "behind", 1)
    told = {"TENBIN_GENERATION": "1", "TENBIN_JOB_FOLDER": str(disk.path)}
    old = subprocess.Popen(
        [sys.executable, "-c", OLD_COPY, str(call)],
        cwd=disk.path,
        env={**os.environ, **told, "PYTHONPATH": str(ROOT)},
    )
    stopped(old)
    disk.cut()
    old.send_signal(signal.SIGCONT)
    until(disk.waiting)
    old.kill()
    until(lambda: state(old.pid) == "D")

    folder = tmp_path / "behind"
    begin(folder, 2)
    second = Generations(folder / "checkpoint.tenbin", 2, folder)
    before = taken(second)
    assert before in (Content(1, 1), Content(1, 2))
    save(second, Content(2, 1))
    disk.join()
    until(lambda: old.poll() is not None)
    third = Generations(folder / "checkpoint.tenbin", 3, folder)
    assert taken(third) == Content(2, 1)
    save(third, Content(3, 1))
    assert names(folder) == ["checkpoint.tenbin.g3"]


def supervised(disk: Server, tmp_path: Path, lease_s: float) -> tuple[Running, Attempt, int]:
    """Start a job with its folder on that disk; yield its attempt as another node sees it and its process."""
    behind = tmp_path / "behind"
    attempt = placed(behind, "sleep", "600", lease_s=lease_s)
    prepare(attempt, [node_name()])
    order = attempt.path / "order.json"
    order.write_text(order.read_text().replace(str(behind), str(disk.path)))
    running = Running(Attempt(disk.path / "attempt"))
    running.until("started")
    found = attempt.state()
    assert found is not None
    return running, attempt, found.pid


def test_a_fence_is_seen_though_the_client_remembers_none(disk: Server, tmp_path: Path) -> None:
    running, attempt, pid = supervised(disk, tmp_path, lease_s=600.0)
    try:
        time.sleep(2.0)  # it has looked, and knows that there is no fence
        attempt.fence_off()
        until(lambda: over(pid), LIMIT_S)
        assert running.result().how == "interrupted"
    finally:
        running.process.kill()
        running.process.wait()


@pytest.mark.slow
def test_a_cut_ends_a_job_though_the_client_remembers_its_folder(disk: Server, tmp_path: Path) -> None:
    """Within its lease, and while the disk does not answer; the one that nobody cuts goes on."""
    running, attempt, pid = supervised(disk, tmp_path, lease_s=3.0)
    try:
        time.sleep(LEASES_S)
        assert state(pid) == "S"
        disk.cut()
        until(lambda: over(pid), LIMIT_S)
        disk.join()
        until(lambda: (attempt.result() or attempt.unpublished_result()) is not None)
        found = attempt.result() or attempt.unpublished_result()
        assert found is not None and found.how == "interrupted"
    finally:
        disk.join()
        running.process.kill()
        running.process.wait()
