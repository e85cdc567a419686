"""The ranks of a job on nodes other than its supervisor's.

On each such node a keeper has the ranks (``agent.multi_node.rank_keeper``). Supervisor and keepers write into
files that exist before and keep their length, because NFS then shows the last write to each reader:

    ranks/wish    the command for the keepers; the supervisor
    ranks/NODE    the report on the node's ranks; its keeper, or the program that could not start one

The supervisor publishes no result before all keepers have reported the end of their ranks, or their leases
are over.
"""

from __future__ import annotations

import errno
import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from agent.attempts import checked
from agent.attempts.checked import Broken
from agent.attempts.folder import Attempt
from agent.attempts.records import Order, Result, Usage
from agent.multi_node.lease import LEASE_S, MARGIN_S
from agent.multi_node.node_name import node_name
from agent.multi_node.ranks import REPORTS
from profiles.files.safe_files import overwrite, read_plain

FOLDER = "ranks"
RankCommand = Literal["run", "pause", "term", "end"]
BYTES = 1024
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
        self.path = attempt.path / FOLDER

    def make(self, hosts: list[str]) -> None:
        """Make the files; OSError if there is no room."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        for name in ("wish", *hosts):
            (self.path / name).write_bytes(b"".ljust(BYTES))

    def command(self) -> tuple[int, RankCommand]:
        """Read the last command and its number, 0 before the first; OSError if the file cannot be read."""
        said = read_plain(self.path / "wish", BYTES).split()
        if not said:
            return 0, "run"
        for command in get_args(RankCommand):
            if len(said) == 2 and said[0].isdigit() and said[1] == command.encode():
                return int(said[0]), command
        raise OSError(errno.EINVAL, "no command", str(self.path / "wish"))

    def write_command(self, number: int, command: RankCommand) -> None:
        """Write a command for all keepers."""
        overwrite(self.path / "wish", f"{number} {command}", BYTES)

    def report(self, host: str, report: NodeReport) -> None:
        """Write the report of a node."""
        overwrite(self.path / host, json.dumps(asdict(report)), BYTES)

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
