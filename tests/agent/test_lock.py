"""One measurement at a time, and the second one learns who holds the node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.lock import node_lock
from profiles.errors import Busy

HOLD = """
import sys, time
from pathlib import Path
from agent.lock import node_lock
with node_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_one_is_told_who_holds_the_node(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(file)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(Busy, match=f"pid {holder.pid} of .* kill -INT {holder.pid}"), node_lock(file):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with node_lock(file):  # a killed holder leaves no lock behind
        pass


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with pytest.raises(ZeroDivisionError), node_lock(file):
        raise ZeroDivisionError
    with node_lock(file):
        assert oct(file.stat().st_mode & 0o777) == "0o666"
