"""The terminal of a job in the foreground (``tenbin run``): its streams are those of the client.

The client listens on a socket that has a name but no file, so that nothing is left of a client that was
killed, and no other process has its name by chance. When the command is about to start, its supervisor
connects, names the folder of the attempt, and receives the three streams as descriptors. The connection is
there as long as the attempt is: the client learns of the end by its closing, and the supervisor of the end of
the client. Over it the client sends signals, a byte each.

A stream that is a pseudo-terminal is opened by the command's process, as the first terminal of its session.
So it is the controlling one: Ctrl-C, Ctrl-Z and changes of the window's size are the kernel's work.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket

from agent.processes.tree import F_SETSIG
from profiles.files.safe_files import credentials_of_peer

PATIENCE_S = 10.0  # for the client to answer
GONE = "closed before the job began"
MOST_SIGNALS = 4096  # that are read at once


def address(name: str) -> str:
    """Return the address of a client's socket."""
    return f"\0{name}"


def hand_over(connection: socket.socket, streams: list[int], terminals: list[bool]) -> str:
    """Hand a supervisor the streams, as its client; return the folder of the attempt.

    Args:
        terminals: of each stream, whether it is the pseudo-terminal of the job.

    Raises:
        OSError: the supervisor has ended, or does not answer.
    """
    connection.settimeout(PATIENCE_S)
    folder = b""
    while not folder.endswith(b"\n"):
        if not (more := connection.recv(4096)):
            raise ConnectionResetError(errno.ECONNRESET, "its supervisor has ended")
        folder += more
    socket.send_fds(connection, [bytes(terminals)], streams)
    connection.settimeout(None)
    return os.fsdecode(folder[:-1])


class Terminal:
    """The streams of a client, and the connection to it; in a ``with`` block the file actions for them.

    Args:
        name: of the client's socket. folder: of the attempt.

    Attributes:
        gone: the client has ended, or closed the connection.

    Raises:
        OSError: the client has ended, or does not answer.
    """

    def __init__(self, name: str, folder: str) -> None:
        self.gone = False
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(PATIENCE_S)
        self._streams: list[int] = []
        try:
            self._connection.connect(address(name))
            if credentials_of_peer(self._connection)[1] != os.geteuid():
                raise PermissionError(errno.EPERM, "a process of another user")
            self._connection.sendall(os.fsencode(folder) + b"\n")
            terminals, self._streams, _, _ = socket.recv_fds(self._connection, 3, 3)
            self._terminals = list(map(bool, terminals))
            if len(self._streams) < 3:
                raise ConnectionResetError(errno.ECONNRESET, GONE)
        except OSError as error:
            self.close()
            raise OSError(error.errno or errno.ETIMEDOUT, GONE, "terminal") from error
        for stream in self._streams:
            os.set_inheritable(stream, False)
        self._connection.setblocking(False)

    def __enter__(self) -> list[tuple[int, ...] | tuple[int, int, str, int, int]]:
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
        opened = None
        for number, stream in enumerate(self._streams):
            if not self._terminals[number]:
                actions.append((os.POSIX_SPAWN_DUP2, stream, number))
            elif opened is None:
                path, opened = f"/proc/self/fd/{stream}", number
                actions.append((os.POSIX_SPAWN_OPEN, number, path, os.O_RDWR, 0))
            else:
                actions.append((os.POSIX_SPAWN_DUP2, opened, number))
        return actions

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            os.close(stream)
        self._streams = []

    def listen(self, number: int) -> None:
        """Have this process sent a signal when the client has sent something, or is gone."""
        fcntl.fcntl(self._connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._connection, F_SETSIG, number)
        flags = fcntl.fcntl(self._connection, fcntl.F_GETFL)
        fcntl.fcntl(self._connection, fcntl.F_SETFL, flags | os.O_ASYNC)

    def signals(self) -> list[int]:
        """Take the signals that the client has sent."""
        try:
            sent = self._connection.recv(MOST_SIGNALS)
        except BlockingIOError:
            return []
        except OSError:
            sent = b""
        self.gone = not sent
        return [number for number in sent if number in signal.valid_signals()]

    def close(self) -> None:
        self.__exit__()
        self._connection.close()
