"""comprobe: all-to-all between the cores of this node, and between nodes (Settings.hosts).

After "comprobe" of paper D: one process a node, all-to-all over and over. Measured is one ``MPI_Alltoall`` of
8 B to 8 MiB from each rank to each other, timed as ``probes.network_rank`` says. On this node the ranks are
bound to cores of their own; over hosts one rank is on each, left to the host's scheduler. Before that every
host must answer with the same tenbin and MPI, the ranks must be on different hosts, and their messages must
leave the hosts.

Samples, one row an iteration:

- ``scope``: ``node`` or ``hosts``; ``ranks``; ``hosts``: their names with commas, empty on this node
- ``library``: the MPI
- ``message_bytes``: from each rank to each other
- ``repetition``: a visit of one size, of some tens of ``iteration`` each; sizes come in random order
- ``batch``: all-to-alls between two readings of the clock
- ``alltoall_s``: time of one all-to-all on the slowest rank
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import psutil

from probes.mpi.runner import SSH_OPTIONS, MpiInstall, RanksFailed, find_mpi, run_ranks
from probes.network_rank import NARROW, MessagePlan, Pattern, StreamPlan, identity
from probes.run import Run
from probes.topology import core_pairs, read_topology
from profiles.errors import BadInput, Unavailable, UserError
from profiles.jobs import COMPROBE_BYTES

# -- other hosts before a start: they can be reached, and have the same tenbin and MPI ---------------------


REACH_S = 20.0

# Messages of ssh (exit code 255), or of shell and Python there; our words, and the remedy.
_INSTALL = "install the same tenbin there, at the same path"
_OF_SSH = (
    ("Permission denied", "asks for a password", "ssh {host} must work without one: ssh-copy-id {host}"),
    ("Host key verification failed", "is not known to ssh", "log in once by hand: ssh {host}"),
    ("", "cannot be reached", "try: ssh {host} true"),
)
_OF_THE_HOST = (
    ("No module named 'mpi4py'", "has no mpi4py in {python}", _INSTALL),
    ("No module named", "has no tenbin in {python}", _INSTALL),
    ("No such file", "has no {python}", _INSTALL),
    ("not found", "has no {python}", _INSTALL),
    ("libmpi", "has no MPI that mpi4py can load", "install the same MPI there"),
    ("", "does not answer as tenbin does", "try: ssh {host} {python} -P -m probes.network_rank hello"),
)


def greet(hosts: Sequence[str], library: str) -> list[dict[str, str]]:
    """Ask every host for its identity, all at once, the way mpiexec will reach it.

    Returns:
        ``probes.network_rank.identity()`` of each host, in their order.

    Raises:
        BadInput: ``hosts`` is not a list of at least two different names.
        Unavailable: a host cannot be reached, lacks what is needed, has another tenbin or MPI, or is named
            twice; the error names the host.
    """
    check_names(hosts)
    answers = _ask(hosts)
    here = identity()
    seen: dict[tuple[str, str], str] = {}
    for host, answer in zip(hosts, answers, strict=True):
        if answer["tenbin"] != here["tenbin"]:
            raise Unavailable(
                f"host {host} has tenbin {answer['tenbin']}, this one {here['tenbin']}",
                "install the same version on all hosts",
            )
        if answer["library"] != library:
            raise Unavailable(
                f"mpi4py loads {answer['library']} on host {host} and {library} here",
                "install the same MPI on all hosts",
            )
        place = (answer["boot"], answer["namespace"])
        if place in seen:
            raise Unavailable(f"{seen[place]} and {host} are one host", "name every host once in --hosts")
        seen[place] = host
    return answers


def check_names(hosts: Sequence[str]) -> None:
    """Raise BadInput unless ``hosts`` are at least two different names."""
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", host):  # never an option of ssh
            raise BadInput(f"--hosts: {host!r} is not a host name or IPv4 address")
    if len(hosts) < 2 or len(set(hosts)) < len(hosts):
        raise BadInput(f"--hosts: {','.join(hosts)}", "name at least two hosts, each once: --hosts a,b")


def _ask(hosts: Sequence[str]) -> list[dict[str, str]]:
    started: list[subprocess.Popen[str]] = []
    deadline = time.monotonic() + REACH_S
    try:
        started.extend(_start_hello(host) for host in hosts)
        return [_answer(host, process, deadline) for host, process in zip(hosts, started, strict=True)]
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _start_hello(host: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "probes.network_rank", "hello"]
    if not _is_here(host):
        launcher = os.environ.get("TENBIN_MPI_LAUNCHER", "ssh")
        command = [launcher, *SSH_OPTIONS, host, shlex.join(command)]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(
            f"cannot start {command[0]} to reach host {host}: {error.strerror}",
            "install ssh, or name another launcher in TENBIN_MPI_LAUNCHER",
        ) from None


def _answer(host: str, process: subprocess.Popen[str], deadline: float) -> dict[str, str]:
    try:
        output, errors = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        raise Unavailable(f"host {host} did not answer in {REACH_S:g} s", f"try: ssh {host} true") from None
    for line in output.splitlines():
        if line.startswith('{"event": "hello"'):
            answer: dict[str, str] = json.loads(line)
            return answer
    raise _explained(host, errors, process.returncode)


def _explained(host: str, stderr: str, code: int) -> Unavailable:
    words = (stderr.strip().splitlines() or [f"exit code {code}"])[-1]
    names = {"host": host, "python": sys.executable}
    sayings = _OF_SSH if code == 255 else _OF_THE_HOST
    what, remedy = next((what, remedy) for saying, what, remedy in sayings if saying in stderr)
    return Unavailable(f"host {host} {what.format(**names)} ({words})", remedy.format(**names))


def _is_here(host: str) -> bool:
    """Tell whether ``host`` is this machine, where mpiexec starts ranks without ssh."""
    if host in {"localhost", socket.gethostname()}:
        return True
    own = {address.address for several in psutil.net_if_addrs().values() for address in several}
    try:
        return socket.gethostbyname(host) in own
    except OSError:
        return False  # ssh may know the name, and says so if not


# -- the probe: its parts, and the events of the ranks -----------------------------------------------------


SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20)  # bytes from each rank to each other
MOST_RANKS = 4
START_S = 0.5  # mpiexec and Python, before the first message; not part of what is measured
GRACE_S = 30.0  # over its budget before a run is given up


def measure(run: Run) -> None:
    """Sample all-to-alls: on this node with two ranks and with up to four, then over the hosts."""
    run.progress("looking for MPI")
    try:
        mpi = find_mpi()
    except Unavailable as error:
        run.absent("all-to-all communication", error.what, error.remedy)
        return
    cores = separate_cores(run.settings.sysfs)
    counts = sorted({2, min(len(cores), MOST_RANKS)}) if len(cores) > 1 else []
    if not counts:
        run.absent("all-to-all on this node", "only one core may be used", "allow two (taskset, cgroup)")
    parts = len(counts) + bool(run.settings.hosts)
    for i, ranks in enumerate(counts):
        attempt(run, mpi, f"all-to-all of {ranks} ranks", ranks, parts_left=parts - i, cores=cores[:ranks])
    if hosts := run.settings.hosts:
        attempt(run, mpi, f"all-to-all over {', '.join(hosts)}", len(hosts), parts_left=1, hosts=hosts)


def attempt(
    run: Run,
    mpi: MpiInstall,
    what: str,
    ranks: int,
    *,
    parts_left: int,
    cores: Sequence[int] | None = None,
    hosts: Sequence[str] = (),
    sizes: tuple[int, ...] = SIZES,
    patterns: tuple[Pattern, ...] = ("alltoall",),
    labels: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Measure one part; a failure is reported and does not cost the other parts."""
    run.progress(what)
    try:
        if hosts:
            greet(hosts, mpi.library)
        budget_s = max(run.left_s() / parts_left - START_S, 0.5)
        listener = Listener(run, what, ranks=ranks, hosts=hosts, library=mpi.library)
        listener.labels |= labels
        plan = MessagePlan(
            ranks=ranks,
            sizes=sizes,
            budget_s=budget_s,
            limit_s=round(budget_s + GRACE_S),
            seed=int(run.rng.integers(2**31)),
            preflight=bool(hosts),
            patterns=patterns,
        )
        program = [sys.executable, "-P", "-m", "mpi4py", "-m", "probes.network_rank", plan.to_json()]
        run_ranks(
            mpi, program, ranks, timeout_s=budget_s + GRACE_S, on_line=listener.line, hosts=hosts, cores=cores
        )
        listener.ended()
    except UserError as error:
        run.absent(what, error.what, error.remedy, failed=bool(hosts))


class Listener:
    """Reader of rank 0's lines: makes samples of them, and stops the run if something is wrong."""

    def __init__(self, run: Run, what: str, *, ranks: int, hosts: Sequence[str], library: str) -> None:
        self.run, self.what, self.done = run, what, False
        self.labels = {
            "scope": "hosts" if hosts else "node",
            "ranks": ranks,
            "hosts": ",".join(hosts),
            "library": library,
        }

    def line(self, text: str) -> None:
        """Take a line of output; lines that are not the ranks' own (an MPI's warnings) are passed over."""
        if not text.startswith('{"event": '):
            return
        event = json.loads(text)
        match event.pop("event"):
            case "visit":
                self._visit(**event)
            case "preflight":
                check_path(self.run, event["ranks"], event["expected"])
                self.run.progress(f"{self.what}: hosts and path checked")
            case "skipped":
                self._skipped(**event)
            case "wide":  # other rounds, and the interval of the fit, tell more
                self.run.progress(f"{self.what}: medians beyond {NARROW:.0%}: {event['medians']}")
            case "world":
                raise Unavailable(
                    f"{self.labels['ranks']} ranks were started, but each sees a world of {event['size']}: "
                    "the launcher does not belong to the MPI library that mpi4py loads there",
                    "use one MPI on all hosts, with its own mpiexec first in PATH",
                )
            case "done":
                self.done = True

    def _visit(self, pattern: Pattern, times: list[float], *, size: int, **visit: int) -> None:
        self.run.progress(f"{self.what}: {size} B")
        for iteration, seconds in enumerate(times):
            row = {"message_bytes": size, **visit, "iteration": iteration}
            if pattern == "alltoall":
                self.run.sample(**self.labels, **row, alltoall_s=seconds)
            else:
                self.run.sample(**self.labels, pattern=pattern, **row, message_s=seconds)

    def _skipped(self, sizes: list[int], last: int, last_s: float) -> None:
        self.run.absent(
            f"{self.what} with {', '.join(map(str, sizes))} B",
            f"it would take longer than there is time: {last} B took {last_s:.3g} s",
            "give the probe more time: leave out --quick",
        )

    def ended(self) -> None:
        """Raise unless the ranks finished: a rank that leaves early with exit code 0 ends all silently."""
        if not self.done:
            raise RanksFailed("the ranks ended before they had finished, with exit code 0")


def check_path(run: Run, ranks: list[dict[str, Any]], expected: int) -> None:
    """Report the ``path_doubts`` as absent."""
    for reason in path_doubts(ranks, expected):
        run.absent("path of the messages between hosts", reason, "see which network MPI uses there")


def path_doubts(ranks: list[dict[str, Any]], expected: int) -> list[str]:
    """Check that every rank is on a host of its own and that its messages went over a network.

    Returns:
        a sentence for each rank whose messages no interface counted, between hosts of different kernels.

    Raises:
        Unavailable: two ranks are on one host; or no interface counted the messages between hosts that share
            one kernel (containers, namespaces), where MPI takes shared memory for the network.
    """
    places = [(r["boot"], r["namespace"]) for r in ranks]
    for i, place in enumerate(places):
        if (first := places.index(place)) != i:
            names = sorted({ranks[first]["hostname"], ranks[i]["hostname"]})
            raise Unavailable(
                f"ranks {first} and {i} are on one host, {' = '.join(names)}",
                "name every host once in --hosts",
            )
    doubts = []
    for rank, report in enumerate(ranks):
        sent = sum(report["sent"].values())
        if sent >= expected:
            continue
        reason = (
            f"rank {rank} on {report['hostname']} sent {expected} bytes to the other hosts, but its network "
            f"interfaces counted {sent}"
        )
        if len({r["boot"] for r in ranks}) < len(ranks):
            raise Unavailable(
                f"{reason}: the messages went through shared memory",
                "keep MPI to the network: UCX_TLS=tcp,self for MPICH, OMPI_MCA_btl=tcp,self for Open MPI",
            )
        doubts.append(reason)
    return doubts


def separate_cores(sysfs: Path = Path("/sys")) -> list[int]:
    """List a CPU of each core that this process may use; hyperthreads where there is only one core."""
    topology = read_topology(sysfs, os.sched_getaffinity(0))
    return [cpu.index for cpu in (topology.cores if len(topology.cores) > 1 else topology.cpus)]


# -- comprobe as a neighbour: all-to-all between hosts beside something else -------------------------------
#
# The speed of comprobe, window by window, tells how much it suffers meanwhile. One rank is on each host, on
# a core of its own; pauses grade the intensity. The counterpart of ``probes.memory``.


WINDOW_S = 0.2
READY_S = 60.0
MOST_S = 24 * 3600


class ExchangeWindow(NamedTuple):
    """A window of comprobe.

    Attributes:
        ended_s: arrival of the report, on our monotonic clock.
        inside_s: time in all-to-alls; the rest is pauses.
        bytes: sent by each rank to the others.
    """

    ended_s: float
    wall_s: float
    inside_s: float
    bytes: int


@dataclass(frozen=True)
class RankPlaces:
    """Places of comprobe's ranks: ``cores[i]`` of ``hosts[i]``."""

    hosts: tuple[str, ...]
    cores: tuple[int, ...]


class Comprobe:
    """A context in which comprobe is at work; once it is entered, the ranks exchange.

    Raises:
        RanksFailed: a rank died, or none is ready after a minute. Unavailable: see ``path_doubts``.
    """

    def __init__(self, mpi: MpiInstall, at: RankPlaces, intensity: float, *, preflight: bool = False) -> None:
        ranks = len(at.hosts)
        self._mpi, self._at = mpi, at
        self._plan = StreamPlan(ranks, COMPROBE_BYTES, intensity, WINDOW_S, MOST_S, preflight)
        self._windows: list[ExchangeWindow] = []
        self._news = threading.Condition()
        self._ready = self._told_to_end = False
        self._trouble: UserError | None = None
        self._thread = threading.Thread(target=self._run)
        self.doubts: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            with self._news:
                self._news.wait_for(lambda: self._ready or self._trouble, READY_S)
                if self._trouble:
                    raise self._trouble
                if not self._ready:
                    raise RanksFailed(f"comprobe was not at work after {READY_S:.0f} s")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def windows(self, least: int = 0) -> list[ExchangeWindow]:
        """Take the windows ended since the last call, after waiting for ``least`` of them.

        Raises:
            RanksFailed: comprobe has ended.
        """
        with self._news:
            self._news.wait_for(lambda: len(self._windows) >= least or self._trouble, READY_S)
            if self._trouble:
                raise self._trouble
            if len(self._windows) < least:
                raise RanksFailed(f"comprobe said nothing for {READY_S:.0f} s")
            windows, self._windows = self._windows, []
            return windows

    def _end(self) -> None:
        self._told_to_end = True
        self._thread.join()

    def _run(self) -> None:
        plan = self._plan
        program = [
            sys.executable,
            "-P",
            "-m",
            "mpi4py",
            "-m",
            "probes.network_rank",
            "stream",
            plan.to_json(),
        ]
        trouble: UserError = RanksFailed("comprobe ended by itself")
        try:
            run_ranks(
                self._mpi,
                program,
                plan.ranks,
                timeout_s=plan.limit_s,
                on_line=self._line,
                hosts=self._at.hosts,
                cores=self._at.cores,
                enough=lambda: self._told_to_end,
            )
        except UserError as error:
            trouble = error
        with self._news:
            self._trouble = trouble
            self._news.notify_all()

    def _line(self, text: str) -> None:
        """Take a line of the ranks' output."""
        if not text.startswith('{"event": '):
            return
        event: dict[str, Any] = json.loads(text)
        match event["event"]:
            case "preflight":
                self.doubts = path_doubts(event["ranks"], event["expected"])
            case "world":
                raise Unavailable(
                    f"{self._plan.ranks} ranks were started, but each sees a world of {event['size']}",
                    "use one MPI on all hosts, with its own mpiexec first in PATH",
                )
            case "ready" | "window":
                with self._news:
                    self._take(event)
                    self._news.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        self._ready = True
        if event["event"] == "window":
            sent = event["exchanges"] * COMPROBE_BYTES * (self._plan.ranks - 1)
            self._windows.append(ExchangeWindow(time.monotonic(), event["wall_s"], event["inside_s"], sent))


# -- messages between two ranks: latency and bandwidth as the OSU benchmarks define them -------------------
#
# The first core of this node sends to the nearest core of each kind (``probes.topology.pair_kind``), the
# first of the hosts to each other one. Ranks are bound, started and checked as for all-to-alls.
#
# Samples, one row an iteration:
#
# - ``scope``, ``ranks`` (2), ``hosts``, ``library``, ``message_bytes``, ``repetition``, ``iteration``: as
#   there
# - ``pair_kind``, ``cpus``: of this node; "" between hosts
# - ``pattern``: ``latency`` (osu_latency) or ``bandwidth`` (osu_bw)
# - ``batch``: round trips, or windows, between two readings of the clock
# - ``message_s``: half a round trip; or the time of a window of 64 messages and its answer, divided by 64


MOST_HOSTS = 4  # to which the first one sends
MESSAGE_SIZES = (8, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)  # bytes; the largest is OSU's
PATTERNS: tuple[Pattern, ...] = ("latency", "bandwidth")


def measure_messages(run: Run) -> None:
    """Sample messages between cores of this node, then between hosts."""
    run.progress("looking for MPI")
    try:
        mpi = find_mpi()
    except Unavailable as error:
        run.absent("messages between two ranks", error.what, error.remedy)
        return
    pairs = list(core_pairs(read_topology(run.settings.sysfs, os.sched_getaffinity(0))))
    if not pairs:
        run.absent("messages between cores", "only one core may be used", "allow two (taskset, cgroup)")
    first, *others = run.settings.hosts or ("",)
    parts = len(pairs) + len(others[:MOST_HOSTS])
    for i, (kind, *pair) in enumerate(pairs):
        cpus = pair[0].index, pair[1].index
        attempt(
            run,
            mpi,
            f"messages from CPU {cpus[0]} to CPU {cpus[1]} ({kind})",
            2,
            parts_left=parts - i,
            cores=cpus,
            sizes=MESSAGE_SIZES,
            patterns=PATTERNS,
            labels={"pair_kind": kind, "cpus": f"{cpus[0]},{cpus[1]}"},
        )
    for i, host in enumerate(others[:MOST_HOSTS]):
        attempt(
            run,
            mpi,
            f"messages from {first} to {host}",
            2,
            parts_left=len(others[:MOST_HOSTS]) - i,
            hosts=(first, host),
            sizes=MESSAGE_SIZES,
            patterns=PATTERNS,
            labels={"pair_kind": "", "cpus": ""},
        )
