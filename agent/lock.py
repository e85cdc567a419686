"""The lock of a node, because two measurements at a time would disturb each other.

All users of a machine share it. No file can be such a lock safely: what one user lays in a folder of all (a
link, a pipe) the next one would open. So it is a name of Linux's abstract sockets, which one process can have
at a time, and of which nothing is left when that ends. Anybody can hold it, as any lock of all; the kernel
says who does. Machines with network namespaces of their own (containers) have locks of their own.
"""

from __future__ import annotations

import errno
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from agent.users import user_name
from profiles.errors import Busy
from profiles.files.safe_files import credentials_of_peer

NAME = "tenbin-node"
LONGEST_COMMAND = 200  # characters


@contextmanager
def node_lock(name: str | None = None) -> Iterator[None]:
    """Hold the node while measuring; the kernel releases the lock however this process ends.

    Args:
        name: of another lock than the node's, for tests.

    Raises:
        Busy: another process holds it; the message says whose, since when and with which command.
    """
    address = "\0" + (name or NAME)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        try:
            lock.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise _busy(address) from None
        lock.listen()  # so that others can see who holds it
        yield


def _busy(address: str) -> Busy:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.setblocking(False)
        try:
            line.connect(address)
            pid, user, _ = credentials_of_peer(line)
        except OSError:  # it is just beginning or ending, or too many have looked
            pid = 0
    if not pid:  # also where the holder is in another container
        return Busy("another profile is measuring this node", "wait for it to end")
    return Busy(
        f"another profile is measuring this node: pid {pid} of {user_name(user)}{_command_of(pid)}",
        f"wait for it, or stop it with: kill -INT {pid}",
    )


def _command_of(pid: int) -> str:
    """Say since when a process runs and with which command, as far as this user may see it."""
    import psutil  # late, because it is hardly ever needed

    try:
        process = psutil.Process(pid)
        since = datetime.fromtimestamp(process.create_time()).astimezone().isoformat(timespec="seconds")
        words = process.cmdline()
    except psutil.Error:
        return ""
    if len(words) > 1 and Path(words[0]).name.startswith("python"):
        words = [Path(words[1]).name, *words[2:]]
    text = "".join(letter if letter.isprintable() else "?" for letter in shlex.join(words)[:LONGEST_COMMAND])
    return f", since {since} ({text})"
