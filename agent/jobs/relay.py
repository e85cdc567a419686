"""The batch process of a Slurm job: runs an attempt, and then those that are passed on to it, one by one.

    python -I -S .../agent/jobs/relay.py FOLDER

For a job of its own Slurm takes up to a second, and a Python has to start. So after a short job this process
stays for a moment: a job of the same size on the same node can have its place. A file in the folder of the
attempt that has ended decides, which is made once: by the coordinator, with the folder of the next attempt,
or by this process, empty: it leaves.

Each attempt has a supervisor of its own, forked from here; signals for the batch process are for it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

if __name__ == "__main__":  # isolated: nothing of a user's may be in the way, and it starts the sooner
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.jobs import tree
from agent.jobs.folder import LOG, Attempt, Result
from agent.jobs.foreground import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ELSEWHERE = 3  # exit code: somebody else runs it, or it was given up
NEXT = "next"
STAYS_S = 0.3  # after a job that ran shorter than SHORT_S
SHORT_S = 10.0
LOOKS_S = 0.01
FOR_IT = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def suits(result: Result) -> bool:
    """Whether after a job that ended so another one may follow."""
    return result.how in ("exited", "signalled") and result.usage.wall_s < SHORT_S


def pass_on(attempt: Attempt, successor: Attempt | None) -> bool:
    """Have the process that has run the attempt run the next one, or (None) leave; False: it has left.

    Raises:
        OSError: its folder cannot be written.
    """
    aside = attempt.path / f".{NEXT}.{os.getpid()}"
    try:
        aside.write_text("" if successor is None else str(successor.path))
        os.link(aside, attempt.path / NEXT)  # whole, and only if there is none
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def main() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, FOR_IT)
    for number in (signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # who started this has ignored them
    sys.meta_path.append(_Installed())
    tree.adopt_orphans()
    attempt = Attempt(Path(sys.argv[1]))
    while True:
        code = _carry(attempt)
        result = attempt.result()
        following = _awaited(attempt) if result is not None and suits(result) else None
        if following is None:
            return code
        attempt = following


def _carry(attempt: Attempt) -> int:
    """Run an attempt in a process of its own; the exit code that tells of it."""
    me, pid = os.getpid(), os.fork()
    if pid == 0:
        code = ELSEWHERE
        try:
            tree.die_with_parent(me)
            log = os.open(attempt.path / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = _code(run(attempt))
        except BaseException:  # as if it had been a process from its beginning
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    while True:
        number = signal.sigwait(FOR_IT)
        if number != signal.SIGCHLD:
            os.kill(pid, number)
            continue
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            tree.kill(me)  # what a supervisor leaves that was killed
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _code(result: Result | None) -> int:
    """The exit code that tells how an attempt ended."""
    if result is None:
        return ELSEWHERE
    if result.signal is not None:
        return 128 + result.signal
    return 125 if result.code is None else result.code


def _awaited(attempt: Attempt) -> Attempt | None:
    """The next attempt; None: there is none, and there will be none."""
    file, until = attempt.path / NEXT, time.monotonic() + STAYS_S
    while time.monotonic() < until and not file.exists():
        if tree.await_signal(FOR_IT, LOOKS_S) not in (None, signal.SIGCHLD, signal.SIGUSR1):
            break
    with suppress(OSError):
        if not pass_on(attempt, None) and (successor := file.read_text()):
            return Attempt(Path(successor))
    return None


class _Installed:
    """Finds what is not of Python or tenbin: hardly any job needs it, and preparing for it takes time."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        sys.meta_path.remove(self)
        import site
        from importlib.util import find_spec

        site.main()
        return find_spec(name)


if __name__ == "__main__":
    sys.exit(main())
