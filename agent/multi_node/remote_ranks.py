"""A job whose ranks lie on several nodes, as its supervisor sees it.

The ranks on the supervisor's own node are below it; on each other node a keeper has them
(``agent.multi_node.rank_keeper``). Both write into files of the attempt that are there before and keep their
length, so that whoever opens one over NFS reads what was written last:

    ranks/wish    what the keepers are to do; the supervisor
    ranks/NODE    what became of the node's ranks; its keeper (or who could not start one)

The supervisor tells no result before all keepers have said that nothing of the job runs on their nodes, or
before they must have ended it because their lease is over.
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
from profiles.files import overwrite, read_plain

FOLDER = "ranks"
RankCommand = Literal["run", "pause", "term", "end"]
BYTES = 1024
MOST_TROUBLE = 200  # letters of it: a word must fit
LOOKS_S = 0.05
STUCK_S = 5.0


@dataclass(frozen=True)
class NodeReport:
    """What a keeper says: its ranks have begun, have ended; which limit they broke; what they used.

    ``unreached``: why no keeper could be started.
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
    """With the share of the memory limit that is for the ranks here."""
    if order.memory_limit_mb is None:
        return order
    share = order.hosts.get(node_name(), 0) / sum(order.hosts.values())
    return replace(order, memory_limit_mb=order.memory_limit_mb * share)


class RankFiles:
    """The files between a supervisor and its keepers."""

    def __init__(self, attempt: Attempt) -> None:
        self.path = attempt.path / FOLDER

    def make(self, hosts: list[str]) -> None:
        """OSError if there is no room."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        for name in ("wish", *hosts):
            (self.path / name).write_bytes(b"".ljust(BYTES))

    def wish(self) -> tuple[int, RankCommand]:
        """The last one and its number; 0 if nothing was wished yet. OSError if it cannot be seen."""
        said = read_plain(self.path / "wish", BYTES).split()
        if not said:
            return 0, "run"
        for wish in get_args(RankCommand):
            if len(said) == 2 and said[0].isdigit() and said[1] == wish.encode():
                return int(said[0]), wish
        raise OSError(errno.EINVAL, "no wish", str(self.path / "wish"))

    def tell(self, number: int, wish: RankCommand) -> None:
        overwrite(self.path / "wish", f"{number} {wish}", BYTES)

    def say(self, host: str, word: NodeReport) -> None:
        overwrite(self.path / host, json.dumps(asdict(word)), BYTES)

    def unreached(self, host: str, why: str) -> None:
        """No keeper could be started there; one that has begun has the say."""
        if not self.word(host).begun:
            why = why.encode("ascii", "replace").decode()[:MOST_TROUBLE]
            self.say(host, NodeReport(unreached=why or "srun failed"))

    def word(self, host: str) -> NodeReport:
        with suppress(OSError, Broken):
            return checked.read(NodeReport, self.path / host) or NodeReport()
        return NodeReport()


class RemoteRanks:
    """The keepers of one attempt."""

    def __init__(self, attempt: Attempt, order: Order) -> None:
        self.hosts = [host for host in order.hosts if host != node_name()]
        self.lease_s = order.lease_s or LEASE_S
        self._files, self._number = RankFiles(attempt), 0
        self._attempt, self._look_at = attempt, 0.0
        self._over_since: float | None = None
        self._files.make(self.hosts)

    def tell(self, wish: RankCommand) -> None:
        """What all of them are to do; each obeys within a fraction of a second."""
        self._number += 1
        with suppress(OSError):  # a disk that cannot be reached: their leases end
            self._files.tell(self._number, wish)

    def stuck(self) -> bool:
        """Whether all ranks of a node have ended, one of them badly, and mpiexec goes on all the same.

        MPICH's sometimes (5.0, nodes under load) does not end the others then.
        """
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + 1.0
            over = any(
                (self._attempt.path / f"{REPORTS}-{host}").exists() and self._files.word(host).ended
                for host in self.hosts
            )
            self._over_since = (self._over_since or now) if over else None
        return self._over_since is not None and now >= self._over_since + STUCK_S

    def finish(self, result: Result) -> Result:
        """Nothing of the job runs anywhere any more; the result with what the other nodes add to it."""
        self.tell("end")
        silent = self._await_end()
        words = [self._files.word(host) for host in self.hosts]
        result = replace(result, usage=_sum(result.usage, words))
        by_itself = result.how in ("exited", "signalled")
        over = [h for h, word in zip(self.hosts, words, strict=True) if word.memory_limit_mb]
        if by_itself and over:
            limit_mb = self._files.word(over[0]).memory_limit_mb
            trouble = f"its ranks on {', '.join(over)} used more than {limit_mb:.0f} MB"
            return replace(result, how="memory-limit", trouble=trouble)
        reasons = [
            f"{h}: {word.unreached}" for h, word in zip(self.hosts, words, strict=True) if word.unreached
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
        """The nodes whose keepers have not said that they ended within their lease."""
        deadline = time.monotonic() + self.lease_s + MARGIN_S
        while silent := [host for host in self.hosts if self._runs(host)]:
            if time.monotonic() >= deadline:
                break
            time.sleep(LOOKS_S)
        return silent

    def _runs(self, host: str) -> bool:
        word = self._files.word(host)
        return word.begun and not word.ended


def _sum(usage: Usage, words: list[NodeReport]) -> Usage:
    names = ("user_s", "system_s", "peak_memory_mb", "read_mb", "written_mb")
    return replace(usage, **{n: getattr(usage, n) + sum(getattr(w, n) for w in words) for n in names})
