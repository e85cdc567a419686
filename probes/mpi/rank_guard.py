"""Guard of a rank: starts it, and reports how it ended before the launcher ends the others.

``python -I -S rank_guard.py [--cores 2,5,7] PROGRAM [ARGUMENT]...``: rank i on ``cores[i]``, which
may be several: ``2+3,5+6``.

When a rank has died, mpiexec ends the others by signal, and its account does not tell which was first: MPICH
may name a rank that it ended itself. The launcher takes the guard for the rank. Both are in one process
group, and launchers end process groups, so a rank that they end dies together with its guard, unreported.
A guard that lives to report has therefore seen a rank end that no launcher ended. It reports before the
launcher can notice, because it holds a copy of every file and socket from the launcher until it ends itself,
in the same way as its rank. It ends a moment later, because the death of one rank can crash another at once,
and both guards must report before all are ended.

A report is a line, ``RankEnd.to_line``, in the file named by ``TENBIN_RANK_REPORTS`` and the node's name
(nodes that append to one file over NFS overwrite each other), else on standard error. A rank that ends with
exit code 0 is not reported.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from typing import NamedTuple

_MARK = "tenbin-rank-ended"
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
REPORTS = "TENBIN_RANK_REPORTS"
OF_NODE = "TENBIN_OF_NODE_"  # prefix of variables of this node; mpiexec hands on those of its own
_PR_SET_PDEATHSIG = 1
_HOLD_S = 0.3


class RankEnd(NamedTuple):
    """End of a rank: how, where, and when by which clock."""

    rank: int | None  # None: the launcher gave no number
    wait_status: int
    unix_s: float
    boot: str  # hosts of one boot (containers, namespaces) have one kernel and one clock
    host: str

    def to_line(self) -> str:
        return " ".join(map(str, (_MARK, *self)))

    @classmethod
    def from_line(cls, line: str) -> RankEnd | None:
        """Parse the report in a line, if there is a whole one."""
        import re  # late: no guard parses

        match = re.search(rf"{_MARK} (\d+|None) (\d+) ([\d.]+) (\S+) (\S+)$", line.rstrip())
        if not match:
            return None
        rank = None if match[1] == "None" else int(match[1])
        return cls(rank, int(match[2]), float(match[3]), match[4], match[5])


def main(arguments: list[str]) -> None:
    """Run the program in ``arguments``, then end in the same way."""
    rank, cores = _rank(), set[int]()
    reports = os.environ.pop(REPORTS, "")
    for name in [name for name in os.environ if name.startswith(OF_NODE)]:
        os.environ[name.removeprefix(OF_NODE)] = os.environ.pop(name)
    if arguments[0] == "--cores":
        cores = {int(core) for core in arguments[1].split(",")[rank or 0].split("+")}
        arguments = arguments[2:]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _, status = os.waitpid(_start(arguments, cores), 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        end = RankEnd(rank, status, time.time(), _boot(), os.uname().nodename)
        _tell(f"\n{end.to_line()}\n".encode(), reports and f"{reports}-{end.host}")
        time.sleep(_HOLD_S)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core dump is enough
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _tell(line: bytes, reports: str) -> None:
    """Report in one write, so that lines do not mix."""
    target = os.open(reports, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600) if reports else 2
    os.write(target, line)


def _rank() -> int | None:
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), None)


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123  (pathlib takes longer than all this)
        return file.read().strip()


def _start(program: list[str], cores: set[int]) -> int:
    """Start the program as a child that dies with this process; return its process id."""
    guard = os.getpid()
    libc = ctypes.CDLL(None)
    child = os.fork()
    if child:
        return child
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:  # the guard has died meanwhile
        os._exit(1)
    if cores:
        os.sched_setaffinity(0, cores)
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        os.write(2, f"{program[0]}: {error.strerror}\n".encode())
    os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
