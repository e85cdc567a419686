"""The process tree of a job: finding, stopping and killing it.

The supervisor is a subreaper: whatever the job starts stays below it, also what forks away and becomes a
session of its own. Should the supervisor be killed, the job's processes are found by their environment.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time

from agent.processes.fast_imports import signal, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
F_SETSIG = 10  # which signal tells a file's news; the module fcntl lacks it
MARK = "TENBIN_MARK"
BLOCK_MB, KB_MB = 512 / 1e6, 1024 / 1e6
ROUGH_MB = 1.0  # the kernel's counts of resident memory are exact to some pages for each CPU
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on orphaned descendants become this process's children."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent dies, also if it already has."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_me(pid: int) -> list[int]:
    """Have a process killed when this one dies, however; for one that was started without a fork.

    Returns: descriptors, to be closed when the process is dead and reaped, not before.

    Only itself could ask for ``PR_SET_PDEATHSIG``. So it owns the news of two pipes that nobody else has:
    SIGKILL tells it that a writing end has closed. Two, because their numbers decide which end the kernel
    closes first; the one whose reading end goes first has no news.
    """
    pipes: list[int] = []
    for writer_last in (True, False):
        reader, writer = os.pipe()
        if not writer_last:
            low, reader = reader, fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, writer)
            os.close(low)
        pipes += [reader, writer]
        with suppress(ProcessLookupError):  # it has ended
            fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
            fcntl.fcntl(reader, F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
    return pipes


def end_with_parent(parent: int) -> None:
    """Be told to end (SIGTERM) when the parent dies, also if it already has."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents first; costs only as much as the tree is large."""
    found: list[int] = []
    frontier = [pid]
    while frontier:
        parent = frontier.pop()
        with suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):  # noqa: PTH208 (Path is four times slower)
                with suppress(OSError), open(f"/proc/{parent}/task/{task}/children") as file:  # noqa: PTH123
                    children = [int(word) for word in file.read().split()]
                    found += children
                    frontier += children
    return found


def send(pids: list[int], number: int) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def await_signal(awaited: set[signal.Signals], patience_s: float) -> int | None:
    """The next of these signals, which are blocked; None: there was none in that time."""
    got = signal.sigtimedwait(awaited, patience_s)
    # Stopped until the time was over, Python 3.11 returns what happens to lie in memory.
    return got.si_signo if got is not None and got.si_signo in awaited else None


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal: one that has none yet would be killed by it."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def pin(pids: list[int], cores: tuple[int, ...]) -> None:
    """Let all threads of the processes run on these cores only (none given: as before)."""
    for pid in pids if cores else ():
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                with suppress(OSError):
                    os.sched_setaffinity(int(task), cores)


def stop(root: int) -> None:
    """Stop everything below ``root``, also what is being started meanwhile."""
    stopped: set[int] = set()
    while fresh := [pid for pid in descendants(root) if pid not in stopped]:
        send(fresh, signal.SIGSTOP)
        stopped.update(fresh)


class Reaped:
    """What processes have used that were reaped, with all that they had reaped themselves.

    Attributes:
        user_s, system_s: processor time.
        peak_mb: the largest one's resident memory; 0: no process needed as much as this one.
        read_mb, written_mb: from and to storage.
    """

    def __init__(self) -> None:
        self.user_s = self.system_s = self.peak_mb = self.read_mb = self.written_mb = 0.0

    def add(self, usage: resource.struct_rusage, before_exec_mb: float = 0.0) -> None:
        """Add another process.

        Args:
            before_exec_mb: memory that it may have shared with this process before it became the command: a
                peak that is not larger says nothing about the command.
        """
        self.user_s += usage.ru_utime
        self.system_s += usage.ru_stime
        if (peak_mb := usage.ru_maxrss * KB_MB) > before_exec_mb:
            self.peak_mb = max(self.peak_mb, peak_mb)
        self.read_mb += usage.ru_inblock * BLOCK_MB
        self.written_mb += usage.ru_oublock * BLOCK_MB


def reap(main: int = 0, reaped: Reaped | None = None) -> int | None:
    """Collect this process's dead, and what they used; the status of ``main`` if it is among them."""
    status = None
    with suppress(ChildProcessError):
        while True:
            pid, found, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                break
            if reaped is not None:
                reaped.add(usage, _own_peak_mb() if pid == main else 0.0)
            if pid == main:
                status = found
    return status


def _own_peak_mb() -> float:
    """The most resident memory that this process has had: one that it starts has as much until it execs."""
    import resource  # wait4 has imported it by now

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KB_MB + ROUGH_MB


def kill(root: int, reaped: Reaped | None = None) -> None:
    """Kill everything below ``root`` and reap it; ``root`` must be this process."""
    while alive := descendants(root):
        send(alive, signal.SIGKILL)
        reap(0, reaped)
        time.sleep(0.001)


def marked(mark: str) -> list[int]:
    """Processes of ours that carry the mark in the environment they were started with."""
    sought = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                if sought in file.read().split(b"\0"):
                    found.append(int(name))
    return found


def lockers(path: Path, among: list[int] | None = None) -> list[int]:
    """Processes of ours that have a file locked which has, or had, that name: it may be gone meanwhile.

    Args:
        among: these only; None: all.
    """
    folder, name = os.path.split(path)
    named = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118
    found = []
    everybody = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    for pid in everybody if among is None else among:
        with suppress(OSError):
            for one in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                if os.readlink(f"/proc/{pid}/fd/{one}") not in (named, f"{named} (deleted)"):  # noqa: PTH115
                    continue
                with open(f"/proc/{pid}/fdinfo/{one}") as file:  # noqa: PTH123
                    if "FLOCK" in file.read():
                        found.append(pid)
    return [pid for pid in found if pid != os.getpid()]


def kill_marked(mark: str, limit_s: float = 10.0) -> bool:
    """Kill all marked processes; whether none was left within ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while pids := marked(mark):
        send(pids, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
