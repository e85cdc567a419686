"""The files of jobs, the same under each engine that runs real jobs."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Literal

from agent.attempts import phases
from agent.attempts.folder import Attempt
from agent.attempts.records import RunState
from agent.processes.samples import Sample, read
from profiles.files.whole_files import write_whole
from scheduler.engines.common.supervisor_orders import Files
from scheduler.jobs.entry import Entry
from scheduler.jobs.files.output_patterns import expand


class JobFolders:
    """The files of jobs; job 7 has ``store/jobs/7``."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def folder(self, job_id: int) -> Path:
        """Return the folder of a job's output and attempts."""
        return self.store / "jobs" / str(job_id)

    def keep_script(self, name: str, content: bytes) -> Path:
        """Keep a script that jobs run, once for each content and name, as long as the store.

        Raises:
            OSError: the script cannot be written.
        """
        path = self.store / "scripts" / sha256(content).hexdigest()[:32] / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content, mode=0o700)
        return path

    def attempt(self, job: Entry) -> Attempt:
        """Return the folder of the current attempt."""
        return Attempt(self.folder(job.id) / f"attempt-{job.attempt}")

    def files(self, job: Entry) -> Files:
        """Name the files of a job for its supervisor."""
        return Files(self.folder(job.id), self.output(job, "stdout"), self.output(job, "stderr"))

    def output(self, job: Entry, stream: Literal["stdout", "stderr"]) -> Path:
        """Name the file with the job's output."""
        named: str = getattr(job.spec, stream)
        return Path(job.spec.folder, expand(named, job)) if named else self.folder(job.id) / stream

    def state(self, job: Entry) -> RunState | None:
        """Return what runs of the current attempt, None before it has started."""
        return self.attempt(job).state()

    def samples(self, job: Entry) -> list[Sample]:
        """Return what the current attempt has used over time."""
        return read(self.attempt(job).samples)

    def phases(self, job: Entry) -> list[phases.Phase]:
        """Return what the job's program has noted of its checkpoints, in all attempts."""
        return phases.read(self.folder(job.id))
