"""Starts supervisors in a millisecond: a small process, everything imported, that forks one for each line.

``tenbin agent exec FOLDER`` does the same for one attempt, by a Python that has to start first: that takes
150 times as long, so the engine of this machine does not use it.

Reads the folders of attempts as lines of JSON from standard input, and answers each with the supervisor's
process number. It ends with its input; the supervisors go on.

    python -P -m agent.jobs.spawner REPORT_SOCKET
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from agent.jobs.folder import Attempt
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
        pid = os.fork()
        if pid == 0:
            _supervise(path, address)
        print(pid, flush=True)


def _supervise(path: Path, address: str) -> None:
    """In the new process."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        log = os.open(path / "supervisor.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        for descriptor, opened in ((0, nothing), (1, log), (2, log)):
            os.dup2(opened, descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        supervise(Attempt(path), reporter(address, path))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
