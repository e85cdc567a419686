"""The process that holds a coordinator's folder, against locks that are held here."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from scheduler.coordinator.journal.journal_file import hold
from tenbin.client.connection import holder

HOLD = """
import sys
from pathlib import Path
from scheduler.coordinator.journal.journal_file import hold
descriptor = hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_seen_while_others_lock_and_unlock(tmp_path: Path) -> None:
    """The list of all locks, read in pieces, lacks the lock in seven of a thousand looks."""
    descriptor = hold(tmp_path)
    done = threading.Event()

    def lock_and_unlock() -> None:
        with ExitStack() as opened:
            files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(300)]
            while not done.is_set():
                for file in files:
                    fcntl.flock(file, fcntl.LOCK_EX)
                for file in files:
                    fcntl.flock(file, fcntl.LOCK_UN)

    others = threading.Thread(target=lock_and_unlock)
    others.start()
    try:
        assert {holder(tmp_path) for _ in range(3000)} == {os.getpid()}
    finally:
        done.set()
        others.join()
        os.close(descriptor)


def test_who_has_gone_holds_nothing(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    arguments = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        assert holder(tmp_path) == other.pid
        other.kill()
    assert holder(tmp_path) is None and (tmp_path / "lock").read_text() == str(other.pid)
    (tmp_path / "lock").write_text(str(os.getpid()))  # a number that another process has now
    assert holder(tmp_path) is None
    (tmp_path / "lock").write_text("")
    assert holder(tmp_path) is None
