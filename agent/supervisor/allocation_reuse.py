"""The batch process of a Slurm job: it runs one attempt, and then others that the coordinator passes on.

Slurm takes up to a second to start a job. So after a short job this process waits a moment for a job of the
same size on the same node. The file ``next`` in the folder of the attempt that has ended decides. It is made
once: by the coordinator with the folder of the next attempt, or empty by this process, which then leaves.

Each attempt has a supervisor of its own, forked from this process, which passes signals on to it. The first
supervisors import their modules while the command runs already; later ones find them loaded.
"""

from __future__ import annotations

import os
import sys
import time

from agent.attempts.begin import LOG, begin
from agent.processes import tree
from agent.processes.fast_imports import parse, signal, suppress
from profiles.files.safe_files import read_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType

    from agent.attempts.folder import Attempt
    from agent.attempts.records import Result

ELSEWHERE = 3  # exit code: another process runs the attempt, or it was revoked
NEXT = "next"
STAYS_S = 0.3  # after a job that was shorter than SHORT_S
SHORT_S = 10.0
LOOKS_S = 0.01
MOST_BYTES = 65536  # of a result, or a folder's name
FOR_IT = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def suits(how: str, wall_s: float) -> bool:
    """Return whether another job may follow one that ended so."""
    return how in ("exited", "signalled") and wall_s < SHORT_S


def pass_on(folder: Path | str, successor: Path | str) -> bool:
    """Pass the next attempt on to the batch process of an attempt that has ended, or ("") end it.

    Returns: False if that process has left.

    Raises:
        OSError: the folder cannot be written.
    """
    aside = f"{folder}/.{NEXT}.{os.getpid()}"
    try:
        with open(aside, "w") as file:  # noqa: PTH123
            file.write(str(successor))
        os.link(aside, f"{folder}/{NEXT}")  # atomic, and fails if the file exists
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(aside)  # noqa: PTH108
    return True


def main() -> int:
    """Run the attempt in the folder that the command line names, and those passed on; return an exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FOR_IT)
    for number in (signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # the batch script ignores them
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
        _import_supervisor()  # for the attempts after this one


def _fork(folder: str) -> int:
    """Run an attempt in a process of its own, and return its number."""
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
    except BaseException:  # as in a process of its own
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _wait(pid: int) -> int:
    """Pass signals on to that process until it has ended; return its exit code as a shell does."""
    while True:
        number = signal.sigwait(FOR_IT)
        if number != signal.SIGCHLD:
            os.kill(pid, number)
            continue
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            tree.kill(os.getpid())  # a killed supervisor leaves processes
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _run(folder: str) -> Result | None:
    """Run the attempt, and return its result; None if another process has claimed it."""
    claimed = begin(folder)
    if claimed is None:
        return _attempt(folder).result()
    with claimed:
        _import_supervisor()
    from agent.supervisor.supervisor import supervise_claimed

    attempt = _attempt(folder)
    supervise_claimed(attempt, claimed, lambda _what, _at_s: None)
    return attempt.result()


def _import_supervisor() -> None:
    """Import what a supervisor needs, which is all of Python and tenbin."""
    _Installed.asleep = True
    import agent.supervisor.supervisor  # noqa: F401

    _Installed.asleep = False


def _attempt(folder: str) -> Attempt:
    from pathlib import Path

    from agent.attempts.folder import Attempt

    return Attempt(Path(folder))


def _code(result: Result | None) -> int:
    """Return the exit code for the end of an attempt; 0 only if nobody has ended it."""
    if result is None:
        return ELSEWHERE
    if result.signal is not None:
        return 128 + result.signal
    return result.code or (0 if result.how == "exited" else 125)


def _was_short(folder: str) -> bool:
    """Return whether another attempt may follow."""
    try:
        result = parse(read_plain(f"{folder}/result.json", MOST_BYTES).decode())
        return suits(result["how"], result["usage"]["wall_s"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _awaited(folder: str) -> str:
    """Wait for the folder of the next attempt; "" if none comes, or can come any more."""
    file, until = f"{folder}/{NEXT}", time.monotonic() + STAYS_S
    while time.monotonic() < until and not os.path.exists(file):  # noqa: PTH110
        if tree.await_signal(FOR_IT, LOOKS_S) not in (None, signal.SIGCHLD, signal.SIGUSR1):
            break
    with suppress(OSError):
        if not pass_on(folder, ""):
            return read_plain(file, MOST_BYTES).decode(errors="replace")
    return ""


class _Installed:
    """Finds installed packages by loading ``site`` on first use, because hardly any job needs them."""

    asleep = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self.asleep or name in sys.stdlib_module_names:
            return None  # a module of other systems, such as nt
        sys.meta_path.remove(self)
        import site
        from importlib.util import find_spec

        site.main()
        return find_spec(name)
