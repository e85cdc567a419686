"""Starts supervisors in a millisecond: a small process, everything imported, that forks one for each line.

``tenbin agent exec FOLDER`` does the same for one attempt, by a Python that has to start first: that takes
150 times as long, so the engine of this machine does not use it.

One supervisor is always forked ahead, and waits to be told its attempt. Reads the folders of attempts as
lines of JSON from standard input, and answers each with the supervisor's process number, or with the error
number below zero of why there is none. It ends with its input; the supervisors go on.

    python -P -m agent.jobs.spawner REPORT_SOCKET
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from agent.jobs.folder import LOG, Attempt
from agent.jobs.supervisor import Report, supervise


class Spare(NamedTuple):
    """A supervisor that waits for the line with its attempt."""

    pid: int
    pipe: int

    def take(self, line: str) -> bool:
        """Give it the line; whether it was there to take it."""
        try:
            os.write(self.pipe, line.encode())
        except BrokenPipeError:
            return False
        finally:
            os.close(self.pipe)
        return True


def reporter(address: str, attempt: Path) -> Report:
    """Tells the coordinator where there is something new; without one, nobody minds."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.setblocking(False)

    def report(what: str) -> None:
        with suppress(OSError):
            channel.sendto(json.dumps([str(attempt), what]).encode(), address)

    return report


def main() -> None:
    address = sys.argv[1]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are nobody's zombies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the coordinator, and by it this
    # A request may reach a supervisor before it is ready: the signal must wait, not kill.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.chdir("/")
    spare = _ahead(address)
    for line in sys.stdin:
        try:
            while spare is None or not spare.take(line):  # it could not be had, or was killed
                spare = _fork(address)
            answer = spare.pid
        except OSError as error:
            answer = -(error.errno or errno.EAGAIN)
        print(answer, flush=True)
        spare = _ahead(address)


def _ahead(address: str) -> Spare | None:
    """A supervisor for the next line; None if there can be no more processes now."""
    with suppress(OSError):
        return _fork(address)
    return None


def _fork(address: str) -> Spare:
    """A supervisor that waits for its attempt. OSError if there can be no more processes now."""
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        os.close(writer)
        _supervise(reader, address)
    os.close(reader)
    return Spare(pid, writer)


def _supervise(reader: int, address: str) -> None:
    """In the new process."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with os.fdopen(reader) as pipe:
            line = pipe.readline()
        if line:  # else the spawner has ended
            path = Path(json.loads(line))
            with logged(path / LOG):
                supervise(Attempt(path), reporter(address, path))
    finally:
        os._exit(0)


@contextmanager
def logged(file: Path) -> Iterator[None]:
    """What ends a supervisor is told in its log, where there is room for one."""
    try:
        yield
    except BaseException:
        with suppress(OSError), file.open("a") as log:
            traceback.print_exc(file=log)  # its last line is why the attempt was lost


if __name__ == "__main__":
    main()
