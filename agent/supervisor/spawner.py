"""Starts supervisors in less than a millisecond: a small process, everything imported, that forks them.

``tenbin agent exec FOLDER`` does the same for one attempt, by a Python that has to start first: that takes
150 times as long, so the engine of this machine does not use it.

A supervisor is forked ahead, and waits to be told its attempt; when that was a plain one it waits for another
(a fork is a millisecond, and the pages it shares are another two). Reads the folders of attempts as lines of
JSON from standard input, and answers each with the supervisor's process number, or with the error number
below zero of why there is none. It ends with its input; supervisors that have a job go on.

    python -P -m agent.supervisor.spawner REPORT_SOCKET
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from agent.attempts.begin import LOG
from agent.attempts.folder import Attempt
from agent.supervisor.supervisor import supervise

MOST_WAITING = len(os.sched_getaffinity(0)) + 1  # supervisors without a job
QUIET_S = 10.0  # after that only one of them is kept
LINE_BYTES = 65536
FREE = b"\n"  # a supervisor says: I wait for the next


class Waiting(NamedTuple):
    """A supervisor as its spawner sees it: while it waits, the next line sent to it is its attempt."""

    pid: int
    channel: socket.socket

    def take(self, line: bytes) -> bool:
        """Give it the line; whether it was there to take it."""
        try:
            self.channel.send(line)
        except OSError:
            return False
        return True


class Spawner:
    """Has supervisors ready, and takes back those that have done their job."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.waiting: list[Waiting] = []
        self.events = selectors.PollSelector()  # it has no descriptor that a fork would share
        self.events.register(0, selectors.EVENT_READ)
        self.input = b""

    def run(self) -> None:
        """Until the input ends."""
        while True:
            self._stand_by()
            ready = self.events.select(QUIET_S)
            for key, _ in ready:
                if isinstance(key.data, Waiting):
                    self._hear(key.data)
            if any(key.data is None for key, _ in ready):
                more = os.read(0, LINE_BYTES)
                if not more:
                    return
                *lines, self.input = (self.input + more).split(b"\n")
                for line in lines:
                    os.write(1, b"%d\n" % self._start(line + b"\n"))
            elif not ready:
                self._keep(1)

    def _start(self, line: bytes) -> int:
        """Who has taken the attempt, or the error number below zero."""
        try:
            while True:
                one = self.waiting.pop() if self.waiting else self._fork()
                if one.take(line):
                    return one.pid
                self._drop(one)  # it was killed
        except OSError as error:
            return -(error.errno or errno.EAGAIN)

    def _stand_by(self) -> None:
        """One is ready for the next line, unless there can be no more processes now."""
        if not self.waiting:
            with suppress(OSError):
                self.waiting.append(self._fork())

    def _hear(self, one: Waiting) -> None:
        """It waits again, or it has ended."""
        with suppress(OSError):
            if one.channel.recv(len(FREE)) == FREE:
                self.waiting.append(one)
                self._keep(MOST_WAITING)
                return
        self._drop(one)

    def _keep(self, most: int) -> None:
        while len(self.waiting) > most:
            self._drop(self.waiting[0])  # the last ones have been at work last

    def _drop(self, one: Waiting) -> None:
        if one in self.waiting:
            self.waiting.remove(one)
        self.events.unregister(one.channel)
        one.channel.close()

    def _fork(self) -> Waiting:
        """A supervisor that waits for its attempt. OSError if there can be no more processes now."""
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            mine.close()
            its.close()
            raise
        if pid == 0:
            mine.close()
            for key in list(self.events.get_map().values()):
                if isinstance(key.data, Waiting):
                    key.data.channel.close()  # else the others would outlive the spawner
            _supervise(its, self.address)
        its.close()
        made = Waiting(pid, mine)
        self.events.register(mine, selectors.EVENT_READ, made)
        return made


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are nobody's zombies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the coordinator, and by it this
    # A request may reach a supervisor before it is ready: the signal must wait, not kill.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.chdir("/")
    Spawner(sys.argv[1]).run()


def _supervise(channel: socket.socket, address: str) -> None:
    """In the new process: one attempt after the other, as long as they are plain."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        to_coordinator = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        to_coordinator.setblocking(False)

        def report(what: str) -> None:
            with suppress(OSError):  # without a coordinator nobody minds
                to_coordinator.sendto(json.dumps([str(path), what]).encode(), address)

        while line := channel.recv(LINE_BYTES):  # none: the spawner has ended
            path = Path(json.loads(line))
            with logged(path / LOG):
                if not supervise(Attempt(path), report):
                    break
            channel.send(FREE)
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
        raise


if __name__ == "__main__":
    main()
