"""The lock of a node, because two measurements at a time would disturb each other."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from profiles.errors import Busy


def default_lock_file() -> Path:
    """Return the lock file, the same for every user of the node."""
    shared = Path("/run/lock")
    return (shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())) / "tenbin-profile.lock"


@contextmanager
def node_lock(path: Path | None = None) -> Iterator[None]:
    """Hold the node while measuring; the kernel releases the lock however this process ends.

    Raises:
        Busy: another process holds it; the message says whose, since when and with which command.
    """
    path = path or default_lock_file()
    descriptor = _open_shared(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(path) from None
        holder = {
            "pid": os.getpid(),
            "user": getpass.getuser(),
            "since": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open_shared(path: Path) -> int:
    # Without O_CREAT first: in a sticky folder the kernel refuses to "create" another user's file.
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.fchmod(descriptor, 0o666)
        return descriptor


def _busy(path: Path) -> Busy:
    try:
        holder = json.loads(path.read_text())
    except (OSError, ValueError):  # the holder is just writing its name
        return Busy("another profile is measuring this node", "wait for it to end")
    return Busy(
        f"another profile is measuring this node: pid {holder['pid']} of {holder['user']}, "
        f"since {holder['since']} ({holder['command']})",
        f"wait for it, or stop it with: kill -INT {holder['pid']}",
    )
