"""One attempt in this process, as ``tenbin agent exec`` runs it, and a batch process (``relay``)."""

from __future__ import annotations

import signal

from agent.attempts.folder import Attempt
from agent.attempts.records import Result
from agent.supervisor.supervisor import supervise


def run(attempt: Attempt) -> Result | None:
    """Run the attempt; its result, also of an earlier time; None: it is somebody else's."""
    # A request may come before there is anybody to obey it: the signal must wait, neither kill nor be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for number in (signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # who started this may have ignored them
    if attempt.result() is None:
        supervise(attempt, lambda _: None)
    return attempt.result()
