"""The process tree of a job: how it is found, stopped, killed, and bound; and the umask of its processes.

The supervisor is a subreaper, so all processes of its job stay below it, daemons too. If the supervisor was
killed, the job's processes are found by their mark: a variable in the environment, and a resource limit for
processes that begin with an environment of their own.
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
F_SETSIG = 10  # sets the signal of asynchronous I/O; missing in the module fcntl
MARK = "TENBIN_MARK"
RLIMIT_LOCKS = 10  # without effect since Linux 2.4.25, and inherited by every process: see getrlimit(2)
BLOCK_MB, KB_MB = 512 / 1e6, 1024 / 1e6
ROUGH_MB = 1.0  # the kernel counts resident memory exactly but for some pages a CPU
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process from now on."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent dies, or has died."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_me(pid: int) -> list[int]:
    """Have a process that was started without a fork killed when this one dies.

    Returns: descriptors, to be closed only when the process has been reaped.

    A process can ask for ``PR_SET_PDEATHSIG`` only for itself. So the other process becomes the owner of two
    pipes' asynchronous I/O, whose signal is SIGKILL, sent when a writing end closes. There are two pipes,
    because the kernel closes descriptors by number, and a pipe whose reading end closes first sends nothing.
    """
    pipes: list[int] = []
    for writer_last in (True, False):
        reader, writer = os.pipe()
        if not writer_last:
            low, reader = reader, fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, writer)
            os.close(low)
        pipes += [reader, writer]
        with suppress(ProcessLookupError):  # the process has ended
            fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
            fcntl.fcntl(reader, F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
    return pipes


class Marking:
    """A mark for the processes that this one starts in the block, and for all that are below them."""

    def __init__(self, mark: str) -> None:
        self._soft = number_of(mark)

    def __enter__(self) -> None:
        self._before = (ctypes.c_ulong * 2)()
        _libc.prlimit(0, RLIMIT_LOCKS, None, self._before)
        marked = (ctypes.c_ulong * 2)(self._soft, self._before[1])
        _libc.prlimit(0, RLIMIT_LOCKS, marked, None)  # the variable alone marks where a hard limit forbids it

    def __exit__(self, *_: object) -> None:
        _libc.prlimit(0, RLIMIT_LOCKS, self._before, None)


def number_of(mark: str) -> int:
    """Return the mark as a limit that nobody sets by chance: a hash of 62 bits (FNV-1), and one bit more."""
    number = 0xCBF29CE484222325
    for byte in mark.encode():
        number = number * 0x100000001B3 % (1 << 64) ^ byte
    return number % (1 << 62) | 1 << 62


def end_with_parent(parent: int) -> None:
    """Have this process sent SIGTERM when its parent dies, or has died."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def has_children() -> bool:
    """Return whether this process has children, also dead ones that are not reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def descendants(pid: int) -> list[int]:
    """Find all processes below ``pid``, parents first, at a cost that grows with the tree only."""
    pids: list[int] = []
    frontier = [pid] if pid != os.getpid() or has_children() else []
    while frontier:
        parent = frontier.pop()
        with suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):  # noqa: PTH208 (Path is four times slower)
                with suppress(OSError), open(f"/proc/{parent}/task/{task}/children") as file:  # noqa: PTH123
                    children = [int(word) for word in file.read().split()]
                    pids += children
                    frontier += children
    return pids


def send(pids: list[int], number: int) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def await_signal(awaited: set[signal.Signals], patience_s: float) -> int | None:
    """Wait for the next of these blocked signals; None if none came in that time."""
    received = signal.sigtimedwait(awaited, patience_s)
    # Python 3.11 returns uninitialized memory if this process was stopped until the time was over.
    return received.si_signo if received is not None and received.si_signo in awaited else None


def catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal, which would kill it otherwise."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def pin(pids: list[int], cores: tuple[int, ...]) -> None:
    """Let all threads of the processes run on these cores only (empty: as before)."""
    for pid in pids if cores else ():
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                with suppress(OSError):
                    os.sched_setaffinity(int(task), cores)


def stop(root: int) -> None:
    """Stop all processes below ``root``, also those that are started meanwhile."""
    stopped: set[int] = set()
    while fresh := [pid for pid in descendants(root) if pid not in stopped]:
        send(fresh, signal.SIGSTOP)
        stopped.update(fresh)


class Reaped:
    """Use of resources by reaped processes, with all that they had reaped themselves.

    Attributes:
        user_s, system_s: processor time.
        peak_mb: resident memory of the largest process; 0: none was larger than this process.
        read_mb, written_mb: from and to storage.
    """

    def __init__(self) -> None:
        self.user_s = self.system_s = self.peak_mb = self.read_mb = self.written_mb = 0.0

    def add(self, usage: resource.struct_rusage, before_exec_mb: float = 0.0) -> None:
        """Add another process.

        Args:
            before_exec_mb: memory that the process may have shared with this one before its exec; a smaller
                peak says nothing about the command.
        """
        self.user_s += usage.ru_utime
        self.system_s += usage.ru_stime
        if (peak_mb := usage.ru_maxrss * KB_MB) > before_exec_mb:
            self.peak_mb = max(self.peak_mb, peak_mb)
        self.read_mb += usage.ru_inblock * BLOCK_MB
        self.written_mb += usage.ru_oublock * BLOCK_MB


def reap(main: int = 0, reaped: Reaped | None = None) -> int | None:
    """Reap all dead children and add their use; return the status of ``main`` if it is among them."""
    status = None
    with suppress(ChildProcessError):
        while True:
            pid, wait_status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                break
            if reaped is not None:
                reaped.add(usage, _own_peak_mb() if pid == main else 0.0)
            if pid == main:
                status = wait_status
    return status


def _own_peak_mb() -> float:
    """Read this process's peak of resident memory, which its children share until they exec."""
    import resource  # wait4 has imported it by now

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KB_MB + ROUGH_MB


def kill(root: int, reaped: Reaped | None = None) -> None:
    """Kill and reap all processes below ``root``, which must be this process."""
    while alive := descendants(root):
        send(alive, signal.SIGKILL)
        reap(0, reaped)
        time.sleep(0.001)


def marked(mark: str) -> list[int]:
    """Find the processes with the mark that live and that this process may signal."""
    variable, limit = f"{MARK}={mark}".encode(), str(number_of(mark)).encode()
    pids = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with suppress(OSError):
                if limit in _read(name, "limits").split() or variable in _read(name, "environ").split(b"\0"):
                    os.kill(int(name), 0)
                    pids += [int(name)] if _lives(name) else []
    return pids


def _lives(pid: str) -> bool:
    """Tell a process from a zombie, whose last thread has ended."""
    about = _read(pid, "stat").rpartition(b")")[2].split()  # from the third field on, see proc(5)
    return about[0] not in b"ZX" or int(about[17]) > 1


def _read(pid: str, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123
        return file.read()


def lockers(path: Path, among: list[int] | None = None) -> list[int]:
    """Find the user's processes that hold a lock of the file of that name, which may be removed.

    Args:
        among: the processes to look at; None: all.
    """
    folder, name = os.path.split(path)
    named = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118
    pids = []
    running = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    for pid in running if among is None else among:
        with suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") not in (named, f"{named} (deleted)"):  # noqa: PTH115
                    continue
                with open(f"/proc/{pid}/fdinfo/{descriptor}") as file:  # noqa: PTH123
                    if "FLOCK" in file.read():
                        pids.append(pid)
    return [pid for pid in pids if pid != os.getpid()]


def kill_marked(mark: str, limit_s: float = 10.0) -> bool:
    """Kill all marked processes; return whether none was left within ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while pids := marked(mark):
        send(pids, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def cpus_of_places(places: tuple[int, ...]) -> tuple[int, ...]:
    """Return one CPU of each of these whole cores, for a job that shares its node and is not bound by Slurm.

    Cores are counted from 0 with neighbours in cache side by side.

    Returns: none if this process may use only a part of the node, because Slurm's task plugins then gave that
        part to the job; and none if the node has no such cores.
    """
    from pathlib import Path

    from probes.topology import read_topology  # needed by jobs that share a node of Slurm only

    allowed = os.sched_getaffinity(0)
    cores = read_topology(Path("/sys"), allowed).cores
    if len(allowed) < (os.cpu_count() or 1) or max(places, default=0) >= len(cores):
        return ()
    return tuple(cores[place].index for place in places)


_umask_of_jobs = -1  # a coordinator's own files are private, its jobs have its user's umask


def make_files_private() -> None:
    """Make private what this process writes from now on."""
    global _umask_of_jobs  # noqa: PLW0603 (as the umask itself, of the process)
    before = os.umask(0o077)
    if _umask_of_jobs < 0:
        _umask_of_jobs = before


def umask_of_jobs() -> int:
    """Return the umask for processes that start jobs, as ``Popen`` takes it; -1: that of this process."""
    return _umask_of_jobs
