"""One attempt that Slurm was given, and what is known of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from agent.attempts.folder import Attempt
from agent.attempts.records import Want
from scheduler.engines.slurm.client.heartbeats import Key
from scheduler.engines.slurm.client.parse import SlurmJob
from scheduler.engines.slurm.client.tools import Batch


@dataclass(slots=True)
class SlurmAttempt:
    """An attempt of a job.

    Attributes:
        comment: by which Slurm's job is found, whatever its number.
        cpus: on each node, by name.
        partition: where its Slurm job is submitted.
        batch: how to submit it; None: found again after a restart.
        slurm: its number in Slurm; None: not known (yet).
        since: when its Slurm job was submitted (monotonic).
        passed_on: to a Slurm job that had been another attempt's.
        seen: as Slurm had it last.
        suspended: by Slurm, which has its CPUs back then.
        request, want: the last request to its supervisor, which is told of it (again) from wake_at on.
        done: of which it said that it was carried out.
        recap: its supervisor is to be told of another power cap.
        calling: a call for it is on its way.
        wait_until: monotonic time before which nothing more is tried.
        fenced_at: when it was given up (monotonic); it may run on until the lease has passed.
        over: it was, and nothing of it can run any more, as its nodes show.
        cancelled: tenbin itself has had Slurm cancel it.
        final_since: since when Slurm knows it to have ended though there is no result.
        verdict_wanted: it was ended by a signal, and who that was is asked since so many snapshots; -1: no.
        trouble: why it is given up.
    """

    job_id: int
    number: int
    attempt: Attempt
    comment: str
    cpus: dict[str, int]
    grace_s: float
    partition: str = ""
    batch: Batch | None = None
    slurm: int | None = None
    since: float = field(default_factory=time.monotonic)
    passed_on: bool = False
    seen: SlurmJob | None = None
    suspended: bool = False
    request: int = 0
    want: Want | str = ""
    wake_at: float = 0.0
    done: int = 0
    recap: bool = False
    asked_at: float = 0.0
    started: bool = False
    calling: bool = False
    wait_until: float = 0.0
    fenced_at: float | None = None
    over: bool = False
    cancelled: bool = False
    final_since: float | None = None
    verdict_wanted: int = -1
    snapshots: int = 0  # since its submission, or since the restart
    trouble: str = ""

    @property
    def key(self) -> Key:
        return self.job_id, self.number

    @property
    def where(self) -> str:
        return ", ".join(self.cpus)
