"""The record of one attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from agent.attempts.folder import Attempt
from agent.attempts.records import Want
from scheduler.engines.protocol import Report
from scheduler.engines.slurm.attempts.effects import Call, Do, Effect
from scheduler.engines.slurm.client.heartbeats import Key
from scheduler.engines.slurm.client.parse import SlurmJob
from scheduler.engines.slurm.client.sbatch_jobs import SbatchJob
from scheduler.engines.slurm.client.tools import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAttempt:
    """The record of an attempt; each step makes the next record.

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


Next = tuple[SlurmAttempt, list[Effect]]


def do(attempt: SlurmAttempt, what: Call, effects: list[Effect]) -> SlurmAttempt:
    """Have a call made; no other is made until its outcome is known."""
    effects.append(Do(what))
    return replace(attempt, calling=True)
