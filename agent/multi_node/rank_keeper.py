"""The keeper of a job's ranks on a node that is not its supervisor's.

It starts the daemon of mpiexec there and keeps all of its processes below itself. It carries out the
supervisor's commands (``agent.multi_node.remote_ranks``), holds the node's share of the memory limit, and
ends the ranks by the job's lease (``agent.multi_node.lease``).
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from agent.attempts.folder import Attempt, retry_until_written
from agent.multi_node import ranks
from agent.multi_node.lease import LEASE_S, Lease
from agent.multi_node.node_name import node_name
from agent.multi_node.remote_ranks import NodeReport, RankCommand, RankFiles, share_of_this_node
from agent.processes import tree
from agent.processes.samples import Sampler
from probes.mpi.rank_failure import sweep_segments

LOOKS_S = 0.2
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
        started_s = time.time()
        self.files.report(self.host, NodeReport(begun=True))
        if not self._over():
            with tree.Marking(self.order.mark):
                pid = os.posix_spawn(
                    "/bin/sh",
                    ["sh", "-c", f"exec {command}"],
                    os.environ,
                    setsid=True,
                    setsigmask=(),
                    setsigdef=(signal.SIGCHLD, *IGNORED, signal.SIGPIPE, signal.SIGXFSZ),
                )
            tree.die_with_me(pid)
            self.lease.begin()
            self._wait(pid)
            tree.kill(self.me, self.reaped)
            sweep_segments(started_s)
        retry_until_written(lambda: self.files.report(self.host, self._last_report()))

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
            signal.sigtimedwait({signal.SIGCHLD}, LOOKS_S)

    def _obey(self, command: RankCommand) -> None:
        if command == "pause":
            tree.stop(self.me)
        elif command == "term":
            tree.send(ranks.programs(self.me), signal.SIGTERM)
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
