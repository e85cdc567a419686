"""One measured run of a command, as it is or as ranks: time, CPU time, memory and I/O of its process tree.

The command runs below a small process (``python -P -m agent.job_profile.trial PARENT < order.json``), which
is a subreaper, so that daemons are found, counted and killed too. It dies with its parent.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agent.processes import tree
from agent.processes.samples import look
from probes.mpi.rank_failure import LAUNCHER_LINE, describe_failure
from probes.mpi.rank_guard import RankEnd
from profiles.errors import UserError

if TYPE_CHECKING:  # this is also the program below which each run is
    from probes.mpi.runner import MpiInstall


# -- the kernels of the node profile as commands of any length, with the same work in every run ------------


KERNELS = {"ep": "W", "cg": "W", "ft": "W", "mg": "W", "lu": "W"}  # and their classes


def command(
    kernel: str,
    letter: str,
    least_s: float,
    *,
    ranks: int = 1,
    start: Callable[[Sequence[str]], Start] | None = None,
) -> tuple[str, ...]:
    """Build a command that repeats a kernel so often that it runs for about ``least_s`` on this machine.

    Args:
        ranks: number of ranks; the kernel uses MPI for several, or a varying number (0).
        start: starts the ranks for the timing; None: time one process, and share its work.

    Raises:
        UserError: the kernel does not run here.
    """
    load = "-m", "probes.loads", f"{kernel}:{letter}", "--repeat"
    alone = sys.executable, "-P", *load
    by_ranks = (sys.executable, "-P", "-m", "mpi4py", *load) if ranks != 1 else alone
    timed = plain((*alone, "3"), ()) if start is None else start((*by_ranks, "3"))
    environment = {**os.environ, **timed.variables}
    done = subprocess.run(timed.command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"kernel {kernel} did not run: {done.stderr.strip()[-200:]}")
    once_s = min(json.loads(line)["time_s"] for line in done.stdout.splitlines())
    share = 1 if start else max(ranks, 1)
    return (*by_ranks, str(max(math.ceil(least_s * share / once_s), 1)))


# -- the run -----------------------------------------------------------------------------------------------


SAMPLE_S = 0.05
LINGER_S = 0.5  # libraries' helpers may end a little later than the main process
AWAITED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}


@dataclass(frozen=True)
class Start:
    """A command on ``cpus``; mpiexec places ranks among them."""

    command: tuple[str, ...]
    cpus: tuple[int, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def plain(command: Sequence[str], cpus: Sequence[int]) -> Start:
    """Start the command itself."""
    return Start(tuple(command), tuple(cpus))


def as_ranks(
    mpi: MpiInstall,
    command: Sequence[str],
    cores: Sequence[int],
    *,
    limit_s: float,
    hosts: Sequence[str] = (),
) -> Start:
    """Start the command as ranks, one on each of ``cores``, in their order over the hosts (empty: here)."""
    started = mpi.job_command(len(cores), command, [[core] for core in cores], hosts)
    # Hosts that are namespaces of this machine have their ranks below mpiexec, wherever they are bound to.
    allowed = sorted(os.sched_getaffinity(0)) if hosts else cores
    return Start(tuple(started), tuple(allowed), mpi.environment(limit_s))


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a run.

    Attributes:
        trouble: why the command could not be started; "" if it ran.
        code: exit code, or minus the signal that killed the command.
        started_s, ended_s: on the monotonic clock.
        peak_memory_mb: resident memory summed over all processes, sampled 20 times a second.
        read_mb, written_mb: by system calls; disk_*: the part that reached storage.
        left: number of processes left running. strayed: whether a process changed its CPUs.
        most_threads: in all processes at once.
        overdue: whether the command was killed at the time limit.
        last_words: the last line of standard error; of ranks, which one died and why.
    """

    trouble: str = ""
    code: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    read_mb: float = 0.0
    written_mb: float = 0.0
    disk_read_mb: float = 0.0
    disk_written_mb: float = 0.0
    left: int = 0
    strayed: bool = False
    most_threads: int = 0
    overdue: bool = False
    last_words: str = ""

    @property
    def wall_s(self) -> float:
        return self.ended_s - self.started_s


class CommandFailed(UserError):
    """The command cannot be measured as it is."""


class Trial:
    """One run, as its parent sees it; leaving the context ends it.

    Args:
        variables: of the command's environment, besides those of this process.
        own_folder: give it an empty ``TENBIN_JOB_FOLDER``, so that a ``tenbin.Checkpoint`` begins anew.
            Not for ranks over hosts, which need not share the folder.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: str,
        cpus: Sequence[int],
        *,
        limit_s: float,
        variables: Mapping[str, str] | None = None,
        own_folder: bool = True,
    ) -> None:
        self._aside = tempfile.TemporaryDirectory(prefix="tenbin-job-") if own_folder else None
        own = {"TENBIN_JOB_FOLDER": self._aside.name} if self._aside else {}
        order = {"command": list(command), "folder": folder, "cpus": list(cpus), "limit_s": limit_s}
        order["variables"] = {**own, **(variables or {})}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.job_profile.trial", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the parent
        )
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order).encode())
            self._process.stdin.close()
        except BaseException:  # nobody enters the context
            self.__exit__()
            raise

    def ended(self, within_s: float = 0.0) -> RunOutcome | None:
        """Wait for the outcome for ``within_s``; None if the command still runs then."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], within_s)
        if not readable:
            return None
        line = self._process.stdout.readline()
        self._process.wait()
        return RunOutcome(**json.loads(line)) if line else RunOutcome(trouble="its supervisor was killed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._process.stdout.close()
        if self._aside:
            self._aside.cleanup()


def check(
    ended: RunOutcome,
    limit_s: float,
    where: str = "",
    remedy: str = "try it by itself; what it reads from the terminal is empty here (use < in sh -c)",
) -> None:
    """See that a run can be used; ``where`` says in the message under which conditions it ran.

    Raises:
        CommandFailed: the command failed, did not end, or left something behind.
    """
    said = f": {ended.last_words}" if ended.last_words else ""
    if ended.trouble:
        raise CommandFailed(f"the command cannot be started{where}: {ended.trouble}", "check its path")
    if ended.overdue:
        raise CommandFailed(
            f"the command still ran{where} after {limit_s:g} s (--limit) and was ended",
            "give it less to do (fewer steps), or a longer --limit",
        )
    if ended.code:
        how = f"exit code {ended.code}" if ended.code > 0 else f"signal {-ended.code}"
        raise CommandFailed(f"the command failed{where} with {how}{said}", remedy)
    if ended.left:
        raise CommandFailed(
            f"the command ended{where} and left {ended.left} processes running",
            "keep it in the foreground: its own end must be the end of its work",
        )


def main() -> int:
    """Carry out the order on standard input, and answer by a line on standard output."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    tree.end_with_parent(int(sys.argv[1]))
    tree.adopt_orphans()
    if not (text := sys.stdin.read()):
        return 1  # the parent was interrupted
    order = json.loads(text)
    with tempfile.TemporaryFile() as errors:
        ended = _run(order, errors.fileno())
        if ended is None:
            return 1
        errors.seek(0)
        words = _last_words(errors.read().decode(errors="replace").splitlines(), ended.code)
    print(json.dumps({**asdict(ended), "last_words": words[:500]}), flush=True)
    return 0


def _last_words(lines: list[str], code: int) -> str:
    """Return the last line; if guards of ranks reported, which rank died and why."""
    if ends := [end for line in lines if (end := RankEnd.from_line(line))]:
        return describe_failure(code, lines, ends, ranks=len(ends) + 1)
    words = [line.strip() for line in lines if line.strip() and not LAUNCHER_LINE.search(line)]
    return words[-1] if words else ""


def _run(order: dict[str, Any], errors: int) -> RunOutcome | None:
    """Run the command to its end; None if a signal ended this process before."""
    me, cpus = os.getpid(), tuple(order["cpus"])
    before, reaped = _io_mb(), tree.Reaped()
    started = time.monotonic()
    try:
        child = _start(order, errors)
    except OSError as error:
        return RunOutcome(trouble=f"{error.filename or order['command'][0]}: {error.strerror}")
    peak_mb, threads, strayed, overdue = 0.0, 0, False, False
    while (status := tree.reap(child.pid, reaped)) is None:
        if tree.await_signal(AWAITED, SAMPLE_S) not in (None, signal.SIGCHLD):
            tree.kill(me)
            return None
        pids = tree.descendants(me)
        seen = look(me, reaped)
        peak_mb, threads = max(peak_mb, seen.memory_mb), max(threads, seen.threads)
        if any(not _keeps(pid, cpus) for pid in pids):
            strayed = True
            tree.pin(pids, cpus)
        if not overdue and time.monotonic() - started > order["limit_s"]:
            overdue = True
            tree.send(pids, signal.SIGKILL)
    ended = time.monotonic()
    left = _linger(me, reaped)
    tree.kill(me, reaped)
    io_mb = [after - was for after, was in zip(_io_mb(), before, strict=True)]
    return RunOutcome(
        code=os.waitstatus_to_exitcode(status),
        started_s=started,
        ended_s=ended,
        cpu_s=reaped.user_s + reaped.system_s,
        peak_memory_mb=max(peak_mb, reaped.peak_mb),
        read_mb=io_mb[0],
        written_mb=io_mb[1],
        disk_read_mb=io_mb[2],
        disk_written_mb=io_mb[3],
        left=left,
        strayed=strayed,
        most_threads=threads,
        overdue=overdue,
    )


def _start(order: dict[str, Any], errors: int) -> subprocess.Popen[bytes]:
    """Start the command on its CPUs; the kernel kills it with this process.

    Raises:
        OSError: it cannot be started.
    """
    me, cpus = os.getpid(), tuple(order["cpus"])

    def become() -> None:
        tree.die_with_parent(me)
        os.sched_setaffinity(0, cpus)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    return subprocess.Popen(
        order["command"],
        cwd=order["folder"],
        env=os.environ | order["variables"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
        preexec_fn=become,  # noqa: PLW1509 (one thread only)
    )


def _linger(me: int, reaped: tree.Reaped) -> int:
    """Count the processes that are left a moment after the end of the main process."""
    deadline = time.monotonic() + LINGER_S
    while tree.descendants(me):
        tree.reap(0, reaped)
        if time.monotonic() > deadline:
            return len(tree.descendants(me))
        time.sleep(0.005)
    return 0


def _keeps(pid: int, cpus: tuple[int, ...]) -> bool:
    try:
        return os.sched_getaffinity(pid) <= set(cpus)
    except OSError:  # it has just ended
        return True


def _io_mb() -> list[float]:
    """Read the I/O of this process and its ended descendants: read, written, from storage, to storage."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:  # a kernel without I/O accounting
        lines = []
    counts = {name: int(value) / 1e6 for name, value in (line.split(": ") for line in lines)}
    return [counts.get(name, 0.0) for name in ("rchar", "wchar", "read_bytes", "write_bytes")]


if __name__ == "__main__":
    sys.exit(main())
