"""What carries decisions out, and tells what happened.

An engine starts attempts of jobs under a supervisor and hands requests on to it. It may be called again for
what it has already done (a coordinator that was killed does so): nothing then happens twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from agent.attempts.phases import Phase
from agent.attempts.records import Result, RunState, Want
from agent.processes.samples import Sample
from scheduler.engines.external_jobs import ExternalJobSource
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement, Region


class Report(NamedTuple):
    """What happened to an attempt.

    "started"; "obeyed": request number ``done`` was carried out; "ended": ``result`` says how; "lost": its
    supervisor died without a result, nothing of it runs any more, ``trouble`` says why if it was not killed;
    "never": it was not and will not be started, ``trouble`` says why if it cannot be.
    """

    job_id: int
    attempt: int
    what: Literal["started", "obeyed", "ended", "lost", "never"]
    at_s: float
    result: Result | None = None
    trouble: str = ""
    done: int = 0


class Engine(Protocol):
    """Contract of all engines.

    Attributes:
        cluster: what there is to run jobs on.
        external_jobs: jobs that came another way are taken over; None: none are.
    """

    cluster: Cluster

    @property
    def external_jobs(self) -> ExternalJobSource | None: ...

    def prepare(self, specs: Sequence[JobSpec]) -> None:
        """Look for what jobs like these need besides their command; may take a second, in any thread.

        Raises:
            Unavailable: it is not here.
        """

    def check_paths(self, spec: JobSpec) -> None:
        """Refuse a job whose working directory or files for output cannot be used where it will run, as far
        as that can be seen from here; in any thread.

        Raises:
            BadInput: names the path.
        """

    def place(self, job: Entry, placement: Placement) -> None:
        """Give the job the cores, or devices, of a placement; they are its own until ``free``."""

    def occupy(self, job: Entry) -> None:
        """After a restart: the job's cores and devices are its own again."""

    def free(self, job: Entry) -> None:
        """The job's cores and devices are free."""

    def divide(self, pool: str, regions: Sequence[Region]) -> None:
        """The pool is cut into regions, also told after a restart, before ``occupy``: a job whose placement
        names one is placed on its part only."""

    def regions(self) -> Mapping[str, Mapping[str, int]]:
        """Of each node by its name (on this machine: each core by its number) how many units belong to which
        region; nothing where the pool is not cut."""

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        """Start the current attempts of jobs with their environments; OSError for no room: none starts."""

    def ask(self, job: Entry, want: Want) -> None:
        """Hand request number ``job.request`` on."""

    def cap(self, jobs: Sequence[Entry], lower: bool) -> None:
        """Bring power caps of running jobs down (or up) to those of their placements, before it returns."""

    def rest_w(self) -> float:
        """What all nodes draw at rest, where the budget of the cluster is what is left beside that."""

    def recover(self, job: Entry) -> None:
        """After a restart: find out what became of the current attempt; a report follows, if it has ended."""

    def poll(self) -> list[Report]:
        """What has happened, without waiting."""

    def output(self, job: Entry, stream: Literal["stdout", "stderr"]) -> Path:
        """Where the job's output goes."""

    def state(self, job: Entry) -> RunState | None:
        """What runs of the current attempt, None before it has started."""

    def samples(self, job: Entry) -> list[Sample]:
        """What the current attempt has used over time."""

    def phases(self, job: Entry) -> list[Phase]:
        """What the job's program has noted of its checkpoints, all attempts; nothing if it does not."""

    def absent(self) -> Mapping[int, str]:
        """The nodes that cannot be used now, by number, and why; jobs may still be there."""

    def names(self) -> Sequence[str]:
        """What the nodes are called, by number; nothing where there is only this machine."""

    def out_of_service(self, pool: str) -> int:
        """Of a counted pool, the units that cannot be used now and that no job has."""

    def where(self, job: Entry) -> list[str]:
        """Names of the nodes that the job has; none where there is only this machine."""

    def hindrance(self, job: Entry) -> str:
        """Why a job that was started does not get on, as a sentence; "" if nothing is known to hinder it."""

    def urgent(self) -> bool:
        """Whether ``poll`` has something already."""

    def fileno(self) -> int:
        """Readable when ``poll`` has something."""

    def close(self) -> None:
        """Let go; what runs goes on."""
