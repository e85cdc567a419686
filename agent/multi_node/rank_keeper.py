"""Keeps the ranks of a job on a node that is not its supervisor's.

It starts what mpiexec wants there and has it below itself, as a supervisor has a job: it does what the
supervisor wishes, holds the node's share of the memory limit, and ends all of it by the same lease
(``agent.multi_node.lease``): a node that nobody reaches computes no further. What it says, and what it is
told, is in the attempt's folder (``agent.multi_node.remote_ranks``).
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
from probes.mpi.rank_segments import sweep_segments

LOOKS_S = 0.2
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # Slurm's: the
# supervisor has them as well, and decides; what it cannot decide any more the lease does


def keep(folder: Path, command: str) -> int:
    """Run the command, until it has ended and nothing of it is left; always 0: mpiexec tells how it was."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    tree.adopt_orphans()
    Keeper(Attempt(folder)).run(command)
    return 0


class Keeper:
    """Of one node's ranks."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.order = attempt, share_of_this_node(attempt.order())
        self.files, self.host, self.me = RankFiles(attempt), node_name(), os.getpid()
        self.lease = Lease(attempt, self.order.lease_s or LEASE_S, self._kill)
        self.reaped = tree.Reaped()
        self.sampler = Sampler(attempt.path / f"samples-{self.host}.csv", self.me, self.reaped, steady=True)
        self.number = 0
        self.paused = False
        self.broken_mb = 0.0  # the memory limit, once it is

    def run(self, command: str) -> None:
        """From the command's start to the last word."""
        started_s = time.time()
        self.files.say(self.host, NodeReport(begun=True))
        if not self._over():
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
        retry_until_written(lambda: self.files.say(self.host, self._last_word()))

    def _over(self) -> bool:
        """Whether nothing is wanted here any more, before anything was begun."""
        return self.attempt.fenced() or self.files.wish()[1] == "end"

    def _wait(self, pid: int) -> None:
        """Obey and look until the command has ended."""
        while tree.reap(pid, self.reaped) is None:
            with suppress(OSError):  # it cannot be seen now; the lease minds that
                number, wish = self.files.wish()
                if number != self.number:
                    self.number = number
                    self._obey(wish)
            if not self.paused and time.monotonic() >= self.sampler.due:
                limit_mb, used = self.order.memory_limit_mb, self.sampler.look()
                if limit_mb is not None and used.memory_mb > limit_mb:
                    self.broken_mb = limit_mb
                    self._kill()
            signal.sigtimedwait({signal.SIGCHLD}, LOOKS_S)

    def _obey(self, wish: RankCommand) -> None:
        if wish == "pause":
            tree.stop(self.me)
        elif wish == "term":
            tree.send(ranks.programs(self.me), signal.SIGTERM)
        elif wish == "end":
            self._kill()
        self.paused = wish == "pause"
        if not self.paused:
            tree.send(tree.descendants(self.me), signal.SIGCONT)

    def _kill(self) -> None:
        """Also from the lease's thread."""
        tree.send(tree.descendants(self.me), signal.SIGKILL)

    def _last_word(self) -> NodeReport:
        last, used = self.sampler.end(), self.reaped
        peak_mb = max(self.sampler.peak_mb, used.peak_mb)
        return NodeReport(
            True,
            True,
            self.broken_mb,
            used.user_s,
            used.system_s,
            peak_mb,
            last.read_mb,
            last.written_mb,
        )
