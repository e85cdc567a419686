"""Processes with one OpenCL session each, forked from a server that has the libraries loaded but no driver.

A restart begins in a new process whose driver has seen nothing yet. Starting Python anew for each would take
longer than most restarts; a fork takes 2 ms. A driver that crashes or hangs costs one such process, which the
fork server kills and reaps. When the probe ends, however it ends, the fork server sees the end of its socket
and ends too, with everything it forked.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Literal

from profiles.errors import Unavailable

FailureKind = Literal["storage", "memory", "queue", "data", "device", "hung"]
START_S = 120.0  # a driver and a compiler that take longer count as hung
CHECKPOINT_SESSION = "probes.checkpoint_session:DeviceSession"


class Failure(Exception):
    """An operation that failed in a device's process.

    Attributes:
        kind: storage (OSError), memory (device too small), queue (cannot be filled), data (they
            differ), device (an OpenCL error, or the process died), hung (no answer in time).
        device: key of the device whose process it was.
        errno: of a storage failure, else 0.
    """

    def __init__(self, kind: FailureKind, text: str, device: str, errno: int = 0) -> None:
        super().__init__(text)
        self.kind = kind
        self.device = device
        self.errno = errno


class DeviceProcess:
    """A process that carries out the methods of one session with a device."""

    def __init__(self, fork_server: ForkServer, device: str, pid: int, connection: Connection) -> None:
        self.device = device
        self._fork_server = fork_server
        self._pid = pid
        self._connection = connection

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Carry out one operation and return its result.

        Raises:
            Failure: the operation failed; after ``device`` and ``hung`` this process is of no further use.
            Unavailable: there is no OpenCL device.
        """
        try:
            self._connection.send((method, arguments))
            deadline = time.monotonic() + timeout_s
            while not self._connection.poll(0.5):
                self._fork_server.waiting()
                if time.monotonic() > deadline:
                    raise Failure("hung", f"no answer to '{method}' within {timeout_s:.0f} s", self.device)
            outcome, value = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            text = f"the process using the device died in '{method}'"
            raise Failure("device", text, self.device) from error
        if outcome == "unavailable":
            raise Unavailable(*value)
        if outcome == "failed":
            kind, text, code = value
            raise Failure(kind, text, self.device, code)
        return value

    def close(self) -> None:
        """End the process, which holds nothing that needs saving."""
        self._connection.close()
        self._fork_server.kill(self._pid)

    def __enter__(self) -> DeviceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ForkServer:
    """A parent of device processes; leaving the context ends them all.

    Args:
        environment: set in every process before any driver is loaded.
        waiting: called about twice a second while an operation takes long.
        session: the class of the sessions, as ``module:name``; made from a device's key, and its method
            ``opened`` tells what opening it took.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        waiting: Callable[[], None] = lambda: None,
        *,
        session: str = CHECKPOINT_SESSION,
    ) -> None:
        self.environment = dict(environment)
        self.waiting = waiting
        self._session = session

    def __enter__(self) -> ForkServer:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # In a session of its own, so that Ctrl-C goes to the probe alone, which then ends its children.
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "probes.device_process"),
                    *(str(theirs.fileno()), self._session),
                ],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYOPENCL_NO_CACHE": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            self._connection = Connection(ours.detach())
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fork(self, device: str = "", environment: Mapping[str, str] | None = None) -> DeviceProcess:
        """Fork a process without any OpenCL state; ``environment`` is added to the fork server's.

        The session of ``device`` is then to be opened by ``call("open", key)``.

        Raises:
            Failure: the fork server is gone, or cannot fork.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            try:
                self._connection.send(("fork", self.environment | dict(environment or {})))
                with socket.socket(fileno=os.dup(self._connection.fileno())) as channel:
                    socket.send_fds(channel, [b"s"], [theirs.fileno()])
                pid = self._connection.recv()
            except (EOFError, ConnectionError) as error:
                text = "the process that starts device processes is gone"
                raise Failure("device", text, device) from error
            return DeviceProcess(self, device, pid, Connection(ours.detach()))

    def kill(self, pid: int) -> None:
        """End and reap a process that ``fork`` gave."""
        with suppress(EOFError, ConnectionError):  # the fork server is gone, and its children with it
            self._connection.send(("kill", pid))
            self._connection.recv()


def _serve_forks(descriptor: int, session: str) -> None:
    """Fork and kill as asked, until the other side is gone."""
    module, name = session.split(":")
    open_session = getattr(importlib.import_module(module), name)  # here once, so that no fork needs to
    gc.freeze()
    connection = Connection(descriptor)
    children: set[int] = set()
    try:
        while True:
            order, value = connection.recv()
            if order == "fork":
                with socket.socket(fileno=os.dup(descriptor)) as channel:
                    _, (theirs,), _, _ = socket.recv_fds(channel, 1, 1)
                pid = os.fork()
                if pid == 0:
                    connection.close()
                    _live(theirs, value, open_session)
                os.close(theirs)
                children.add(pid)
                connection.send(pid)
            else:
                _end(value)
                children.discard(value)
                connection.send(value)
    except (EOFError, ConnectionError):
        pass
    finally:
        for pid in children:
            _end(pid)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)  # the id is still ours, because a dead child is a zombie until reaped
    for _ in range(500):  # not for ever, because a process that waits for dead storage cannot be killed
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.01)


def _live(descriptor: int, environment: dict[str, str], open_session: Callable[..., Any]) -> None:
    """Serve a session in a forked process; never returns."""
    status = 1
    try:
        os.environ.update(environment)
        _serve_session(Connection(descriptor), open_session)
    except (EOFError, ConnectionError):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # no exit handlers: they are the fork server's


def _serve_session(connection: Connection, open_session: Callable[..., Any]) -> None:
    import pyopencl as cl

    from probes.opencl import SessionFailure, list_devices

    session: Any = None
    while True:
        method, arguments = connection.recv()
        reply: tuple[str, Any]
        try:
            if method == "devices":
                reply = ("done", list_devices())
            elif method == "open":
                session = open_session(*arguments)
                reply = ("done", session.opened())
            else:
                reply = ("done", getattr(session, method)(*arguments))
        except Unavailable as error:
            reply = ("unavailable", (error.what, error.remedy))
        except SessionFailure as error:
            reply = ("failed", (error.kind, str(error), 0))
        except OSError as error:
            reply = ("failed", ("storage", str(error), error.errno or 0))
        except cl.Error as error:
            reply = ("failed", ("device", str(error), 0))
        connection.send(reply)


if __name__ == "__main__":
    _serve_forks(int(sys.argv[1]), sys.argv[2])
