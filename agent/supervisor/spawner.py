"""The process that starts supervisors on this machine, each in less than a millisecond.

    python -P -m agent.supervisor.spawner REPORT_SOCKET

It has everything imported, and forks supervisors ahead, which wait for an attempt. After a plain attempt a
supervisor waits for the next, because a fork and its page faults cost three milliseconds. ``tenbin agent exec
FOLDER`` has to start a Python, which takes 150 times as long.

The input are folders of attempts as lines of JSON. The answer to each is the supervisor's process number, or
an error number below zero. The spawner ends with its input; supervisors with a job go on.
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

MOST_WAITING = len(os.sched_getaffinity(0)) + 1  # idle supervisors
QUIET_S = 10.0  # then all idle supervisors but one are ended
LINE_BYTES = 65536
FREE = b"\n"  # a supervisor tells that it waits for the next attempt


class Waiting(NamedTuple):
    """A supervisor that waits for the folder of an attempt on its channel."""

    pid: int
    channel: socket.socket

    def take(self, line: bytes) -> bool:
        """Send the line; return whether the supervisor still lives."""
        try:
            self.channel.send(line)
        except OSError:
            return False
        return True


class Spawner:
    """The idle supervisors, and the channels of all."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.waiting: list[Waiting] = []
        self.events = selectors.PollSelector()  # without a descriptor, which a fork would share
        self.events.register(0, selectors.EVENT_READ)
        self.input = b""

    def run(self) -> None:
        """Start supervisors until the input ends."""
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
        """Hand an attempt to a supervisor; return its process number, or an error number below zero."""
        try:
            while True:
                supervisor = self.waiting.pop() if self.waiting else self._fork()
                if supervisor.take(line):
                    return supervisor.pid
                self._drop(supervisor)  # it was killed
        except OSError as error:
            return -(error.errno or errno.EAGAIN)

    def _stand_by(self) -> None:
        """Fork a supervisor if none is idle; no more processes may be possible now."""
        if not self.waiting:
            with suppress(OSError):
                self.waiting.append(self._fork())

    def _hear(self, supervisor: Waiting) -> None:
        """Note that a supervisor is idle again, or has ended."""
        with suppress(OSError):
            if supervisor.channel.recv(len(FREE)) == FREE:
                self.waiting.append(supervisor)
                self._keep(MOST_WAITING)
                return
        self._drop(supervisor)

    def _keep(self, most: int) -> None:
        while len(self.waiting) > most:
            self._drop(self.waiting[0])  # the last ones worked last

    def _drop(self, supervisor: Waiting) -> None:
        if supervisor in self.waiting:
            self.waiting.remove(supervisor)
        self.events.unregister(supervisor.channel)
        supervisor.channel.close()

    def _fork(self) -> Waiting:
        """Fork a supervisor; OSError if no more processes are possible now."""
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
                    key.data.channel.close()  # so that the others see the spawner end
            _supervise(its, self.address)
        its.close()
        made = Waiting(pid, mine)
        self.events.register(mine, selectors.EVENT_READ, made)
        return made


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that supervisors leave no zombies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the coordinator, and so this process
    # The signal of a request must wait for a supervisor that is not ready yet, not kill it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.chdir("/")
    Spawner(sys.argv[1]).run()


def _supervise(channel: socket.socket, address: str) -> None:
    """Supervise one attempt after the other, as long as they are plain."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        to_coordinator = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        to_coordinator.setblocking(False)

        def report(what: str, at_s: float) -> None:
            with suppress(OSError):  # there may be no coordinator now
                to_coordinator.sendto(json.dumps([str(path), what, at_s]).encode(), address)

        while line := channel.recv(LINE_BYTES):  # empty if the spawner has ended
            path = Path(json.loads(line))
            with logged(path / LOG):
                if not supervise(Attempt(path), report):
                    break
            channel.send(FREE)
    finally:
        os._exit(0)


@contextmanager
def logged(file: Path) -> Iterator[None]:
    """Write an exception that ends a supervisor into its log, if there is room."""
    try:
        yield
    except BaseException:
        with suppress(OSError), file.open("a") as log:
            traceback.print_exc(file=log)  # its last line tells why the attempt was lost
        raise


if __name__ == "__main__":
    main()
