"""Starts supervisors in a millisecond: a small process, everything imported, that forks one for each line.

``tenbin agent exec FOLDER`` does the same for one attempt, by a Python that has to start first: that takes
150 times as long, so the engine of this machine does not use it.

Reads the folders of attempts as lines of JSON from standard input, and answers each with the supervisor's
process number, or with the error number below zero of why there is none. It ends with its input; the
supervisors go on.

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
from contextlib import suppress
from pathlib import Path

from agent.jobs.folder import LOG, Attempt
from agent.jobs.supervisor import Report, supervise


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
    for line in sys.stdin:
        path = Path(json.loads(line))
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or errno.EAGAIN)
        if pid == 0:
            _supervise(path, address)
        print(pid, flush=True)


def _supervise(path: Path, address: str) -> None:
    """In the new process."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        log = nothing
        with suppress(OSError):  # no room: nobody reads it if all goes well
            log = os.open(path / LOG, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        for descriptor, opened in ((0, nothing), (1, log), (2, log)):
            os.dup2(opened, descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        supervise(Attempt(path), reporter(address, path))
    except BaseException:
        traceback.print_exc()  # its last line is why the attempt was lost
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
