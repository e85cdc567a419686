"""The record of one attempt, the evidence about it, and the effects that a step of it may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from agent.attempts.folder import Attempt
from agent.attempts.records import Result, RunState, Want
from scheduler.engines.protocol import Report
from scheduler.engines.slurm.client.heartbeats import Key
from scheduler.engines.slurm.client.parse import SlurmJob
from scheduler.engines.slurm.client.sbatch_jobs import SbatchJob
from scheduler.engines.slurm.client.tools import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAttempt:
    """What is known of an attempt; each step makes the next record.

    Times are monotonic.

    Attributes:
        cpus: CPUs on each node, by name.
        folder: its files; None for an external job, which has none.
        external: name of the external job in Slurm (``12_3``); "" for a job of tenbin's own.
        comment: by which its Slurm job is found, whatever its number.
        partition: where its Slurm job is submitted.
        batch: how to submit it; None if it was found again after a restart.
        slurm: number of its Slurm job; None if unknown.
        since: when its Slurm job was submitted.
        passed_on: it reuses the allocation of an earlier attempt.
        seen: its Slurm job in the last snapshot.
        snapshot, snapshots: number of that snapshot, and how many there were of this attempt.
        suspended: Slurm has suspended it, and has its CPUs back.
        request, want, asked_at: the last request.
        wake_at: when its supervisor is signalled (again).
        done: the last request that was carried out.
        calling: a call for it is under way.
        wait_until: no further call before then.
        fenced_at: when it was given up; it may run on until its lease is over.
        over: it was given up, and its nodes show that nothing of it runs any more.
        cancelled: tenbin has cancelled its Slurm job.
        final_since: since when Slurm says that it has ended, without a result.
        awaits_after: its end is explained by the first snapshot after so many; -1: it needs no explanation.
        trouble: why it was given up.
        restarts: how often Slurm had restarted an external job when this attempt began.
        leaving: the report for an external job that is about to wait for tenbin again.
    """

    job_id: int
    number: int
    cpus: Mapping[str, int]
    folder: Attempt | None = None
    external: str = ""
    comment: str = ""
    grace_s: float = 0.0
    partition: str = ""
    batch: Batch | None = None
    slurm: int | None = None
    since: float = 0.0
    passed_on: bool = False
    seen: SlurmJob | SbatchJob | None = None
    snapshot: int = 0
    snapshots: int = 0
    started: bool = False
    suspended: bool = False
    request: int = 0
    want: Want | Literal[""] = ""
    asked_at: float = 0.0
    wake_at: float = 0.0
    done: int = 0
    calling: bool = False
    wait_until: float = 0.0
    fenced_at: float | None = None
    over: bool = False
    cancelled: bool = False
    final_since: float | None = None
    awaits_after: int = -1
    trouble: str = ""
    restarts: int | None = None
    leaving: Report | None = None

    @property
    def key(self) -> Key:
        return self.job_id, self.number

    @property
    def files(self) -> Attempt:
        """The folder of an attempt that is not external."""
        assert self.folder is not None
        return self.folder

    @property
    def where(self) -> str:
        return ", ".join(self.cpus)

    @property
    def given_up(self) -> bool:
        return self.fenced_at is not None

    def hindrance(self, lease_s: float) -> str:
        """Say why it does not get on; "" if nothing is known to hinder it."""
        if self.given_up:
            return f"{self.trouble}; it may still run there, for {lease_s:g} s at most"
        seen = self.seen
        if seen is not None and seen.state == "PENDING":
            return f"waits in Slurm (job {seen.key}): {seen.reason}"
        if seen is not None and seen.state == "SUSPENDED" and self.want != "pause":
            return f"suspended in Slurm by somebody else; go on with: scontrol resume {seen.key}"
        return ""


# -- evidence ---------------------------------------------------------------------------------------------


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


# -- effects ----------------------------------------------------------------------------------------------

Call = Literal["submit", "start", "wake", "suspend", "resume", "hold", "cancel"]


class Do(NamedTuple):
    """Make a call of Slurm; its outcome comes back as ``settled``."""

    call: Call


class Cancel(NamedTuple):
    """Cancel the Slurm job of this number, beside any other call."""

    number: int


class Revoke(NamedTuple):
    """Claim an attempt that has not begun; if that succeeds it never will, and the report says so."""

    report: Report


class Fence(NamedTuple):
    """Have the attempt end, wherever it runs."""


class Expect(NamedTuple):
    """Heartbeats are due from now on, or are not."""

    beats: bool


class Look(NamedTuple):
    """Take a snapshot so soon, and ask these nodes whether they answer."""

    after_s: float = 0.0
    ask: tuple[str, ...] = ()


class PutBack(NamedTuple):
    """Restore the power caps that a killed supervisor has left."""


class Refused(NamedTuple):
    """Slurm does not start the external job where tenbin wants."""

    why: str


class WaitsAgain(NamedTuple):
    """The external job waits for tenbin again."""


Effect = Report | Do | Cancel | Revoke | Fence | Expect | Look | PutBack | Refused | WaitsAgain
Next = tuple[SlurmAttempt, list[Effect]]


def do(attempt: SlurmAttempt, what: Call, effects: list[Effect]) -> SlurmAttempt:
    """Have a call made; no other is made until its outcome is known."""
    effects.append(Do(what))
    return replace(attempt, calling=True)


# -- reading -----------------------------------------------------------------------------------------------


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
