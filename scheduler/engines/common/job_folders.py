"""Where the files of jobs are, the same under each engine that runs real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from agent.attempts import phases
from agent.attempts.folder import Attempt
from agent.attempts.records import RunState
from agent.processes.samples import Sample, read
from scheduler.engines.common.supervisor_orders import Files
from scheduler.engines.external_jobs import ExternalJobSource
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec


class JobFolders:
    """What an engine can say of a job from its files; job 7 has ``store/jobs/7``."""

    store: Path
    external_jobs: ExternalJobSource | None = None

    def output(self, job: Entry, stream: Literal["stdout", "stderr"]) -> Path:
        named: str = getattr(job.spec, stream)
        return Path(job.spec.folder, named) if named else self._folder(job.id) / stream

    def check_paths(self, spec: JobSpec) -> None:
        """Paths are those of the nodes: a job that finds its own missing says so when it starts."""

    def state(self, job: Entry) -> RunState | None:
        return self._attempt(job).state()

    def samples(self, job: Entry) -> list[Sample]:
        return read(self._attempt(job).samples)

    def phases(self, job: Entry) -> list[phases.Phase]:
        return phases.read(self._folder(job.id))

    def _attempt(self, job: Entry) -> Attempt:
        return Attempt(self._folder(job.id) / f"attempt-{job.attempt}")

    def _files(self, job: Entry) -> Files:
        return Files(self._folder(job.id), self.output(job, "stdout"), self.output(job, "stderr"))

    def _folder(self, job_id: int) -> Path:
        """Where a job's output and attempts are."""
        return self.store / "jobs" / str(job_id)
