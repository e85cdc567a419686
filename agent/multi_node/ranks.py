"""The ranks of a job that is started by mpiexec.

Between the supervisor and a rank are mpiexec, its proxy and the rank's guard (``probes.mpi.rank_guard``). The
guard reports in the attempt's folder how its rank ended.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from agent.attempts import checked
from agent.attempts.checked import Broken
from agent.attempts.folder import Attempt, retry_until_written
from agent.attempts.records import Order, Result, Usage
from agent.multi_node.lease import LEASE_S, MARGIN_S, Lease, node_name
from agent.processes import tree
from agent.processes.samples import Sampler
from probes.mpi import rank_guard
from probes.mpi.rank_failure import sweep_segments
from probes.mpi.rank_guard import OF_NODE, RankEnd
from profiles.files.safe_files import overwrite, read_plain

REPORTS = "rank-ends"  # prefix of a file for each node, in the attempt's folder
LAST_WORDS_BYTES = 8192
MOST_BYTES = 1 << 20  # of a node's reports


def rank_processes(root: int) -> list[int]:
    """Find the ranks below ``root`` and all that they started, without mpiexec and guards.

    A signal for the job goes to these, because mpiexec or a guard would kill its ranks at once.
    """
    pids: list[int] = []
    guard = [b"-I", b"-S", os.fsencode(rank_guard.__file__)]  # mpiexec has these words further on
    for pid in tree.descendants(root):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:4] == guard:
                pids += tree.descendants(pid)
    return pids


def first_death(code: int, attempt: Path, stderr: Path) -> tuple[int, str]:
    """Find the rank whose death ended the others, and describe its end in a sentence.

    Returns:
        its exit code, or minus the signal that killed it; without a guard's report ``code``, that of mpiexec.
    """
    from probes.mpi.rank_failure import cause_first, describe_failure

    lines: list[str] = []
    for file in attempt.glob(f"{REPORTS}-*"):
        with suppress(OSError):
            lines += read_plain(file, MOST_BYTES, last=True).decode(errors="replace").splitlines()
    ends = [end for line in lines if (end := _end(line))]
    sentence = describe_failure(code, _last_lines(stderr), ends, ranks=len(ends) + 1)
    return os.waitstatus_to_exitcode(cause_first(ends)[0].wait_status) if ends else code, sentence


def _end(line: str) -> RankEnd | None:
    with suppress(ValueError, OverflowError):  # not written by a guard
        end = RankEnd.from_line(line)
        if end is not None:
            os.waitstatus_to_exitcode(end.wait_status)
        return end
    return None


def _last_lines(path: Path) -> list[str]:
    with suppress(OSError):  # also a pipe
        end = read_plain(os.path.realpath(path), LAST_WORDS_BYTES, last=True)
        return end.decode(errors="replace").splitlines()
    return []


# -- ranks on further nodes, for the supervisor ------------------------------------------------------------
#
# On each such node a keeper has the ranks. Supervisor and keepers write into files that exist before and keep
# their length, because NFS then shows the last write to each reader:
#
#     ranks/wish    the command for the keepers; the supervisor
#     ranks/NODE    the report on the node's ranks; its keeper, or the program that could not start one
#
# The supervisor publishes no result before all keepers have reported the end of their ranks, or their
# leases are over.


RANKS = "ranks"
RankCommand = Literal["run", "pause", "term", "end"]
REPORT_BYTES = 1024
MOST_TROUBLE = 200  # letters, because a report must fit into its file
LOOKS_S = 0.05
STUCK_S = 5.0


@dataclass(frozen=True)
class NodeReport:
    """A keeper's report on its ranks.

    Attributes:
        memory_limit_mb: the limit that they exceeded; 0: none.
        unreached: why no keeper could be started.
    """

    begun: bool = False
    ended: bool = False
    memory_limit_mb: float = 0.0
    user_s: float = 0.0
    system_s: float = 0.0
    peak_memory_mb: float = 0.0
    read_mb: float = 0.0
    written_mb: float = 0.0
    unreached: str = ""


def share_of_this_node(order: Order) -> Order:
    """Reduce the memory limit to the share of the ranks on this node."""
    if order.memory_limit_mb is None:
        return order
    share = order.hosts.get(node_name(), 0) / sum(order.hosts.values())
    return replace(order, memory_limit_mb=order.memory_limit_mb * share)


class RankFiles:
    """The files between a supervisor and its keepers."""

    def __init__(self, attempt: Attempt) -> None:
        self.path = attempt.path / RANKS

    def make(self, hosts: list[str]) -> None:
        """Make the files; OSError if there is no room."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        for name in ("wish", *hosts):
            (self.path / name).write_bytes(b"".ljust(REPORT_BYTES))

    def command(self) -> tuple[int, RankCommand]:
        """Read the last command and its number, 0 before the first; OSError if the file cannot be read."""
        said = read_plain(self.path / "wish", REPORT_BYTES).split()
        if not said:
            return 0, "run"
        for command in get_args(RankCommand):
            if len(said) == 2 and said[0].isdigit() and said[1] == command.encode():
                return int(said[0]), command
        raise OSError(errno.EINVAL, "no command", str(self.path / "wish"))

    def write_command(self, number: int, command: RankCommand) -> None:
        """Write a command for all keepers."""
        overwrite(self.path / "wish", f"{number} {command}", REPORT_BYTES)

    def report(self, host: str, report: NodeReport) -> None:
        """Write the report of a node."""
        overwrite(self.path / host, json.dumps(asdict(report)), REPORT_BYTES)

    def report_unreached(self, host: str, why: str) -> None:
        """Report why no keeper could be started, unless a keeper has begun."""
        if not self.read_report(host).begun:
            why = why.encode("ascii", "replace").decode()[:MOST_TROUBLE]
            self.report(host, NodeReport(unreached=why or "srun failed"))

    def read_report(self, host: str) -> NodeReport:
        """Read the report of a node, empty before the first."""
        with suppress(OSError, Broken):
            return checked.read(NodeReport, self.path / host) or NodeReport()
        return NodeReport()


class RemoteRanks:
    """The keepers of one attempt, for its supervisor."""

    def __init__(self, attempt: Attempt, order: Order) -> None:
        self.hosts = [host for host in order.hosts if host != node_name()]
        self.lease_s = order.lease_s or LEASE_S
        self._files, self._number = RankFiles(attempt), 0
        self._attempt, self._look_at = attempt, 0.0
        self._over_since: float | None = None
        self._files.make(self.hosts)

    def tell(self, command: RankCommand) -> None:
        """Give all keepers a command, which they carry out within a fraction of a second."""
        self._number += 1
        with suppress(OSError):  # without the disk their leases end
            self._files.write_command(self._number, command)

    def stuck(self) -> bool:
        """Return whether mpiexec goes on though all ranks of a node have ended, one of them badly.

        MPICH's mpiexec (5.0, nodes under load) sometimes does not end the other ranks then.
        """
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + 1.0
            over = any(
                (self._attempt.path / f"{REPORTS}-{host}").exists() and self._files.read_report(host).ended
                for host in self.hosts
            )
            self._over_since = (self._over_since or now) if over else None
        return self._over_since is not None and now >= self._over_since + STUCK_S

    def finish(self, result: Result) -> Result:
        """End the job on all nodes, and add to the result what the other nodes report."""
        self.tell("end")
        silent = self._await_end()
        reports = [self._files.read_report(host) for host in self.hosts]
        result = replace(result, usage=_sum(result.usage, reports))
        by_itself = result.how in ("exited", "signalled")
        over = [h for h, report in zip(self.hosts, reports, strict=True) if report.memory_limit_mb]
        if by_itself and over:
            limit_mb = self._files.read_report(over[0]).memory_limit_mb
            trouble = f"its ranks on {', '.join(over)} used more than {limit_mb:.0f} MB"
            return replace(result, how="memory-limit", trouble=trouble)
        reasons = [
            f"{h}: {report.unreached}"
            for h, report in zip(self.hosts, reports, strict=True)
            if report.unreached
        ]
        if by_itself and result.code != 0 and (silent or reasons):
            trouble = (
                f"{', '.join(silent)} did not answer any more"
                if silent
                else "; ".join(reasons)[: 2 * MOST_TROUBLE]
            )
            return replace(result, how="interrupted", code=None, signal=None, trouble=trouble)
        return result

    def _await_end(self) -> list[str]:
        """Wait for the keepers; return the nodes that reported no end within their lease."""
        deadline = time.monotonic() + self.lease_s + MARGIN_S
        while silent := [host for host in self.hosts if self._runs(host)]:
            if time.monotonic() >= deadline:
                break
            time.sleep(LOOKS_S)
        return silent

    def _runs(self, host: str) -> bool:
        report = self._files.read_report(host)
        return report.begun and not report.ended


def _sum(usage: Usage, reports: list[NodeReport]) -> Usage:
    names = ("user_s", "system_s", "peak_memory_mb", "read_mb", "written_mb")
    return replace(
        usage, **{n: getattr(usage, n) + sum(getattr(report, n) for report in reports) for n in names}
    )


# -- the keeper of ranks on a further node -----------------------------------------------------------------
#
# It starts the daemon of mpiexec there and keeps all of its processes below itself. It carries out the
# supervisor's commands, holds the node's share of the memory limit, and ends the ranks by the job's lease.

KEEPER_LOOKS_S = 0.2
# Slurm sends these to the supervisor too, which decides; if it cannot any more, the lease ends the ranks.
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def keep(folder: Path, command: str) -> int:
    """Run the command until nothing of it is left; return 0, because mpiexec tells how it ended."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    tree.adopt_orphans()
    Keeper(Attempt(folder)).run(command)
    return 0


class Keeper:
    """The keeper of one node's ranks."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.order = attempt, share_of_this_node(attempt.order())
        self.files, self.host, self.me = RankFiles(attempt), node_name(), os.getpid()
        self.lease = Lease(attempt, self.order.lease_s or LEASE_S, self._kill)
        self.reaped = tree.Reaped()
        self.sampler = Sampler(attempt.path / f"samples-{self.host}.csv", self.me, self.reaped, steady=True)
        self.number = 0
        self.paused = False
        self.broken_mb = 0.0  # the memory limit, once it was exceeded

    def run(self, command: str) -> None:
        """Run the command, and report its begin and its end."""
        started_s, started = time.time(), time.monotonic()
        self.files.report(self.host, NodeReport(begun=True))
        if not self._over():
            with tree.Marking(self.order.mark):
                pid = os.posix_spawn(
                    "/bin/sh",
                    ["sh", "-c", f"exec {command}"],
                    {**os.environ, **self._of_this_node()},
                    setsid=True,
                    setsigmask=(),
                    setsigdef=(signal.SIGCHLD, *IGNORED, signal.SIGPIPE, signal.SIGXFSZ),
                )
            tree.die_with_me(pid)
            self.lease.begin()
            self._wait(pid)
            tree.kill(self.me, self.reaped)
            sweep_segments(started_s, time.monotonic() - started)
        retry_until_written(lambda: self.files.report(self.host, self._last_report()))

    def _of_this_node(self) -> dict[str, str]:
        """Return the variables of the node's GPUs as Slurm has set them here, for the guards of ranks."""
        names = tuple(name for name in self.order.inherit if not name.endswith("_"))
        return {f"{OF_NODE}{name}": value for name, value in os.environ.items() if name in names}

    def _over(self) -> bool:
        """Return whether the job has ended before this node's ranks were started."""
        return self.attempt.fenced() or self.files.command()[1] == "end"

    def _wait(self, pid: int) -> None:
        """Carry out commands and take samples until the command has ended."""
        while tree.reap(pid, self.reaped) is None:
            with suppress(OSError):  # the lease ends the job if the disk stays away
                number, command = self.files.command()
                if number != self.number:
                    self.number = number
                    self._obey(command)
            if not self.paused and time.monotonic() >= self.sampler.due:
                limit_mb, used = self.order.memory_limit_mb, self.sampler.look()
                if limit_mb is not None and used.memory_mb > limit_mb:
                    self.broken_mb = limit_mb
                    self._kill()
            signal.sigtimedwait({signal.SIGCHLD}, KEEPER_LOOKS_S)

    def _obey(self, command: RankCommand) -> None:
        if command == "pause":
            tree.stop(self.me)
        elif command == "term":
            tree.send(rank_processes(self.me), signal.SIGTERM)
        elif command == "end":
            self._kill()
        self.paused = command == "pause"
        if not self.paused:
            tree.send(tree.descendants(self.me), signal.SIGCONT)

    def _kill(self) -> None:
        """Kill all ranks; called from the lease's thread too."""
        tree.send(tree.descendants(self.me), signal.SIGKILL)

    def _last_report(self) -> NodeReport:
        last, used = self.sampler.end(), self.reaped
        peak_mb = max(self.sampler.peak_mb, used.peak_mb)
        return NodeReport(
            begun=True,
            ended=True,
            memory_limit_mb=self.broken_mb,
            user_s=used.user_s,
            system_s=used.system_s,
            peak_memory_mb=peak_mb,
            read_mb=last.read_mb,
            written_mb=last.written_mb,
        )
