"""One attempt in this process, as ``tenbin agent exec`` runs it.

    python -P -m agent.jobs.foreground FOLDER

does the same in an eighth of the time, because it imports no command line; batch scripts use it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from agent.jobs.folder import Attempt, Result
from agent.jobs.supervisor import supervise

ELSEWHERE = 3  # exit code: somebody else runs it, or it was given up


def run(attempt: Attempt) -> Result | None:
    """Run the attempt; its result, also of an earlier time; None: it is somebody else's."""
    # A request may come before there is anybody to obey it: the signal must wait, neither kill nor be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for number in (signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # who started this may have ignored them
    if attempt.result() is None:
        supervise(attempt, lambda _: None)
    return attempt.result()


def main() -> int:
    result = run(Attempt(Path(sys.argv[1])))
    if result is None:
        return ELSEWHERE
    if result.signal is not None:
        return 128 + result.signal
    return 125 if result.code is None else result.code


if __name__ == "__main__":
    sys.exit(main())
