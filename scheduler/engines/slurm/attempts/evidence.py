"""The evidence about an attempt: its folder, and the nodes in the last snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.attempts.folder import Attempt
from agent.attempts.records import Result, RunState


@dataclass(frozen=True, slots=True)
class FolderView:
    """An attempt's folder, read once, and the heartbeats in it.

    Attributes:
        claimed: a supervisor, or a coordinator that revoked it, has the attempt.
        noted: a result that a dead supervisor had noted and not published.
        spoiled: why what lies in place of the result is none.
        complaint: the last line of the supervisor's log.
        silent: nodes without a beat for a lease. begun: nodes with any beat. ended: nodes whose ranks have
            ended, as their keepers say.
        recap: its supervisor has not confirmed its power cap.
    """

    result: Result | None = None
    state: RunState | None = None
    claimed: bool = False
    noted: Result | None = None
    spoiled: str = ""
    complaint: str = ""
    silent: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    recap: bool = False


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The nodes in the last snapshot.

    Attributes:
        number: of the snapshot; 0 before the first one.
        now: monotonic time. time_s: seconds since 1970.
        away: why nodes cannot be used. lost: why nodes are given up by Slurm. mute: nodes that do not answer.
        put_back: external jobs that wait anew, with the count of their restarts: since when.
    """

    number: int
    now: float
    time_s: float
    lease_s: float
    away: Mapping[str, str]
    lost: Mapping[str, str]
    mute: frozenset[str]
    put_back: Mapping[tuple[str, int], float]

    @property
    def gone(self) -> frozenset[str]:
        return self.mute.union(self.lost)


def read_folder(folder: Attempt, *, closely: bool) -> FolderView:
    """Read an attempt's folder.

    Args:
        closely: also what explains an end without a result.

    Raises:
        OSError: the folder is out of sight.
    """
    result = folder.result()
    if result is not None:
        return FolderView(result, folder.state(), claimed=True)
    state = folder.state()
    claimed = folder.claimed() if closely or state is None else True
    if not closely:
        return FolderView(None, state, claimed=claimed)
    return FolderView(
        None, state, claimed, folder.unpublished_result(), folder.broken_result(), folder.last_log_line()
    )


def look_anew(folder: Path) -> None:
    """List a folder: over NFS, this fetches what other nodes have written."""
    for _ in folder.iterdir():
        pass
