"""One measurement at a time, and the second one learns who holds the node."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys

import pytest

from agent import measured_node
from agent.measured_node import node_lock
from profiles.errors import Busy

HOLD = """
import os, sys, time
from agent.measured_node import node_lock
if len(sys.argv) > 2: os.setuid(int(sys.argv[2]))
with node_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""
NOBODY = pwd.getpwnam("nobody").pw_uid


@pytest.fixture
def name() -> str:
    return f"tenbin-{os.getpid()}"


def hold(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, *map(str, arguments)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout and holder.stdout.readline() == "held\n"
    return holder


def test_the_second_one_is_told_who_holds_the_node(name: str) -> None:
    holder = hold(name)
    try:
        with pytest.raises(Busy, match=f"pid {holder.pid} of .* kill -INT {holder.pid}"), node_lock(name):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with node_lock(name):  # a killed holder leaves no lock behind
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user too")
def test_users_of_a_machine_share_the_lock_and_no_file(name: str) -> None:
    holder = hold(name, NOBODY)
    opened: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.open") and watching:
            opened.append(str(arguments[0]))

    watching = True
    sys.addaudithook(note)
    try:
        with pytest.raises(Busy, match=f"pid {holder.pid} of nobody"), node_lock(name):
            pass
    finally:
        watching = False
        holder.kill()
        holder.wait()
    assert [path for path in opened if not path.startswith(("/proc", "/etc", sys.prefix, "/usr"))] == []


def test_who_holds_it_may_be_silent(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind(f"\0{name}")  # and does not listen
        with pytest.raises(Busy, match=r"^another profile is measuring this node; wait"), node_lock(name):
            pass
        holder.listen(0)
        for _ in range(3):  # nobody takes these calls
            with pytest.raises(Busy), node_lock(name):
                pass


def test_a_command_is_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, name, str(os.getuid()), "\x1b[2J\n" + "x" * 10_000],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(Busy) as caught, node_lock(name):
            pass
    finally:
        holder.kill()
        holder.wait()
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_the_lock_is_free_again_after_an_error(name: str) -> None:
    with pytest.raises(ZeroDivisionError), node_lock(name):
        raise ZeroDivisionError
    with node_lock(name):
        pass


def test_the_node_has_one_name() -> None:
    assert measured_node.NAME == "tenbin-node"
