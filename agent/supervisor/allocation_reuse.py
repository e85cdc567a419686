"""The batch process of a Slurm job: runs an attempt, and then those that are passed on to it, one by one.

For a job of its own Slurm takes up to a second, and a Python has to start. So after a short job this process
stays for a moment: a job of the same size on the same node can have its place. A file in the folder of the
attempt that has ended decides, which is made once: by the coordinator, with the folder of the next attempt,
or by this process, empty: it leaves.

Each attempt has a supervisor of its own, forked from here; signals for the batch process are for it. It
imports what it supervises by when the command runs already (``begin``); once there was a second attempt this
process has it for those that follow.
"""

from __future__ import annotations

import os
import sys
import time

from agent.attempts.begin import LOG, begin
from agent.processes import tree
from agent.processes.fast_imports import parse, signal, suppress
from profiles.files import read_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType

    from agent.attempts.folder import Attempt
    from agent.attempts.records import Result

ELSEWHERE = 3  # exit code: somebody else runs it, or it was given up
NEXT = "next"
STAYS_S = 0.3  # after a job that ran shorter than SHORT_S
SHORT_S = 10.0
LOOKS_S = 0.01
MOST_BYTES = 65536  # of a file that says something
FOR_IT = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def suits(how: str, wall_s: float) -> bool:
    """Whether after a job that ended so another one may follow."""
    return how in ("exited", "signalled") and wall_s < SHORT_S


def pass_on(folder: Path | str, successor: Path | str) -> bool:
    """Have the process that has run the attempt in a folder run the next one, or ("") leave.

    Returns: False: it has left.

    Raises:
        OSError: the folder cannot be written.
    """
    aside = f"{folder}/.{NEXT}.{os.getpid()}"
    try:
        with open(aside, "w") as file:  # noqa: PTH123
            file.write(str(successor))
        os.link(aside, f"{folder}/{NEXT}")  # whole, and only if there is none
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(aside)  # noqa: PTH108
    return True


def main() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, FOR_IT)
    for number in (signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # who started this has ignored them
    sys.meta_path.append(_Installed())
    tree.adopt_orphans()
    folder = sys.argv[1]
    pid = _fork(folder)
    while True:
        code = _wait(pid)
        folder = _awaited(folder) if _was_short(folder) else ""
        if not folder:
            return code
        pid = _fork(folder)
        _learn()  # for those that are still to come


def _fork(folder: str) -> int:
    """Have an attempt run in a process of its own."""
    me, pid = os.getpid(), os.fork()
    if pid:
        return pid
    code = ELSEWHERE
    try:
        tree.die_with_parent(me)
        log = os.open(f"{folder}/{LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = _code(_run(folder))
    except BaseException:  # as if it had been a process from its beginning
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _wait(pid: int) -> int:
    """Until that process has ended; the exit code that tells of it."""
    while True:
        number = signal.sigwait(FOR_IT)
        if number != signal.SIGCHLD:
            os.kill(pid, number)
            continue
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            tree.kill(os.getpid())  # what a supervisor leaves that was killed
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _run(folder: str) -> Result | None:
    """Run the attempt; its result, also of an earlier time; None: it is somebody else's."""
    begun = begin(folder)
    if begun is None:
        return _attempt(folder).result()
    with begun:
        _learn()
    from agent.supervisor.supervisor import go_on

    attempt = _attempt(folder)
    go_on(attempt, begun, lambda _: None)
    return attempt.result()


def _learn() -> None:
    """Import what a supervisor needs: it is all Python's and tenbin's own, whatever it looks for besides."""
    _Installed.asleep = True
    import agent.supervisor.supervisor  # noqa: F401

    _Installed.asleep = False


def _attempt(folder: str) -> Attempt:
    from pathlib import Path

    from agent.attempts.folder import Attempt

    return Attempt(Path(folder))


def _code(result: Result | None) -> int:
    """The exit code that tells how an attempt ended."""
    if result is None:
        return ELSEWHERE
    if result.signal is not None:
        return 128 + result.signal
    return 125 if result.code is None else result.code


def _was_short(folder: str) -> bool:
    """Whether another one may follow the attempt."""
    try:
        result = parse(read_plain(f"{folder}/result.json", MOST_BYTES).decode())
        return suits(result["how"], result["usage"]["wall_s"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _awaited(folder: str) -> str:
    """The folder of the next attempt; "": there is none, and there will be none."""
    file, until = f"{folder}/{NEXT}", time.monotonic() + STAYS_S
    while time.monotonic() < until and not os.path.exists(file):  # noqa: PTH110
        if tree.await_signal(FOR_IT, LOOKS_S) not in (None, signal.SIGCHLD, signal.SIGUSR1):
            break
    with suppress(OSError):
        if not pass_on(folder, ""):
            return read_plain(file, MOST_BYTES).decode(errors="replace")
    return ""


class _Installed:
    """Finds what is not of Python or tenbin: hardly any job needs it, and preparing for it takes time."""

    asleep = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self.asleep or name in sys.stdlib_module_names:
            return None  # such as nt, which other systems have: asked for to see whether it is there
        sys.meta_path.remove(self)
        import site
        from importlib.util import find_spec

        site.main()
        return find_spec(name)
